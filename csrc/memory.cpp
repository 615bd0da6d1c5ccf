#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "fences.h"

namespace headrace {
namespace {

constexpr std::size_t kBigPage = std::size_t{2} << 20;
constexpr std::size_t kArenaRegion = std::size_t{64} << 20;
constexpr std::size_t kAlignment = 64;

std::size_t round_up(std::size_t value, std::size_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

Region::Region(std::size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* p = mmap(nullptr, bytes + kFence, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                 0);
  if (p == MAP_FAILED) throw std::bad_alloc();
  data_ = p;
  allow_only(p, bytes, bytes);
#if defined(MADV_HUGEPAGE)
  // Best effort: without big pages everything works, with more misses in the address cache.
  if (bytes >= kBigPage) madvise(p, bytes, MADV_HUGEPAGE);
#endif
}

Region::~Region() {
  if (!data_) return;
  allow(data_, size_ + kFence);
  munmap(data_, size_ + kFence);
}

void Region::release() {
  if (data_) madvise(data_, size_, MADV_DONTNEED);
}

Region::Region(Region&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Region& Region::operator=(Region&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::uint8_t* Arena::allocate(std::size_t bytes) {
  const std::size_t size = round_up(bytes, kAlignment);
  if (regions_.empty() || used_ + size > regions_.back().size()) {
    regions_.emplace_back(size > kArenaRegion ? round_up(size, kBigPage) : kArenaRegion);
    used_ = 0;
  }
  auto* p = static_cast<std::uint8_t*>(regions_.back().data()) + used_;
  used_ += size;
  allocated_ += size;
  allow_only(p, bytes, regions_.back().size() - used_ + size);
  return p;
}

void release_mapped_pages(const void* data, std::size_t bytes) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t begin = round_up(reinterpret_cast<std::size_t>(data), page);
  const std::size_t end = (reinterpret_cast<std::size_t>(data) + bytes) / page * page;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace headrace
