#include "attention_plan.h"

#include <algorithm>

#include "frame.h"
#include "instructions.h"

namespace headrace {
namespace {

// Query rows (tokens times heads of a group) that share one pass over the keys.
constexpr int kQueryRows = 48;

// Tasks per thread that let threads end together, where there are so few that it matters.
constexpr int kTasksPerThread = 8;

// Stretches of tokens, as items without a head.
std::vector<AttentionItem> cut_sequences(const Step& step, int group, int window) {
  const int tokens_at_once = std::max(1, kQueryRows / group);
  std::vector<AttentionItem> stretches;
  for (int s = 0; s < step.num_seqs; ++s) {
    const int begin = step.query_start_loc[s], end = step.query_start_loc[s + 1];
    const int first_position = step.seq_lens[s] - (end - begin);
    for (int row = begin; row < end; row += tokens_at_once) {
      AttentionItem item{};
      item.blocks = step.block_table + static_cast<std::ptrdiff_t>(s) * step.max_blocks;
      item.first_row = row;
      item.first_position = first_position + row - begin;
      item.num_tokens = std::min(tokens_at_once, end - row);
      const int lowest =
          item.first_position >= window ? item.first_position - window + 1 : 0;
      const int past = item.first_position + item.num_tokens;
      item.first_partition = lowest / kPartition;
      item.num_partitions = (past + kPartition - 1) / kPartition - item.first_partition;
      stretches.push_back(item);
    }
  }
  // The longest first, so that threads end together.
  std::stable_sort(stretches.begin(), stretches.end(),
                   [](const AttentionItem& a, const AttentionItem& b) {
                     return a.num_partitions > b.num_partitions;
                   });
  return stretches;
}

}  // namespace

AttentionPlan plan_attention(const Step& step, int num_threads, int num_kv_heads, int group,
                             int window, std::ptrdiff_t partial_size) {
  AttentionPlan plan;
  plan.num_kv_heads = num_kv_heads;
  plan.group = group;
  plan.window = window;
  plan.partial_size = partial_size;
  const std::vector<AttentionItem> stretches = cut_sequences(step, group, window);
  const int whole_items = static_cast<int>(stretches.size()) * num_kv_heads;
  const bool split = num_threads > 1 && whole_items < 4 * num_threads;
  const int pieces_each = split ? (kTasksPerThread * num_threads + whole_items - 1) / whole_items : 1;
  for (const AttentionItem& stretch : stretches) {
    plan.max_tokens = std::max(plan.max_tokens, stretch.num_tokens);
    const int num_partitions = stretch.num_partitions;
    const int pieces = std::min(pieces_each, num_partitions);
    for (int head = 0; head < num_kv_heads; ++head) {
      AttentionItem item = stretch;
      item.kv_head = head;
      if (pieces == 1) {
        plan.items.push_back(item);
        plan.item_offsets.push_back(kNoPartials);
        continue;
      }
      const int rows = item.num_tokens * group;
      const std::size_t start = plan.num_partial_floats;
      const std::size_t size = static_cast<std::size_t>(rows * partial_size);
      for (int piece = 0; piece < pieces; ++piece) {
        const int begin = num_partitions * piece / pieces;
        item.first_partition = stretch.first_partition + begin;
        item.num_partitions = num_partitions * (piece + 1) / pieces - begin;
        plan.items.push_back(item);
        plan.item_offsets.push_back(start + static_cast<std::size_t>(begin) * size);
      }
      plan.num_partial_floats += static_cast<std::size_t>(num_partitions) * size;
      for (int r = 0; r < rows; ++r) {
        MergeItem merge{};
        merge.row = item.first_row + r / group;
        merge.head = head * group + r % group;
        merge.num_partials = num_partitions;
        merge.partial_stride = static_cast<std::ptrdiff_t>(size);
        plan.merges.push_back(merge);
        plan.merge_offsets.push_back(start + static_cast<std::size_t>(r * partial_size));
      }
    }
  }
  return plan;
}

void AttentionOp::take_over(RopeAndCacheOp& rope) {
  if (rope.cache() != cache_.get()) return;
  rope.leave_to_attention();
  rope_ = &rope;
  inputs.insert(inputs.end(), rope.inputs.begin(), rope.inputs.end());
}

const AttentionPlan& AttentionOp::plan(Frame& frame) const {
  const int group = num_heads_ / cache_->num_kv_heads;
  const std::ptrdiff_t partial_size = frame.kernels.partial_size(cache_->head_dim);
  for (const auto& known : frame.attention_plans) {
    if (known->num_kv_heads == cache_->num_kv_heads && known->group == group &&
        known->window == window_ && known->partial_size == partial_size) {
      return *known;
    }
  }
  frame.attention_plans.push_back(std::make_shared<AttentionPlan>(plan_attention(
      *frame.step, frame.num_threads, cache_->num_kv_heads, group, window_, partial_size)));
  return *frame.attention_plans.back();
}

void AttentionOp::run(Frame& frame) const {
  const Kernels& kernels = frame.kernels;
  const Rows q = frame.slots[static_cast<std::size_t>(inputs[0])];
  const Rows out = frame.slots[static_cast<std::size_t>(output)];
  const AttentionArgs args{q.data,         q.stride,
                           out.data,       out.stride,
                           cache_->view(), num_heads_ / cache_->num_kv_heads,
                           scale_,         window_};
  const AttentionPlan& plan = this->plan(frame);

  RopeArgs rope{};
  bool with_rope = rope_ && frame.one_token_each;
  if (with_rope) {
    if (plan.merges.empty()) {
      rope = rope_->args(frame);
    } else {  // several tasks need the queries of one head
      rope_->apply(frame);
      with_rope = false;
    }
  }
  auto* partials = static_cast<float*>(frame.work(0, plan.num_partial_floats * sizeof(float)));
  const std::size_t scratch = kernels.attention_scratch(args, plan.max_tokens);
  parallel(frame.num_threads, static_cast<int>(plan.items.size()), [&](int task) {
    const auto i = static_cast<std::size_t>(task);
    AttentionItem item = plan.items[i];
    const std::size_t offset = plan.item_offsets[i];
    if (offset != kNoPartials) item.partials = partials + offset;
    kernels.attention(args, item, with_rope ? &rope : nullptr, thread_scratch(scratch));
  });
  const int merges = static_cast<int>(plan.merges.size());
  const int merge_threads = merges < 64 ? 1 : frame.num_threads;
  parallel(merge_threads, merges, [&](int task) {
    const auto i = static_cast<std::size_t>(task);
    MergeItem item = plan.merges[i];
    item.partials = partials + plan.merge_offsets[i];
    kernels.merge(args, item);
  });
}

}  // namespace headrace
