// The memory of the tables of a chart.
#include <algorithm>
#include <cstdlib>
#include <new>

#include "base/portable.h"
#include "diffusion/chart.h"

namespace structgen {

namespace {

constexpr size_t kMappedBytes = 1 << 18;

}  // namespace

// Memory of the heap that was used before is cleared as a whole, which takes more than most charts do.  Pages that are
// mapped are zero when they are first used.
ZeroPages::ZeroPages(size_t bytes) {
  if (bytes >= kMappedBytes) {
    data_ = {zero_pages(bytes), Freed{bytes}};
    return;
  }
  data_ = {std::calloc(std::max<size_t>(bytes, 1), 1), Freed{0}};
  if (data_ == nullptr) throw std::bad_alloc();
}

void ZeroPages::Freed::operator()(void* data) const {
  if (mapped > 0) free_pages(data, mapped);
  else std::free(data);
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
