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

}  // namespace

ChainSampler::ChainSampler(std::shared_ptr<const Constraint> constraint, std::optional<uint32_t> budget)
    : matcher_(std::move(constraint)), budget_(budget), left_(budget), limit_(matcher_.constraint().engine().vocabulary_size()),
      words_(matcher_.constraint().engine().words()) {}

ChainSampler::ChainSampler(const ChainSampler& other) : ChainSampler(other, std::unique_lock(other.mutex_)) {}

ChainSampler::ChainSampler(const ChainSampler& other, const std::unique_lock<std::mutex>&)
    : matcher_(other.matcher_), budget_(other.budget_), left_(other.left_), limit_(other.limit_), words_(other.words_),
      is_filled_(other.is_filled_), tokens_(other.tokens_), candidates_(other.candidates_), is_starved_(other.is_starved_),
      has_failed_(other.has_failed_), fault_(other.fault_), was_told_(other.was_told_) {}

void ChainSampler::fill() {
  if (is_filled_) return;
  if (matcher_.is_terminated()) {
    std::fill(words_.begin(), words_.end(), 0);
    for (uint32_t token : constraint().eos()) words_[token >> 5] |= uint32_t{1} << (token & 31);
  } else if (left_ && matcher_.needs_budget_mask(*left_)) {
    matcher_.fill_mask_within(words_.data(), *left_);
  } else {
    matcher_.fill_mask(words_.data());
  }
  is_filled_ = true;
}

void ChainSampler::apply(llama::TokenDataArray& candidates) noexcept {
  const std::unique_lock lock(mutex_);
  candidates_ = candidates.size;
  is_starved_ = false;
  if (!has_failed_) {
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
  if (has_failed_) {
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
  is_starved_ = !is_left;
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
  if (has_failed_) return;
  try {
    const auto id = static_cast<uint32_t>(token);
    const bool is_end = constraint().is_eos(id);
    if (matcher_.is_terminated() && is_end) return;
    // Where the mask is known, it says more than the matcher: what fits into the budget.
    if ((is_filled_ && !is_allowed(id)) || !matcher_.accept(id)) {
      keep(Cause::kRefused, token, "");
      return;
    }
    is_filled_ = is_starved_ = false;
    if (is_end) return;
    if (left_ && *left_ > 0) --*left_;
    tokens_.push_back(token);
  } catch (const LimitError& error) {
    keep(Cause::kFailed, token, error.limit.c_str());
  } catch (const std::exception& error) {
    keep(Cause::kFailed, token, error.what());
  } catch (...) {
    keep(Cause::kFailed, token, "an unknown error");
  }
}

void ChainSampler::keep(Cause cause, int32_t token, const char* what) noexcept {
  has_failed_ = true;
  if (fault_ && !was_told_) return;
  was_told_ = false;
  try {
    fault_.emplace(Fault{cause, tokens_, token, candidates_, is_starved_, what});
  } catch (...) {  // no memory for what it was
    fault_.emplace(Fault{Cause::kFailed, {}, token, candidates_, is_starved_, {}});
  }
}

void ChainSampler::reset() noexcept {
  const std::unique_lock lock(mutex_);
  if (is_starved_ && !has_failed_) keep(Cause::kStarved, -1, "");
  if (was_told_) fault_.reset();
  has_failed_ = is_filled_ = is_starved_ = was_told_ = false;
  tokens_.clear();
  left_ = budget_;
  matcher_.reset();
}

std::optional<ChainSampler::Fault> ChainSampler::fault() {
  const std::unique_lock lock(mutex_);
  was_told_ = fault_.has_value();
  if (!fault_ && is_starved_) return Fault{Cause::kStarved, tokens_, -1, candidates_, true, {}};
  return fault_;
}

std::vector<int32_t> ChainSampler::tokens() const {
  const std::unique_lock lock(mutex_);
  return tokens_;
}

bool ChainSampler::is_accepting() const {
  const std::unique_lock lock(mutex_);
  return !has_failed_ && (matcher_.is_accepting() || matcher_.is_terminated());
}

bool ChainSampler::is_terminated() const {
  const std::unique_lock lock(mutex_);
  return matcher_.is_terminated();
}

llama::SamplerTable* ChainSampler::table() {
  static llama::SamplerTable functions{name, structgen::accept, structgen::apply, structgen::reset, clone, release, {}};
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
