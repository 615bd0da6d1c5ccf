// What is prepared at load: packed matrices, embedding tables and KV caches, made by a Home that
// knows the instruction set and the number of threads.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "integer_kernels.h"
#include "kernels.h"
#include "memory.h"
#include "packing.h"

namespace headrace {

// A matrix [width, depth] in panels; a gated one holds each gate panel beside its up panel. One of
// three kinds of kernels multiplies it in integers, or none: with `int8` all panels are
// Format::Int8, with `int16` Format::Int16; else they are as stored, and with `blocks` all are
// integers in blocks already.
struct Linear {
  std::shared_ptr<Arena> memory;
  std::vector<PanelRef> panels;
  int depth = 0;
  int width = 0;
  bool gated = false;
  const Int8Kernels* int8 = nullptr;
  const Int16Kernels* int16 = nullptr;
  const BlockKernels* blocks = nullptr;
};

// An embedding table [rows, width], left where it is stored. `owner` keeps those bytes alive.
struct Table {
  std::shared_ptr<void> owner;
  const std::uint8_t* data = nullptr;
  Format format = Format::F32;
  int rows = 0;
  int width = 0;
};

struct KvCache {
  Region keys;
  Region values;
  CacheType type = CacheType::F16;
  int num_blocks = 0;
  int block_size = 0;
  int num_kv_heads = 0;
  int head_dim = 0;

  // Forgets all keys and values and gives their memory back until blocks are written again.
  void release() {
    keys.release();
    values.release();
  }

  CacheView view() const {
    return {keys.data(), values.data(), type, block_size, num_kv_heads, head_dim};
  }
};

// What is rounded for products: nothing that shows; float weights and activations to 8 bits; or
// activations alone, where weights in blocks are multiplied as integers.
enum class Rounding { None, Int8, Int8Activations };

class Home {
 public:
  // Throws std::invalid_argument for an unknown instruction set or a negative number of threads.
  Home(const std::string& isa, int num_threads);

  const Kernels& kernels() const { return kernels_; }
  int num_threads() const { return num_threads_; }
  std::size_t weight_bytes() const { return arena_->allocated(); }

  // The matrices below one another, as stored or quantised to int8. Throws std::invalid_argument
  // when their depths differ or are too large for int8.
  std::shared_ptr<Linear> prepare_linear(const std::vector<StoredMatrix>& parts,
                                         Rounding rounding);
  std::shared_ptr<Linear> prepare_gated(const StoredMatrix& gate, const StoredMatrix& up,
                                        Rounding rounding);
  std::shared_ptr<KvCache> make_cache(int num_blocks, int block_size, int num_kv_heads,
                                      int head_dim, const std::string& dtype) const;

 private:
  // An empty matrix for these parts, with the kernels that multiply them in integers, if any do.
  std::shared_ptr<Linear> make_linear(const std::vector<StoredMatrix>& parts,
                                      Rounding rounding) const;
  std::vector<PanelRef> pack(const Linear& linear, const StoredMatrix& matrix, int first_column);

  const Kernels& kernels_;
  const IntegerKernels integers_;
  int num_threads_;
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
};

}  // namespace headrace
