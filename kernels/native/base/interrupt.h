// Long work asks from time to time whether the user has interrupted it (Ctrl-C).
#pragma once

#include <atomic>
#include <exception>

namespace structgen {

// The user has interrupted the process; `error` is what Python raises.  No std::exception: nobody but the bindings
// takes it for an answer.
struct Interrupted {
  std::exception_ptr error;
};

// Throws Interrupted if the process was interrupted.  Set by the bindings; does nothing before.
inline void (*check_interrupt)() = [] {};
// Threads that Python does not know end their work while this is set.
inline std::atomic<bool> stop_helpers{false};

// While one lives, work of this thread is not interrupted: its caller takes no exception, or holds what Python waits for.
class Uninterruptible {
 public:
  Uninterruptible() { ++depth(); }
  ~Uninterruptible() { --depth(); }
  Uninterruptible(const Uninterruptible&) = delete;
  Uninterruptible& operator=(const Uninterruptible&) = delete;
  static bool holds() { return depth() > 0; }

 private:
  static int& depth() {
    static thread_local int count = 0;
    return count;
  }
};

}  // namespace structgen
