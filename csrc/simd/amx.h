// Matrix products on AMX tiles: activations and weights rounded to bfloat16, sums in float32.
//
// Panels are gone through in chunks. While tiles multiply one, the vector units unpack the next:
// either takes about as long for a hundred rows of 4-bit weights.
#pragma once

#include "simd/linear.h"
#include "simd/tile_registers.h"

namespace headrace {
namespace {

constexpr int kTilePanels = 2;     // side by side
constexpr int kBlockBytes = 1024;  // of a block of a panel in tile layout, [k / 2][16][2]
// Blocks of a chunk: two panels of them stay in the first cache while as many of x pass by.
constexpr int kChunkBlocks = 10;
constexpr int kBlocksAhead = 10;  // asked of memory before they are unpacked

// Float weights with more precision than bfloat16 stay off the tiles.
inline bool fits_tiles(Format f) { return f != Format::F32 && f != Format::F16; }
// BF16 lies in the tile layout already.
inline bool is_unpacked(Format f) { return f == Format::BF16; }

// A block of a panel, rounded to bfloat16 in tile layout.
template <Format F>
void unpack_block(const std::uint8_t* panel, int block, std::uint8_t* out) {
  constexpr int kSpans = PanelReader<F>::kSpans;
  PanelReader<F> reader;
  reader.panel = panel;
  for (int span = kSpans * block; span < kSpans * (block + 1); ++span) {
    go_to_span(reader, span);
    for_units<F>([&](int u) {
      reader.open(u);
#pragma GCC unroll 4
      for (int i = 0; i < PanelReader<F>::kUnit; i += 2) {
        for (int v = 0; v < kVecs; ++v) {
          const vu pair = pair_bf16(reader.weight(i, v), reader.weight(i + 1, v));
          std::memcpy(out + 4 * v * kLanes, &pair, sizeof pair);
        }
        out += kTileBytes;
      }
    });
  }
}

inline void unpack_block(const PanelRef& panel, int block, std::uint8_t* out) {
  switch (panel.format) {
    case Format::Q8_0: return unpack_block<Format::Q8_0>(panel.data, block, out);
    case Format::Q4_0: return unpack_block<Format::Q4_0>(panel.data, block, out);
    case Format::Q4_1: return unpack_block<Format::Q4_1>(panel.data, block, out);
    case Format::Q5_0: return unpack_block<Format::Q5_0>(panel.data, block, out);
    case Format::Q5_1: return unpack_block<Format::Q5_1>(panel.data, block, out);
    case Format::Q4_K: return unpack_block<Format::Q4_K>(panel.data, block, out);
    case Format::Q5_K: return unpack_block<Format::Q5_K>(panel.data, block, out);
    case Format::Q6_K: return unpack_block<Format::Q6_K>(panel.data, block, out);
    default: return;  // lies in the tile layout already, or never comes here
  }
}

// Ask for a block of a panel. The machine foresees a stream, but each panel is a new one, over
// before that helps much.
inline void prefetch_block(const PanelRef& panel, int block) {
  const PanelLayout& layout = kPanelLayouts[static_cast<int>(panel.format)];
  const std::ptrdiff_t group = layout.group_bytes();
  const std::uint8_t* p = panel.data + block / layout.group_blocks * group +
                          block % layout.group_blocks * layout.block_bytes();
  for (int line = 0; line < layout.block_bytes(); line += 64) __builtin_prefetch(p + line);
}

// Two panels side by side, or the last one alone, and some blocks of them in tile layout.
struct Chunk {
  const PanelRef* panels = nullptr;
  int count = 0;  // of panels; 0: no chunk
  int begin = 0;
  int end = 0;
  const std::uint8_t* b[kTilePanels] = {};
};

// The chunks of panels [begin, end) that fit tiles, in order: all of k, then the next panels.
class ChunkStream {
 public:
  static constexpr int kMemory = 2 * kTilePanels * kChunkBlocks * kBlockBytes;

  ChunkStream(const PanelRef* panels, int begin, int end, int depth, std::uint8_t* memory)
      : panels_(panels),
        end_(end),
        num_blocks_((depth + kBlockDepth - 1) / kBlockDepth),
        num_chunks_((num_blocks_ + kChunkBlocks - 1) / kChunkBlocks),
        memory_(memory) {
    prepare(begin, 0);
    move_on();
  }

