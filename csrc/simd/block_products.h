// Products of weights stored in blocks with activations of 16 or 8 bits; see block_kernels.h.
//
// Codes of four k are the bytes of a lane, and the high and the low bytes of four activations are
// broadcast to all lanes: two instructions for bytes make products of 16 bits, one those of 8. Few
// rows: codes are unpacked in registers, so that each is read once. More rows: a stretch of a panel
// is unpacked to cache and used for all of them.
//
// Unpacked to numbers of 16 bits, for instructions that multiply pairs of those, products need one
// sum in place of two, but as many instructions and twice the cache: measured on AVX-512 VNNI that
// is 2 % faster from 128 rows on and 5 % slower with 12, on AVX2 8 % slower throughout.
#pragma once

#include <array>

#include "block_kernels.h"
#include "simd/dot.h"
#include "simd/linear.h"
#include "simd/quantize.h"

namespace headrace {
namespace {

constexpr int kWords = kBlockDepth / 4;         // of a block, in a lane
constexpr int kFewBlockRows = kLanes == 16 ? 4 : 2;
// Rows up to which passes of so few, over panels in the first cache, beat unpacking to cache.
constexpr int kPassRows = kLanes == 16 ? 8 : 3;
// The largest tile over unpacked codes.
constexpr int kBlockTileRows = kLanes == 16 ? 6 : 4;
constexpr int kBlockTilePanels = kLanes == 16 ? 2 : 1;
// Blocks unpacked at a time, at most: those of two panels leave room in the first cache.
constexpr int kBlockStretch = 12;

// Plain AVX2 multiplies unsigned by signed bytes and adds two products in 16 bits, saturating.
constexpr bool kPairSums = kLanes == 8 && !HEADRACE_INT8_UNSIGNED;

// How codes of a format go into products.
template <Format F>
struct Codes {
  static constexpr int kLargest =
      F == Format::Q8_0 ? 255 : F == Format::Q6_K ? 63 : has_fifth_bit(F) ? 31 : 15;
  // Words whose sums of pairs fit 16 bits.
  static constexpr int kChain = kPairSums ? 32767 / (2 * 128 * kLargest) : kWords;
  // Scales in a block.
  static constexpr int kParts = F == Format::Q6_K ? 2 : 1;
  static constexpr int kPartWords = kWords / kParts;
  // The code of weight zero; 0: weights have offsets of their own.
  static constexpr int kZero = F == Format::Q8_0   ? 128
                               : F == Format::Q6_K ? 32
                               : F == Format::Q5_0 ? 16
                               : F == Format::Q4_0 ? 8
                                                   : 0;

  static vi word(const PanelReader<F>& reader, int v) {
    const vu word = reader.word[v];
    return reinterpret_cast<vi>(F == Format::Q8_0 ? word ^ 0x80808080u : word);
  }
};

// A running sum of products of codes and bytes of activations, word after word: `i` of `count`, the
// first of a `fresh` sum forgets what was there. All three are known when this is compiled.
template <int Chain>
struct ByteSum {
  vi total;
  vi pairs;  // sums of pairs that were not added up yet

