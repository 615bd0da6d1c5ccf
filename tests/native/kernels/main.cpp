// Runs every kernel at odd sizes on each instruction set of this machine, beside plain oracles.
// Names of instruction sets as arguments limit it to them. Returns 1 when anything differed.
#include <cstdio>
#include <string>
#include <vector>

#include "cpu.h"
#include "harness.h"

int main(int argc, char** argv) {
  using namespace headrace;
  std::vector<std::string> isas(argv + 1, argv + argc);
  if (isas.empty()) {
    for (const Kernels* kernels : available_kernels()) isas.emplace_back(kernels->name);
  }
  for (const std::string& isa : isas) {
    test::sweep_linear(isa);
    test::sweep_rows(isa);
    test::sweep_attention(isa);
    std::printf("%s: %d checks so far, %d failed\n", isa.c_str(), test::num_checks(),
                test::num_findings());
    std::fflush(stdout);
  }
  for (bool portable : {true, false}) test::sweep_sampling(portable);
  std::printf("all: %d checks, %d failed\n", test::num_checks(), test::num_findings());
  return test::num_findings() == 0 ? 0 : 1;
}
