#include "matcher/matcher.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <shared_mutex>
#include <stdexcept>

#include "base/thread_pool.h"

namespace structgen {

namespace {

constexpr uint64_t kUnset = UINT64_MAX;  // no epoch of any engine
// A mask may spend this part of the steps that the search for the shortest string may.
constexpr uint64_t kMaskShare = 50;
constexpr size_t kLiteralPart = 4096;  // of a forced literal, read at once within the steps of one token

}  // namespace

Constraint::Constraint(std::shared_ptr<Engine> engine, TermId start, std::vector<uint32_t> eos, const Limits& limits)
    : tokens_(engine->tokens().shared_from_this()),
      vocabulary_size_(engine->vocabulary_size()),
      eos_(std::move(eos)),
      limits_(limits),
      home_(std::make_shared<Home>(std::move(engine), start)) {}

void Constraint::begin() {
  home_->prepare(limits_);
  const Charge charge(*home_);
  scopes_ = home_->engine->machine().automaton().terms().scopes_below(home_->term);
  home_->start();
}

std::shared_ptr<Home> Constraint::home() const {
  const std::lock_guard lock(home_mutex_);
  return home_;
}

void Constraint::move(const std::shared_ptr<Home>& from) const {
  const std::lock_guard one_at_a_time(move_mutex_);
  if (has_moved()) return;
  if (std::shared_ptr<Home> made = elsewhere_()) {
    const std::lock_guard lock(home_mutex_);
    if (home_ == from) home_ = std::move(made);
  }
  moved_ = true;  // also where it must stay, so that its work there is done at last
}

void Home::prepare(const Limits& limits) {
  if (epoch_ != engine->epoch()) {
    epoch_ = engine->epoch();
    used_ = 0;
    met_.clear();
  }
  Automaton& automaton = engine->machine().automaton();
  automaton.meter().begin(used(), limits);
  automaton.set_regular_limit(limits.regular_states);
}

bool Constraint::is_eos(uint32_t token) const { return std::find(eos_.begin(), eos_.end(), token) != eos_.end(); }

Matcher::Matcher(std::shared_ptr<const Constraint> constraint) : constraint_(std::move(constraint)), epoch_(kUnset) {
  constraint_->exclusively([&](Home& here) { sync(here); });
}

// Takes node ids anew after the engine has forgotten its states, or is another: what was accepted is accepted once more.
void Matcher::sync(Home& here) {
  Engine& engine = *here.engine;
  if (epoch_ == engine.epoch()) return;
  epoch_ = kUnset;  // until all ids are those of one engine
  if (constraint_->has_scope()) {
    sync_scopes(here);
    return;
  }
  NodeId node = here.start();
  const bool ended = terminated_;
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& taken = steps_[i];
    taken.before = node;
    if (ended && i + 1 == steps_.size()) break;
    engine.renew_steps();
    if (taken.token != kNone) {
      node = step(engine, node, taken.token);
    }
    for (char byte : taken.text) {
      engine.renew_steps();
      node = engine.machine().step(node, static_cast<uint8_t>(byte));
    }
  }
  engine.renew_steps();
  enter(engine, node);
  engine_ = here.engine;
  epoch_ = engine.epoch();
}

void Matcher::enter(const Engine& engine, NodeId node) {
  node_ = node;
  accepting_ = engine.machine()[node].accepting;
}

// The node after a token that is no EOS, or the dead node.
NodeId Matcher::step(Engine& engine, NodeId node, uint32_t token) const {
  if (token >= engine.tokens().size()) return kDeadNode;
  const bool is_text = !engine.tokens().token(token).empty();
  const NodeId next = is_text ? engine.step_token(node, token) : engine.step_special(node, token);
  if (next != kDeadNode && !engine.completable(next, constraint_->limits().distance_steps)) return kDeadNode;
  return next;
}

std::optional<bool> Matcher::take_known(const Engine& engine, uint32_t token) {
  if (epoch_ != engine.epoch() || !engine.byte_complete() || engine.tokens().token(token).empty()) return std::nullopt;
  const NodeId next = engine.known_step_token(node_, token);
  if (next == kDeadNode) return false;
  if (next == kNone || !engine.machine().is_sure(next, 0)) return std::nullopt;
  steps_.push_back({node_, accepting_, token, {}});
  enter(engine, next);
  return true;
}

std::optional<bool> Matcher::accept_known(uint32_t token) {
  if (terminated_) return false;
  if (constraint_->is_eos(token)) {
    if (!accepting_) return false;
    if (constraint_->has_scope()) traces_.push_back(trace_);
    steps_.push_back({node_, true, token, {}});
    terminated_ = true;
    return true;
  }
  if (token >= constraint_->tokens().size()) return false;
  if (constraint_->has_scope() || !engine_->mutex().try_lock_shared_for(kPatience)) return std::nullopt;
  const std::shared_lock lock(engine_->mutex(), std::adopt_lock);
  return take_known(*engine_, token);
}

