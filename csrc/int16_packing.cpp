#include "int16_packing.h"

#include "formats.h"
#include "thread_pool.h"

namespace headrace {
namespace {

void pack_panel(const Int16Kernels& kernels, const StoredMatrix& m, int panel, std::uint8_t* out) {
  const std::size_t stored_bytes = row_bytes(m.format, m.depth);
  auto* row = static_cast<float*>(
      thread_scratch(static_cast<std::size_t>(m.depth) * sizeof(float)));
  const int first = panel * kPanelWidth;
  for (int lane = 0; lane < kPanelWidth && first + lane < m.rows; ++lane) {
    dequantize_row(m.format, m.data + static_cast<std::size_t>(first + lane) * stored_bytes,
                   m.depth, row);
    kernels.pack(row, m.depth, lane, out);
  }
}

}  // namespace

bool fits_int16(const StoredMatrix& matrix) {
  return matrix.format == Format::BF16 && matrix.depth % kBlockDepth == 0;
}

PanelPacking int16_packing(const Int16Kernels& kernels, int depth) {
  const std::size_t bytes = static_cast<std::size_t>(int16_weights_at(depth)) +
                            static_cast<std::size_t>(depth / kBlockDepth) * kInt16BlockBytes;
  return {Format::Int16, bytes,
          [&kernels](const StoredMatrix& matrix, int panel, std::uint8_t* out) {
            pack_panel(kernels, matrix, panel, out);
          }};
}

}  // namespace headrace
