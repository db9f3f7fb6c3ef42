// Long work asks from time to time whether the user has interrupted it (Ctrl-C), and lets other threads of Python run.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
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

// Gives up the GIL if another thread of Python wants it.  May throw what signals raise.  Set by the bindings; does
// nothing before.
inline void (*let_others_run)() = [] {};

// Of work that needs the GIL, on which another thread may wait to sample the next token.
class GilPulse {
 public:
  // Counts steps of some hundred nanoseconds.  Other threads may change Python's objects meanwhile, as in a call of Python.
  void beat(uint32_t steps = 1) {
    steps_ += steps;
    if (steps_ >= kEvery) look();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr uint32_t kEvery = 256;
  static constexpr Clock::duration kTurn = std::chrono::microseconds(500);

  void look() {
    steps_ = 0;
    if (Clock::now() - began_ < kTurn) return;
    let_others_run();
    began_ = Clock::now();
  }

  uint32_t steps_ = 0;
  Clock::time_point began_ = Clock::now();
};

}  // namespace structgen