bool Matcher::accept(uint32_t token) {
  if (terminated_ || constraint_->is_eos(token) || token >= constraint_->tokens().size()) return *accept_known(token);
  if (constraint_->has_scope()) return run([&](Engine& held) { return accept_in_scopes(held, token); });
  {
    const std::shared_lock lock(engine_->mutex());  // transitions that are known need no exclusive access
    if (const std::optional<bool> known = take_known(*engine_, token)) return *known;
  }
  return run(Request::kToken, token, [&](Engine& held) {
    const NodeId next = step(held, node_, token);
    if (next == kDeadNode) return false;
    steps_.push_back({node_, accepting_, token, {}});
    enter(held, next);
    return true;
  });
}

size_t Matcher::accept_bytes(std::string_view data) {
  if (terminated_ || data.empty()) return 0;
  if (constraint_->has_scope()) return run([&](Engine& engine) { return accept_bytes_in_scopes(engine, data); });
  return run([&](Engine& engine) {
    NodeId node = node_;
    size_t count = 0;
    for (; count < data.size(); ++count) {
      engine.renew_steps();
      const NodeId next = engine.machine().step(node, static_cast<uint8_t>(data[count]));
      if (next == kDeadNode) break;
      node = next;
    }
    if (count > 0) {
      steps_.push_back({node_, accepting_, kNone, std::string(data.substr(0, count))});
      enter(engine, node);
    }
    return count;
  });
}

size_t Matcher::validate(std::span<const uint32_t> tokens) {
  if (terminated_) return 0;
  if (constraint_->has_scope()) return run([&](Engine& engine) { return validate_in_scopes(engine, tokens); });
  return run([&](Engine& engine) {
    NodeId node = node_;
    for (size_t i = 0; i < tokens.size(); ++i) {
      engine.renew_steps();
      if (constraint_->is_eos(tokens[i])) return i + engine.machine()[node].accepting;
      node = step(engine, node, tokens[i]);
      if (node == kDeadNode) return i;
    }
    return tokens.size();
  });
}

void Matcher::rollback(size_t count) {
  if (count > steps_.size()) throw std::invalid_argument("more steps than were taken");
  if (count == 0) return;
  const Step& first = steps_[steps_.size() - count];
  node_ = first.before;  // sync() mends it, should the engine have forgotten it
  accepting_ = first.was_accepting;
  terminated_ = false;
  steps_.resize(steps_.size() - count);
  if (traces_.empty()) return;
  trace_ = std::move(traces_[traces_.size() - count]);
  traces_.resize(traces_.size() - count);
}

void Matcher::reset() { rollback(steps_.size()); }

void Matcher::replay(const Matcher& other) {
  steps_ = other.steps_;
  terminated_ = other.terminated_;
  traces_ = other.traces_;
  epoch_ = kUnset;
  run([](Engine&) {});
}

void Matcher::add_eos(uint32_t* words) const {
  for (uint32_t token : constraint_->eos()) words[token >> 5] |= uint32_t{1} << (token & 31);
}

void Matcher::fill_mask(uint32_t* words) {
  if (terminated_) {
    std::memset(words, 0, size_t{constraint_->words()} * 4);
    return;
  }
  if (constraint_->has_scope()) {
    run([&](Engine& held) { fill_in_scopes(held, position(), trace_.way, words); });
    set_eos(words);
    return;
  }
  bool done = false;
  {
    const std::shared_lock lock(engine_->mutex());
    done = epoch_ == engine_->epoch() && engine_->try_fill(node_, words);
  }
  if (!done) run(Request::kMask, 0, [&](Engine& held) { held.fill(node_, words, constraint_->limits().distance_steps); });
  set_eos(words);
}

const Engine::Plan* Matcher::find_plan() const {
  if (terminated_ || constraint_->has_scope() || epoch_ != engine_->epoch()) return nullptr;
  return engine_->find_plan(node_);
}