  void add(vi codes, vi x, int i, int count, bool fresh) {
#if HEADRACE_LANES == 8 && !HEADRACE_INT8_UNSIGNED
    const __m256i product =
        _mm256_maddubs_epi16(reinterpret_cast<__m256i>(codes), reinterpret_cast<__m256i>(x));
    const __m256i sum = i % Chain == 0
                            ? product
                            : _mm256_add_epi16(reinterpret_cast<__m256i>(pairs), product);
    pairs = reinterpret_cast<vi>(sum);
    if (i % Chain == Chain - 1 || i == count - 1) {
      const vi both = reinterpret_cast<vi>(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
      total = fresh && i < Chain ? both : total + both;
    }
#else
    total = dot4(fresh && i == 0 ? vi{} : total, codes, x);
    (void)count;
#endif
  }

  // From a sum of high bytes to the beginning of one of both.
  void shift() { total = reinterpret_cast<vi>(reinterpret_cast<vu>(total) << 8); }
};

// The sum of the codes of activations that meet one scale.
template <int Parts>
inline std::int32_t codes_of_part(const InputBlock& x, int part) {
  return Parts == 1 ? x.codes[0] + x.codes[1] : x.codes[part];
}

// Add the sum of one scale's codes to a result. The only place that does: few rows and many have to
// give the same bits.
template <bool HasOffsets>
inline vf add_block(vf result, vi total, vi zeros, vf x_scale, vf scale, vf x_sum, vf offset) {
  if constexpr (!HasOffsets) total -= zeros;
  result = fma(x_scale * scale, to_float(total), result);
  if constexpr (HasOffsets) result = fma(x_sum, offset, result);
  return result;
}

inline vi broadcast_word(const std::int8_t* bytes, int word) {
  return set1i(load_as<std::int32_t>(bytes + 4 * word));
}

// c[m][p * 16 ..] = x[m] @ panel p, for M rows and P panels of one format. Both bytes of
// activations, or the high ones alone.
template <Format F, bool Both, int M, int P>
void block_product(const std::uint8_t* const* panels, const InputBlock* x, std::ptrdiff_t x_stride,
                   int depth, float* c) {
  using C = Codes<F>;
  using Sum = ByteSum<C::kChain>;
  constexpr int kSpanWords = PanelReader<F>::kSpan / 4;
  PanelReader<F> readers[P];
  vf acc[M][P][kVecs] = {};
  for (int p = 0; p < P; ++p) readers[p].panel = panels[p];
  const int num_blocks = depth / kBlockDepth;
  // The machine foresees a stream, but each panel is a new one, over before that helps much.
  const std::ptrdiff_t ahead = P * static_cast<std::ptrdiff_t>(PanelReader<F>::kGroupBytes) *
                               (num_blocks / PanelReader<F>::kLayout.group_blocks);
  for (int block = 0; block < num_blocks; ++block, ++x) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      readers[p].begin(block);
      if (M == 1) readers[p].prefetch(ahead);
    }
#pragma GCC unroll 2
    for (int part = 0; part < C::kParts; ++part) {
      Sum high[M][P][kVecs], low[M][P][kVecs];
#pragma GCC unroll 8
      for (int i = 0; i < C::kPartWords; ++i) {
        const int word = part * C::kPartWords + i;
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          if (word % kSpanWords == 0) readers[p].begin_span(word / kSpanWords);
          readers[p].open(word % kSpanWords);
        }
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
          const InputBlock& xm = x[m * x_stride];
          const vi xh = broadcast_word(xm.high, word);
          const vi xl = Both ? broadcast_word(xm.low, word) : vi{};
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
            for (int v = 0; v < kVecs; ++v) {
              const vi codes = C::word(readers[p], v);
              high[m][p][v].add(codes, xh, i, C::kPartWords, true);
              if constexpr (Both) low[m][p][v].add(codes, xl, i, C::kPartWords, true);
            }
          }
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        const InputBlock& xm = x[m * x_stride];
        const vf scale = set1(xm.scale), sum = set1(xm.sum);
        const vi zeros = set1i(C::kZero * codes_of_part<C::kParts>(xm, part));
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) {
            vf& a = acc[m][p][v];
            if constexpr (Both) high[m][p][v].shift();
            vi total = high[m][p][v].total;
            if constexpr (Both) total += low[m][p][v].total;
            a = add_block<C::kZero == 0>(a, total, zeros, scale, readers[p].scale[v], sum,
                                         readers[p].offset[v]);
          }
        }
      }
    }
  }
  store_sums(acc, c, kUnitStride);
}

// A block of a panel, unpacked.
struct alignas(64) CodeBlock {
  std::uint8_t words[kWords][kPanelWidth * 4];
  float scales[2][kPanelWidth];
  float offsets[kPanelWidth];
};

template <Format F>
void unpack_codes(const std::uint8_t* panel, int first_block, int num_blocks, CodeBlock* out) {
  using C = Codes<F>;
  constexpr int kSpanWords = PanelReader<F>::kSpan / 4;
  PanelReader<F> reader;
  reader.panel = panel;
  for (int block = 0; block < num_blocks; ++block, ++out) {
    reader.begin(first_block + block);
#pragma GCC unroll 8
    for (int word = 0; word < kWords; ++word) {
      if (word % kSpanWords == 0) reader.begin_span(word / kSpanWords);
      reader.open(word % kSpanWords);
      for (int v = 0; v < kVecs; ++v) {
        const vi codes = C::word(reader, v);
        std::memcpy(out->words[word] + 4 * v * kLanes, &codes, sizeof codes);
        if (word % C::kPartWords == 0) {
          const int part = word / C::kPartWords;
          store(out->scales[part] + v * kLanes, reader.scale[v]);
          if constexpr (C::kZero == 0) store(out->offsets + v * kLanes, reader.offset[v]);
        }
      }
    }
  }
}

