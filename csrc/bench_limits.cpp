// The limits of this machine, measured for benchmarks: how fast all threads together read memory,
// and how many multiply-adds each kind of vector and tile instruction gives. Nothing else uses it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "cpu.h"
#include "memory.h"
#include "thread_pool.h"

namespace nb = nanobind;

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 5;
constexpr auto kRoundTime = std::chrono::milliseconds(30);
constexpr std::size_t kChunk = std::size_t{1} << 22;

// What was computed goes here, so that the compiler may not leave the work out. For the same reason
// no two sums below start alike.
std::atomic<std::uint64_t> sink;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Bytes per second: the best of some passes over memory much larger than the caches.
double read_bandwidth(std::size_t num_bytes, int num_threads) {
  const Region memory(num_bytes);
  const int num_chunks = static_cast<int>(num_bytes / kChunk);
  if (num_chunks == 0) throw std::invalid_argument("at least 4 MiB are needed");
  auto* bytes = static_cast<unsigned char*>(memory.data());
  // Pages come into being where and when they are first written.
  parallel(num_threads, num_chunks, [&](int i) { std::memset(bytes + i * kChunk, i, kChunk); });
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = Clock::now();
    parallel(num_threads, num_chunks, [&](int i) {
      const auto* words = reinterpret_cast<const std::uint64_t*>(bytes + i * kChunk);
      std::uint64_t sums[16] = {};
      for (std::size_t w = 0; w < kChunk / sizeof(std::uint64_t); w += 16) {
#pragma GCC unroll 16
        for (int lane = 0; lane < 16; ++lane) sums[lane] ^= words[w + lane];
      }
      std::uint64_t all = 0;
      for (const std::uint64_t sum : sums) all ^= sum;
      sink ^= all;
    });
    best = std::max(best, static_cast<double>(num_chunks) * kChunk / seconds_since(start));
  }
  return best;
}

// One kind of instruction. `run` works for some microseconds and returns the operations done,
// a multiplication and an addition counted as two.
struct Unit {
  std::string isa;
  const char* type;
  std::uint64_t (*run)();
};

constexpr int kTurns = 2000;
constexpr int kChains = 12;  // sums at a time: more than the latency of an instruction hides

template <typename Vector>
void keep(const Vector& value) {
  std::uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  sink ^= bits;
}

// GCC's vectors as wide as every processor has them.
std::uint64_t run_baseline() {
#if defined(__aarch64__)
  float32x4_t sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sums[i] = vdupq_n_f32(static_cast<float>(i));
  const float32x4_t a = vdupq_n_f32(0.5f), b = vdupq_n_f32(0.25f);
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = vfmaq_f32(b, sum, a);
  }
#else
  using Vector = float __attribute__((vector_size(16)));
  Vector sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sums[i] = Vector{} + static_cast<float>(i);
  const Vector a = Vector{} + 0.5f, b = Vector{} + 0.25f;
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = sum * a + b;
  }
#endif
  for (const auto& sum : sums) keep(sum);
  return std::uint64_t{2} * 4 * kChains * kTurns;
}

#if defined(__x86_64__)

__attribute__((target("avx2,fma"))) std::uint64_t run_avx2() {
  __m256 sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm256_fmadd_ps(sum, a, b);
  }
  for (const auto& sum : sums) keep(sum);
  return std::uint64_t{2} * 8 * kChains * kTurns;
}

__attribute__((target("avx512f"))) std::uint64_t run_avx512() {
  __m512 sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_fmadd_ps(sum, a, b);
  }
  for (const auto& sum : sums) keep(sum);
  return std::uint64_t{2} * 16 * kChains * kTurns;
}

__attribute__((target("avx512f,avx512vnni"))) std::uint64_t run_vnni() {
  __m512i sums[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_epi32(i);
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (int turn = 0; turn < kTurns; ++turn) {
#pragma GCC unroll 12
    for (auto& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
  }
  for (const auto& sum : sums) keep(sum);
  return std::uint64_t{2} * 64 * kChains * kTurns;
}

#if defined(__linux__)

// All eight tiles 16 rows of 64 bytes: four sums, two and two factors.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

__attribute__((target("amx-tile"))) void start_tiles() {
  const TileConfig config;
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
}

__attribute__((target("amx-tile,amx-bf16"))) std::uint64_t run_amx_bf16() {
  start_tiles();
  for (int turn = 0; turn < kTurns; ++turn) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return std::uint64_t{2} * 16 * 16 * 32 * 4 * kTurns;
}

__attribute__((target("amx-tile,amx-int8"))) std::uint64_t run_amx_int8() {
  start_tiles();
  for (int turn = 0; turn < kTurns; ++turn) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
  _tile_release();
  return std::uint64_t{2} * 16 * 16 * 64 * 4 * kTurns;
}

bool has_amx_int8() {
  unsigned a, b, c, d;
  constexpr unsigned kTileInt8 = 1u << 25;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kTileInt8);
}

#endif
#endif

bool is_available(const char* isa) {
  for (const Kernels* kernels : available_kernels()) {
    if (std::string(isa) == kernels->name) return true;
  }
  return false;
}

std::vector<Unit> units() {
  std::vector<Unit> found{{"portable", "float32", run_baseline}};
#if defined(__x86_64__)
  if (is_available("avx2")) found.push_back({"avx2", "float32", run_avx2});
  if (is_available("avx512")) {
    found.push_back({"avx512", "float32", run_avx512});
    if (__builtin_cpu_supports("avx512vnni")) found.push_back({"avx512", "int8", run_vnni});
  }
#if defined(__linux__)
  // Its being available means that the system granted this process the tiles.
  if (is_available("amx")) {
    found.push_back({"amx", "bfloat16", run_amx_bf16});
    if (has_amx_int8()) found.push_back({"amx", "int8", run_amx_int8});
  }
#endif
#endif
  return found;
}

// Operations per second of all threads together: the best of some rounds.
double peak(const Unit& unit, int num_threads) {
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<std::uint64_t> total = 0;
    const auto start = Clock::now();
    parallel(num_threads, num_threads, [&](int) {
      std::uint64_t done = 0;
      while (Clock::now() - start < kRoundTime) done += unit.run();
      total += done;
    });
    best = std::max(best, static_cast<double>(total) / seconds_since(start));
  }
  return best;
}

nb::list compute_peaks(int num_threads) {
  nb::list peaks;
  for (const Unit& unit : units()) {
    double best;
    {
      const nb::gil_scoped_release release;
      best = peak(unit, num_threads);
    }
    peaks.append(nb::make_tuple(unit.isa, unit.type, best));
  }
  return peaks;
}

}  // namespace
}  // namespace headrace

void bind_bench_limits(nb::module_& m) {
  m.def("available_cores", &headrace::available_cores);
  m.def("read_bandwidth", &headrace::read_bandwidth, nb::arg("num_bytes"), nb::arg("num_threads"),
        nb::call_guard<nb::gil_scoped_release>());
  m.def("compute_peaks", &headrace::compute_peaks, nb::arg("num_threads"));
}
