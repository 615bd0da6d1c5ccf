// Repacks stored matrices into panels, once, at load.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"

namespace headrace {

struct StoredMatrix {
  Format format;
  int rows;
  int depth;
  const std::uint8_t* data;
};

inline int num_panels(int rows) { return (rows + kPanelWidth - 1) / kPanelWidth; }

std::size_t panel_bytes(Format format, int depth);

// Write panel number `panel` of a matrix to zeroed memory; rows past the last stay zero.
void pack_panel(const StoredMatrix& matrix, int panel, std::uint8_t* out);

}  // namespace headrace
