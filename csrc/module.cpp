// The Python module: each part of csrc binds its own names.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_sampling(nb::module_&);

NB_MODULE(_native, m) {
  m.doc() = "headrace's native kernels";
  bind_sampling(m);
}
