// How the attention of one step is cut into tasks. The same for all layers of one head layout.
#pragma once

#include <cstdint>
#include <vector>

#include "program.h"

namespace headrace {

// The offset of an item that writes its result itself.
constexpr std::size_t kNoPartials = SIZE_MAX;

struct AttentionPlan {
  int num_kv_heads = 0;
  int group = 0;
  int window = 0;
  std::ptrdiff_t partial_size = 0;
  std::vector<AttentionItem> items;  // without `partials`: the offsets in floats are beside them
  std::vector<MergeItem> merges;
  std::vector<std::size_t> item_offsets;
  std::vector<std::size_t> merge_offsets;
  std::size_t num_partial_floats = 0;
  int max_tokens = 0;  // of one item
};

// Cut by sequence, stretch of tokens and key head; also by partition of the context when that
// alone would leave threads idle. The cut never changes results.
AttentionPlan plan_attention(const Step& step, int num_threads, int num_kv_heads, int group,
                             int window, std::ptrdiff_t partial_size);

}  // namespace headrace
