// Reads the weights of a packed panel, two or four k at a time: float32 in lanes, or the quants of
// four k in the bytes of each lane. The only place that knows them, so every kernel sees the same.
#pragma once

#include "panel_layout.h"
#include "simd/vec.h"

namespace headrace {
namespace {

// Whether a row is a whole number of blocks; the others may end anywhere.
constexpr bool has_blocks(Format f) {
  return f != Format::F32 && f != Format::F16 && f != Format::BF16;
}
constexpr bool has_fifth_bit(Format f) {
  return f == Format::Q5_0 || f == Format::Q5_1 || f == Format::Q5_K;
}

// weight = scale * quant + offset, rounded once; the product alone is exact in float32 for every
// format, so this equals the unfused form.
template <Format F>
struct PanelReader {
  static constexpr PanelLayout kLayout = kPanelLayouts[static_cast<int>(F)];
  static constexpr int kBlockBytes = kLayout.block_bytes();
  static constexpr int kGroupBytes = kLayout.group_bytes();
  // k opened together, and k gone through between two calls of begin_span.
  static constexpr int kUnit = has_blocks(F) ? 4 : 2;
  static constexpr int kSpan = has_blocks(F) ? kBlockDepth / 2 : kBlockDepth;
  static constexpr int kSpans = kBlockDepth / kSpan;

  const std::uint8_t* panel = nullptr;
  const std::uint8_t* group = nullptr;
  const std::uint8_t* header = nullptr;
  const std::uint8_t* quants = nullptr;  // of the span
  vf scale[kVecs] = {};
  vf offset[kVecs] = {};
  vu high[kVecs];
  vu word[kVecs];  // quants of the unit, one in each byte

  void begin(int block) {
    group = panel + static_cast<std::ptrdiff_t>(block / kLayout.group_blocks) * kGroupBytes;
    header = group + kLayout.group_header + block % kLayout.group_blocks * kBlockBytes;
    for (int v = 0; v < kVecs; ++v) read_scales(v);
  }

  // Ask for the block that lies this far ahead.
  void prefetch(std::ptrdiff_t ahead) const {
    for (int line = 0; line < kBlockBytes; line += 64) __builtin_prefetch(header + ahead + line);
  }

  void begin_span(int span) {
    const std::uint8_t* codes = header + kLayout.block_header;
    quants = codes + span * (kLayout.quant_bytes / kSpans);
    for (int v = 0; v < kVecs; ++v) {
      const std::uint8_t* bits = codes + kLayout.quant_bytes + 4 * v * kLanes;
      if constexpr (has_fifth_bit(F)) {
        high[v] = load_as<vu>(bits) << (4 * span);
      } else if constexpr (F == Format::Q6_K) {
        high[v] = load_as<vu>(bits + span * 4 * kPanelWidth);
        const auto* shared = reinterpret_cast<const std::uint16_t*>(group) + v * kLanes;
        const std::uint8_t* own = header + span * kPanelWidth + v * kLanes;
        scale[v] = load_f16(shared) * to_float(load_i8(own));
        offset[v] = -32.0f * scale[v];
      }
    }
  }

  // Go to unit `u` of the span.
  void open(int u) {
    opened = u;
    if constexpr (F == Format::Q8_0) {
      for (int v = 0; v < kVecs; ++v) {
        word[v] = load_as<vu>(quants + 4 * (u * kPanelWidth + v * kLanes));
      }
    } else if constexpr (has_blocks(F)) {
      for (int v = 0; v < kVecs; ++v) {
        const vu nibbles = load_as<vu>(quants + 4 * (u / 2 * kPanelWidth + v * kLanes));
        word[v] = with_high(u % 2 ? nibbles >> 4 : nibbles, u, v);
      }
    }
  }

  // Weights of k = i in the open unit.
  vf weight(int i, int v) const {
    const int lane = v * kLanes, row = opened * kUnit + i;
    if constexpr (F == Format::F32) {
      return load(reinterpret_cast<const float*>(quants) + row * kPanelWidth + lane);
    } else if constexpr (F == Format::F16) {
      return load_f16(reinterpret_cast<const std::uint16_t*>(quants) + row * kPanelWidth + lane);
    } else if constexpr (F == Format::BF16) {
      const vu both = load_as<vu>(quants + 4 * (row / 2 * kPanelWidth + lane));
      return as_float(row % 2 ? both & 0xffff0000u : both << 16);
    } else if constexpr (F == Format::Q8_0) {
      const vi top = reinterpret_cast<vi>(i < kUnit - 1 ? word[v] << (24 - 8 * i) : word[v]);
      return scale[v] * to_float(top >> 24);
    } else {
      vu quant = i ? word[v] >> (8 * i) : word[v];
      if (i < kUnit - 1) quant &= 255;
      return fma(scale[v], to_float(reinterpret_cast<vi>(quant)), offset[v]);
    }
  }

 private:
  int opened = 0;

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
    }
  }

  // The low nibbles of the bytes, and above them the high bits of the unit.
  vu with_high(vu low, int u, int v) const {
    if constexpr (has_fifth_bit(F)) {
      return (low & 0x0f0f0f0fu) | ((high[v] >> u) & 0x10101010u);
    } else if constexpr (F == Format::Q6_K) {
      const vu bits = u < 2 ? high[v] >> (2 * u) : high[v] << (8 - 2 * u);
      return (low & 0x0f0f0f0fu) | (bits & 0x30303030u);
    } else {
      return low & 0x0f0f0f0fu;
    }
  }
};

// Go to a span of the panel, counted from its beginning. Call in order, from the first of a block.
template <Format F>
inline void go_to_span(PanelReader<F>& reader, int span) {
  constexpr int kSpans = PanelReader<F>::kSpans;
  if (span % kSpans == 0) reader.begin(span / kSpans);
  reader.begin_span(span % kSpans);
}

// body(u) for each unit of a span. Unrolled only where that makes shifts constant: elsewhere a
// small loop keeps its sums in registers better.
template <Format F, typename Body>
inline void for_units(Body&& body) {
  constexpr int kUnits = PanelReader<F>::kSpan / PanelReader<F>::kUnit;
  if constexpr (has_blocks(F)) {
#pragma GCC unroll 4
    for (int u = 0; u < kUnits; ++u) body(u);
  } else {
#pragma GCC unroll 1
    for (int u = 0; u < kUnits; ++u) body(u);
  }
}

// Blocks [first_block, first_block + num_blocks) of a panel as float32 [k][16].
template <Format F>
void unpack_panel(const std::uint8_t* panel, int first_block, int num_blocks, float* out) {
  PanelReader<F> reader;
  reader.panel = panel;
  constexpr int kSpans = PanelReader<F>::kSpans;
  for (int span = 0; span < kSpans * num_blocks; ++span) {
    go_to_span(reader, kSpans * first_block + span);
    for_units<F>([&](int u) {
      reader.open(u);
#pragma GCC unroll 4
      for (int i = 0; i < PanelReader<F>::kUnit; ++i) {
        for (int v = 0; v < kVecs; ++v) store(out + v * kLanes, reader.weight(i, v));
        out += kPanelWidth;
      }
    });
  }
}

}  // namespace
}  // namespace headrace
