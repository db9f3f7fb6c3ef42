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
ChartTable::ChartTable(size_t entries, size_t slots) : slots_(slots), offsets_{0} {
  for (size_t boundary = 0; boundary <= slots; ++boundary) offsets_.push_back(offsets_.back() + entries * width(boundary));
  const size_t bytes = std::max<size_t>(offsets_.back(), 1) * sizeof(double);
#if defined(__unix__) || defined(__APPLE__)
  if (bytes >= kMappedBytes) {
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    if (pages == MAP_FAILED) throw std::bad_alloc();
    data_ = {static_cast<double*>(pages), Freed{bytes}};
    return;
  }
#endif
  data_.reset(static_cast<double*>(std::calloc(bytes / sizeof(double), sizeof(double))));
  if (data_ == nullptr) throw std::bad_alloc();
}

void ChartTable::Freed::operator()(double* data) const {
#if defined(__unix__) || defined(__APPLE__)
  if (mapped > 0) {
    munmap(data, mapped);
    return;
  }
#endif
  std::free(data);
}

}  // namespace structgen
