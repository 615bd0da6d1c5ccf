// What the per-instruction-set kernels offer: plain structs and one table of function pointers.
// Holds no inline code, because every file that includes it is compiled with its own machine flags.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

// Outputs of a matrix that lie side by side in vector lanes.
constexpr int kPanelWidth = 16;
// Depth steps (k) of one packed block.
constexpr int kBlockDepth = 32;
// Positions whose scores are handled together, at fixed absolute places in the sequence.
constexpr int kKeyTile = 64;
// Positions summed up on their own before the partial results are merged, in order.
constexpr int kPartition = 512;

enum class Format : std::int32_t {
  F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K,
  Int8, Int16,  // made at load, never stored; see int8_kernels.h and int16_kernels.h
};
constexpr int kNumFormats = 11;  // stored ones

enum class Activation : std::int32_t { None, Silu, GeluTanh };

// Sixteen outputs of a packed matrix: all their weights, and where the outputs go.
struct PanelRef {
  const std::uint8_t* data;
  Format format;
  std::int32_t column;
  std::int32_t width;  // outputs that exist; the rest are padding
};

// y = epilogue(x @ w.T). With an activation, panels come in pairs (gate, up).
struct LinearArgs {
  const float* x;
  std::ptrdiff_t x_stride;
  const std::uint16_t* x_bf16;  // for tiles: rows padded with zeros to whole blocks
  std::ptrdiff_t x_bf16_stride;
  int depth;
  const PanelRef* panels;
  Activation activation;
  const float* bias;      // by output column, or null
  const float* residual;  // added last, or null
  std::ptrdiff_t residual_stride;
  float* y;
  std::ptrdiff_t y_stride;
};

struct NormArgs {
  const float* x;
  std::ptrdiff_t x_stride;
  const float* weight;
  float eps;
  int width;
  float* y;
  std::ptrdiff_t y_stride;
};

struct AddArgs {
  const float* x;
  std::ptrdiff_t x_stride;
  const float* y;
  std::ptrdiff_t y_stride;
  int width;
  float* sum;
  std::ptrdiff_t sum_stride;
};

// What keys and values are stored as. F16 is the default: three more bits of precision than BF16,
// and values beyond its range are kept at the largest it has.
enum class CacheType : std::int32_t { F32, F16, BF16 };

// One layer's cache. Of one block and head, keys lie transposed, [head_dim, block_size], so that
// positions fill vector lanes; values lie as [block_size, head_dim].
struct CacheView {
  void* keys;
  void* values;
  CacheType type;
  int block_size;
  int num_kv_heads;
  int head_dim;
};

struct RopeArgs {
  const float* qkv;
  std::ptrdiff_t qkv_stride;
  const float* rope;  // cosines, then sines
  std::ptrdiff_t rope_stride;
  int num_pairs;
  int num_heads;
  const float* q_norm;  // null: no norm
  const float* k_norm;
  float eps;
  CacheView cache;
  const std::int32_t* slots;
  float* q;
  std::ptrdiff_t q_stride;
};

struct AttentionArgs {
  const float* q;
  std::ptrdiff_t q_stride;
  float* out;
  std::ptrdiff_t out_stride;
  CacheView cache;
  int group;  // query heads per key head
  float scale;
  int window;  // positions seen; INT_MAX for all
  float* partials;  // results of partitions that are not yet merged
};

// Some consecutive tokens of one sequence, one key head, consecutive partitions of the context.
struct AttentionItem {
  const std::int32_t* blocks;
  int first_row;       // row of the first token in q and out
  int first_position;  // its position in the sequence
  int num_tokens;
  int kv_head;
  int first_partition;
  int num_partitions;
  // Where in AttentionArgs::partials the partitions [partition][row] go, for `merge`; -1: these are
  // all, and the result is written.
  std::ptrdiff_t partials_at;
};

// The merge of one row's partial results, in order; the first of them is overwritten.
struct MergeItem {
  int row;
  int head;
  int num_partials;
  std::ptrdiff_t partials_at;     // of the first partition
  std::ptrdiff_t partial_stride;  // from one partition to the next
};

struct Kernels {
  const char* name;
  int row_block;     // rows one register block covers
  bool needs_bf16;   // whether `linear` reads x_bf16
  std::size_t (*linear_scratch)(int depth, int num_rows);
  void (*linear)(const LinearArgs&, int row_begin, int row_end, int panel_begin, int panel_end,
                 void* scratch);
  void (*round_rows)(const float* x, std::ptrdiff_t x_stride, int width, std::uint16_t* out,
                     std::ptrdiff_t out_stride, int num_rows);
  void (*unpack)(Format format, const std::uint8_t* panel, int depth, float* out);
  void (*rms_norm)(const NormArgs&, int row_begin, int row_end);
  void (*add)(const AddArgs&, int row_begin, int row_end);
  // Of these key heads, and of the query heads that belong to them.
  void (*rope_and_cache)(const RopeArgs&, int row_begin, int row_end, int head_begin,
                         int head_end);
  std::ptrdiff_t (*partial_size)(int head_dim);  // floats per row of a partial result
  std::size_t (*attention_scratch)(const AttentionArgs&, int num_tokens);
  // Items one after the other. `rope`, if given, is done first, for an item's tokens and head.
  void (*attention)(const AttentionArgs&, const AttentionItem* items, int num_items,
                    const RopeArgs* rope, void* scratch);
  void (*merge)(const AttentionArgs&, const MergeItem&);
};

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kAmxKernels;
extern const Kernels kAvx512EmulatedKernels;
extern const Kernels kAmxEmulatedKernels;

}  // namespace headrace
