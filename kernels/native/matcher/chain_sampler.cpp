#include "matcher/chain_sampler.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <limits>
#include <utility>

#include "base/limits.h"

namespace structgen {

namespace {

constexpr float kExcluded = -std::numeric_limits<float>::infinity();

std::atomic<size_t> living_samplers = 0;

// What a sampler of llama.cpp points to.  The Python face shares the state, which thus outlives the chain.
struct Held {
  Held(std::shared_ptr<ChainSampler> state, llama::Init init) : state(std::move(state)), init(init) { ++living_samplers; }
  ~Held() { --living_samplers; }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  std::shared_ptr<ChainSampler> state;
  llama::Init init;
};

Held* held_by(const llama::Sampler* sampler) { return static_cast<Held*>(sampler->context); }

const char* name(const llama::Sampler*) { return "structgen"; }

void accept(llama::Sampler* sampler, int32_t token) {
  if (Held* held = held_by(sampler)) held->state->accept(token);
}

void apply(llama::Sampler* sampler, llama::TokenDataArray* candidates) {
  if (Held* held = held_by(sampler)) {
    held->state->apply(*candidates);
    return;
  }
  for (size_t i = 0; i < candidates->size; ++i) candidates->data[i].logit = kExcluded;
}

void reset(llama::Sampler* sampler) {
  if (Held* held = held_by(sampler)) held->state->reset();
}

// llama.cpp takes no null for an answer.  A clone for which there is no memory allows nothing.
llama::Sampler* clone(const llama::Sampler* sampler) {
  const Held* held = held_by(sampler);
  std::unique_ptr<Held> copy;
  try {
    copy = std::make_unique<Held>(std::make_shared<ChainSampler>(*held->state), held->init);
  } catch (...) {
  }
  return held->init(ChainSampler::table(), copy.release());
}

void release(llama::Sampler* sampler) {
  delete held_by(sampler);
  sampler->context = nullptr;
}

void copy_state(const llama::Sampler* from, llama::Sampler* to) {
  const Held* source = held_by(from);
  Held* target = held_by(to);
  if (source && target) {
    target->state->take(*source->state);
    return;
  }
  release(to);  // there was no memory for one of them: nothing is allowed
}

}  // namespace

ChainSampler::ChainSampler(std::shared_ptr<const Constraint> constraint, std::optional<uint32_t> budget)
    : now_{Matcher(constraint), budget, budget, constraint->vocabulary_size(),
           std::vector<uint32_t>(constraint->words())} {}

ChainSampler::ChainSampler(const ChainSampler& other) : now_(other.locked()) {}

ChainState ChainSampler::locked() const {
  const std::unique_lock lock(mutex_);
  return now_;
}

void ChainSampler::fill() {
  if (now_.is_filled) return;
  const Uninterruptible held;  // llama.cpp takes no exception, and Python's threads wait for mutex_
  if (now_.matcher.is_terminated()) {
    std::fill(now_.words.begin(), now_.words.end(), 0);
    for (uint32_t token : constraint().eos()) now_.words[token >> 5] |= uint32_t{1} << (token & 31);
  } else if (now_.left && now_.matcher.needs_budget_mask(*now_.left)) {
    now_.matcher.fill_mask_within(now_.words.data(), *now_.left);
  } else {
    now_.matcher.fill_mask(now_.words.data());
  }
  now_.is_filled = true;
}

void ChainSampler::apply(llama::TokenDataArray& candidates) noexcept {
  const std::unique_lock lock(mutex_);
  now_.candidates = candidates.size;
  now_.is_starved = false;
  if (!now_.fault) now_.was_told = false;
  if (!now_.has_failed) {
    try {
      fill();
    } catch (const LimitError& error) {
      keep(Cause::kFailed, -1, error.limit.c_str());
    } catch (const std::exception& error) {
      keep(Cause::kFailed, -1, error.what());
    } catch (...) {
      keep(Cause::kFailed, -1, "an unknown error");
    }
  }
  if (now_.has_failed) {
    end(candidates);
    return;
  }
  bool is_left = false, is_cut = false;
  llama::TokenData* const data = candidates.data;
  for (size_t i = 0; i < candidates.size; ++i) {
    const bool allowed = is_allowed(static_cast<uint32_t>(data[i].id));
    data[i].logit = allowed ? data[i].logit : kExcluded;
    is_left |= data[i].logit > kExcluded;
    is_cut |= !allowed;
  }
  candidates.sorted &= !is_cut;
  now_.is_starved = !is_left;
}

// Leaves nothing to choose but EOS, which takes the place of the first candidate where it is none of them.
void ChainSampler::end(llama::TokenDataArray& candidates) const {
  size_t place = candidates.size;
  for (size_t i = 0; i < candidates.size; ++i) {
    llama::TokenData& each = candidates.data[i];
    const bool is_end = place == candidates.size && constraint().is_eos(static_cast<uint32_t>(each.id));
    if (is_end) place = i;
    if (!is_end)
      each.logit = kExcluded;
    else if (!(each.logit > kExcluded))
      each.logit = 0;
  }
  if (candidates.size == 0 || constraint().eos().empty()) return;
  if (place == candidates.size) {
    place = 0;
    candidates.data[0] = {static_cast<int32_t>(constraint().eos().front()), 0, 0};
  }
  candidates.sorted = false;
  if (candidates.selected >= 0) candidates.selected = static_cast<int64_t>(place);
}

void ChainSampler::accept(int32_t token) noexcept {
  const std::unique_lock lock(mutex_);
  if (now_.has_failed) return;
  try {
    const Uninterruptible held;
    const auto id = static_cast<uint32_t>(token);
    const bool is_end = constraint().is_eos(id);
    if (now_.matcher.is_terminated() && is_end) return;
    // Where the mask is known, it says more than the matcher: what fits into the budget.
    if ((now_.is_filled && !is_allowed(id)) || !now_.matcher.accept(id)) {
      keep(Cause::kRefused, token, "");
      return;
    }
    now_.is_filled = now_.is_starved = false;
    if (is_end) return;
    if (now_.left && *now_.left > 0) --*now_.left;
    now_.tokens.push_back(token);
  } catch (const LimitError& error) {
    keep(Cause::kFailed, token, error.limit.c_str());
  } catch (const std::exception& error) {
    keep(Cause::kFailed, token, error.what());
  } catch (...) {
    keep(Cause::kFailed, token, "an unknown error");
  }
}

void ChainSampler::keep(Cause cause, int32_t token, const char* what) noexcept {
  now_.has_failed = true;
  if (now_.fault && !now_.was_told) return;
  now_.was_told = false;
  try {
    now_.fault.emplace(Fault{cause, now_.tokens, token, now_.candidates, now_.is_starved, what});
  } catch (...) {  // no memory for what it was
    now_.fault.emplace(Fault{Cause::kFailed, {}, token, now_.candidates, now_.is_starved, {}});
  }
}

void ChainSampler::reset() noexcept {
  const std::unique_lock lock(mutex_);
  if (now_.is_starved && !now_.has_failed && !now_.was_told) keep(Cause::kStarved, -1, "");
  if (now_.was_told) now_.fault.reset();
  now_.has_failed = now_.is_filled = now_.is_starved = now_.was_told = false;
  now_.tokens.clear();
  now_.left = now_.budget;
  now_.matcher.reset();
}

void ChainSampler::take(const ChainSampler& other) noexcept {
  try {
    ChainState next = other.locked();
    const std::unique_lock lock(mutex_);
    if (now_.fault && !now_.was_told) {
      next.fault = std::move(now_.fault);
      next.was_told = false;
    }
    now_ = std::move(next);
  } catch (...) {
    const std::unique_lock lock(mutex_);
    keep(Cause::kFailed, -1, "");
  }
}

std::optional<ChainSampler::Fault> ChainSampler::fault() {
  const std::unique_lock lock(mutex_);
  now_.was_told = now_.fault.has_value() || now_.is_starved;
  if (!now_.fault && now_.is_starved) return Fault{Cause::kStarved, now_.tokens, -1, now_.candidates, true, {}};
  return now_.fault;
}

std::vector<int32_t> ChainSampler::tokens() const {
  const std::unique_lock lock(mutex_);
  return now_.tokens;
}

bool ChainSampler::is_accepting() const {
  const std::unique_lock lock(mutex_);
  return !now_.has_failed && (now_.matcher.is_accepting() || now_.matcher.is_terminated());
}

bool ChainSampler::is_terminated() const {
  const std::unique_lock lock(mutex_);
  return now_.matcher.is_terminated();
}

llama::SamplerTable* ChainSampler::table() {
  static llama::SamplerTable functions{name, structgen::accept, structgen::apply, structgen::reset, clone, release, {}, copy_state, {}};
  return &functions;
}

llama::Sampler* ChainSampler::wrap(std::shared_ptr<ChainSampler> sampler, llama::Init init) {
  auto held = std::make_unique<Held>(std::move(sampler), init);
  llama::Sampler* made = init(table(), held.get());
  if (made == nullptr || made->table != table() || made->context != held.get()) return nullptr;
  held.release();
  return made;
}

std::shared_ptr<ChainSampler> ChainSampler::find(const llama::Sampler* sampler) {
  if (sampler->table != table() || sampler->context == nullptr) return nullptr;
  return held_by(sampler)->state;
}

size_t ChainSampler::living() { return living_samplers; }

}  // namespace structgen
