// Matrix products of every format beside sums in double, and each row alone beside it in a batch.
#include <cmath>

#include "formats.h"
#include "harness.h"

namespace headrace::test {
namespace {

constexpr Format kAllFormats[] = {Format::F32,  Format::F16,  Format::BF16, Format::Q8_0,
                                  Format::Q4_0, Format::Q4_1, Format::Q5_0, Format::Q5_1,
                                  Format::Q4_K, Format::Q5_K, Format::Q6_K};

Matrix product(const Matrix& x, const Matrix& w) {
  Matrix y(x.rows, w.rows);
  for (int r = 0; r < x.rows; ++r) {
    for (int n = 0; n < w.rows; ++n) {
      double sum = 0;
      for (int k = 0; k < x.columns; ++k) sum += double{x.row(r)[k]} * w.row(n)[k];
      y.row(r)[n] = static_cast<float>(sum);
    }
  }
  return y;
}

double activated(const std::string& activation, double x) {
  if (activation == "silu") return x / (1 + std::exp(-x));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// A number of columns that the format can have, near an odd one.
int depth_near(Format format, int odd) {
  const int block = format_info(format).block_size;
  return std::max(odd / block, 1) * block;
}

std::string name_of(const std::string& isa, Format format, int rows, int outputs, int depth) {
  return isa + " linear " + format_info(format).name + " " + std::to_string(rows) + " x " +
         std::to_string(outputs) + " x " + std::to_string(depth);
}

void check_format(const std::string& isa, Format format) {
  const auto home = make_home(isa);
  struct Shape {
    int rows, outputs, odd;
  };
  constexpr Shape kShapes[] = {
      {1, 17, 45}, {5, 16, 291}, {23, 49, 530}, {35, 33, 1200}, {70, 83, 1}};
  for (const Shape& s : kShapes) {
    const int depth = depth_near(format, s.odd);
    const Weights weights = random_weights(format, s.outputs, depth, 1);
    const Matrix x = random_matrix(s.rows, depth, 2);
    const std::vector<float> bias = random_vector(s.outputs, 3);
    const auto linear = home->prepare_linear({weights.stored}, Rounding::None);
    Matrix expected = product(x, weights.values());
    for (int r = 0; r < s.rows; ++r) {
      for (int n = 0; n < s.outputs; ++n) expected.row(r)[n] += bias[static_cast<std::size_t>(n)];
    }
    const auto run = [&](int rows_at_once) {
      return run_rows(home, x, s.outputs, rows_at_once,
                      [&](Program& p, const Slot& rows) { return p.linear(rows, linear, bias); });
    };
    const std::string name = name_of(isa, format, s.rows, s.outputs, depth);
    const Matrix whole = run(s.rows);
    expect_close(whole, expected, product_tolerance(isa), name);
    for (int at_once : {1, 2, 3, 4, 6, 13, 33}) {
      if (at_once >= s.rows) break;
      expect_same_bits(run(at_once), whole, name + " by " + std::to_string(at_once));
    }
  }
}

void check_gated(const std::string& isa, Format gate_format, Format up_format,
                 const std::string& activation) {
  const auto home = make_home(isa);
  const Weights gate = random_weights(gate_format, 83, 256, 4);
  const Weights up = random_weights(up_format, 83, 256, 5);
  const Matrix x = random_matrix(37, 256, 6);
  const auto linear = home->prepare_gated(gate.stored, up.stored, Rounding::None);
  Matrix expected = product(x, gate.values());
  const Matrix others = product(x, up.values());
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    expected.values[i] =
        static_cast<float>(activated(activation, expected.values[i]) * others.values[i]);
  }
  const auto run = [&](int rows_at_once) {
    return run_rows(home, x, 83, rows_at_once, [&](Program& p, const Slot& rows) {
      return p.gated_linear(rows, linear, activation);
    });
  };
  const std::string name = isa + " gated " + format_info(gate_format).name + " " + activation;
  const Matrix whole = run(37);
  expect_close(whole, expected, 4 * product_tolerance(isa), name);
  for (int at_once : {1, 4, 17}) expect_same_bits(run(at_once), whole, name);
}

// Rows as int8 and what they are worth, as the int8 kernels take them.
Matrix quantised(const Matrix& x) {
  Matrix y(x.rows, x.columns);
  for (int r = 0; r < x.rows; ++r) {
    double largest = 0;
    for (int k = 0; k < x.columns; ++k) largest = std::max(largest, std::abs(double{x.row(r)[k]}));
    const double scale = largest / 127;
    for (int k = 0; k < x.columns; ++k) {
      y.row(r)[k] = static_cast<float>(std::nearbyint(x.row(r)[k] / scale) * scale);
    }
  }
  return y;
}

void check_int8(const std::string& isa, int num_rows, int outputs, int depth) {
  const auto home = make_home(isa);
  const Weights weights = random_weights(Format::BF16, outputs, depth, 12);
  const Matrix x = random_matrix(num_rows, depth, 13);
  const auto linear = home->prepare_linear({weights.stored}, Rounding::Int8);
  const auto run = [&](int rows_at_once) {
    return run_rows(home, x, outputs, rows_at_once,
                    [&](Program& p, const Slot& rows) { return p.linear(rows, linear, {}); });
  };
  const std::string name = isa + " int8 of " + std::to_string(num_rows) + " rows";
  const Matrix whole = run(num_rows);
  // A value in the middle between two integers may go to either.
  expect_close(whole, product(quantised(x), quantised(weights.values())), 5e-3, name);
  for (int at_once : {1, 3, 6, 21}) {
    if (at_once < num_rows) expect_same_bits(run(at_once), whole, name);
  }
}

void check_residual_and_parts(const std::string& isa) {
  const auto home = make_home(isa);
  std::vector<Weights> parts;
  parts.push_back(random_weights(Format::Q4_K, 40, 256, 7));
  parts.push_back(random_weights(Format::Q6_K, 9, 256, 8));
  parts.push_back(random_weights(Format::F32, 191, 256, 9));
  parts.push_back(random_weights(Format::BF16, 16, 256, 10));
  std::vector<StoredMatrix> stored;
  Matrix all(256, 256);
  int row = 0;
  for (const Weights& part : parts) {
    stored.push_back(part.stored);
    const Matrix values = part.values();
    std::copy(values.values.begin(), values.values.end(), all.row(row));
    row += values.rows;
  }
  const auto linear = home->prepare_linear(stored, Rounding::None);
  for (int rows : {1, 3, 20}) {
    const Matrix x = random_matrix(rows, 256, 11);
    Matrix expected = product(x, all);
    for (std::size_t i = 0; i < x.values.size(); ++i) expected.values[i] += x.values[i];
    const Matrix found = run_rows(home, x, 256, rows, [&](Program& p, const Slot& slot) {
      return p.add(slot, p.linear(slot, linear, {}));
    });
    expect_close(found, expected, product_tolerance(isa), isa + " parts and a residual");
  }
}

}  // namespace

void sweep_linear(const std::string& isa) {
  for (Format format : kAllFormats) check_format(isa, format);
  for (const char* activation : {"silu", "gelu_tanh"}) {
    check_gated(isa, Format::BF16, Format::BF16, activation);
    check_gated(isa, Format::Q4_1, Format::Q4_1, activation);
    check_gated(isa, Format::Q4_K, Format::Q6_K, activation);
  }
  check_residual_and_parts(isa);
  check_int8(isa, 1, 17, 45);
  check_int8(isa, 7, 33, 130);
  check_int8(isa, 67, 50, 321);
}

}  // namespace headrace::test