// Between two calls a model has run and the caches are cold.  Matcher, constraint, plan and row lie at different
// addresses, each known from the one before: all plans are looked up before the first mask is written, so that the
// memory that they wait for arrives at the same time.
void Matcher::fill_together(std::span<Matcher* const> matchers, std::span<uint32_t* const> rows) {
  std::array<const Engine::Plan*, kTogether> plans;
  const auto engine_of = [&](size_t i) { return matchers[i]->engine_.get(); };
  for (size_t begin = 0, end = 0; begin < matchers.size(); begin = end) {
    Engine& engine = *engine_of(begin);
    while (end < matchers.size() && engine_of(end) == &engine) ++end;
    const std::shared_lock lock(engine.mutex());
    for (size_t i = begin; i < end; ++i) {
      plans[i] = matchers[i]->find_plan();
      if (plans[i]) engine.prefetch(*plans[i]);
    }
    for (size_t i = begin; i < end; ++i) {
      if (!plans[i]) continue;
      engine.write(*plans[i], rows[i]);
      matchers[i]->set_eos(rows[i]);
    }
  }
  std::exception_ptr error;  // of one mask: the others are filled
  for (size_t i = 0; i < matchers.size(); ++i) {
    if (plans[i]) continue;
    try {
      matchers[i]->fill_mask(rows[i]);
    } catch (const Interrupted&) {
      throw;
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

void Matcher::fill_mask_within(uint32_t* words, uint32_t budget) {
  if (terminated_ || budget == 0)
    std::memset(words, 0, size_t{constraint_->words()} * 4);
  else if (constraint_->has_scope())
    run([&](Engine& held) { fill_within_in_scopes(held, words, budget - 1); });
  else
    run(Request::kMaskWithin, budget, [&](Engine& held) {
      const uint64_t fuel = constraint_->limits().distance_steps;
      held.fill_within(node_, words, budget - 1, fuel / kMaskShare);
      // What min_tokens() promised stays possible, also where a mask may spend too little to find it.
      if (!accepting_ && std::all_of(words, words + held.words(), [](uint32_t word) { return word == 0; }))
        held.allow_fewest(node_, words, budget - 1, fuel);
    });
  set_eos(words);
}

std::vector<uint32_t> Matcher::allowed_tokens(size_t max) {
  std::vector<uint32_t> found;
  if (terminated_ || max == 0) return found;
  if (constraint_->byte_complete()) {  // each byte is a token
    ByteSet live;
    if (constraint_->has_scope()) {
      const auto enough = static_cast<unsigned>(std::min<size_t>(max, 256));
      live = run([&](Engine& held) {
        if (held.machine()[node_].least != kNone) return ByteSet{};
        return held.distinct().live(position(), constraint_->effort(), enough);
      });
    } else {
      const std::shared_lock lock(engine_->mutex());
      if (epoch_ == engine_->epoch() && engine_->machine()[node_].least == kNone) live = engine_->machine()[node_].live;
    }
    if (live.size() >= max) {
      const Trie& trie = constraint_->tokens().trie();
      live.for_each([&](uint8_t byte) {
        if (found.size() < max) found.push_back(trie.tokens_at(trie.child(0, byte)).front());
      });
      return found;
    }
  }
  std::vector<uint32_t> words(constraint_->words());
  fill_mask(words.data());
  for (uint32_t token : constraint_->eos()) words[token >> 5] &= ~(uint32_t{1} << (token & 31));
  for (size_t i = 0; i < words.size(); ++i)
    for (uint32_t left = words[i]; left != 0 && found.size() < max; left &= left - 1)
      found.push_back(static_cast<uint32_t>(i * 32) + static_cast<uint32_t>(std::countr_zero(left)));
  return found;
}

bool Matcher::needs_budget_mask(uint32_t budget) {
  if (terminated_) return false;
  if (!constraint_->byte_complete() || budget == 0) return true;
  if (constraint_->has_scope()) return run([&](Engine& held) { return needs_budget_in_scopes(held, budget - 1); });
  {
    const std::shared_lock lock(engine_->mutex());
    if (const Engine::Plan* plan = find_plan(); plan && plan->room <= budget) return false;
  }
  return run(Request::kBudget, 0, [&](Engine& held) { return held.needs_budget(node_, budget); });
}

std::string Matcher::forced_bytes(size_t most) {
  if (terminated_) return {};
  if (!constraint_->has_scope()) {
    const std::shared_lock lock(engine_->mutex());
    if (epoch_ == engine_->epoch()) {
      const Node& here = engine_->machine()[node_];
      if (here.accepting || here.has_specials || here.live.size() != 1) return {};
    }
  }
  if (constraint_->has_scope()) return run([&](Engine& engine) { return forced_in_scopes(engine); });
  return run(Request::kForced, 0, [&](Engine& engine) {
    std::string forced;
    Machine& machine = engine.machine();
    for (NodeId node = node_; forced.size() < most && !machine[node].accepting && !machine[node].has_specials && machine[node].live.size() == 1;) {
      engine.renew_steps();
      const std::string literal(machine.literal(node).substr(0, std::min(most - forced.size(), kLiteralPart)));
      if (!literal.empty()) {
        forced += literal;
        for (std::string_view left = literal; !left.empty();) node = machine.advance(node, left);
        continue;
      }
      const uint8_t byte = machine[node].live.first();
      forced.push_back(static_cast<char>(byte));
      node = machine.step(node, byte);
    }
    return forced;
  });
}

size_t Matcher::uncertain_from(std::string_view forced, std::span<const size_t> starts) {
  return run([&](Engine& engine) {
    NodeId end = node_;
    for (char byte : forced) end = engine.machine().step(end, static_cast<uint8_t>(byte));
    for (size_t i = 0; i < starts.size(); ++i)
      if (engine.may_go_beyond(end, forced.substr(starts[i]))) return i;
    return starts.size();
  });
}

uint32_t Matcher::min_tokens() {
  if (terminated_) return 0;
  if (!constraint_->has_scope())
    return run(Request::kFewest, 0, [&](Engine& engine) {
      uint64_t fuel = constraint_->limits().distance_steps;
      return engine.min_tokens(node_, fuel);
    });
  return run([&](Engine& engine) {
    uint64_t fuel = constraint_->limits().distance_steps;
    const auto tokens = engine.distinct().shortest(position(), fuel);
    if (!tokens) return kNone;
    trace_.plan.assign(tokens->rbegin(), tokens->rend());
    return static_cast<uint32_t>(tokens->size());
  });
}

bool Matcher::completes_within(uint32_t budget) {
  if (terminated_) return true;
  // The plan takes steps for each byte, the search for each state within so many tokens, which may be many thousands.
  const bool is_planned = !constraint_->has_scope() && run([&](Engine& engine) {
    return engine.machine()[node_].least == kNone && engine.plan(node_) <= budget;
  });
  return is_planned || min_tokens() <= budget;
}

std::vector<int64_t> Matcher::shortest_completion() {
  if (terminated_) return {};
  if (!constraint_->has_scope())
    return run(Request::kCompletion, 0, [&](Engine& engine) { return engine.shortest_completion(node_); });
  return run([&](Engine& engine) {
    return engine.distinct().completion(position(), constraint_->limits().distance_steps).value_or(std::vector<int64_t>{});
  });
}

uint64_t Matcher::state_id() {
  return run([&](Engine& engine) { return engine.epoch() << 32 | node_; });
}

std::optional<uint64_t> Matcher::mask_id() {
  if (constraint_->has_scope()) return std::nullopt;  // what was read lies beside the node
  if (terminated_) return kDeadNode;  // of no epoch: nothing is allowed
  {
    const std::shared_lock lock(engine_->mutex());
    if (epoch_ == engine_->epoch()) return epoch_ << 32 | node_;
  }
  return run([&](Engine& engine) { return std::optional(engine.epoch() << 32 | node_); });
}

std::string Matcher::live_bytes() {
  if (terminated_) return {};
  return run([&](Engine& engine) {
    std::string bytes;
    const ByteSet live = constraint_->has_scope() ? engine.distinct().live(position(), constraint_->effort()) : engine.machine()[node_].live;
    live.for_each([&](uint8_t byte) { bytes.push_back(static_cast<char>(byte)); });
    return bytes;
  });
}

std::optional<double> Matcher::temperature() {
  if (terminated_ || !constraint_->has_temperatures()) return std::nullopt;
  const double found = run([&](Engine& engine) { return engine.machine()[node_].temperature; });
  return found < 0 ? std::nullopt : std::optional<double>(found);
}

std::vector<uint32_t> Matcher::live_specials() {
  if (terminated_) return {};
  return run([&](Engine& engine) { return engine.machine().specials(node_); });
}

// Names of the rules that are open, outermost first, along one of the possible stacks.  A frame that calls of several
// rules share bears the name of the first, so the answer is certain only in an engine that has seen nothing else.
std::vector<std::string> Matcher::rule_path() {
  return run([&](Engine& engine) {
    std::vector<std::string> path;
    const Machine& machine = engine.machine();
    const auto configs = machine.configs(node_);
    if (configs.empty()) return path;
    for (FrameId frame = configs.back().second; frame != kRoot; frame = machine.entries(frame).front().second) {
      const RuleId rule = machine.frame(frame).rule;
      if (rule != kNone) path.push_back(machine.automaton().terms().rule_name(rule));
    }
    std::reverse(path.begin(), path.end());
    return path;
  });
}

void fill_masks(std::span<Matcher* const> matchers, std::span<uint32_t* const> rows) {
  const size_t parts = (matchers.size() + Matcher::kTogether - 1) / Matcher::kTogether;
  parallel_for(parts, [&](size_t part) {
    const size_t begin = part * Matcher::kTogether, count = std::min(Matcher::kTogether, matchers.size() - begin);
    Matcher::fill_together(matchers.subspan(begin, count), rows.subspan(begin, count));
  });
}

}  // namespace structgen
