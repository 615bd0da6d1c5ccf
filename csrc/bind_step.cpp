// Python's view of a step: the batch it is gathered from.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include "step_batch.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace {
namespace {

using Numbers = std::vector<std::int32_t>;

// An array of the batch as numpy sees it; it keeps the batch alive.
nb::ndarray<nb::numpy, std::int32_t> view(const IntArray& array, nb::handle batch, int rows = 0) {
  const auto height = static_cast<std::size_t>(rows);
  if (rows == 0) return {array.data(), {array.size()}, batch};
  return {array.data(), {height, array.size() / height}, batch};
}

template <const IntArray StepBatch::*kArray, bool kIsTable = false>
nb::ndarray<nb::numpy, std::int32_t> array_of(nb::handle batch) {
  const auto& self = nb::cast<const StepBatch&>(batch);
  return view(self.*kArray, batch, kIsTable ? self.max_num_seqs() : 0);
}

}  // namespace
}  // namespace headrace

void bind_step(nb::module_& m) {
  using namespace headrace;
  nb::class_<StepBatch>(m, "StepBatch", "Tokens and blocks of known requests, and a step's arrays.")
      .def(nb::init<int, int, int, int>(), "max_num_seqs"_a, "max_model_len"_a, "block_size"_a,
           "max_num_tokens"_a)
      .def("set",
           [](StepBatch& self, int row, const Numbers& token_ids, const Numbers& block_ids,
              int num_computed) { self.set(row, token_ids, block_ids, num_computed); },
           "row"_a, "token_ids"_a, "block_ids"_a, "num_computed"_a)
      .def("extend",
           [](StepBatch& self, int row, const Numbers& block_ids, int num_computed,
              const Numbers& draft) { self.extend(row, block_ids, num_computed, draft); },
           "row"_a, "block_ids"_a, "num_computed"_a, "draft"_a = Numbers())
      .def("append", &StepBatch::append, "row"_a, "token_id"_a)
      .def("gather",
           [](StepBatch& self, const Numbers& rows, const Numbers& counts) {
             return self.gather(rows, counts);
           },
           "rows"_a, "counts"_a)
      .def("tokens",
           [](const StepBatch& self, int row, int first, int end) {
             const Ids ids = self.tokens(row, first, end);
             return Numbers(ids.begin(), ids.end());
           },
           "row"_a, "first"_a, "end"_a)
      .def("num_tokens", &StepBatch::num_tokens, "row"_a)
      .def_prop_ro("input_ids", &array_of<&StepBatch::input_ids>)
      .def_prop_ro("positions", &array_of<&StepBatch::positions>)
      .def_prop_ro("slot_mapping", &array_of<&StepBatch::slot_mapping>)
      .def_prop_ro("query_start_loc", &array_of<&StepBatch::query_start_loc>)
      .def_prop_ro("seq_lens", &array_of<&StepBatch::seq_lens>)
      .def_prop_ro("block_table", &array_of<&StepBatch::block_table, true>)
      .def_prop_ro("logits_rows", &array_of<&StepBatch::logits_rows>);
}
