#include "harness.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "formats.h"

namespace headrace::test {
namespace {

int checks = 0;
int findings = 0;

// Bytes of a block that hold float16 scales; random bits there would be infinities.
std::vector<int> scales_at(Format format) {
  switch (format) {
    case Format::Q8_0:
    case Format::Q4_0:
    case Format::Q5_0: return {0};
    case Format::Q4_1:
    case Format::Q5_1:
    case Format::Q4_K:
    case Format::Q5_K: return {0, 2};
    case Format::Q6_K: return {208};
    default: return {};
  }
}

}  // namespace

Matrix random_matrix(int rows, int columns, std::uint64_t seed) {
  Matrix m(rows, columns);
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (float& value : m.values) value = normal(random);
  return m;
}

std::vector<float> random_vector(int size, std::uint64_t seed) {
  return random_matrix(1, size, seed).values;
}

Matrix Weights::values() const {
  Matrix m(stored.rows, stored.depth);
  const std::size_t stride = row_bytes(stored.format, stored.depth);
  for (int r = 0; r < m.rows; ++r) {
    dequantize_row(stored.format, bytes.data() + static_cast<std::size_t>(r) * stride, m.columns,
                   m.row(r));
  }
  return m;
}

Weights random_weights(Format format, int rows, int columns, std::uint64_t seed) {
  const FormatInfo& info = format_info(format);
  const auto block_bytes = static_cast<std::size_t>(info.block_bytes);
  Weights w;
  w.bytes.resize(row_bytes(format, columns) * static_cast<std::size_t>(rows));
  w.stored = {format, rows, columns, w.bytes.data()};
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (std::size_t at = 0; at < w.bytes.size(); at += block_bytes) {
    std::uint8_t* block = w.bytes.data() + at;
    if (format == Format::F32) {
      const float value = normal(random);
      std::memcpy(block, &value, sizeof value);
    } else if (info.block_size == 1) {
      // An exponent near one, for either kind of 16 bits.
      const auto bits = static_cast<std::uint16_t>(
          format == Format::F16 ? 0x3000 | (random() & 0x8fff) : 0x3f00 | (random() & 0x80ff));
      std::memcpy(block, &bits, sizeof bits);
    } else {
      for (std::size_t i = 0; i < block_bytes; ++i) block[i] = static_cast<std::uint8_t>(random());
      for (int scale : scales_at(format)) {
        const auto bits = static_cast<std::uint16_t>(0x1c00 | (random() & 0x87ff));  // about 2^-8
        std::memcpy(block + scale, &bits, sizeof bits);
      }
    }
  }
  return w;
}

void expect(bool holds, const std::string& what) {
  ++checks;
  if (holds) return;
  if (++findings <= 40) std::printf("FAILED %s\n", what.c_str());
}

int num_findings() { return findings; }
int num_checks() { return checks; }

void expect_close(const Matrix& found, const Matrix& expected, double tolerance,
                  const std::string& what) {
  double largest = 0, difference = 0;
  bool comparable = found.values.size() == expected.values.size();
  for (std::size_t i = 0; comparable && i < found.values.size(); ++i) {
    const double theirs = expected.values[i], apart = std::abs(found.values[i] - theirs);
    if (!(apart >= 0)) comparable = false;  // NaN
    largest = std::max(largest, std::abs(theirs));
    difference = std::max(difference, apart);
  }
  expect(comparable && difference <= tolerance * largest,
         what + ": differs by " + std::to_string(difference / largest) + " of the largest");
}

void expect_same_bits(const Matrix& found, const Matrix& expected, const std::string& what) {
  expect(found.values.size() == expected.values.size() &&
             std::memcmp(found.values.data(), expected.values.data(),
                         found.values.size() * sizeof(float)) == 0,
         what + ": other bits");
}

std::shared_ptr<Home> make_home(const std::string& isa, int num_threads) {
  return std::make_shared<Home>(isa, num_threads);
}

double product_tolerance(const std::string& isa) {
  if (isa.starts_with("amx")) return 2e-2;
  return isa == "portable" ? 5e-6 : 5e-5;
}

std::shared_ptr<Table> table_of(const Matrix& x) {
  auto kept = std::make_shared<Matrix>(x);
  auto table = std::make_shared<Table>();
  table->owner = kept;
  table->data = reinterpret_cast<const std::uint8_t*>(kept->values.data());
  table->format = Format::F32;
  table->rows = x.rows;
  table->width = x.columns;
  return table;
}

std::unique_ptr<Executable> make_executable(const std::shared_ptr<Home>& home, int width,
                                            int max_rows,
                                            const std::function<Slot(Program&)>& forward) {
  auto program = std::make_shared<Program>(home);
  auto identity = std::make_shared<Program>(home);
  const Slot hidden = forward(*program);
  const Slot same = identity->input(width);
  return std::make_unique<Executable>(home, program, hidden, identity, same, same, width, width,
                                      max_rows);
}

Matrix run_rows(const std::shared_ptr<Home>& home, const Matrix& x, int width, int rows_at_once,
                const Operation& operation) {
  const auto table = table_of(x);
  const auto executable = make_executable(home, width, rows_at_once, [&](Program& program) {
    return operation(program, program.embedding(table, 1.0f));
  });
  Matrix result(x.rows, width);
  for (int begin = 0; begin < x.rows; begin += rows_at_once) {
    const int count = std::min(rows_at_once, x.rows - begin);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count)), numbers(ids.size());
    std::iota(ids.begin(), ids.end(), begin);
    std::iota(numbers.begin(), numbers.end(), 0);
    const std::int32_t starts[] = {0, count}, length = count;
    const Step step{count, 1, count, ids.data(), numbers.data(), numbers.data(), starts, &length,
                    numbers.data()};
    executable->forward(step);
    const Logits rows = executable->logits(numbers.data(), count);
    std::memcpy(result.row(begin), rows.memory->data(),
                sizeof(float) * static_cast<std::size_t>(count) * static_cast<std::size_t>(width));
  }
  return result;
}

}  // namespace headrace::test
