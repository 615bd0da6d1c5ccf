// Repacks stored matrices into panels, once, at load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "kernels.h"

namespace headrace {

struct StoredMatrix {
  Format format;
  int rows;
  int depth;
  const std::uint8_t* data;
};

inline int num_panels(int rows) { return (rows + kPanelWidth - 1) / kPanelWidth; }

// What panels of a matrix hold, and how they are made.
struct PanelPacking {
  Format format;
  std::size_t panel_bytes;
  // Write panel number `panel` of a matrix to zeroed memory; rows past the last stay zero.
  std::function<void(const StoredMatrix& matrix, int panel, std::uint8_t* out)> pack;
};

// Weights as they are stored.
PanelPacking stored_packing(Format format, int depth);

}  // namespace headrace
