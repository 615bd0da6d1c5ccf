// How the attention of one step is cut into tasks. The same for all layers of one head layout.
#pragma once

#include <vector>

#include "program.h"

namespace headrace {

struct AttentionPlan {
  int num_kv_heads = 0;
  int group = 0;
  int window = 0;
  std::ptrdiff_t partial_size = 0;
  std::vector<AttentionItem> items;
  std::vector<int> task_bounds;  // task t has the items from bound t to bound t + 1
  std::vector<MergeItem> merges;
  std::ptrdiff_t num_partial_floats = 0;
  int max_tokens = 0;  // of one item
};

// Cut by sequence, stretch of tokens and key head; also by partition of the context when that
// alone would leave threads idle. The cut never changes results.
AttentionPlan plan_attention(const Step& step, int num_threads, int num_kv_heads, int group,
                             int window, std::ptrdiff_t partial_size);

}  // namespace headrace
