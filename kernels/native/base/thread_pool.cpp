#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "base/portable.h"

namespace structgen {

namespace {

using Clock = std::chrono::steady_clock;
// How long a caller that is done polls for its helpers before it sleeps: they usually have little left to do, and a
// thread that sleeps has to wait for a processor again.
constexpr auto kPatience = std::chrono::microseconds(100);
// How long it sleeps before it asks whether it was interrupted.
constexpr auto kGlance = std::chrono::milliseconds(50);

class Pool {
 public:
  explicit Pool(unsigned helpers) {
    for (unsigned i = 0; i < helpers; ++i) std::thread([this] { serve(); }).detach();
  }

  void run(size_t count, const std::function<void(size_t)>& work) {
    const std::lock_guard one_loop_at_a_time(loop_);
    {
      const std::lock_guard lock(mutex_);
      work_ = &work;
      count_ = count;
      caller_ = processor();
      next_ = 0;
      error_ = nullptr;
      ++generation_;
    }
    wake_.notify_all();
    drain(work, count);
    std::unique_lock lock(mutex_);
    work_ = nullptr;  // no thread joins any more; those that have joined hold copies
    lock.unlock();
    for (const auto begin = Clock::now(); busy_ != 0 && Clock::now() - begin < kPatience;) continue;
    lock.lock();
    while (!idle_.wait_for(lock, kGlance, [&] { return busy_ == 0; })) {
      lock.unlock();
      try {
        check_interrupt();
      } catch (const Interrupted&) {
        stop(count);
      }
      lock.lock();
    }
    stop_helpers = false;
    if (const std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
  }

 private:
  void drain(const std::function<void(size_t)>& work, size_t count) {
    for (;;) {
      const size_t i = next_.fetch_add(1);
      if (i >= count) return;
      try {
        work(i);
      } catch (const Interrupted& interrupted) {
        if (interrupted.error) stop(count);  // else the caller has done so
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
  }
  // Ends the loop with the exception that is handled: nobody begins anything more.
  void stop(size_t count) {
    const std::lock_guard lock(mutex_);
    error_ = std::current_exception();
    next_ = count;
    stop_helpers = true;
  }
  void serve() {
    uint64_t served = 0;
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return work_ && generation_ != served; });
      // The kernel may wake a thread on the processor of the one that wakes it although others are idle, which in a
      // virtual machine may look busy to it.  There it would run instead of the caller, not at the same time.
      if (const int here = processor(); here >= 0 && here == caller_) {
        lock.unlock();
        leave(here);
        lock.lock();
        if (!work_) continue;  // done meanwhile
      }
      served = generation_;
      ++busy_;
      const std::function<void(size_t)>& work = *work_;  // lives until busy_ is zero again
      const size_t count = count_;
      lock.unlock();
      drain(work, count);
      lock.lock();
      if (--busy_ == 0) idle_.notify_all();
    }
  }

  std::mutex loop_, mutex_;
  std::condition_variable wake_, idle_;
  const std::function<void(size_t)>* work_ = nullptr;
  size_t count_ = 0;
  int caller_ = -1;  // the processor of the caller, where it is known
  std::atomic<size_t> next_{0};
  uint64_t generation_ = 0;
  std::atomic<unsigned> busy_{0};
  std::exception_ptr error_;
};

// The pool lives as long as the process: its threads may not be joined while the interpreter shuts down.  A forked
// child has none of the threads and makes a pool of its own.
Pool& pool() {
  static std::mutex mutex;
  static Pool* made = nullptr;
  static int64_t owner = 0;
  const std::lock_guard lock(mutex);
  if (!made || owner != process_id()) {
    made = new Pool(STRUCTGEN_THREADS ? processors() - 1 : 0);
    owner = process_id();
  }
  return *made;
}

}  // namespace

void parallel_for(size_t count, const std::function<void(size_t)>& work) {
  if (count == 1) work(0);
  else if (count > 1) pool().run(count, work);
}

}  // namespace structgen
