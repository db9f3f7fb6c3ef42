// The lock of what many threads read and one at a time extends: whoever extends it goes on as long as nobody waits, and
// else hands it over after a short turn.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <utility>

#include "base/interrupt.h"

namespace structgen {

// Those who wait come before those who hand over, and no reader overtakes a writer who waits.
class TurnMutex {
 public:
  void lock() {
    if (!is_wanted() && mutex_.try_lock()) return;
    const Waiting waiting(*this);
    const std::lock_guard next(next_);
    mutex_.lock();
  }
  void unlock() { mutex_.unlock(); }
  void lock_shared() {
    if (!is_wanted() && mutex_.try_lock_shared()) return;
    const Waiting waiting(*this);
    { const std::lock_guard after(next_); }
    mutex_.lock_shared();
  }
  void unlock_shared() { mutex_.unlock_shared(); }
  // Waits for at most so long, which the turn of another thread usually ends before.
  bool try_lock_shared_for(std::chrono::microseconds patience) {
    if (!is_wanted() && mutex_.try_lock_shared()) return true;
    const Waiting waiting(*this);
    const auto begun = std::chrono::steady_clock::now();
    std::unique_lock next(next_, std::defer_lock);  // whoever hands over comes after
    do {
      if ((next.owns_lock() || next.try_lock()) && mutex_.try_lock_shared()) return true;
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() - begun < patience);
    return false;
  }
  bool is_wanted() const { return waiting_.load(std::memory_order_relaxed) != 0; }
  // Whether anybody has ever had to wait.
  bool is_crowded() const { return crowded_.load(std::memory_order_relaxed); }
  // From now on as if one more thread waited, or as before: for tests, which could not tell when a real one waits.
  void pretend(bool waits) { waits ? ++waiting_ : --waiting_; }

 private:
  struct Waiting {
    explicit Waiting(TurnMutex& mutex) : all(mutex.waiting_) {
      ++all;
      mutex.crowded_.store(true, std::memory_order_relaxed);
    }
    ~Waiting() { --all; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    std::atomic<unsigned>& all;
  };
  std::shared_mutex mutex_;
  std::mutex next_;  // held by the writer who comes next
  std::atomic<unsigned> waiting_ = 0;
  std::atomic<bool> crowded_ = false;
};

// Thrown where a turn is over.  What was made stays; the work begins anew in another turn.  No std::exception: nobody
// takes it for an answer but who began the turn.
struct TurnOver {};

// Counts steps of some ten nanoseconds.  After so many it asks whether others wait for the lock under which the work is
// done, and from time to time whether the user has interrupted it.
class Pulse {
 public:
  using Clock = std::chrono::steady_clock;
  void beat(uint64_t count) {
    since_ += count;
    if (since_ >= kEvery) look();
  }

 private:
  friend class Turn;
  static constexpr uint64_t kEvery = 2'000, kAskedEvery = 250'000;
  static constexpr Clock::duration kAsked = std::chrono::milliseconds(50);

  void look() {
    unasked_ += std::exchange(since_, 0);
    const bool asks = unasked_ >= kAskedEvery && !Uninterruptible::holds();
    if (!asks && !(mutex_ && mutex_->is_wanted())) return;
    const Clock::time_point now = Clock::now();
    if (mutex_ && mutex_->is_wanted() && now - began_ > length_) throw TurnOver{};
    // Asking takes the GIL, which may take milliseconds where there are other threads: they would wait for the lock too.
    if (!asks || (mutex_ && mutex_->is_crowded() && now - asked_ < kAsked)) return;
    check_interrupt();
    unasked_ = 0;
    asked_ = Clock::now();
  }

  uint64_t since_ = 0, unasked_ = 0;
  const TurnMutex* mutex_ = nullptr;  // none: nobody else can wait, or the work must be done here
  Clock::time_point began_{}, asked_{};
  Clock::duration length_{};
};

// Holds the lock alone, for work whose steps `pulse` counts.
class Turn {
 public:
  static constexpr unsigned kTurns = 3;  // after which work that is not done wants a place of its own

  // Turn `number` of a piece of work lasts twice as long as the one before, and the last one under a millisecond; from
  // kTurns on, it lasts until the work is done.
  Turn(TurnMutex& mutex, Pulse& pulse, unsigned number) : lock_(mutex), pulse_(pulse) {
    pulse_.since_ = pulse_.unasked_ = 0;
    pulse_.began_ = pulse_.asked_ = Pulse::Clock::now();
    pulse_.length_ = kFirst * (1u << number % kTurns);
    pulse_.mutex_ = number < kTurns ? &mutex : nullptr;
  }
  ~Turn() { pulse_.mutex_ = nullptr; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  static constexpr Pulse::Clock::duration kFirst = std::chrono::microseconds(200);
  const std::unique_lock<TurnMutex> lock_;
  Pulse& pulse_;
};

}  // namespace structgen
