// The Python face of sampling: two classes and, for tests, the generator. Checks shapes and ids,
// since a wrong one would reach foreign memory.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>

#include "sampling/philox.h"
#include "sampling/row_sampler.h"

namespace nb = nanobind;

namespace headrace::sampling {
namespace {

using Masks = nb::ndarray<const std::uint32_t, nb::shape<-1, -1>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::shape<-1, -1>, nb::c_contig, nb::device::cpu>;

void require_shape(const Logits& logits, std::size_t num_rows, std::size_t vocab_size) {
  if (logits.shape(0) != num_rows || logits.shape(1) != vocab_size) {
    throw std::invalid_argument("logits must be [" + std::to_string(num_rows) + ", " +
                                std::to_string(vocab_size) + "], got [" +
                                std::to_string(logits.shape(0)) + ", " +
                                std::to_string(logits.shape(1)) + "]");
  }
}

nb::list to_list(const auto& values) {
  nb::list list;
  for (const auto value : values) list.append(value);
  return list;
}

nb::object to_python(const std::optional<TokenLogprobs>& record) {
  if (!record) return nb::none();
  return nb::make_tuple(to_list(record->ids), to_list(record->logprobs), record->rank);
}

nb::list errors_of(const std::vector<RowResult>& results) {
  nb::list errors;
  for (std::size_t row = 0; row < results.size(); ++row) {
    if (results[row].error) errors.append(nb::make_tuple(row, results[row].error));
  }
  return errors;
}

// For each row where its mask begins, or nullptr.
std::vector<const std::uint32_t*> mask_pointers(const Masks& masks,
                                                const std::vector<std::int32_t>& mask_rows,
                                                std::size_t num_rows, std::size_t vocab_size) {
  if (mask_rows.size() != num_rows || masks.shape(1) != (vocab_size + 31) / 32) {
    throw std::invalid_argument("masks do not fit the rows of logits");
  }
  std::vector<const std::uint32_t*> pointers;
  pointers.reserve(num_rows);
  for (const std::int32_t row : mask_rows) {
    if (row >= static_cast<std::int64_t>(masks.shape(0))) {
      throw std::invalid_argument("there is no mask " + std::to_string(row));
    }
    pointers.push_back(
        row < 0 ? nullptr : masks.data() + static_cast<std::size_t>(row) * masks.shape(1));
  }
  return pointers;
}

nb::tuple sample(RowSampler& sampler, const Logits& logits, const nb::list& states,
                 const std::optional<Masks>& masks, const std::vector<std::int32_t>& mask_rows) {
  require_shape(logits, states.size(), sampler.vocab_size());
  std::vector<const RowState*> rows;
  rows.reserve(states.size());
  for (const nb::handle state : states) {
    rows.push_back(nb::cast<const RowState*>(state));
    if (rows.back() == nullptr || rows.back()->params().vocab_size != sampler.vocab_size()) {
      throw std::invalid_argument("a row's state was made for another vocabulary");
    }
  }
  std::vector<const std::uint32_t*> pointers;
  if (masks) pointers = mask_pointers(*masks, mask_rows, rows.size(), sampler.vocab_size());
  std::vector<RowResult> results;
  {
    const nb::gil_scoped_release release;
    results = sampler.sample(logits.data(), rows, pointers);
  }
  nb::list token_ids, records;
  for (const RowResult& result : results) {
    token_ids.append(result.token_id);
    records.append(to_python(result.logprobs));
  }
  return nb::make_tuple(token_ids, records, errors_of(results));
}

nb::tuple score(RowSampler& sampler, const Logits& logits, const std::vector<TokenId>& targets,
                std::int64_t num_logprobs, const std::vector<TokenId>& asked_for) {
  require_shape(logits, targets.size(), sampler.vocab_size());
  for (const auto* ids : {&targets, &asked_for}) {
    for (const TokenId id : *ids) {
      if (id < 0 || static_cast<std::size_t>(id) >= sampler.vocab_size()) {
        throw std::invalid_argument("target token id " + std::to_string(id) +
                                    " is outside the vocabulary");
      }
    }
  }
  std::vector<RowResult> results;
  {
    const nb::gil_scoped_release release;
    results = sampler.score(logits.data(), targets, num_logprobs, asked_for);
  }
  nb::list records;
  for (const RowResult& result : results) {
    if (!result.error) records.append(to_python(result.logprobs));
  }
  return nb::make_tuple(records, errors_of(results));
}

void bind_row_params(nb::module_& m) {
  nb::class_<RowParams>(m, "RowParams", "What one request asks of sampling; see RowState.")
      .def(nb::init<>())
      .def_rw("vocab_size", &RowParams::vocab_size)
      .def_rw("seed", &RowParams::seed)
      .def_rw("temperature", &RowParams::temperature)
      .def_rw("top_k", &RowParams::top_k)
      .def_rw("top_p", &RowParams::top_p)
      .def_rw("min_p", &RowParams::min_p)
      .def_rw("repetition_penalty", &RowParams::repetition_penalty)
      .def_rw("frequency_penalty", &RowParams::frequency_penalty)
      .def_rw("presence_penalty", &RowParams::presence_penalty)
      .def_rw("min_tokens", &RowParams::min_tokens)
      .def_rw("stop_ids", &RowParams::stop_ids)
      .def_rw("logit_bias", &RowParams::logit_bias)
      .def_rw("allowed_ids", &RowParams::allowed_ids, nb::arg().none())
      .def_rw("bad_words", &RowParams::bad_words)
      .def_rw("num_logprobs", &RowParams::num_logprobs, nb::arg().none())
      .def_rw("logprob_ids", &RowParams::logprob_ids);
}

}  // namespace
}  // namespace headrace::sampling

void bind_sampling(nb::module_& m) {
  using namespace headrace::sampling;
  bind_row_params(m);

  nb::class_<RowState>(m, "RowState", "A request's sampling parameters and its tokens.")
      .def(
          "__init__",
          [](RowState* self, const RowParams& params, const std::vector<TokenId>& prompt_ids,
             const std::vector<TokenId>& output_ids) {
            new (self) RowState(params, prompt_ids, output_ids);
          },
          nb::arg("params"), nb::arg("prompt_ids"), nb::arg("output_ids"))
      .def("append", &RowState::append, nb::arg("token_id"))
      .def("force_next", &RowState::force_next, nb::arg("token_id"))
      .def_prop_ro("num_output_tokens",
                   [](const RowState& self) { return self.output_ids().size(); });

  nb::class_<RowSampler>(m, "RowSampler", "Samples the rows of a step; one call at a time.")
      .def(nb::init<std::size_t, int, bool>(), nb::arg("vocab_size"),
           nb::arg("num_threads") = 0, nb::arg("portable") = false)
      .def("sample", &sample, nb::arg("logits").noconvert(), nb::arg("rows"),
           nb::arg("masks").noconvert().none() = nb::none(),
           nb::arg("mask_rows") = std::vector<std::int32_t>{},
           "Token ids (-1 for a failed row), logprob records or None, and [(row, error)].")
      .def("score", &score, nb::arg("logits").noconvert(), nb::arg("targets"),
           nb::arg("num_logprobs"), nb::arg("asked_for") = std::vector<TokenId>{},
           "Logprob records of the sound rows, and [(row, error)].");

  m.def("philox4x32_10", &philox4x32_10, nb::arg("counter"), nb::arg("key"),
        "Ten rounds of Philox on four and two 32-bit words.");
  m.def("uniform_draw", &uniform, nb::arg("seed"), nb::arg("index"),
        "The draw in (0, 1) for token number `index` of the request with this seed.");
}