// What differs between formats once they are unpacked.
template <bool Both, int Chain, int Parts, bool HasOffsets>
struct CodeKind {
  int zero;  // unless there are offsets
};

// c[rows][panels * 16] (+)= x @ a stretch of unpacked panels, of which each begins at blocks[p].
struct CodeOperands {
  const CodeBlock* const* blocks;
  int num_blocks;
  const InputBlock* x;
  std::ptrdiff_t x_stride;
  float* c;
  std::ptrdiff_t c_stride;
  bool accumulate;  // go on from what is in c
};

template <int M, int P, bool Both, int Chain, int Parts, bool HasOffsets>
void code_tile(CodeKind<Both, Chain, Parts, HasOffsets> kind, const CodeOperands& t, int row,
               int panel) {
  constexpr int kPartWords = kWords / Parts;
  const CodeBlock* const* blocks = t.blocks + panel;
  float* c = t.c + row * t.c_stride + panel * kPanelWidth;
  vf acc[M][P][kVecs];
  load_sums(c, t.c_stride, t.accumulate, acc);
  const InputBlock* x = t.x + row * t.x_stride;
  const std::ptrdiff_t x_stride = t.x_stride;
  for (int b = 0; b < t.num_blocks; ++b, ++x) {
#pragma GCC unroll 2
    for (int part = 0; part < Parts; ++part) {
      // One after the other, both bytes need half the registers.
      ByteSum<Chain> sums[M][P][kVecs];
#pragma GCC unroll 2
      for (int low = 0; low < (Both ? 2 : 1); ++low) {
#pragma GCC unroll 8
        for (int i = 0; i < kPartWords; ++i) {
          const int word = part * kPartWords + i;
          vi codes[P][kVecs];
#pragma GCC unroll 2
          for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
            for (int v = 0; v < kVecs; ++v) {
              codes[p][v] = load_as<vi>(blocks[p][b].words[word] + 4 * v * kLanes);
            }
          }
#pragma GCC unroll 6
          for (int m = 0; m < M; ++m) {
            const InputBlock& xm = x[m * x_stride];
            const vi bytes = broadcast_word(low ? xm.low : xm.high, word);
#pragma GCC unroll 2
            for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
              for (int v = 0; v < kVecs; ++v) {
                sums[m][p][v].add(codes[p][v], bytes, i, kPartWords, !low);
              }
            }
          }
        }
        if (low || !Both) continue;
#pragma GCC unroll 6
        for (int m = 0; m < M; ++m) {
#pragma GCC unroll 2
          for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
            for (int v = 0; v < kVecs; ++v) sums[m][p][v].shift();
          }
        }
      }
#pragma GCC unroll 6
      for (int m = 0; m < M; ++m) {
        const InputBlock& xm = x[m * x_stride];
        prefetch_to_read(&xm + M * x_stride);  // for the next tile
        const vf scale = set1(xm.scale), sum = set1(xm.sum);
        const vi zeros = set1i(HasOffsets ? 0 : kind.zero * codes_of_part<Parts>(xm, part));
#pragma GCC unroll 2
        for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
          for (int v = 0; v < kVecs; ++v) {
            const CodeBlock& block = blocks[p][b];
            vf& a = acc[m][p][v];
            const vf offset = HasOffsets ? load(block.offsets + v * kLanes) : vf{};
            a = add_block<HasOffsets>(a, sums[m][p][v].total, zeros, scale,
                                      load(block.scales[part] + v * kLanes), sum, offset);
          }
        }
      }
    }
  }
  store_sums(acc, c, t.c_stride);
}

template <int M, typename Kind>
void code_rows(Kind kind, const CodeOperands& t, int row, int rows, int panel, int panel_end) {
  if (rows == M) {
    for (; panel + kBlockTilePanels <= panel_end; panel += kBlockTilePanels) {
      code_tile<M, kBlockTilePanels>(kind, t, row, panel);
    }
    for (; panel < panel_end; ++panel) code_tile<M, 1>(kind, t, row, panel);
  } else if constexpr (M > 1) {
    code_rows<M - 1>(kind, t, row, rows, panel, panel_end);
  }
}

