// Memory one thread needs to sample a row, kept between rows and steps.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "sampling/candidates.h"
#include "sampling/row_passes.h"
#include "sampling/row_state.h"

namespace headrace::sampling {

struct Workspace {
  Workspace(std::size_t vocab_size, const RowPasses& passes)
      : candidates(vocab_size, passes),
        block_maxima(std::make_unique_for_overwrite<float[]>(num_blocks(vocab_size))),
        block_sums(std::make_unique_for_overwrite<float[]>(num_blocks(vocab_size))) {}

  Candidates candidates;
  std::unique_ptr<float[]> block_maxima;
  std::unique_ptr<float[]> block_sums;
  Edits edits;
  std::vector<TokenId> allowed_ids;
  std::vector<float> allowed_logits;
};

// What one pass over a row tells.
struct RowScan {
  RowView view;  // its maxima live in the workspace, until the next scan
  float max;     // NaN when any logit is
};

inline RowScan scan(std::span<const float> logits, const RowPasses& passes, Workspace& workspace) {
  float* maxima = workspace.block_maxima.get();
  const float max = passes.block_max(logits.data(), logits.size(), maxima);
  return {{logits, {maxima, num_blocks(logits.size())}}, max};
}

}  // namespace headrace::sampling
