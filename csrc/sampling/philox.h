// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (2011). Pure functions: the same key and counter, the same numbers.
#pragma once

#include <array>
#include <cstdint>

namespace headrace::sampling {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

inline PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// The draw for token number `index` of the request with this seed: uniform in (0, 1), never 0 or 1.
inline double uniform(std::uint64_t seed, std::uint64_t index) {
  const PhiloxCounter out = philox4x32_10(
      {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0},
      {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  const std::uint64_t bits = (std::uint64_t{out[1]} << 32 | out[0]) >> 12;
  // 52 bits and a half step: every value is exact in a double, and the largest is below 1.
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace headrace::sampling