  const Chunk& current() const { return current_; }
  bool is_first() const { return current_.begin == 0; }
  bool is_last() const { return current_.end == num_blocks_; }

  // The next chunk is to be ready after this many calls of `work`.
  void share_work(int num_calls) {
    calls_ = num_calls;
    owed_ = 0;
  }
  void work() {
    for (owed_ += units_; owed_ >= calls_; owed_ -= calls_) unpack_next();
  }

  void move_on() {
    while (unpacked_ < units_) unpack_next();
    current_ = next_;
    if (current_.count == 0) return;
    const int panel = static_cast<int>(current_.panels - panels_);
    is_last() ? prepare(panel + kTilePanels, 0) : prepare(panel, chunk_ + 1);
  }

 private:
  bool fits(int panel) const {
    return fits_tiles(panels_[panel].format) &&
           fits_tiles(panels_[std::min(panel + 1, end_ - 1)].format);
  }

  // What `unpack_next` unpacks from now on.
  void prepare(int panel, int chunk) {
    while (panel < end_ && !fits(panel)) panel += kTilePanels;
    next_ = {};
    chunk_ = chunk;
    half_ = 1 - half_;
    units_ = unpacked_ = 0;
    if (panel >= end_) return;
    next_.panels = panels_ + panel;
    next_.count = std::min(kTilePanels, end_ - panel);
    next_.begin = num_blocks_ * chunk / num_chunks_;
    next_.end = num_blocks_ * (chunk + 1) / num_chunks_;
    for (int p = 0; p < next_.count; ++p) {
      next_.b[p] = is_unpacked(next_.panels[p].format)
                       ? next_.panels[p].data + next_.begin * kBlockBytes
                       : room(p, 0);
    }
    units_ = next_.count * (next_.end - next_.begin);
  }

  void unpack_next() {
    const int p = unpacked_ % next_.count, i = unpacked_ / next_.count;
    const PanelRef& panel = next_.panels[p];
    const int block = next_.begin + i;
    ++unpacked_;
    if (is_unpacked(panel.format)) return prefetch_block(panel, block);
    unpack_block(panel, block, room(p, i));
    if (block + kBlocksAhead < num_blocks_) {
      prefetch_block(panel, block + kBlocksAhead);
    } else if (next_.panels + p + kTilePanels < panels_ + end_) {
      prefetch_block((&panel)[kTilePanels], (block + kBlocksAhead) % num_blocks_);
    }
  }

  std::uint8_t* room(int p, int block) {
    return memory_ + ((half_ * kTilePanels + p) * kChunkBlocks + block) * kBlockBytes;
  }

  const PanelRef* panels_;
  int end_, num_blocks_, num_chunks_;
  std::uint8_t* memory_;  // two halves: for the current chunk, and for the next one
  int half_ = 0;
  Chunk current_, next_;
  int chunk_ = 0;     // which of its panels' chunks the next one is
  int units_ = 0;     // blocks of the next one
  int unpacked_ = 0;  // and how many of them are done
  int calls_ = 1, owed_ = 0;
};

// The sums of one block of rows and one or two panels, in tiles. In memory: [rows][2 * 16].
template <bool TwoRows, bool TwoPanels>
struct TileSums {
  static constexpr std::ptrdiff_t kStride = kTilePanels * kPanelWidth;

  static void zero() {
    zero_tile<0>();
    if constexpr (TwoPanels) zero_tile<1>();
    if constexpr (TwoRows) zero_tile<2>();
    if constexpr (TwoRows && TwoPanels) zero_tile<3>();
  }

  static void load(const float* c, int first_rows) {
    const float* second = c + first_rows * kStride;
    load_tile<0>(c, 4 * kStride);
    if constexpr (TwoPanels) load_tile<1>(c + kPanelWidth, 4 * kStride);
    if constexpr (TwoRows) load_tile<2>(second, 4 * kStride);
    if constexpr (TwoRows && TwoPanels) load_tile<3>(second + kPanelWidth, 4 * kStride);
  }

  static void store(float* c, int first_rows) {
    float* second = c + first_rows * kStride;
    store_tile<0>(c, 4 * kStride);
    if constexpr (TwoPanels) store_tile<1>(c + kPanelWidth, 4 * kStride);
    if constexpr (TwoRows) store_tile<2>(second, 4 * kStride);
    if constexpr (TwoRows && TwoPanels) store_tile<3>(second + kPanelWidth, 4 * kStride);
  }

