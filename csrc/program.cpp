#include "program.h"

#include <algorithm>
#include <climits>
#include <stdexcept>

#include "fences.h"
#include "instructions.h"

namespace headrace {
namespace {

[[noreturn]] void fail(const std::string& text) { throw std::invalid_argument(text); }

std::string rows_of(int width) { return "[rows, " + std::to_string(width) + "]"; }

// Slots begin and their rows are spaced so that vectors seldom cross cache lines.
std::ptrdiff_t padded(int width) { return (width + 15) / 16 * 16; }

}  // namespace

void* Frame::work(std::size_t index, std::size_t bytes) {
  if (workspace.size() <= index) workspace.resize(index + 1);
  if (workspace[index].size() < bytes) workspace[index] = Region(bytes);
  allow_only(workspace[index].data(), bytes, workspace[index].size());
  return workspace[index].data();
}

Slot Program::append(std::unique_ptr<Instruction> instruction, std::vector<Slot> inputs,
                     int width) {
  if (finished_) fail("the program is finished; nothing can be added");
  for (const Slot& slot : inputs) {
    if (slot.program != this) fail("an array of another program was given to an operation");
    instruction->inputs.push_back(slot.id);
  }
  const Slot slot = input(width);
  instruction->output = slot.id;
  code_.push_back(std::move(instruction));
  return slot;
}

Slot Program::input(int width) {
  if (width < 1) fail("an array needs at least one column");
  slots_.push_back({width});
  return {this, static_cast<int>(slots_.size()) - 1, width};
}

Slot Program::embedding(std::shared_ptr<Table> table, float scale) {
  limits_.needs_step = true;
  limits_.table_rows = std::min(limits_.table_rows, table->rows);
  const int width = table->width;
  limits_.table_width = width;
  return append(std::make_unique<EmbeddingOp>(std::move(table), scale), {}, width);
}

Slot Program::rms_norm(const Slot& x, std::vector<float> weight, float eps) {
  if (static_cast<std::size_t>(x.width) != weight.size()) {
    fail("rms_norm: x is " + rows_of(x.width) + ", weight [" + std::to_string(weight.size()) + "]");
  }
  return append(std::make_unique<RmsNormOp>(std::move(weight), eps), {x}, x.width);
}

Slot Program::linear(const Slot& x, std::shared_ptr<Linear> weight, std::vector<float> bias) {
  if (weight->gated) fail("linear: the weight was made by prepare_gated");
  const int width = weight->width;
  if (x.width != weight->depth) {
    fail("linear: x is " + rows_of(x.width) + ", weight [" + std::to_string(width) + ", " +
         std::to_string(weight->depth) + "]");
  }
  if (!bias.empty() && bias.size() != static_cast<std::size_t>(width)) {
    fail("linear: " + std::to_string(width) + " columns, bias [" + std::to_string(bias.size()) +
         "]");
  }
  return append(
      std::make_unique<LinearOp>(std::move(weight), std::move(bias), Activation::None), {x}, width);
}

Slot Program::gated_linear(const Slot& x, std::shared_ptr<Linear> weight,
                           const std::string& activation) {
  if (!weight->gated) fail("gated_linear: the weight was not made by prepare_gated");
  const int width = weight->width;
  if (x.width != weight->depth) {
    fail("gated_linear: x is " + rows_of(x.width) + ", weight [" + std::to_string(width) + ", " +
         std::to_string(weight->depth) + "]");
  }
  const bool silu = activation == "silu";
  if (!silu && activation != "gelu_tanh") {
    fail("gated_linear: unknown activation '" + activation + "'");
  }
  const Activation kind = silu ? Activation::Silu : Activation::GeluTanh;
  return append(std::make_unique<LinearOp>(std::move(weight), std::vector<float>{}, kind), {x},
                width);
}

Slot Program::add(const Slot& x, const Slot& y) {
  if (x.width != y.width) {
    fail("add: x is " + rows_of(x.width) + ", y " + rows_of(y.width));
  }
  return append(std::make_unique<AddOp>(x.width), {x, y}, x.width);
}

Slot Program::rope(std::vector<float> inv_freq, float scale) {
  limits_.needs_step = true;
  const int width = 2 * static_cast<int>(inv_freq.size());
  return append(std::make_unique<RopeOp>(std::move(inv_freq), scale), {}, width);
}

void Program::use_cache(const KvCache& cache) {
  if (limits_.block_size != 0 && limits_.block_size != cache.block_size) {
    fail("caches of one model must have one block size, not " +
         std::to_string(limits_.block_size) + " and " + std::to_string(cache.block_size));
  }
  limits_.needs_step = true;
  limits_.block_size = cache.block_size;
  limits_.num_blocks = std::min(limits_.num_blocks, cache.num_blocks);
}

namespace {

void check_heads(const std::string& op, const KvCache& cache, int num_heads, int num_kv_heads,
                 int head_dim) {
  if (cache.num_kv_heads != num_kv_heads || cache.head_dim != head_dim) {
    fail(op + ": " + std::to_string(num_kv_heads) + " key heads of " + std::to_string(head_dim) +
         ", cache made for " + std::to_string(cache.num_kv_heads) + " of " +
         std::to_string(cache.head_dim));
  }
  if (num_heads < num_kv_heads || num_heads % num_kv_heads != 0) {
    fail(op + ": " + std::to_string(num_heads) + " heads cannot share " +
         std::to_string(num_kv_heads) + " key heads");
  }
}

}  // namespace

Slot Program::rope_and_cache(const Slot& qkv, const Slot& rope, std::shared_ptr<KvCache> cache,
                             int num_heads, int num_kv_heads, int head_dim,
                             std::vector<float> q_norm, std::vector<float> k_norm, float eps) {
  check_heads("rope_and_cache", *cache, num_heads, num_kv_heads, head_dim);
  if (qkv.width != (num_heads + 2 * num_kv_heads) * head_dim || rope.width > head_dim) {
    fail("rope_and_cache: qkv is " + rows_of(qkv.width) + ", rope " + rows_of(rope.width) +
         ", heads " + std::to_string(num_heads) + " + 2 * " + std::to_string(num_kv_heads) +
         " of " + std::to_string(head_dim));
  }
  for (const std::vector<float>* norm : {&q_norm, &k_norm}) {
    if (!norm->empty() && norm->size() != static_cast<std::size_t>(head_dim)) {
      fail("rope_and_cache: heads of " + std::to_string(head_dim) + ", norm weight [" +
           std::to_string(norm->size()) + "]");
    }
  }
  use_cache(*cache);
  return append(std::make_unique<RopeAndCacheOp>(std::move(cache), num_heads, rope.width / 2,
                                                 std::move(q_norm), std::move(k_norm), eps),
                {qkv, rope}, num_heads * head_dim);
}

Slot Program::attention(const Slot& q, std::shared_ptr<KvCache> cache, int num_heads,
                        int num_kv_heads, int head_dim, float scale, int window) {
  check_heads("attention", *cache, num_heads, num_kv_heads, head_dim);
  if (q.width != num_heads * head_dim) {
    fail("attention: q is " + rows_of(q.width) + ", heads " + std::to_string(num_heads) + " of " +
         std::to_string(head_dim));
  }
  if (window < 1) fail("attention: window is " + std::to_string(window));
  use_cache(*cache);
  return append(std::make_unique<AttentionOp>(std::move(cache), num_heads, scale, window), {q},
                q.width);
}

void Program::finish(const Slot& output) {
  if (output.program != this) fail("the result is an array of another program");
  output_ = output.id;
  finished_ = true;
  merge_sums();
  join_norms();
  join_rotations();
  plan();
}

// How often each slot is read.
std::vector<int> Program::count_uses() const {
  std::vector<int> uses(slots_.size(), 0);
  for (const auto& instruction : code_) {
    for (int slot : instruction->inputs) ++uses[static_cast<std::size_t>(slot)];
  }
  ++uses[static_cast<std::size_t>(output_)];
  return uses;
}

// Which instruction writes each slot.
std::map<int, std::size_t> Program::makers() const {
  std::map<int, std::size_t> made_by;
  for (std::size_t i = 0; i < code_.size(); ++i) made_by[code_[i]->output] = i;
  return made_by;
}

// add(x, linear(..)) becomes one instruction, run where the add was, if only the add reads the
// product.
void Program::merge_sums() {
  const std::vector<int> uses = count_uses();
  const std::map<int, std::size_t> made_by = makers();
  for (std::unique_ptr<Instruction>& instruction : code_) {
    if (!dynamic_cast<AddOp*>(instruction.get())) continue;
    for (std::size_t side : {std::size_t{1}, std::size_t{0}}) {
      const int product = instruction->inputs[side];
      const auto maker = made_by.find(product);
      if (maker == made_by.end() || uses[static_cast<std::size_t>(product)] != 1) continue;
      auto* linear = dynamic_cast<LinearOp*>(code_[maker->second].get());
      if (!linear || !linear->can_add_residual()) continue;
      linear->inputs.push_back(instruction->inputs[1 - side]);
      linear->output = instruction->output;
      instruction = std::move(code_[maker->second]);
      break;
    }
  }
  std::erase(code_, nullptr);
}

// Where only one product reads a norm, and converts its rows anyway, it norms them on the way.
void Program::join_norms() {
  const std::vector<int> uses = count_uses();
  const std::map<int, std::size_t> made_by = makers();
  for (std::size_t i = 0; i < code_.size(); ++i) {
    auto* linear = dynamic_cast<LinearOp*>(code_[i].get());
    if (!linear || !linear->converts_rows(home_->kernels())) continue;
    const int rows = linear->inputs[0];
    const auto maker = made_by.find(rows);
    if (maker == made_by.end() || uses[static_cast<std::size_t>(rows)] != 1) continue;
    std::unique_ptr<Instruction>& made = code_[maker->second];
    if (auto* norm = dynamic_cast<RmsNormOp*>(made.get())) {
      linear->take_over(*norm);
      made = nullptr;
    }
  }
  std::erase(code_, nullptr);
}

// Where only an attention reads the queries of a rotation, it can do that itself, head by head.
void Program::join_rotations() {
  const std::vector<int> uses = count_uses();
  const std::map<int, std::size_t> made_by = makers();
  for (const std::unique_ptr<Instruction>& instruction : code_) {
    auto* attention = dynamic_cast<AttentionOp*>(instruction.get());
    if (!attention) continue;
    const int queries = attention->inputs[0];
    const auto maker = made_by.find(queries);
    if (maker == made_by.end() || uses[static_cast<std::size_t>(queries)] != 1) continue;
    if (auto* rope = dynamic_cast<RopeAndCacheOp*>(code_[maker->second].get())) {
      attention->take_over(*rope);
    }
  }
}

// Slots share memory when their lives do not meet. An instruction's output never shares with its
// inputs, because rows are written while others are still read.
void Program::plan() {
  std::vector<std::size_t> last_use(slots_.size(), 0);
  for (std::size_t i = 0; i < code_.size(); ++i) {
    for (int slot : code_[i]->inputs) last_use[static_cast<std::size_t>(slot)] = i;
  }
  last_use[static_cast<std::size_t>(output_)] = SIZE_MAX;

  std::multimap<std::ptrdiff_t, std::ptrdiff_t> free;  // size -> offset
  const auto take = [&](SlotPlace& slot) {
    slot.stride = padded(slot.width);
    const auto fit = free.lower_bound(slot.stride);
    // A much larger hole is left for a larger slot.
    if (fit != free.end() && fit->first <= 2 * slot.stride) {
      slot.offset = fit->second;
      slot.stride = fit->first;
      free.erase(fit);
    } else {
      slot.offset = floats_per_row_;
      floats_per_row_ += slot.stride;
    }
  };
  std::vector<bool> placed(slots_.size(), false);
  for (std::size_t i = 0; i < code_.size(); ++i) {
    for (int slot : code_[i]->inputs) {
      const auto s = static_cast<std::size_t>(slot);
      if (!placed[s]) take(slots_[s]);  // an input of the program
      placed[s] = true;
    }
    const auto made = static_cast<std::size_t>(code_[i]->output);
    take(slots_[made]);
    placed[made] = true;
    for (int slot : code_[i]->inputs) {
      const auto s = static_cast<std::size_t>(slot);
      if (last_use[s] != i) continue;
      free.emplace(slots_[s].stride, slots_[s].offset);
      last_use[s] = SIZE_MAX;  // listed twice as an input: freed once
    }
  }
  const auto result = static_cast<std::size_t>(output_);
  if (!placed[result]) take(slots_[result]);
}

void Program::place(Frame& frame, int num_rows, const Rows* external) {
  if (num_rows > capacity_) {
    arena_ = Region();
    arena_ = Region(static_cast<std::size_t>(floats_per_row_ * num_rows) * sizeof(float));
    capacity_ = num_rows;
  }
  frame.num_rows = num_rows;
  frame.slots.resize(slots_.size());
  forbid(arena_.data(), arena_.size());
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const SlotPlace& slot = slots_[s];
    float* data = static_cast<float*>(arena_.data()) + slot.offset * capacity_;
    frame.slots[s] = {data, slot.stride};
    if (num_rows == 0) continue;
    const std::ptrdiff_t used = (num_rows - 1) * slot.stride + slot.width;
    allow(data, sizeof(float) * static_cast<std::size_t>(used));
  }
  if (external) frame.slots[static_cast<std::size_t>(output_)] = *external;
}

void Program::run(Frame& frame) const {
  for (const std::unique_ptr<Instruction>& instruction : code_) instruction->run(frame);
}

}  // namespace headrace
