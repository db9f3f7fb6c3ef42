#include "attention/openmp.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include "base/portable.h"

namespace structgen {

namespace {

using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

struct Library {
  Parallel parallel = nullptr;
  int (*threads)() = nullptr;
};

// Only one that is there already: a second library would have threads of its own.
Library found() {
  constexpr const char* kName = "libgomp.so.1";
  return {reinterpret_cast<Parallel>(loaded_function(kName, "GOMP_parallel")), reinterpret_cast<int (*)()>(loaded_function(kName, "omp_get_max_threads"))};
}

}  // namespace

void with_openmp_threads(size_t tasks, const std::function<void(std::atomic<size_t>&)>& work) {
  static const Library library = found();
  std::atomic<size_t> next{0};
  if (!library.parallel || !library.threads || tasks < 2 || library.threads() < 2) return work(next);
  struct Shared {
    const std::function<void(std::atomic<size_t>&)>& work;
    std::atomic<size_t>& next;
    std::mutex mutex;
    std::exception_ptr first;
  } shared{work, next, {}, {}};
  const auto one = [](void* data) {
    auto& all = *static_cast<Shared*>(data);
    try {
      all.work(all.next);
    } catch (...) {
      const std::lock_guard lock(all.mutex);
      all.first = std::current_exception();
    }
  };
  library.parallel(one, &shared, static_cast<unsigned>(std::min<size_t>(tasks, static_cast<size_t>(library.threads()))), 0);
  if (shared.first) std::rethrow_exception(shared.first);
}

}  // namespace structgen
