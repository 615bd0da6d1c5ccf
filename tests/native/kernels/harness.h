// What the sweeps share: findings, random inputs, and ways to run operations on a home.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executable.h"
#include "home.h"

namespace headrace::test {

// Rows of floats, in memory that ends with the last of them.
struct Matrix {
  int rows = 0;
  int columns = 0;
  std::vector<float> values;

  Matrix() = default;
  Matrix(int num_rows, int num_columns)
      : rows(num_rows),
        columns(num_columns),
        values(static_cast<std::size_t>(num_rows) * static_cast<std::size_t>(num_columns)) {}
  float* row(int r) { return values.data() + static_cast<std::ptrdiff_t>(r) * columns; }
  const float* row(int r) const { return values.data() + static_cast<std::ptrdiff_t>(r) * columns; }
};

// Independent normal values, the same for each seed on every machine but for rounding.
Matrix random_matrix(int rows, int columns, std::uint64_t seed);
std::vector<float> random_vector(int size, std::uint64_t seed);

// A valid random matrix as it is stored.
struct Weights {
  StoredMatrix stored;
  std::vector<std::uint8_t> bytes;

  Matrix values() const;  // what it stands for
};
Weights random_weights(Format format, int rows, int columns, std::uint64_t seed);

// Counts a finding, prints the first few, and goes on.
void expect(bool holds, const std::string& what);
int num_findings();
int num_checks();

// No value differs by more than `tolerance` times the largest expected one.
void expect_close(const Matrix& found, const Matrix& expected, double tolerance,
                  const std::string& what);
void expect_same_bits(const Matrix& found, const Matrix& expected, const std::string& what);

std::shared_ptr<Home> make_home(const std::string& isa, int num_threads = 2);

// What products on this instruction set may differ by: tiles round both factors to bfloat16.
double product_tolerance(const std::string& isa);

using Operation = std::function<Slot(Program&, const Slot&)>;

// The operation on the rows of x, given to it that many at a time.
Matrix run_rows(const std::shared_ptr<Home>& home, const Matrix& x, int width, int rows_at_once,
                const Operation& operation);

// A program ready to run, its hidden states taken as they are.
std::unique_ptr<Executable> make_executable(const std::shared_ptr<Home>& home, int width,
                                            int max_rows,
                                            const std::function<Slot(Program&)>& forward);

std::shared_ptr<Table> table_of(const Matrix& x);

// The sweeps, each on one instruction set.
void sweep_linear(const std::string& isa);
void sweep_rows(const std::string& isa);
void sweep_attention(const std::string& isa);
void sweep_sampling(bool portable);

}  // namespace headrace::test
