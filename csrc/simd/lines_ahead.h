// Lines of memory that products of many rows ask for while they compute, because the machine does
// not foresee them.
#pragma once

#include <algorithm>

#include "panel_layout.h"
#include "simd/vec.h"

namespace headrace {
namespace {

// Where results of some rows and panels go, and what is added to them. Rows lie far apart, so the
// machine does not foresee their lines: they are asked for while sums are still computed.
struct ResultLines {
  const LinearArgs& linear;
  int first_row;
  const PanelRef* panels;
  int num_panels;

  // Rows are counted from the first.
  void ask_for(int row, int past) const {
    const int step = linear.activation == Activation::None ? 1 : 2;
    for (int r = first_row + row; r < first_row + past; ++r) {
      for (int p = 0; p < num_panels; p += step) {
        const int column = panels[p].column;
        prefetch_to_write(linear.y + r * linear.y_stride + column);
        if (!linear.residual) continue;
        prefetch_to_read(linear.residual + r * linear.residual_stride + column);
      }
    }
  }
};

// The stretch of packed panels that is unpacked next, asked for bit by bit while rows are
// multiplied by the one before it.
struct NextStretch {
  const PanelRef* panels = nullptr;
  int num_panels = 0;
  int first_block = 0;
  int num_blocks = 0;

  // Rows [row, past) of `num_rows` ask for their share.
  void ask_for(int row, int past, int num_rows) const {
    for (int p = 0; p < num_panels; ++p) {
      const PanelLayout& layout = kPanelLayouts[static_cast<int>(panels[p].format)];
      const auto bytes_of = [&](int blocks) {  // stretches are whole groups
        return static_cast<std::ptrdiff_t>(blocks / layout.group_blocks) * layout.group_bytes();
      };
      const std::uint8_t* start = panels[p].data + bytes_of(first_block);
      const std::ptrdiff_t lines = bytes_of(num_blocks) / 64;
      for (std::ptrdiff_t i = lines * row / num_rows; i < lines * past / num_rows; ++i) {
        prefetch_to_second_cache(start + 64 * i);
      }
    }
  }
};

// What follows the stretch of `count` panels at `panel` that begins with `block`.
inline NextStretch stretch_after(const LinearArgs& a, int panel, int count, int panel_end,
                                 int block, int stretch) {
  const int num_blocks = (a.depth + kBlockDepth - 1) / kBlockDepth;
  if (block + stretch < num_blocks) {
    block += stretch;
  } else {
    block = 0;
    panel += count;
  }
  return {a.panels + panel, std::min(count, panel_end - panel), block,
          std::min(stretch, num_blocks - block)};
}

}  // namespace
}  // namespace headrace
