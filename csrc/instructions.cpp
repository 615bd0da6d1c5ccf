#include "instructions.h"

#include <cmath>

#include "formats.h"
#include "integer_linear.h"
#include "product_tasks.h"

namespace headrace {
namespace {

const float* or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

void EmbeddingOp::run(Frame& frame) const {
  const Rows out = frame.slots[static_cast<std::size_t>(output)];
  const std::size_t bytes = row_bytes(table_->format, table_->width);
  frame.for_rows(4 * static_cast<std::size_t>(table_->width), [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      float* row = out.data + r * out.stride;
      const auto id = static_cast<std::size_t>(frame.step->input_ids[r]);
      dequantize_row(table_->format, table_->data + id * bytes, table_->width, row);
      if (scale_ == 1.0f) continue;
      for (int i = 0; i < table_->width; ++i) row[i] *= scale_;
    }
  });
  const Step& step = *frame.step;
  for (int i = 0; i < step.num_given; ++i) {
    std::copy_n(step.given + std::ptrdiff_t{i} * table_->width, table_->width,
                out.data + step.given_rows[i] * out.stride);
  }
}

void RmsNormOp::run(Frame& frame) const {
  const Rows x = frame.slots[static_cast<std::size_t>(inputs[0])];
  const Rows y = frame.slots[static_cast<std::size_t>(output)];
  const std::vector<float>& weight = norm_.weight;
  const int width = static_cast<int>(weight.size());
  const NormArgs args{x.data, x.stride, weight.data(), norm_.eps, width, y.data, y.stride};
  frame.for_rows(weight.size(),
                 [&](int begin, int end) { frame.kernels.rms_norm(args, begin, end); });
}

void AddOp::run(Frame& frame) const {
  const Rows x = frame.slots[static_cast<std::size_t>(inputs[0])];
  const Rows y = frame.slots[static_cast<std::size_t>(inputs[1])];
  const Rows sum = frame.slots[static_cast<std::size_t>(output)];
  const AddArgs args{x.data, x.stride, y.data, y.stride, width_, sum.data, sum.stride};
  frame.for_rows(static_cast<std::size_t>(width_),
                 [&](int begin, int end) { frame.kernels.add(args, begin, end); });
}

bool LinearOp::converts_rows(const Kernels& kernels) const {
  if (weight_->int8 || weight_->int16 || weight_->blocks) return true;
  // Weights finer than bfloat16 stay off the tiles and need the rows as they are.
  return kernels.needs_bf16 &&
         std::none_of(weight_->panels.begin(), weight_->panels.end(), [](const PanelRef& panel) {
           return panel.format == Format::F32 || panel.format == Format::F16;
         });
}

void LinearOp::take_over(RmsNormOp& norm) {
  inputs[0] = norm.inputs[0];
  norm_ = norm.take();
}

InputRows LinearOp::input_rows(const Frame& frame) const {
  return {frame.slots[static_cast<std::size_t>(inputs[0])], weight_->depth,
          norm_ ? &*norm_ : nullptr};
}

void LinearOp::run(Frame& frame) const {
  const Kernels& kernels = frame.kernels;
  const Rows x = frame.slots[static_cast<std::size_t>(inputs[0])];
  const Rows y = frame.slots[static_cast<std::size_t>(output)];
  const Rows residual =
      inputs.size() > 1 ? frame.slots[static_cast<std::size_t>(inputs[1])] : Rows{};
  const int num_rows = frame.num_rows, depth = weight_->depth;
  LinearArgs args{x.data,          x.stride,      nullptr,         0,
                  depth,           weight_->panels.data(), activation_, or_null(bias_),
                  residual.data,   residual.stride, y.data,        y.stride};
  const int num_panels = static_cast<int>(weight_->panels.size());
  if (weight_->int8) {
    return run_int8_linear(frame, *weight_->int8, input_rows(frame), args, num_panels);
  }
  if (weight_->int16) {
    return run_int16_linear(frame, *weight_->int16, input_rows(frame), args, num_panels);
  }
  if (weight_->blocks) {
    return run_block_linear(frame, *weight_->blocks, input_rows(frame), args, num_panels);
  }
  if (kernels.needs_bf16) {
    // Whole blocks, of 64 bytes each, and an odd number of them, so that the rows of a tile lie in
    // different places of a cache.
    const std::ptrdiff_t stride = ((depth + kBlockDepth - 1) / kBlockDepth | 1) * kBlockDepth;
    auto* rounded = static_cast<std::uint16_t*>(
        frame.work(0, static_cast<std::size_t>(num_rows * stride) * sizeof(std::uint16_t)));
    frame.for_rows(static_cast<std::size_t>(depth), [&](int begin, int end) {
      input_rows(frame).convert(
          kernels, begin, end,
          [&](const float* rows, std::ptrdiff_t row_stride, int first, int count) {
            kernels.round_rows(rows, row_stride, depth, rounded + first * stride, stride, count);
          });
    });
    args.x_bf16 = rounded;
    args.x_bf16_stride = stride;
  }

  ProductShape shape{};
  shape.num_rows = num_rows;
  shape.num_panels = num_panels;
  shape.panels_together = 4;  // two gated pairs
  shape.row_bytes = static_cast<std::size_t>(depth) * (kernels.needs_bf16 ? 2 : 4);
  shape.row_multiple = kernels.row_block;
  shape.min_multiples = 4;
  shape.max_multiples = 20;
  // Each of these is sixteen multiply-adds, about four times what `kWorthSharing` counts.
  shape.cost = 4 * static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(depth) *
               static_cast<std::size_t>(num_panels);
  const std::size_t scratch = kernels.linear_scratch(depth, rows_of_a_task(shape));
  for_product_tasks(frame, shape, [&](int row_begin, int row_end, int begin, int end) {
    kernels.linear(args, row_begin, row_end, begin, end, thread_scratch(scratch));
  });
}

void RopeOp::run(Frame& frame) const {
  const Rows out = frame.slots[static_cast<std::size_t>(output)];
  const std::size_t num_pairs = inv_freq_.size();
  frame.for_rows(80 * num_pairs, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      const auto position = static_cast<float>(frame.step->positions[r]);
      float* row = out.data + r * out.stride;
      for (std::size_t i = 0; i < num_pairs; ++i) {
        const float angle = position * inv_freq_[i];
        row[i] = std::cos(angle) * scale_;
        row[num_pairs + i] = std::sin(angle) * scale_;
      }
    }
  });
}

void RopeAndCacheOp::run(Frame& frame) const {
  if (left_to_attention_ && frame.one_token_each) return;
  apply(frame);
}

void RopeAndCacheOp::apply(const Frame& frame) const {
  const RopeArgs rope = args(frame);
  const int kv_heads = cache_->num_kv_heads;
  frame.for_rows(static_cast<std::size_t>((num_heads_ + 4 * kv_heads) * cache_->head_dim),
                 [&](int begin, int end) {
                   frame.kernels.rope_and_cache(rope, begin, end, 0, kv_heads);
                 });
}

RopeArgs RopeAndCacheOp::args(const Frame& frame) const {
  const Rows qkv = frame.slots[static_cast<std::size_t>(inputs[0])];
  const Rows rope = frame.slots[static_cast<std::size_t>(inputs[1])];
  const Rows q = frame.slots[static_cast<std::size_t>(output)];
  return {qkv.data,         qkv.stride,       rope.data, rope.stride,
          num_pairs_,       num_heads_,       or_null(q_norm_), or_null(k_norm_),
          eps_,             cache_->view(),   frame.step->slot_mapping,
          q.data,           q.stride};
}

}  // namespace headrace
