// Norms, sums and roundings of rows beside double arithmetic.
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu.h"
#include "harness.h"

namespace headrace::test {
namespace {

void check_norm_and_sum(const std::string& isa, int width) {
  const auto home = make_home(isa);
  const Matrix x = random_matrix(9, width, 1);
  const std::vector<float> weight = random_vector(width, 2);
  Matrix normed(x.rows, width), doubled(x.rows, width);
  for (int r = 0; r < x.rows; ++r) {
    double squares = 0;
    for (int i = 0; i < width; ++i) squares += double{x.row(r)[i]} * x.row(r)[i];
    const double scale = 1 / std::sqrt(squares / width + 1e-5);
    for (int i = 0; i < width; ++i) {
      normed.row(r)[i] =
          static_cast<float>(x.row(r)[i] * scale * weight[static_cast<std::size_t>(i)]);
      doubled.row(r)[i] = normed.row(r)[i] + x.row(r)[i];
    }
  }
  const auto norm = [&](Program& p, const Slot& rows) { return p.rms_norm(rows, weight, 1e-5f); };
  const auto both = [&](Program& p, const Slot& rows) { return p.add(norm(p, rows), rows); };
  const std::string name = isa + " row of " + std::to_string(width);
  const Matrix whole = run_rows(home, x, width, 9, norm);
  expect_close(whole, normed, 1e-6, name + " normed");
  expect_same_bits(run_rows(home, x, width, 1, norm), whole, name + " normed alone");
  expect_close(run_rows(home, x, width, 4, both), doubled, 1e-6, name + " added");
}

std::uint16_t nearest_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(x)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  const std::uint32_t low = bits & 0xffff, half = 0x8000;
  std::uint32_t high = bits >> 16;
  if (low > half || (low == half && high % 2 == 1)) ++high;
  return static_cast<std::uint16_t>(high);
}

void check_bf16(const std::string& isa) {
  const Kernels& kernels = kernels_by_name(isa);
  const float limit = std::numeric_limits<float>::infinity();
  for (int width : {1, 3, 16, 37}) {
    Matrix x = random_matrix(3, width, 3);
    const float special[] = {limit, -limit, std::nanf(""), 1.00390625f, 1.01171875f, -0.0f,
                             3.3961775e38f};
    for (int i = 0; i < width && i < 7; ++i) x.row(1)[i] = special[i];
    const int stride = (width + 31) / 32 * 32;
    std::vector<std::uint16_t> found(static_cast<std::size_t>(3 * stride), 1);
    kernels.round_rows(x.values.data(), width, width, found.data(), stride, 3);
    bool same = true;
    for (int r = 0; r < 3; ++r) {
      for (int i = 0; i < stride; ++i) {
        const std::uint16_t expected = i < width ? nearest_bf16(x.row(r)[i]) : 0;
        same = same && found[static_cast<std::size_t>(r * stride + i)] == expected;
      }
    }
    expect(same, isa + " rounds to bfloat16");
  }
}

}  // namespace

void sweep_rows(const std::string& isa) {
  for (int width : {1, 3, 16, 17, 63, 576, 1001}) check_norm_and_sum(isa, width);
  check_bf16(isa);
}

}  // namespace headrace::test
