#include "int8_packing.h"

#include <cstring>

#include "formats.h"
#include "thread_pool.h"

namespace headrace {
namespace {

constexpr int kQuad = 4;  // neighbours in k that lie side by side

std::size_t padded(int depth) {
  return static_cast<std::size_t>(depth + kInt8Block - 1) / kInt8Block * kInt8Block;
}

void pack_panel(const Int8Kernels& kernels, const StoredMatrix& m, int panel, std::uint8_t* out) {
  const std::size_t stored_bytes = row_bytes(m.format, m.depth);
  const std::size_t depth = padded(m.depth);
  auto* row = static_cast<float*>(thread_scratch(depth * (sizeof(float) + 1)));
  auto* codes = reinterpret_cast<std::uint8_t*>(row + depth);
  const int first = panel * kPanelWidth;
  for (int lane = 0; lane < kPanelWidth && first + lane < m.rows; ++lane) {
    dequantize_row(m.format, m.data + static_cast<std::size_t>(first + lane) * stored_bytes,
                   m.depth, row);
    float scale;
    kernels.quantize(row, m.depth, m.depth, 0, codes, static_cast<std::ptrdiff_t>(depth), &scale,
                     1);
    std::uint8_t* quads = out + kInt8WeightsAt + lane * kQuad;
    std::int32_t sum = 0;
    for (std::size_t k = 0; k < depth; k += kQuad, quads += kPanelWidth * kQuad) {
      std::memcpy(quads, codes + k, kQuad);
      for (int i = 0; i < kQuad; ++i) sum += static_cast<std::int8_t>(codes[k + i]);
    }
    // Modulo 2^32, as the sums that it is added to: their total always fits.
    const std::uint32_t correction = 0u - 128u * static_cast<std::uint32_t>(sum);
    std::memcpy(out + 4 * lane, &scale, sizeof scale);
    std::memcpy(out + kInt8CorrectionsAt + 4 * lane, &correction, sizeof correction);
  }
}

}  // namespace

PanelPacking int8_packing(const Int8Kernels& kernels, int depth) {
  return {Format::Int8, kInt8WeightsAt + padded(depth) * kPanelWidth,
          [&kernels](const StoredMatrix& matrix, int panel, std::uint8_t* out) {
            pack_panel(kernels, matrix, panel, out);
          }};
}

}  // namespace headrace
