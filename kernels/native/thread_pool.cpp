#include "thread_pool.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace structgen {

namespace {

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
      next_ = 0;
      error_ = nullptr;
      ++generation_;
    }
    wake_.notify_all();
    drain(work, count);
    std::unique_lock lock(mutex_);
    work_ = nullptr;  // nobody joins any more; who has joined holds copies
    idle_.wait(lock, [&] { return busy_ == 0; });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void drain(const std::function<void(size_t)>& work, size_t count) {
    for (;;) {
      const size_t i = next_.fetch_add(1);
      if (i >= count) return;
      try {
        work(i);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!error_) error_ = std::current_exception();
      }
    }
  }
  void serve() {
    uint64_t served = 0;
    for (;;) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return work_ && generation_ != served; });
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
  std::atomic<size_t> next_{0};
  uint64_t generation_ = 0;
  unsigned busy_ = 0;
  std::exception_ptr error_;
};

// The pool lives as long as the process: its threads may not be joined while the interpreter shuts down.  A forked
// child has none of the threads and makes a pool of its own.
Pool& pool() {
  static std::mutex mutex;
  static Pool* made = nullptr;
  static pid_t owner = 0;
  const std::lock_guard lock(mutex);
  if (!made || owner != getpid()) {
    made = new Pool(std::max(1u, std::thread::hardware_concurrency()) - 1);
    owner = getpid();
  }
  return *made;
}

}  // namespace

void parallel_for(size_t count, const std::function<void(size_t)>& work) {
  if (count < 2 || std::thread::hardware_concurrency() < 2) {
    for (size_t i = 0; i < count; ++i) work(i);
    return;
  }
  pool().run(count, work);
}

}  // namespace structgen
