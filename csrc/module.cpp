// The Python module: each part of csrc binds its own names.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_bench_limits(nb::module_&);
void bind_ops(nb::module_&);
void bind_sampling(nb::module_&);
void bind_step(nb::module_&);

NB_MODULE(_native, m) {
  m.doc() = "headrace's native kernels";
  bind_bench_limits(m);
  bind_ops(m);
  bind_sampling(m);
  bind_step(m);
}
