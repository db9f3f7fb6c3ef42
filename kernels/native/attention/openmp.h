// The threads of the OpenMP library that the process has loaded already, if it is GNU's: those of torch's products.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

namespace structgen {

// Calls work(next) in each of them at the same time, and returns when all have returned.  `next` starts at 0 and is shared.  Without such a
// library, or for one task, the caller works alone.
void with_openmp_threads(size_t tasks, const std::function<void(std::atomic<size_t>&)>& work);

}  // namespace structgen
