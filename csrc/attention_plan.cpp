#include "attention_plan.h"

#include <algorithm>

#include "frame.h"
#include "instructions.h"

namespace headrace {
namespace {

// Query rows (tokens times heads of a group) that share one pass over the keys.
constexpr int kQueryRows = 48;

// Tasks per thread that let threads end together.
constexpr int kTasksPerThread = 12;

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
      item.partials_at = -1;
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

// About the time an item takes: rows cost the same however many, positions are also read.
std::int64_t cost_of(const AttentionItem& item, int group) {
  constexpr int kReading = 4;
  return static_cast<std::int64_t>(item.num_partitions) * (item.num_tokens * group + kReading);
}

// One stretch and head, in pieces of some partitions each, and the merges that puts behind.
void add_pieces(AttentionPlan& plan, AttentionItem item, int pieces) {
  if (pieces == 1) {
    plan.items.push_back(item);
    return;
  }
  const int rows = item.num_tokens * plan.group;
  const int first = item.first_partition, count = item.num_partitions;
  const std::ptrdiff_t start = plan.num_partial_floats, size = rows * plan.partial_size;
  for (int piece = 0; piece < pieces; ++piece) {
    const int begin = count * piece / pieces;
    item.first_partition = first + begin;
    item.num_partitions = count * (piece + 1) / pieces - begin;
    item.partials_at = start + begin * size;
    plan.items.push_back(item);
  }
  plan.num_partial_floats += count * size;
  for (int r = 0; r < rows; ++r) {
    plan.merges.push_back({item.first_row + r / plan.group,
                           item.kv_head * plan.group + r % plan.group, count,
                           start + r * plan.partial_size, size});
  }
}

// Tasks of consecutive items, of about the same cost: an item asks for the memory of the next.
void cut_tasks(AttentionPlan& plan, int num_threads) {
  std::int64_t total = 0, cost = 0;
  for (const AttentionItem& item : plan.items) total += cost_of(item, plan.group);
  const std::int64_t enough = total / (kTasksPerThread * num_threads);
  plan.task_bounds.push_back(0);
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    cost += cost_of(plan.items[i], plan.group);
    if (cost < enough && i + 1 < plan.items.size()) continue;
    plan.task_bounds.push_back(static_cast<int>(i) + 1);
    cost = 0;
  }
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
  const int wanted = kTasksPerThread * num_threads;
  const int pieces = split ? (wanted + whole_items - 1) / std::max(1, whole_items) : 1;
  for (AttentionItem item : stretches) {
    plan.max_tokens = std::max(plan.max_tokens, item.num_tokens);
    for (item.kv_head = 0; item.kv_head < num_kv_heads; ++item.kv_head) {
      add_pieces(plan, item, std::min(pieces, item.num_partitions));
    }
  }
  cut_tasks(plan, num_threads);
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
  const AttentionPlan& plan = this->plan(frame);
  auto* partials = static_cast<float*>(
      frame.work(0, static_cast<std::size_t>(plan.num_partial_floats) * sizeof(float)));
  const AttentionArgs args{q.data,   q.stride, out.data, out.stride, cache_->view(),
                           plan.group, scale_,   window_,  partials};
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
  const std::size_t scratch = kernels.attention_scratch(args, plan.max_tokens);
  const int num_tasks = static_cast<int>(plan.task_bounds.size()) - 1;
  parallel(frame.num_threads, num_tasks, [&](int task) {
    const int* bounds = plan.task_bounds.data() + task;
    kernels.attention(args, plan.items.data() + bounds[0], bounds[1] - bounds[0],
                      with_rope ? &rope : nullptr, thread_scratch(scratch));
  });
  const int merges = static_cast<int>(plan.merges.size());
  const int merge_threads = merges < 64 ? 1 : frame.num_threads;
  parallel(merge_threads, merges, [&](int task) {
    kernels.merge(args, plan.merges[static_cast<std::size_t>(task)]);
  });
}

}  // namespace headrace
