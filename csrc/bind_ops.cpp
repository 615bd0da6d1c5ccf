// Python's view of the kernels: the home, programs being recorded, executables.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <climits>
#include <optional>
#include <stdexcept>
#include <utility>

#include "affinity.h"
#include "cpu.h"
#include "executable.h"
#include "formats.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace {
namespace {

using Bytes = nb::ndarray<const std::uint8_t, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntTable = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// A stored matrix as Python hands it over.
struct Stored {
  StoredMatrix matrix;
  Bytes bytes;
  bool is_mapped;
};

Stored make_stored(const std::string& format, int rows, int columns, Bytes bytes, bool is_mapped) {
  const Format kind = format_by_name(format);
  const FormatInfo& info = format_info(kind);
  if (rows < 1 || columns < 1 || columns % info.block_size != 0 ||
      bytes.size() != row_bytes(kind, columns) * static_cast<std::size_t>(rows)) {
    throw std::invalid_argument("a " + format + " matrix [" + std::to_string(rows) + ", " +
                                std::to_string(columns) + "] cannot have " +
                                std::to_string(bytes.size()) + " bytes");
  }
  return {{kind, rows, columns, bytes.data()}, bytes, is_mapped};
}

// The packed copy replaces the mapped one: without this a model would be in memory twice.
void release(const Stored& stored) {
  if (stored.is_mapped) release_mapped_pages(stored.bytes.data(), stored.bytes.size());
}

// From what ops.Quantization names it.
Rounding rounding_by_name(const std::optional<std::string>& name) {
  if (!name) return Rounding::None;
  if (*name == "int8") return Rounding::Int8;
  if (*name == "int8_activations") return Rounding::Int8Activations;
  throw std::invalid_argument("unknown quantization '" + *name + "'");
}

std::shared_ptr<Linear> prepare_linear(Home& home, const std::vector<Stored>& parts,
                                       const std::optional<std::string>& quantization) {
  const Rounding rounding = rounding_by_name(quantization);
  std::vector<StoredMatrix> matrices;
  for (const Stored& part : parts) matrices.push_back(part.matrix);
  std::shared_ptr<Linear> linear;
  {
    const nb::gil_scoped_release unlocked;
    linear = home.prepare_linear(matrices, rounding);
  }
  for (const Stored& part : parts) release(part);
  return linear;
}

std::shared_ptr<Linear> prepare_gated(Home& home, const Stored& gate, const Stored& up,
                                      const std::optional<std::string>& quantization) {
  const Rounding rounding = rounding_by_name(quantization);
  std::shared_ptr<Linear> linear;
  {
    const nb::gil_scoped_release unlocked;
    linear = home.prepare_gated(gate.matrix, up.matrix, rounding);
  }
  release(gate);
  release(up);
  return linear;
}

std::shared_ptr<Table> prepare_table(const Stored& stored) {
  auto table = std::make_shared<Table>();
  table->owner = std::make_shared<Bytes>(stored.bytes);
  table->data = stored.matrix.data;
  table->format = stored.matrix.format;
  table->rows = stored.matrix.rows;
  table->width = stored.matrix.depth;
  return table;
}

std::vector<float> to_vector(const std::optional<Floats>& values) {
  if (!values) return {};
  return {values->data(), values->data() + values->size()};
}

// A step's arrays as Python hands them over. They may be filled anew between forwards.
struct BoundStep {
  BoundStep(nb::object input_ids, nb::object positions, nb::object slot_mapping,
            nb::object query_start_loc, nb::object seq_lens, nb::object block_table,
            nb::object given_rows, nb::object given)
      : arrays{input_ids, positions, slot_mapping, query_start_loc,
               seq_lens,  block_table, given_rows, given} {
    const Ints ids = take(input_ids, &Step::input_ids), lengths = take(seq_lens, &Step::seq_lens);
    const auto table = as<IntTable>(block_table);
    if (take(positions, &Step::positions).size() != ids.size() ||
        take(slot_mapping, &Step::slot_mapping).size() != ids.size() ||
        take(query_start_loc, &Step::query_start_loc).size() != lengths.size() + 1 ||
        table.shape(0) != lengths.size()) {
      throw std::invalid_argument("forward: the step's arrays differ in tokens or sequences");
    }
    step.num_tokens = static_cast<int>(ids.size());
    step.num_seqs = static_cast<int>(lengths.size());
    step.max_blocks = static_cast<int>(table.shape(1));
    step.block_table = table.data();
    if (given.is_none()) return;
    const auto rows = as<FloatTable>(given);
    if (take(given_rows, &Step::given_rows).size() != rows.shape(0)) {
      throw std::invalid_argument(
          "forward: the embeddings given and their places differ in number");
    }
    step.num_given = static_cast<int>(rows.shape(0));
    step.given_width = static_cast<int>(rows.shape(1));
    step.given = rows.data();
  }

