// The operations of a program, with everything they need resolved at recording.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "input_rows.h"
#include "program.h"

namespace headrace {

class EmbeddingOp final : public Instruction {
 public:
  EmbeddingOp(std::shared_ptr<Table> table, float scale)
      : table_(std::move(table)), scale_(scale) {}
  void run(Frame& frame) const override;

 private:
  std::shared_ptr<Table> table_;
  float scale_;
};

class RmsNormOp final : public Instruction {
 public:
  RmsNormOp(std::vector<float> weight, float eps) : norm_{std::move(weight), eps} {}
  void run(Frame& frame) const override;

  RowNorm take() { return std::move(norm_); }

 private:
  RowNorm norm_;
};

// Plain or gated product. With a second input, that is added to the result.
class LinearOp final : public Instruction {
 public:
  LinearOp(std::shared_ptr<Linear> weight, std::vector<float> bias, Activation activation)
      : weight_(std::move(weight)), bias_(std::move(bias)), activation_(activation) {}
  void run(Frame& frame) const override;

  bool can_add_residual() const { return activation_ == Activation::None && inputs.size() == 1; }
  // Whether its rows become another type of number first, and are used as that alone.
  bool converts_rows(const Kernels& kernels) const;
  // Norm the rows of its input while they are converted.
  void take_over(RmsNormOp& norm);

 private:
  InputRows input_rows(const Frame& frame) const;

  std::shared_ptr<Linear> weight_;
  std::vector<float> bias_;
  Activation activation_;
  std::optional<RowNorm> norm_;
};

class AddOp final : public Instruction {
 public:
  explicit AddOp(int width) : width_(width) {}
  void run(Frame& frame) const override;

 private:
  int width_;
};

class RopeOp final : public Instruction {
 public:
  RopeOp(std::vector<float> inv_freq, float scale)
      : inv_freq_(std::move(inv_freq)), scale_(scale) {}
  void run(Frame& frame) const override;

 private:
  std::vector<float> inv_freq_;
  float scale_;
};

class RopeAndCacheOp final : public Instruction {
 public:
  RopeAndCacheOp(std::shared_ptr<KvCache> cache, int num_heads, int num_pairs,
                 std::vector<float> q_norm, std::vector<float> k_norm, float eps)
      : cache_(std::move(cache)),
        num_heads_(num_heads),
        num_pairs_(num_pairs),
        q_norm_(std::move(q_norm)),
        k_norm_(std::move(k_norm)),
        eps_(eps) {}
  void run(Frame& frame) const override;

  const KvCache* cache() const { return cache_.get(); }
  RopeArgs args(const Frame& frame) const;
  void apply(const Frame& frame) const;
  // From now on it is left to the attention behind it where that can do it head by head.
  void leave_to_attention() { left_to_attention_ = true; }

 private:
  std::shared_ptr<KvCache> cache_;
  int num_heads_;
  int num_pairs_;
  std::vector<float> q_norm_;
  std::vector<float> k_norm_;
  float eps_;
  bool left_to_attention_ = false;
};

class AttentionOp final : public Instruction {
 public:
  AttentionOp(std::shared_ptr<KvCache> cache, int num_heads, float scale, int window)
      : cache_(std::move(cache)), num_heads_(num_heads), scale_(scale), window_(window) {}
  void run(Frame& frame) const override;

  // Take over the rotation that makes its queries, if it writes to the same cache.
  void take_over(RopeAndCacheOp& rope);

 private:
  const AttentionPlan& plan(Frame& frame) const;

  std::shared_ptr<KvCache> cache_;
  int num_heads_;
  float scale_;
  int window_;
  const RopeAndCacheOp* rope_ = nullptr;
};

}  // namespace headrace