// Some rows, a tile high at most, and panels of one format.
template <Format F, bool Both>
void code_rows(const CodeOperands& t, int row, int rows, int panel, int panel_end) {
  using C = Codes<F>;
  const CodeKind<Both, C::kChain, C::kParts, C::kZero == 0> kind{C::kZero};
  code_rows<kBlockTileRows>(kind, t, row, rows, panel, panel_end);
}

// Panels side by side for few rows: enough sums in flight, few enough registers.
constexpr int block_beside(Format f, int rows) {
  const bool is_nibble = f == Format::Q4_0 || f == Format::Q4_1 || f == Format::Q4_K;
  const int fit = (kLanes == 16 ? 8 : is_nibble ? 2 : 1) / rows;
  return fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
}

struct BlockFormat {
  void (*unpack)(const std::uint8_t*, int, int, CodeBlock*);
  void (*rows)(const CodeOperands&, int row, int rows, int panel, int panel_end);
  FusedProducts<InputBlock, kFewBlockRows> fused;
};

template <Format F, bool Both, std::size_t... Rows>
constexpr BlockFormat block_format(std::index_sequence<Rows...>) {
  return {unpack_codes<F>,
          code_rows<F, Both>,
          {{block_beside(F, Rows + 1)...},
           {block_product<F, Both, Rows + 1, block_beside(F, Rows + 1)>...},
           {block_product<F, Both, Rows + 1, 1>...}}};
}

// Nothing for a format whose products do not fit.
template <Format F, bool Both>
constexpr BlockFormat block_format() {
  if constexpr (has_blocks(F) && Codes<F>::kChain > 0) {
    return block_format<F, Both>(std::make_index_sequence<kFewBlockRows>());
  } else {
    return {};
  }
}

template <bool Both, std::size_t... Formats>
constexpr std::array<BlockFormat, kNumFormats> block_formats(std::index_sequence<Formats...>) {
  return {block_format<static_cast<Format>(Formats), Both>()...};
}

template <bool Both>
constexpr std::array<BlockFormat, kNumFormats> kBlockFormats =
    block_formats<Both>(std::make_index_sequence<kNumFormats>());

template <bool Both>
const BlockFormat& block_format_of(Format f) {
  return kBlockFormats<Both>[static_cast<std::size_t>(f)];
}

template <bool Both>
bool multiplies_blocks(Format f) {
  return block_format_of<Both>(f).unpack != nullptr;
}

// Panels whose unpacked stretches are used together.
constexpr int kUnpackedPanels = 2;

template <bool Both>
void block_linear_unpacked(const BlockArgs& a, int row_begin, int num_rows, int panel_begin,
                           int panel_end, void* scratch) {
  auto* codes = static_cast<CodeBlock*>(scratch);
  auto* sums = reinterpret_cast<float*>(codes + kUnpackedPanels * kBlockStretch);
  constexpr std::ptrdiff_t kStride = kUnpackedPanels * kPanelWidth;
  const CodeBlock* const unpacked[] = {codes, codes + kBlockStretch};
  static_assert(std::size(unpacked) == kUnpackedPanels);
  const int num_blocks = a.linear.depth / kBlockDepth;
  const int stretches = (num_blocks + kBlockStretch - 1) / kBlockStretch;
  const int tiles = (num_rows + kBlockTileRows - 1) / kBlockTileRows;
  for (int begin = panel_begin; begin < panel_end; begin += kUnpackedPanels) {
    const int count = std::min(kUnpackedPanels, panel_end - begin);
    const PanelRef* panels = a.linear.panels + begin;
    const bool same = count == 2 && panels[0].format == panels[1].format;
    const ResultLines results{a.linear, row_begin, panels, count};
    const BlockFormat* formats[kUnpackedPanels];
    for (int p = 0; p < count; ++p) formats[p] = &block_format_of<Both>(panels[p].format);
    for (int i = 0; i < stretches; ++i) {
      // Even stretches: a last one of two blocks would be all loads and stores of sums.
      const int block = part_begin(num_blocks, i, stretches);
      const int blocks = part_begin(num_blocks, i + 1, stretches) - block;
      for (int p = 0; p < count; ++p) {
        formats[p]->unpack(panels[p].data, block, blocks, codes + p * kBlockStretch);
      }
      const CodeOperands operands{unpacked, blocks, a.x + row_begin * a.x_stride + block,
                                  a.x_stride, sums, kStride, i > 0};
      for (int tile = 0; tile < tiles; ++tile) {
        const int row = part_begin(num_rows, tile, tiles);
        const int rows = part_begin(num_rows, tile + 1, tiles) - row;
        if (i == 0) results.ask_for(row, row + rows);
        for (int p = 0; p < count; p += same ? 2 : 1) {
          formats[p]->rows(operands, row, rows, p, p + (same ? 2 : 1));
        }
        // At once: the next tile computes while results go to memory.
        if (i == stretches - 1) {
          finish(a.linear, row_begin + row, rows, panels, count, sums + row * kStride, kStride);
        }
      }
    }
  }
}

