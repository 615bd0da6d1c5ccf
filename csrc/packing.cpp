#include "packing.h"

#include <cstring>

#include "formats.h"
#include "panel_layout.h"

namespace headrace {
namespace {

template <typename T>
void put(std::uint8_t* out, int index, T value) {
  std::memcpy(out + static_cast<std::size_t>(index) * sizeof value, &value, sizeof value);
}

// F32 and F16: [k][16].
template <typename T>
void pack_values(const std::uint8_t* row, int depth, int lane, std::uint8_t* out) {
  for (int k = 0; k < depth; ++k) {
    T value;
    std::memcpy(&value, row + static_cast<std::size_t>(k) * sizeof value, sizeof value);
    put(out, k * kPanelWidth + lane, value);
  }
}

// BF16: [k / 2][16][2].
void pack_pairs(const std::uint8_t* row, int depth, int lane, std::uint8_t* out) {
  for (int k = 0; k < depth; k += 2) {
    std::uint32_t pair = 0;
    std::memcpy(&pair, row + 2 * static_cast<std::size_t>(k), k + 1 < depth ? 4 : 2);
    put(out, k / 2 * kPanelWidth + lane, pair);
  }
}

// The share of one output lane in the group header and in the header of block b of the group.
void pack_headers(Format format, const StoredBlock& block, int b, int lane, std::uint8_t* group,
                  std::uint8_t* header) {
  switch (format) {
    case Format::Q4_1:
    case Format::Q5_1:
      put(header, kPanelWidth + lane, block.m);
      [[fallthrough]];
    case Format::Q8_0:
    case Format::Q4_0:
    case Format::Q5_0:
      put(header, lane, block.d);
      break;
    case Format::Q6_K:
      put(group, lane, block.d);
      put(header, lane, block.scales[2 * b]);
      put(header, kPanelWidth + lane, block.scales[2 * b + 1]);
      break;
    default:  // Q4_K, Q5_K
      put(group, lane, block.d);
      put(group, kPanelWidth + lane, block.m);
      put(header, lane, block.scales[b]);
      put(header, kPanelWidth + lane, block.minimums[b]);
  }
}

// 32 codes of one lane in words of four bytes: bytes of four k, or nibbles of eight and their high
// bits apart. Four codes are handled at once, as the word they are in memory.
void pack_words(const PanelLayout& layout, const std::uint8_t* codes, int lane,
                std::uint8_t* quants) {
  constexpr int kQuads = kBlockDepth / 4;
  std::uint32_t quads[kQuads];
  std::memcpy(quads, codes, sizeof quads);
  if (layout.quant_bytes == kBlockDepth * kPanelWidth) {
    for (int q = 0; q < kQuads; ++q) put(quants, q * kPanelWidth + lane, quads[q]);
    return;
  }
  constexpr std::uint32_t kNibbles = 0x0f0f0f0f;
  for (int q = 0; q < kQuads; q += 2) {
    const std::uint32_t word = (quads[q] & kNibbles) | (quads[q + 1] & kNibbles) << 4;
    put(quants, q / 2 * kPanelWidth + lane, word);
  }
  const int bits = layout.high_bytes * 8 / (kBlockDepth * kPanelWidth);  // high ones of a code
  if (bits == 0) return;
  const std::uint32_t mask = bits == 1 ? 0x01010101 : 0x03030303;
  for (int q = 0; q < kQuads;) {
    std::uint32_t word = 0;
    const int index = q * bits / 8;
    for (; q < kQuads && q * bits / 8 == index; ++q) {
      word |= (quads[q] >> 4 & mask) << (4 + q * bits) % 8;
    }
    put(quants + layout.quant_bytes, index * kPanelWidth + lane, word);
  }
}

void pack_blocks(Format format, const std::uint8_t* row, int depth, int lane, std::uint8_t* out) {
  const PanelLayout& layout = kPanelLayouts[static_cast<int>(format)];
  const FormatInfo& info = format_info(format);
  StoredBlock block;
  for (int k = 0; k < depth; k += info.block_size, row += info.block_bytes) {
    read_block(format, row, block);
    std::uint8_t* header = out + layout.group_header;
    for (int b = 0; b < layout.group_blocks; ++b, header += layout.block_bytes()) {
      pack_headers(format, block, b, lane, out, header);
      const std::uint8_t* codes = block.codes + b * kBlockDepth;
      pack_words(layout, codes, lane, header + layout.block_header);
    }
    out += layout.group_bytes();
  }
}

void pack_panel(const StoredMatrix& m, int panel, std::uint8_t* out) {
  const std::size_t stride = row_bytes(m.format, m.depth);
  const int first = panel * kPanelWidth;
  for (int lane = 0; lane < kPanelWidth && first + lane < m.rows; ++lane) {
    const std::uint8_t* row = m.data + static_cast<std::size_t>(first + lane) * stride;
    switch (m.format) {
      case Format::F32: pack_values<std::uint32_t>(row, m.depth, lane, out); break;
      case Format::F16: pack_values<std::uint16_t>(row, m.depth, lane, out); break;
      case Format::BF16: pack_pairs(row, m.depth, lane, out); break;
      default: pack_blocks(m.format, row, m.depth, lane, out);
    }
  }
}

}  // namespace

PanelPacking stored_packing(Format format, int depth) {
  const PanelLayout& layout = kPanelLayouts[static_cast<int>(format)];
  const int num_blocks = (depth + kBlockDepth - 1) / kBlockDepth;
  const auto num_groups =
      static_cast<std::size_t>((num_blocks + layout.group_blocks - 1) / layout.group_blocks);
  return {format, num_groups * static_cast<std::size_t>(layout.group_bytes()), pack_panel};
}

}  // namespace headrace