  // += x @ chunk.
  static void add(const std::uint16_t* x, std::ptrdiff_t x_stride, int first_rows,
                  ChunkStream& stream) {
    const Chunk& chunk = stream.current();
    const int num_blocks = chunk.end - chunk.begin;
    const std::uint8_t *b0 = chunk.b[0], *b1 = chunk.b[1];
    x += chunk.begin * kBlockDepth;
    const std::uint16_t* second = x + first_rows * x_stride;
    for (int block = 0; block < num_blocks; ++block) {
      load_tile<4>(x + block * kBlockDepth, 2 * x_stride);
      load_tile<6>(b0 + block * kBlockBytes, kTileBytes);
      multiply_tiles<0, 4, 6>();
      if constexpr (TwoPanels) {
        load_tile<7>(b1 + block * kBlockBytes, kTileBytes);
        multiply_tiles<1, 4, 7>();
      }
      if constexpr (TwoRows) {
        load_tile<5>(second + block * kBlockDepth, 2 * x_stride);
        multiply_tiles<2, 5, 6>();
        if constexpr (TwoPanels) multiply_tiles<3, 5, 7>();
      }
      stream.work();
    }
  }
};

// All rows by the current chunk. One block of rows keeps its sums in the tiles until the last one.
template <bool TwoRows, bool TwoPanels>
void multiply_chunk(const std::uint16_t* x, std::ptrdiff_t x_stride, const RowBlocks& rows,
                    ChunkStream& stream, float* c) {
  using Sums = TileSums<TwoRows, TwoPanels>;
  const bool stay = rows.count == 1;
  for (int i = 0; i < rows.count; ++i) {
    float* sums = c + i * rows.size * Sums::kStride;
    if (stream.is_first()) {
      Sums::zero();
    } else if (!stay) {
      Sums::load(sums, rows.first);
    }
    Sums::add(x + rows.begin(i) * x_stride, x_stride, rows.first, stream);
    if (stream.is_last() || !stay) Sums::store(sums, rows.first);
  }
}

using MultiplyChunk = void (*)(const std::uint16_t*, std::ptrdiff_t, const RowBlocks&,
                               ChunkStream&, float*);
constexpr MultiplyChunk kMultiplyChunk[2][2] = {
    {multiply_chunk<false, false>, multiply_chunk<false, true>},
    {multiply_chunk<true, false>, multiply_chunk<true, true>},
};

inline void linear_tiles(const LinearArgs& a, int row_begin, int row_end, int panel_begin,
                         int panel_end, void* scratch) {
  constexpr std::ptrdiff_t kStride = kTilePanels * kPanelWidth;
  const RowBlocks rows(row_end - row_begin);
  auto* memory = static_cast<std::uint8_t*>(scratch);
  auto* sums = reinterpret_cast<float*>(memory + ChunkStream::kMemory);
  const std::uint16_t* x = a.x_bf16 + row_begin * a.x_bf16_stride;
  configure(rows);
  ChunkStream stream(a.panels, panel_begin, panel_end, a.depth, memory);
  for (; stream.current().count; stream.move_on()) {
    const Chunk& chunk = stream.current();
    stream.share_work(rows.count * (chunk.end - chunk.begin));
    kMultiplyChunk[rows.second > 0][chunk.count == 2](x, a.x_bf16_stride, rows, stream, sums);
    if (!stream.is_last()) continue;
    for (int i = 0; i < rows.count; ++i) {  // each has its own sums, also of rows that it shares
      finish(a, row_begin + rows.begin(i), rows.size, chunk.panels, chunk.count,
             sums + i * rows.size * kStride, kStride);
    }
  }
  release_tiles();
  for (int panel = panel_begin; panel < panel_end; panel += kTilePanels) {
    const int end = std::min(panel + kTilePanels, panel_end);
    if (fits_tiles(a.panels[panel].format) && fits_tiles(a.panels[end - 1].format)) continue;
    linear(a, row_begin, row_end, panel, end, scratch);
  }
}

inline std::size_t linear_tiles_scratch(int depth, int num_rows) {
  const std::size_t sum_rows =
      static_cast<std::size_t>(num_rows) + static_cast<std::size_t>(RowBlocks(num_rows).count);
  return std::max(ChunkStream::kMemory + sizeof(float) * sum_rows * kTilePanels * kPanelWidth,
                  linear_scratch(depth, num_rows));
}

}  // namespace
}  // namespace headrace
