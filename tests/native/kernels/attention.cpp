// Rotation, the paged cache and attention beside a plain softmax in double, and every schedule of a
// sequence beside all of it at once.
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>

#include "harness.h"

namespace headrace::test {
namespace {

struct Case {
  const char* name;
  int heads, kv_heads, dim;
  std::vector<int> lengths;
  int window = INT_MAX;
  int block_size = 16;
  std::string dtype = "float16";
  int num_pairs = -1;
  bool norm = false;

  int pairs() const { return num_pairs < 0 ? dim / 2 : num_pairs; }
  int width() const { return (heads + 2 * kv_heads) * dim; }
};

// The nearest value with so many bits, of exponents not below a least one; ties to even.
double rounded(double x, int bits, int least_exponent) {
  if (x == 0) return x;
  int exponent;
  std::frexp(x, &exponent);
  const int unit = std::max(exponent, least_exponent) - bits;
  return std::ldexp(std::nearbyint(std::ldexp(x, -unit)), unit);
}

double stored(const std::string& dtype, double x) {
  if (dtype == "float16") return rounded(x, 11, -13);
  return dtype == "bfloat16" ? rounded(x, 8, -125) : x;
}

struct Sequences {
  const Case& c;
  Matrix qkv;
  std::vector<int> first_row;
  std::vector<float> inv_freq, q_norm, k_norm;

  explicit Sequences(const Case& of) : c(of) {
    int total = 0;
    for (int length : c.lengths) {
      first_row.push_back(total);
      total += length;
    }
    qkv = random_matrix(total, c.width(), 1);
    for (int i = 0; i < c.pairs(); ++i) {
      inv_freq.push_back(std::pow(100.0f, -static_cast<float>(i) / static_cast<float>(c.pairs())));
    }
    if (c.norm) {
      q_norm = random_vector(c.dim, 2);
      k_norm = random_vector(c.dim, 3);
    }
  }

  // A query or key head, normed and rotated.
  std::vector<double> head(int row, int position, int head, const std::vector<float>& norm) const {
    const float* x = qkv.row(row) + head * c.dim;
    std::vector<double> y(x, x + c.dim);
    if (!norm.empty()) {
      double squares = 0;
      for (double v : y) squares += v * v;
      const double scale = 1 / std::sqrt(squares / c.dim + 1e-6);
      for (std::size_t i = 0; i < y.size(); ++i) y[i] *= scale * norm[i];
    }
    for (int i = 0; i < c.pairs(); ++i) {
      const auto a = static_cast<std::size_t>(i), b = static_cast<std::size_t>(i + c.pairs());
      const float angle = static_cast<float>(position) * inv_freq[a];
      const double cos = std::cos(angle), sin = std::sin(angle), first = y[a], second = y[b];
      y[a] = first * cos - second * sin;
      y[b] = second * cos + first * sin;
    }
    return y;
  }
};

void attend(const Sequences& s, int sequence, int position, int head, float* out) {
  const Case& c = s.c;
  const int kv = head / (c.heads / c.kv_heads);
  const int start = s.first_row[static_cast<std::size_t>(sequence)];
  const std::vector<double> q = s.head(start + position, position, head, s.q_norm);
  const int first = position >= c.window ? position - c.window + 1 : 0;
  std::vector<double> scores;
  for (int p = first; p <= position; ++p) {
    const std::vector<double> key = s.head(start + p, p, c.heads + kv, s.k_norm);
    double score = 0;
    for (std::size_t i = 0; i < key.size(); ++i) score += q[i] * stored(c.dtype, key[i]);
    scores.push_back(score / std::sqrt(c.dim));
  }
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - largest);
  for (int i = 0; i < c.dim; ++i) {
    double value = 0;
    for (int p = first; p <= position; ++p) {
      const float v = s.qkv.row(start + p)[(c.heads + c.kv_heads + kv) * c.dim + i];
      value += scores[static_cast<std::size_t>(p - first)] * stored(c.dtype, v);
    }
    out[i] = static_cast<float>(value / sum);
  }
}

// Only every few positions: the oracle is slow, and the rest is compared bit by bit.
Matrix expected_rows(const Sequences& s, const std::vector<std::pair<int, int>>& chosen) {
  Matrix expected(static_cast<int>(chosen.size()), s.c.heads * s.c.dim);
  for (int r = 0; r < expected.rows; ++r) {
    const auto [sequence, position] = chosen[static_cast<std::size_t>(r)];
    for (int h = 0; h < s.c.heads; ++h) {
      attend(s, sequence, position, h, expected.row(r) + h * s.c.dim);
    }
  }
  return expected;
}

// All sequences, `chunk` tokens of each in every step, into blocks that lie in no order.
Matrix run(const Sequences& s, const std::string& isa, int num_threads, int chunk) {
  const Case& c = s.c;
  const auto home = make_home(isa, num_threads);
  const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const int each = (longest + c.block_size - 1) / c.block_size;
  const int num_seqs = static_cast<int>(c.lengths.size()), num_blocks = each * num_seqs;
  const auto cache = home->make_cache(num_blocks, c.block_size, c.kv_heads, c.dim, c.dtype);
  const auto table = table_of(s.qkv);
  const int out = c.heads * c.dim;
  const auto executable = make_executable(home, out, s.qkv.rows, [&](Program& p) {
    const Slot x = p.embedding(table, 1.0f), rope = p.rope(s.inv_freq, 1.0f);
    const Slot q = p.rope_and_cache(x, rope, cache, c.heads, c.kv_heads, c.dim, s.q_norm, s.k_norm,
                                    1e-6f);
    return p.attention(q, cache, c.heads, c.kv_heads, c.dim,
                       1 / std::sqrt(static_cast<float>(c.dim)), c.window);
  });
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(num_blocks));
  for (int b = 0; b < num_blocks; ++b) blocks[static_cast<std::size_t>(b)] = num_blocks - 1 - b;

