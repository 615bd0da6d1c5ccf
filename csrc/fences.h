// Memory that nobody may touch, seen by AddressSanitizer only: it then finds reads past the end of
// what was asked for also in memory that is mapped, kept and handed out again here.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace headrace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kFence = 4096;  // bytes put behind memory to be forbidden

inline void forbid(const void* p, std::size_t bytes) { __asan_poison_memory_region(p, bytes); }
inline void allow(const void* p, std::size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
#else
constexpr std::size_t kFence = 0;

inline void forbid(const void*, std::size_t) {}
inline void allow(const void*, std::size_t) {}
#endif

// Of memory of `size` bytes and the fence behind it, only the first `used` bytes may be touched.
inline void allow_only(const void* p, std::size_t used, std::size_t size) {
  allow(p, used);
  forbid(static_cast<const char*>(p) + used, size - used + kFence);
}

}  // namespace headrace
