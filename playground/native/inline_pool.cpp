// The pool of threads of a build that has none: loops run where they are called.
#include "base/thread_pool.h"

namespace structgen {

void parallel_for(size_t count, const std::function<void(size_t)>& work) {
  for (size_t i = 0; i < count; ++i) work(i);
}

}  // namespace structgen
