#include "matcher/row_buffer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <shared_mutex>

#include "base/interrupt.h"
#include "base/limits.h"
#include "base/thread_pool.h"

namespace structgen {

namespace {

constexpr size_t kAhead = 16;  // matchers whose memory is waited for at the same time

// How many tokens a limit leaves after so many steps.
uint32_t left_of(uint32_t limit, size_t steps) {
  if (limit == kNone) return kNone;
  return steps >= limit ? 0 : limit - static_cast<uint32_t>(steps);
}

}  // namespace

// Writes the mask of a plan, as little of it as can be.
void RowBuffer::write(Held& held, uint32_t* words, const Matcher& matcher, const Engine& engine, const Engine::Plan& plan) const {
  const bool ends = matcher.accepting_;
  if (!ends && !held.ends && held.is(engine, plan)) return;
  size_t corrections = ends ? matcher.constraint_->eos().size() : 0;
  for (uint32_t i = 0; i < plan.count; ++i) {
    const Row& row = engine.plan_row(plan, i);
    corrections += i == 0 || !row.mask ? row.removed.size() + row.added.size() : kMostChanged + 1;
  }
  held.ends = ends;
  held.begin = plan.begin;
  held.count = plan.count;
  held.rows_epoch = engine.rows_epoch();
  if (corrections > kMostChanged) {
    held.what = What::kPlan;
    held.base = nullptr;
    engine.write(plan, words);
    if (ends) matcher.add_eos(words);
    return;
  }
  const std::shared_ptr<const Words> none;
  const auto& base = plan.count == 0 ? none : engine.plan_row(plan, 0).mask;
  const uint32_t* const source = base ? base->data() : nullptr;
  if (held.what == What::kCorrected && held.base == base) {
    for (uint32_t word : held.changed) words[word] = source ? source[word] : 0;
  } else {
    if (source) std::memcpy(words, source, size_t{words_} * 4);
    else std::memset(words, 0, size_t{words_} * 4);
    held.base = base;
  }
  held.what = What::kCorrected;
  held.changed.clear();
  const auto correct = [&](std::span<const uint32_t> tokens, bool allowed) {
    for (uint32_t token : tokens) {
      const uint32_t bit = uint32_t{1} << (token & 31);
      words[token >> 5] = allowed ? words[token >> 5] | bit : words[token >> 5] & ~bit;
      held.changed.push_back(token >> 5);
    }
  };
  for (uint32_t i = 0; i < plan.count; ++i) {
    const Row& row = engine.plan_row(plan, i);
    if (i == 0) correct(row.removed, false);
    correct(row.added, true);
  }
  if (ends) correct(matcher.constraint_->eos(), true);
}

void RowBuffer::fill_known(std::span<Matcher* const> matchers, std::vector<uint32_t>& left) {
  const auto engine_of = [&](size_t i) { return matchers[i]->engine_.get(); };
  std::shared_lock<TurnMutex> lock;
  const Engine* locked = nullptr;
  for (size_t begin = 0, end = 0; begin < matchers.size(); begin = end) {
    for (size_t i = begin; i < std::min(begin + kAhead, matchers.size()); ++i) prefetch(matchers[i]);
    Engine& engine = *engine_of(begin);
    while (end < matchers.size() && end < begin + kAhead && engine_of(end) == &engine) ++end;
    if (locked != &engine) {
      if (lock) lock.unlock();
      lock = std::shared_lock(engine.mutex(), std::defer_lock);
      if (engine.mutex().try_lock_shared_for(Matcher::kPatience)) lock = std::shared_lock(engine.mutex(), std::adopt_lock);
      locked = &engine;
    }
    std::array<const Engine::Plan*, kAhead> plans{};
    for (size_t i = begin; i < end; ++i) {
      const Matcher& matcher = *matchers[i];
      const Engine::Plan* plan = lock ? matcher.find_plan() : nullptr;
      if (plan && plan->room > left_of(matcher.limit_, matcher.steps_.size())) plan = nullptr;
      if (plan && !held_[i].is(engine, *plan)) engine.prefetch(*plan);
      plans[i - begin] = plan;
    }
    for (size_t i = begin; i < end; ++i) {
      if (plans[i - begin]) write(held_[i], row(i), *matchers[i], engine, *plans[i - begin]);
      else if (matchers[i]->terminated_) allow_all(i);
      else left.push_back(static_cast<uint32_t>(i));
    }
  }
}

void RowBuffer::allow_all(size_t index) {
  if (held_[index].what != What::kEverything) std::memset(row(index), 0xff, size_t{words_} * 4);
  held_[index].what = What::kEverything;
}

void RowBuffer::fill_one(Matcher& matcher, uint32_t index, bool& failed) {
  uint32_t* const words = row(index);
  const uint32_t left = left_of(matcher.limit_, matcher.steps_.size());
  failed = left == 0;
  if (failed) return;
  try {
    matcher.fill_mask(words);
    if (left != kNone && matcher.needs_budget_mask(left)) matcher.fill_mask_within(words, left);
  } catch (const LimitError&) {
    failed = true;
  }
}

void RowBuffer::fill_left(std::span<Matcher* const> matchers, std::span<const uint32_t> left, std::vector<uint32_t>& failed) {
  // One thread at a time extends an engine: several would hand it over to each other.
  std::vector<std::vector<uint32_t>> by_engine;
  std::vector<const Engine*> engines;
  for (uint32_t index : left) {
    forget(index);
    const Engine* const engine = matchers[index]->engine_.get();
    const auto at = static_cast<size_t>(std::find(engines.begin(), engines.end(), engine) - engines.begin());
    if (at == engines.size()) {
      engines.push_back(engine);
      by_engine.emplace_back();
    }
    by_engine[at].push_back(index);
  }
  std::mutex mutex;
  parallel_for(by_engine.size(), [&](size_t part) {
    for (uint32_t index : by_engine[part]) {
      bool is_failed = false;
      fill_one(*matchers[index], index, is_failed);
      if (!is_failed) continue;
      const std::lock_guard lock(mutex);
      failed.push_back(index);
    }
  });
  std::sort(failed.begin(), failed.end());
}

}  // namespace structgen
