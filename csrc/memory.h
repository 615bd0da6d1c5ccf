// Large memory: zeroed regions from the system, in big pages where it offers them, and an arena
// that packs many weights into few of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

class Region {
 public:
  Region() = default;
  explicit Region(std::size_t bytes);
  ~Region();
  Region(Region&& other) noexcept;
  Region& operator=(Region&& other) noexcept;

  // Gives the memory back to the system. It is zeroed when it is touched again.
  void release();

  void* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

class Arena {
 public:
  // Zeroed and 64-byte aligned; lives as long as the arena.
  std::uint8_t* allocate(std::size_t bytes);
  std::size_t allocated() const { return allocated_; }

 private:
  std::vector<Region> regions_;
  std::size_t used_ = 0;  // of the last region
  std::size_t allocated_ = 0;
};

// Tell the system that the whole pages inside a mapped file are not needed for now. They are read
// again if touched. Never for memory that is not a file's.
void release_mapped_pages(const void* data, std::size_t bytes);

}  // namespace headrace
