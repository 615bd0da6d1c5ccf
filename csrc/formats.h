// The storage formats of weights: their blocks taken apart, and rows read as float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels.h"

namespace headrace {

struct FormatInfo {
  const char* name;
  int block_size;   // weights
  int block_bytes;
};

const FormatInfo& format_info(Format format);

// Throws std::invalid_argument for an unknown name.
Format format_by_name(const std::string& name);

std::size_t row_bytes(Format format, int width);

// One stored block of a quantised format. A weight is d * scale * code + offset, where scale and
// offset depend on the format; see `dequantize_row`.
struct StoredBlock {
  std::uint8_t codes[256];   // unsigned, in order of k (signed bytes for Q8_0)
  std::uint16_t d;           // float16 bits
  std::uint16_t m;           // float16 bits of the minimum (Q4_1, Q5_1) or of its scale (K formats)
  std::uint8_t scales[16];   // per 32 weights (Q4_K, Q5_K) or per 16, signed (Q6_K)
  std::uint8_t minimums[8];
};

void read_block(Format format, const std::uint8_t* bytes, StoredBlock& block);

void dequantize_row(Format format, const std::uint8_t* row, int width, float* out);

}  // namespace headrace