  Matrix result(s.qkv.rows, out);
  for (int done = 0; done < longest; done += chunk) {
    std::vector<std::int32_t> ids, positions, slots, starts{0}, lengths;
    for (int seq = 0; seq < num_seqs; ++seq) {
      const int length = c.lengths[static_cast<std::size_t>(seq)];
      const int end = std::min(done + chunk, length);
      for (int p = done; p < end; ++p) {
        ids.push_back(s.first_row[static_cast<std::size_t>(seq)] + p);
        positions.push_back(p);
        slots.push_back(blocks[static_cast<std::size_t>(seq * each + p / c.block_size)] *
                            c.block_size + p % c.block_size);
      }
      starts.push_back(static_cast<std::int32_t>(ids.size()));
      lengths.push_back(std::min(done + chunk, length));
    }
    const int count = static_cast<int>(ids.size());
    executable->forward({count, num_seqs, each, ids.data(), positions.data(), slots.data(),
                         starts.data(), lengths.data(), blocks.data()});
    std::vector<std::int32_t> all(ids.size());
    for (int r = 0; r < count; ++r) all[static_cast<std::size_t>(r)] = r;
    const Logits rows = executable->logits(all.data(), count);
    for (int r = 0; r < count; ++r) {
      std::memcpy(result.row(ids[static_cast<std::size_t>(r)]),
                  static_cast<const float*>(rows.memory->data()) + r * out,
                  sizeof(float) * static_cast<std::size_t>(out));
    }
  }
  return result;
}

void check(const std::string& isa, const Case& c) {
  const Sequences s(c);
  const std::string name = isa + " attention, " + c.name;
  const int longest = *std::max_element(c.lengths.begin(), c.lengths.end());
  const Matrix whole = run(s, isa, 2, longest);

  std::vector<std::pair<int, int>> chosen;
  for (int seq = 0; seq < static_cast<int>(c.lengths.size()); ++seq) {
    const int length = c.lengths[static_cast<std::size_t>(seq)];
    const int step = length > 200 ? 157 : 5;
    for (int p = (length - 1) % step; p < length; p += step) chosen.emplace_back(seq, p);
  }
  Matrix found(static_cast<int>(chosen.size()), whole.columns);
  for (int r = 0; r < found.rows; ++r) {
    const auto [sequence, position] = chosen[static_cast<std::size_t>(r)];
    const float* row = whole.row(s.first_row[static_cast<std::size_t>(sequence)] + position);
    std::copy(row, row + whole.columns, found.row(r));
  }
  // A rotated key may lie on either side of a rounding border.
  const double tolerance = c.dtype == "float32" ? 1e-5 : c.dtype == "float16" ? 1e-3 : 1e-2;
  expect_close(found, expected_rows(s, chosen), tolerance, name);
  for (int chunk : longest > 500 ? std::vector<int>{200, 512} : std::vector<int>{1, 3, 16}) {
    expect_same_bits(run(s, isa, 2, chunk), whole, name + " by " + std::to_string(chunk));
  }
  expect_same_bits(run(s, isa, 5, longest), whole, name + " on 5 threads");
}

}  // namespace

void sweep_attention(const std::string& isa) {
  const Case cases[] = {
      {.name = "one head", .heads = 1, .kv_heads = 1, .dim = 32, .lengths = {7}},
      {.name = "grouped by 3", .heads = 9, .kv_heads = 3, .dim = 64, .lengths = {1, 70, 16}},
      {.name = "grouped by 8, norm", .heads = 8, .kv_heads = 1, .dim = 128, .lengths = {33, 5},
       .norm = true},
      {.name = "wide heads, window", .heads = 4, .kv_heads = 1, .dim = 256, .lengths = {70},
       .window = 20, .norm = true},
      {.name = "odd heads, partial rotation", .heads = 6, .kv_heads = 2, .dim = 80,
       .lengths = {40}, .num_pairs = 16},
      {.name = "heads of 20", .heads = 2, .kv_heads = 2, .dim = 20, .lengths = {50},
       .dtype = "float32"},
      {.name = "small blocks", .heads = 4, .kv_heads = 2, .dim = 64, .lengths = {61, 13},
       .window = 9, .block_size = 8},
      {.name = "small blocks of heads of 20", .heads = 3, .kv_heads = 1, .dim = 20,
       .lengths = {40}, .block_size = 8, .dtype = "bfloat16"},
      {.name = "bfloat16", .heads = 4, .kv_heads = 2, .dim = 64, .lengths = {61, 13},
       .dtype = "bfloat16"},
      {.name = "large blocks", .heads = 4, .kv_heads = 4, .dim = 32, .lengths = {130, 3},
       .window = 64, .block_size = 64},
      {.name = "partitions", .heads = 3, .kv_heads = 1, .dim = 32, .lengths = {1100, 513}},
  };
  for (const Case& c : cases) check(isa, c);
}

}  // namespace headrace::test