  // Never a converted copy: what is written to the array later must be seen.
  template <typename Numbers>
  static Numbers as(const nb::object& array) {
    Numbers numbers;
    if (!nb::try_cast(array, numbers, false)) {
      throw nb::type_error("forward: a step's arrays must be int32 (embeddings float32) and "
                           "C-contiguous");
    }
    return numbers;
  }

  Ints take(const nb::object& array, const std::int32_t* Step::*field) {
    Ints numbers = as<Ints>(array);
    step.*field = numbers.data();
    return numbers;
  }

  std::array<nb::object, 8> arrays;  // kept alive
  Step step;
};

using LogitsArray = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

// An executable and the numpy array that its logits were last seen through: made anew only when
// they move or change in number.
class BoundExecutable {
 public:
  BoundExecutable(std::shared_ptr<Home> home, std::shared_ptr<Program> forward, const Slot& hidden,
                  std::shared_ptr<Program> logits, const Slot& logits_input, const Slot& result,
                  int hidden_size, int vocab_size, int max_num_tokens)
      : executable_(std::move(home), std::move(forward), hidden, std::move(logits), logits_input,
                    result, hidden_size, vocab_size, max_num_tokens) {}

  void forward(const BoundStep& bound) {
    const nb::gil_scoped_release unlocked;
    executable_.forward(bound.step);
  }

  nb::object logits(Ints rows) {
    Logits result;
    {
      const nb::gil_scoped_release unlocked;
      result = executable_.logits(rows.data(), static_cast<int>(rows.size()));
    }
    void* const data = result.memory->data();
    if (data != data_ || result.rows != rows_) {
      auto* held = new std::shared_ptr<Region>(result.memory);
      const nb::capsule owner(
          held, [](void* p) noexcept { delete static_cast<std::shared_ptr<Region>*>(p); });
      array_ = nb::cast(LogitsArray{static_cast<float*>(data),
                                    {static_cast<std::size_t>(result.rows),
                                     static_cast<std::size_t>(result.width)},
                                    owner});
      data_ = data;
      rows_ = result.rows;
    }
    return array_;
  }

 private:
  Executable executable_;
  nb::object array_;
  void* data_ = nullptr;
  int rows_ = -1;
};

void bind_prepared(nb::module_& m) {
  nb::class_<Stored>(m, "StoredMatrix");
  nb::class_<Linear>(m, "Linear")
      .def_ro("depth", &Linear::depth)
      .def_ro("width", &Linear::width);
  nb::class_<Table>(m, "Table");
  nb::class_<KvCache>(m, "KvCache").def("release", &KvCache::release);
  m.def("stored_matrix", &make_stored, "format"_a, "rows"_a, "columns"_a, "bytes"_a,
        "is_mapped"_a);
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
    return names;
  });
  m.def("bind_threads", &bind_threads, "cpus"_a);
  nb::class_<Home>(m, "Home")
      .def(nb::init<const std::string&, int>(), "isa"_a, "num_threads"_a)
      .def_prop_ro("isa", [](const Home& home) { return home.kernels().name; })
      .def_prop_ro("num_threads", &Home::num_threads)
      .def_prop_ro("weight_bytes", &Home::weight_bytes)
      .def("prepare_linear", &prepare_linear, "parts"_a, "quantization"_a.none())
      .def("prepare_gated", &prepare_gated, "gate"_a, "up"_a, "quantization"_a.none())
      .def("prepare_table", [](const Home&, const Stored& s) { return prepare_table(s); })
      .def("make_cache", &Home::make_cache, "num_blocks"_a, "block_size"_a, "num_kv_heads"_a,
           "head_dim"_a, "dtype"_a);
}

