// Where things lie in a packed panel: sixteen outputs, all of k, in blocks of 32 k.
//
//   panel = groups of [group header] [block] [block] ...
//   block = [block header] [quants] [high bits]
//
// Headers hold one value per output lane. F32 and F16 quants are [32][16]; BF16 ones are
// [16][16][2], neighbouring k side by side (also the tile layout of AMX).
//
// Quants of the other formats are 32-bit words per lane with neighbouring k in the bytes, which is
// what dot-product instructions read. A word of Q8_0 holds four k. One of nibbles holds eight: byte
// i has k = i low, k = i + 4 high. Bits beyond a nibble are words too, so that those of four k are
// put above their nibbles at once: byte i has those of k = i, i + 4, .. from bit 4 on and then
// round, one bit each for 5-bit formats, two each for Q6_K (one word for 16 k).
#pragma once

#include "kernels.h"

namespace headrace {

struct PanelLayout {
  int group_blocks;   // blocks that share a group header
  int group_header;   // bytes
  int block_header;
  int quant_bytes;
  int high_bytes;

  constexpr int block_bytes() const { return block_header + quant_bytes + high_bytes; }
  constexpr int group_bytes() const { return group_header + group_blocks * block_bytes(); }
};

// In the order of Format.
constexpr PanelLayout kPanelLayouts[kNumFormats] = {
    {1, 0, 0, 2048, 0},     // F32
    {1, 0, 0, 1024, 0},     // F16
    {1, 0, 0, 1024, 0},     // BF16
    {1, 0, 32, 512, 0},     // Q8_0: d
    {1, 0, 32, 256, 0},     // Q4_0: d
    {1, 0, 64, 256, 0},     // Q4_1: d, m
    {1, 0, 32, 256, 64},    // Q5_0: d
    {1, 0, 64, 256, 64},    // Q5_1: d, m
    {8, 64, 32, 256, 0},    // Q4_K: d, dmin | scale, min (bytes)
    {8, 64, 32, 256, 64},   // Q5_K: the same
    {8, 32, 32, 256, 128},  // Q6_K: d | scales of the first and the second 16 k (signed bytes)
};

}  // namespace headrace
