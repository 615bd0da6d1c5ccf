// Reads the weights of a packed panel, two steps of k at a time, as float32 in lanes. The only
// place that turns quants into values, so every kernel sees the same ones.
#pragma once

#include "panel_layout.h"
#include "simd/vec.h"

namespace headrace {
namespace {

// Whether a row is a whole number of blocks; the others may end anywhere.
constexpr bool has_blocks(Format f) {
  return f != Format::F32 && f != Format::F16 && f != Format::BF16;
}
constexpr bool has_nibbles(Format f) { return has_blocks(f) && f != Format::Q8_0; }
constexpr bool has_fifth_bit(Format f) {
  return f == Format::Q5_0 || f == Format::Q5_1 || f == Format::Q5_K;
}

// weight = scale * quant + offset. The product is exact in float32 for every format, so this
// equals the unfused form.
template <Format F>
struct PanelReader {
  static constexpr PanelLayout kLayout = kPanelLayouts[static_cast<int>(F)];
  static constexpr int kBlockBytes = kLayout.block_bytes();
  static constexpr int kGroupBytes = kLayout.group_bytes();

  const std::uint8_t* panel;
  const std::uint8_t* group;
  const std::uint8_t* header;
  const std::uint8_t* quants;
  vf scale[kVecs];
  vf offset[kVecs];
  vu high[kVecs];

  void begin(int block) {
    group = panel + static_cast<std::ptrdiff_t>(block / kLayout.group_blocks) * kGroupBytes;
    header = group + kLayout.group_header + block % kLayout.group_blocks * kBlockBytes;
    quants = header + kLayout.block_header;
    for (int v = 0; v < kVecs; ++v) read_scales(v);
  }

  // Weights of k = 2j (w[0]) and 2j + 1 (w[1]) in the block. Call with j rising from 0.
  void pair(int j, vf (&w)[2][kVecs]) {
    if constexpr (F == Format::Q6_K) {
      if (j == 8) {
        for (int v = 0; v < kVecs; ++v) read_sixteen(1, v);
      }
    }
    for (int v = 0; v < kVecs; ++v) {
      const int lane = v * kLanes;
      if constexpr (F == Format::F32) {
        const float* row = reinterpret_cast<const float*>(quants) + 2 * j * kPanelWidth + lane;
        w[0][v] = load(row);
        w[1][v] = load(row + kPanelWidth);
      } else if constexpr (F == Format::F16) {
        const auto* row =
            reinterpret_cast<const std::uint16_t*>(quants) + 2 * j * kPanelWidth + lane;
        w[0][v] = load_f16(row);
        w[1][v] = load_f16(row + kPanelWidth);
      } else if constexpr (F == Format::BF16) {
        const vu both = load_as<vu>(quants + 4 * (j * kPanelWidth + lane));
        w[0][v] = as_float(both << 16);
        w[1][v] = as_float(both & 0xffff0000u);
      } else if constexpr (F == Format::Q8_0) {
        const std::uint8_t* row = quants + 2 * j * kPanelWidth + lane;
        w[0][v] = scale[v] * to_float(load_i8(row));
        w[1][v] = scale[v] * to_float(load_i8(row + kPanelWidth));
      } else {
        const vi both = load_u8(quants + j * kPanelWidth + lane);
        w[0][v] = fma(scale[v], to_float(with_high(both & 15, v)), offset[v]);
        w[1][v] = fma(scale[v], to_float(with_high(both >> 4, v)), offset[v]);
      }
    }
  }

 private:
  void read_scales(int v) {
    const auto* halves = reinterpret_cast<const std::uint16_t*>(header) + v * kLanes;
    if constexpr (F == Format::Q8_0) {
      scale[v] = load_f16(halves);
    } else if constexpr (F == Format::Q4_0 || F == Format::Q5_0) {
      scale[v] = load_f16(halves);
      offset[v] = scale[v] * (F == Format::Q4_0 ? -8.0f : -16.0f);
    } else if constexpr (F == Format::Q4_1 || F == Format::Q5_1) {
      scale[v] = load_f16(halves);
      offset[v] = load_f16(halves + kPanelWidth);
    } else if constexpr (F == Format::Q4_K || F == Format::Q5_K) {
      const auto* shared = reinterpret_cast<const std::uint16_t*>(group) + v * kLanes;
      const std::uint8_t* own = header + v * kLanes;
      scale[v] = load_f16(shared) * to_float(load_u8(own));
      offset[v] = -(load_f16(shared + kPanelWidth) * to_float(load_u8(own + kPanelWidth)));
    } else if constexpr (F == Format::Q6_K) {
      read_sixteen(0, v);
    }
    if constexpr (has_fifth_bit(F)) {
      high[v] = load_as<vu>(quants + kLayout.quant_bytes + 4 * v * kLanes);
    }
  }

  // Q6_K: the scale and the high bits of the first or second 16 k.
  void read_sixteen(int half, int v) {
    const auto* shared = reinterpret_cast<const std::uint16_t*>(group) + v * kLanes;
    const std::uint8_t* own = header + half * kPanelWidth + v * kLanes;
    scale[v] = load_f16(shared) * to_float(load_i8(own));
    offset[v] = -32.0f * scale[v];
    high[v] = load_as<vu>(quants + kLayout.quant_bytes + 4 * (half * kPanelWidth + v * kLanes));
  }

  vi with_high(vi low, int v) {
    if constexpr (has_fifth_bit(F)) {
      const vi bit = reinterpret_cast<vi>((high[v] & 1) << 4);
      high[v] >>= 1;
      return low | bit;
    } else if constexpr (F == Format::Q6_K) {
      const vi bits = reinterpret_cast<vi>((high[v] & 3) << 4);
      high[v] >>= 2;
      return low | bits;
    } else {
      return low;
    }
  }
};

// Blocks [first_block, first_block + num_blocks) of a panel as float32 [k][16].
template <Format F>
void unpack_panel(const std::uint8_t* panel, int first_block, int num_blocks, float* out) {
  PanelReader<F> reader;
  reader.panel = panel;
  for (int block = 0; block < num_blocks; ++block) {
    reader.begin(first_block + block);
    for (int j = 0; j < kBlockDepth / 2; ++j) {
      vf w[2][kVecs];
      reader.pair(j, w);
      for (int v = 0; v < kVecs; ++v) {
        store(out + v * kLanes, w[0][v]);
        store(out + kPanelWidth + v * kLanes, w[1][v]);
      }
      out += 2 * kPanelWidth;
    }
  }
}

}  // namespace
}  // namespace headrace
