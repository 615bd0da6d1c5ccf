#include "home.h"

#include <algorithm>
#include <stdexcept>

#include "cpu.h"
#include "formats.h"
#include "int16_packing.h"
#include "int8_packing.h"
#include "thread_pool.h"

namespace headrace {
namespace {

constexpr int kMaxHeadDim = 1024;

std::string shape(const StoredMatrix& m) {
  return "[" + std::to_string(m.rows) + ", " + std::to_string(m.depth) + "]";
}

int threads_to_use(int num_threads) {
  if (num_threads < 0) throw std::invalid_argument("num_threads is negative");
  return num_threads == 0 ? available_cores() : num_threads;
}

PanelPacking packing_for(const Linear& linear, const StoredMatrix& matrix) {
  if (linear.int8) return int8_packing(*linear.int8, matrix.depth);
  if (linear.int16) return int16_packing(*linear.int16, matrix.depth);
  return stored_packing(matrix.format, matrix.depth);
}

CacheType cache_type(const std::string& dtype) {
  if (dtype == "float32") return CacheType::F32;
  if (dtype == "float16") return CacheType::F16;
  if (dtype == "bfloat16") return CacheType::BF16;
  throw std::invalid_argument("make_kv_caches: dtype is '" + dtype +
                              "', not float16, bfloat16 or float32");
}

}  // namespace

Home::Home(const std::string& isa, int num_threads)
    : kernels_(kernels_by_name(isa)),
      integers_(integer_kernels_beside(kernels_)),
      num_threads_(threads_to_use(num_threads)) {}

std::shared_ptr<Linear> Home::make_linear(const std::vector<StoredMatrix>& parts,
                                          Rounding rounding) const {
  const auto all = [&](auto&& fits) { return std::all_of(parts.begin(), parts.end(), fits); };
  auto linear = std::make_shared<Linear>();
  linear->memory = arena_;
  linear->depth = parts[0].depth;
  if (rounding == Rounding::Int8) {
    if (linear->depth > kInt8MaxDepth) {
      throw std::invalid_argument("sums over " + std::to_string(linear->depth) +
                                  " columns do not fit int8 products; at most " +
                                  std::to_string(kInt8MaxDepth) + " do");
    }
    linear->int8 = integers_.int8;
  } else if (integers_.int16 && all(fits_int16)) {
    linear->int16 = integers_.int16;
  } else if (integers_.blocks &&
             all([&](const StoredMatrix& m) { return integers_.blocks->multiplies(m.format); })) {
    const bool in_bytes = rounding == Rounding::Int8Activations;
    linear->blocks = in_bytes ? integers_.blocks8 : integers_.blocks;
  }
  return linear;
}

std::vector<PanelRef> Home::pack(const Linear& linear, const StoredMatrix& matrix,
                                 int first_column) {
  const int count = num_panels(matrix.rows);
  const PanelPacking packing = packing_for(linear, matrix);
  const std::size_t size = packing.panel_bytes;
  std::uint8_t* data = arena_->allocate(size * static_cast<std::size_t>(count));
  std::vector<PanelRef> panels;
  for (int p = 0; p < count; ++p) {
    const int left = matrix.rows - p * kPanelWidth;
    panels.push_back({data + static_cast<std::size_t>(p) * size, packing.format,
                      first_column + p * kPanelWidth, left < kPanelWidth ? left : kPanelWidth});
  }
  parallel(num_threads_, count, [&](int p) {
    packing.pack(matrix, p, data + static_cast<std::size_t>(p) * size);
  });
  return panels;
}

std::shared_ptr<Linear> Home::prepare_linear(const std::vector<StoredMatrix>& parts,
                                             Rounding rounding) {
  if (parts.empty()) throw std::invalid_argument("prepare_linear: no parts");
  const std::shared_ptr<Linear> linear = make_linear(parts, rounding);
  for (const StoredMatrix& part : parts) {
    if (part.depth != linear->depth) {
      throw std::invalid_argument("prepare_linear: parts " + shape(parts[0]) + " and " +
                                  shape(part) + " differ in columns");
    }
    const std::vector<PanelRef> panels = pack(*linear, part, linear->width);
    linear->panels.insert(linear->panels.end(), panels.begin(), panels.end());
    linear->width += part.rows;
  }
  return linear;
}

std::shared_ptr<Linear> Home::prepare_gated(const StoredMatrix& gate, const StoredMatrix& up,
                                            Rounding rounding) {
  if (gate.rows != up.rows || gate.depth != up.depth) {
    throw std::invalid_argument("prepare_gated: gate is " + shape(gate) + ", up " + shape(up));
  }
  const std::shared_ptr<Linear> linear = make_linear({gate, up}, rounding);
  linear->width = gate.rows;
  linear->gated = true;
  const std::vector<PanelRef> gates = pack(*linear, gate, 0), ups = pack(*linear, up, 0);
  for (std::size_t p = 0; p < gates.size(); ++p) {
    linear->panels.push_back(gates[p]);
    linear->panels.push_back(ups[p]);
  }
  return linear;
}

std::shared_ptr<KvCache> Home::make_cache(int num_blocks, int block_size, int num_kv_heads,
                                          int head_dim, const std::string& dtype) const {
  const CacheType type = cache_type(dtype);
  if (block_size < 8 || block_size > 256 || (block_size & (block_size - 1))) {
    throw std::invalid_argument("make_kv_caches: block_size " + std::to_string(block_size) +
                                " is not a power of two from 8 to 256");
  }
  if (num_blocks < 1 || num_kv_heads < 1 || head_dim < 1 || head_dim > kMaxHeadDim) {
    throw std::invalid_argument("make_kv_caches: " + std::to_string(num_blocks) + " blocks, " +
                                std::to_string(num_kv_heads) + " heads of " +
                                std::to_string(head_dim) + "; heads are at most 1024 wide");
  }
  const std::size_t bytes = static_cast<std::size_t>(num_blocks) *
                            static_cast<std::size_t>(num_kv_heads) *
                            static_cast<std::size_t>(block_size) *
                            static_cast<std::size_t>(head_dim) * (type == CacheType::F32 ? 4 : 2);
  auto cache = std::make_shared<KvCache>();
  cache->keys = Region(bytes);
  cache->values = Region(bytes);
  cache->type = type;
  cache->num_blocks = num_blocks;
  cache->block_size = block_size;
  cache->num_kv_heads = num_kv_heads;
  cache->head_dim = head_dim;
  return cache;
}

}  // namespace headrace
