// A small pool of threads that share the work of one loop at a time.
#pragma once

#include <cstddef>
#include <functional>

namespace structgen {

// Calls work(i) for every i below count, on all processors of the process; the caller works too.  The first exception
// is rethrown after the loop.  Loops of several callers run one after the other.
void parallel_for(size_t count, const std::function<void(size_t)>& work);

}  // namespace structgen
