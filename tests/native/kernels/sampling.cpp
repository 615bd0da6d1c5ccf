// The passes of the sampler over rows that end with their memory, beside plain loops.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "harness.h"
#include "sampling/row_passes.h"

namespace headrace::test {
namespace {

using sampling::kBlock;

void check_row(const sampling::RowPasses& passes, const std::vector<float>& x,
               const std::string& name) {
  const std::size_t n = x.size(), blocks = sampling::num_blocks(n);
  std::vector<float> maxima(blocks), sums(blocks), weights(n);
  const float largest = *std::max_element(x.begin(), x.end());
  expect(passes.block_max(x.data(), n, maxima.data()) == largest, name + " maximum");
  const sampling::WeightRule rule{largest, 1.7f, -126.0f};
  const double sum = passes.block_sums(x.data(), n, maxima.data(), rule, sums.data());
  passes.weights(x.data(), n, rule, weights.data());

  double expected_sum = 0;
  bool maxima_right = true, weights_right = true;
  for (std::size_t i = 0; i < n; ++i) {
    const double z = (double{x[i]} - largest) * 1.7f;
    const double weight = z < -126 ? 0 : std::exp2(z);
    expected_sum += weight;
    weights_right = weights_right && std::abs(weights[i] - weight) <= 1e-5 * weight + 1e-37;
  }
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto begin = x.begin() + static_cast<std::ptrdiff_t>(b * kBlock);
    const auto end = x.begin() + static_cast<std::ptrdiff_t>(std::min(n, (b + 1) * kBlock));
    maxima_right = maxima_right && maxima[b] == *std::max_element(begin, end);
  }
  expect(maxima_right, name + " maxima of blocks");
  expect(weights_right, name + " weights");
  expect(std::abs(sum - expected_sum) <= 1e-5 * expected_sum, name + " sum");

  const float bound = x[n / 2];
  const auto above = std::count_if(x.begin(), x.end(), [&](float v) { return v > bound; });
  expect(passes.count_greater(x.data(), n, bound) == static_cast<std::size_t>(above),
         name + " count");
  const std::size_t begin = n / 3;
  std::vector<std::int32_t> indices(n - begin);
  std::vector<float> values(n - begin);
  const std::size_t found =
      passes.collect(x.data(), begin, n, bound, indices.data(), values.data());
  std::size_t place = 0;
  bool collected = true;
  for (std::size_t i = begin; i < n; ++i) {
    if (!(x[i] >= bound)) continue;
    collected = collected && place < found && indices[place] == static_cast<std::int32_t>(i) &&
                values[place] == x[i];
    ++place;
  }
  expect(collected && place == found, name + " candidates");
}

}  // namespace

void sweep_sampling(bool portable) {
  const auto& passes = portable ? sampling::portable_passes() : sampling::best_passes();
  const std::string isa = portable ? "portable" : "best";
  for (int n : {1, 2, 15, 16, 17, 100, 255, 256, 257, 600, 1030, 49152}) {
    std::vector<float> x = random_vector(n, 5);
    const std::string name = isa + " row of " + std::to_string(n);
    check_row(passes, x, name);
    for (float& value : x) value = std::round(value);
    check_row(passes, x, name + " with ties");
    for (std::size_t i = 1; i < x.size(); i += 2) x[i] = -std::numeric_limits<float>::infinity();
    check_row(passes, x, name + " with holes");
    x[x.size() / 2] = std::nanf("");
    std::vector<float> maxima(sampling::num_blocks(x.size()));
    expect(std::isnan(passes.block_max(x.data(), x.size(), maxima.data())), name + " with a NaN");
  }
}

}  // namespace headrace::test
