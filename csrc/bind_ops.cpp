// Python's view of the kernels: the home, programs being recorded, executables.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <climits>
#include <optional>
#include <stdexcept>

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

std::shared_ptr<Linear> prepare_linear(Home& home, const std::vector<Stored>& parts) {
  std::vector<StoredMatrix> matrices;
  for (const Stored& part : parts) matrices.push_back(part.matrix);
  std::shared_ptr<Linear> linear;
  {
    const nb::gil_scoped_release unlocked;
    linear = home.prepare_linear(matrices);
  }
  for (const Stored& part : parts) release(part);
  return linear;
}

std::shared_ptr<Linear> prepare_gated(Home& home, const Stored& gate, const Stored& up) {
  std::shared_ptr<Linear> linear;
  {
    const nb::gil_scoped_release unlocked;
    linear = home.prepare_gated(gate.matrix, up.matrix);
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

void forward(Executable& executable, Ints input_ids, Ints positions, Ints slot_mapping,
             Ints query_start_loc, Ints seq_lens, IntTable block_table) {
  const std::size_t tokens = input_ids.size(), seqs = seq_lens.size();
  if (positions.size() != tokens || slot_mapping.size() != tokens ||
      query_start_loc.size() != seqs + 1 || block_table.shape(0) != seqs) {
    throw std::invalid_argument("forward: the step's arrays differ in tokens or sequences");
  }
  Step step;
  step.num_tokens = static_cast<int>(tokens);
  step.num_seqs = static_cast<int>(seqs);
  step.max_blocks = static_cast<int>(block_table.shape(1));
  step.input_ids = input_ids.data();
  step.positions = positions.data();
  step.slot_mapping = slot_mapping.data();
  step.query_start_loc = query_start_loc.data();
  step.seq_lens = seq_lens.data();
  step.block_table = block_table.data();
  const nb::gil_scoped_release unlocked;
  executable.forward(step);
}

nb::ndarray<nb::numpy, float, nb::ndim<2>> logits(Executable& executable, Ints rows) {
  Logits result;
  {
    const nb::gil_scoped_release unlocked;
    result = executable.logits(rows.data(), static_cast<int>(rows.size()));
  }
  auto* held = new std::shared_ptr<Region>(result.memory);
  const nb::capsule owner(
      held, [](void* p) noexcept { delete static_cast<std::shared_ptr<Region>*>(p); });
  return {static_cast<float*>(result.memory->data()),
          {static_cast<std::size_t>(result.rows), static_cast<std::size_t>(result.width)},
          owner};
}

void bind_prepared(nb::module_& m) {
  nb::class_<Stored>(m, "StoredMatrix");
  nb::class_<Linear>(m, "Linear")
      .def_ro("depth", &Linear::depth)
      .def_ro("width", &Linear::width);
  nb::class_<Table>(m, "Table");
  nb::class_<KvCache>(m, "KvCache");
  m.def("stored_matrix", &make_stored, "format"_a, "rows"_a, "columns"_a, "bytes"_a,
        "is_mapped"_a);
  m.def("available_isas", [] {
    std::vector<std::string> names;
    for (const Kernels* kernels : available_kernels()) names.emplace_back(kernels->name);
    return names;
  });
  nb::class_<Home>(m, "Home")
      .def(nb::init<const std::string&, int>(), "isa"_a, "num_threads"_a)
      .def_prop_ro("isa", [](const Home& home) { return home.kernels().name; })
      .def_prop_ro("num_threads", &Home::num_threads)
      .def_prop_ro("weight_bytes", &Home::weight_bytes)
      .def("prepare_linear", &prepare_linear, "parts"_a)
      .def("prepare_gated", &prepare_gated, "gate"_a, "up"_a)
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
  nb::class_<Executable>(m, "Executable")
      .def(nb::init<std::shared_ptr<Home>, std::shared_ptr<Program>, const Slot&,
                    std::shared_ptr<Program>, const Slot&, const Slot&, int, int, int>(),
           "home"_a, "forward"_a, "hidden"_a, "logits"_a, "logits_input"_a, "result"_a,
           "hidden_size"_a, "vocab_size"_a, "max_num_tokens"_a)
      .def("forward", &forward, "input_ids"_a, "positions"_a, "slot_mapping"_a,
           "query_start_loc"_a, "seq_lens"_a, "block_table"_a)
      .def("logits", &logits, "rows"_a);
}

}  // namespace
}  // namespace headrace

void bind_ops(nb::module_& m) {
  headrace::bind_prepared(m);
  headrace::bind_program(m);
}