void bind_program(nb::module_& m) {
  nb::class_<Slot>(m, "Slot").def_ro("width", &Slot::width);
  nb::class_<Program>(m, "Program")
      .def(nb::init<std::shared_ptr<Home>>(), "home"_a)
      .def("input", &Program::input, "width"_a)
      .def("embedding", &Program::embedding, "table"_a, "scale"_a)
      .def("rms_norm",
           [](Program& p, const Slot& x, Floats weight, float eps) {
             return p.rms_norm(x, to_vector(weight), eps);
           })
      .def("linear",
           [](Program& p, const Slot& x, std::shared_ptr<Linear> weight,
              std::optional<Floats> bias) {
             return p.linear(x, std::move(weight), to_vector(bias));
           },
           "x"_a, "weight"_a, "bias"_a.none())
      .def("gated_linear", &Program::gated_linear, "x"_a, "weight"_a, "activation"_a)
      .def("add", &Program::add, "x"_a, "y"_a)
      .def("rope", [](Program& p, Floats inv_freq,
                      float scale) { return p.rope(to_vector(inv_freq), scale); })
      .def("rope_and_cache",
           [](Program& p, const Slot& qkv, const Slot& rope, std::shared_ptr<KvCache> cache,
              int num_heads, int num_kv_heads, int head_dim, std::optional<Floats> q_norm,
              std::optional<Floats> k_norm, float eps) {
             return p.rope_and_cache(qkv, rope, std::move(cache), num_heads, num_kv_heads, head_dim,
                                     to_vector(q_norm), to_vector(k_norm), eps);
           },
           "qkv"_a, "rope"_a, "cache"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a,
           "q_norm"_a.none(), "k_norm"_a.none(), "eps"_a)
      .def("attention",
           [](Program& p, const Slot& q, std::shared_ptr<KvCache> cache, int num_heads,
              int num_kv_heads, int head_dim, float scale, std::optional<int> window) {
             return p.attention(q, std::move(cache), num_heads, num_kv_heads, head_dim, scale,
                                window.value_or(INT_MAX));
           },
           "q"_a, "cache"_a, "num_heads"_a, "num_kv_heads"_a, "head_dim"_a, "scale"_a,
           "window"_a.none());
  nb::class_<BoundStep>(m, "Step")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object, nb::object,
                    nb::object, nb::object>(),
           "input_ids"_a, "positions"_a, "slot_mapping"_a, "query_start_loc"_a, "seq_lens"_a,
           "block_table"_a, "given_rows"_a.none() = nb::none(), "given"_a.none() = nb::none());
  nb::class_<BoundExecutable>(m, "Executable")
      .def(nb::init<std::shared_ptr<Home>, std::shared_ptr<Program>, const Slot&,
                    std::shared_ptr<Program>, const Slot&, const Slot&, int, int, int>(),
           "home"_a, "forward"_a, "hidden"_a, "logits"_a, "logits_input"_a, "result"_a,
           "hidden_size"_a, "vocab_size"_a, "max_num_tokens"_a)
      .def("forward", &BoundExecutable::forward, "step"_a)
      .def("logits", &BoundExecutable::logits, "rows"_a);
}

}  // namespace
}  // namespace headrace

void bind_ops(nb::module_& m) {
  headrace::bind_prepared(m);
  headrace::bind_program(m);
}
