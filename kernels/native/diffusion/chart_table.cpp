// The memory of the tables of a chart.
#include <algorithm>
#include <new>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

#include "diffusion/chart.h"

namespace structgen {

namespace {

constexpr size_t kMappedBytes = 1 << 18;

}  // namespace

// Memory of the heap that was used before is cleared as a whole, which takes more than most charts do.  Pages that are
// mapped are zero when they are first used.
ZeroPages::ZeroPages(size_t bytes) {
#if defined(__unix__) || defined(__APPLE__)
  if (bytes >= kMappedBytes) {
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    data_ = {pages, Freed{bytes}};
    return;
  }
#endif
  data_ = {std::calloc(std::max<size_t>(bytes, 1), 1), Freed{0}};
  if (data_ == nullptr) throw std::bad_alloc();
}

void ZeroPages::Freed::operator()(void* data) const {
#if defined(__unix__) || defined(__APPLE__)
  if (mapped > 0) {
    munmap(data, mapped);
    return;
  }
#endif
  std::free(data);
}

namespace {

// Where the rows of each boundary begin.
std::vector<size_t> offsets_of(size_t entries, size_t slots) {
  std::vector<size_t> offsets{0};
  for (size_t boundary = 0; boundary <= slots; ++boundary)
    offsets.push_back(offsets.back() + entries * ((slots + kBlock) / kBlock - boundary / kBlock) * kBlock);
  return offsets;
}

}  // namespace

ChartTable::ChartTable(size_t entries, size_t slots)
    : slots_(slots), offsets_(offsets_of(entries, slots)), pages_(offsets_.back() * sizeof(double)) {}

}  // namespace structgen
