// Chooses one token of a row whose logits are final: greedily, or by a draw after temperature,
// min-p, top-k and top-p.
#pragma once

#include <cstddef>

#include "sampling/row_passes.h"
#include "sampling/row_state.h"
#include "sampling/workspace.h"

namespace headrace::sampling {

// The index of the largest logit; the lowest one of several.
std::size_t choose_greedy(const RowScan& row);

// A token drawn by `uniform` in (0, 1): the first, in the order of indices, at which the summed
// weights of the kept tokens pass that share of their total. The row's max must be finite.
//
// min_p drops tokens less than min_p times as likely as the likeliest; top_k keeps the k likeliest
// of the rest; top_p the fewest likeliest of those that have the share top_p of what is left.
std::size_t choose_randomly(const RowScan& row, const RowParams& params, double uniform,
                            const RowPasses& passes, Workspace& workspace);

}  // namespace headrace::sampling