template <bool Both>
void block_linear(const BlockArgs& a, int row_begin, int row_end, int panel_begin, int panel_end,
                  void* scratch) {
  const int num_rows = row_end - row_begin;
  if (num_rows > kPassRows) {
    return block_linear_unpacked<Both>(a, row_begin, num_rows, panel_begin, panel_end, scratch);
  }
  const int passes = (num_rows + kFewBlockRows - 1) / kFewBlockRows;
  for (int begin = panel_begin; begin < panel_end; begin += kMaxBeside) {
    const int end = std::min(panel_end, begin + kMaxBeside);
    for (int i = 0; i < passes; ++i) {
      const int row = row_begin + num_rows * i / passes;
      const int rows = row_begin + num_rows * (i + 1) / passes - row;
      linear_few_rows(a.linear, a.x + row * a.x_stride, a.x_stride, row, rows, begin, end,
                      static_cast<float*>(scratch),
                      [](Format f) -> const auto& { return block_format_of<Both>(f).fused; });
    }
  }
}

inline std::size_t block_scratch(int num_rows) {
  const std::size_t few = kFewBlockRows * kUnitStride;
  const std::size_t sums = static_cast<std::size_t>(num_rows) * kUnpackedPanels * kPanelWidth;
  return sizeof(CodeBlock) * kUnpackedPanels * kBlockStretch + sizeof(float) * std::max(few, sums);
}

template <bool Both>
void quantize_block(const float* x, InputBlock& out) {
  constexpr float kLargestCode = Both ? 127.0f * 256.0f + 127.0f : 127.0f;
  vf values[kBlockVecs];
  load_block(x, values);
  const float largest = largest_magnitude(values);
  const float inverse = inverse_scale(largest, kLargestCode);
  const vi used = set1i(inverse != 0.0f ? -1 : 0);  // an infinity times zero is NaN
  out.scale = largest / kLargestCode;
  out.codes[0] = out.codes[1] = 0;
#pragma GCC unroll 4
  for (int i = 0; i < kBlockVecs; ++i) {
    const vi code = rounded_integer(values[i] * inverse + kRoundToInteger) & used;
    const vi high = Both ? (code + 128) >> 8 : code;
    const vi low = Both ? code - high * 256 : vi{};
    const vc high_bytes = __builtin_convertvector(high, vc);
    const vc low_bytes = __builtin_convertvector(low, vc);
    std::memcpy(out.high + i * kLanes, &high_bytes, sizeof high_bytes);
    std::memcpy(out.low + i * kLanes, &low_bytes, sizeof low_bytes);
    out.codes[2 * i / kBlockVecs] += static_cast<std::int32_t>(sum_lanes(to_float(code)));
  }
  out.sum = out.scale * static_cast<float>(out.codes[0] + out.codes[1]);
}

template <bool Both>
void quantize_blocks(const float* x, std::ptrdiff_t x_stride, int width, InputBlock* out,
                     std::ptrdiff_t out_stride, int num_rows) {
  for (int r = 0; r < num_rows; ++r, x += x_stride, out += out_stride) {
    for (int b = 0; b < width / kBlockDepth; ++b) quantize_block<Both>(x + b * kBlockDepth, out[b]);
  }
}

template <bool Both>
constexpr BlockKernels kBlockKernels = {multiplies_blocks<Both>, block_linear<Both>, block_scratch,
                                        quantize_blocks<Both>};

}  // namespace
}  // namespace headrace
