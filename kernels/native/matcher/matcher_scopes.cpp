// The matcher where the grammar has scopes (distinct.h): a node together with what the lexer has read.
#include <algorithm>
#include <cstring>

#include "matcher/matcher.h"

namespace structgen {

namespace {

constexpr uint64_t kMaskShare = 5;  // a mask within a budget may spend this part of the steps of one search

}  // namespace

void Matcher::record(Engine& engine, Position next, std::vector<uint32_t> way, size_t made, uint32_t token, std::string text) {
  for (size_t i = made; i < engine.distinct().size(); ++i)
    engine.machine().automaton().meter().charge("holding items that must differ");
  Trace after{std::move(next.lexer), std::move(next.label), {}, std::move(way)};
  if (token != kNone && !trace_.plan.empty() && trace_.plan.back() == token)
    after.plan.assign(trace_.plan.begin(), trace_.plan.end() - 1);
  steps_.push_back({node_, accepting_, token, std::move(text)});
  traces_.push_back(std::exchange(trace_, std::move(after)));
  enter(engine, next.node);
}

bool Matcher::take(Distinct& distinct, Position& at, std::vector<uint32_t>& way, uint32_t token) const {
  if (!distinct.step_token(at, token)) return false;
  if (!way.empty() && way.back() == token) {
    way.pop_back();
    return true;
  }
  return distinct.completable_by_tokens(at, constraint_->effort(), way);
}

bool Matcher::accept_in_scopes(Engine& engine, uint32_t token) {
  Distinct& distinct = engine.distinct();
  const size_t made = distinct.size();
  Position next = position();
  std::vector<uint32_t> way = trace_.way;
  if (!take(distinct, next, way, token)) {
    distinct.release(made);
    return false;
  }
  record(engine, std::move(next), std::move(way), made, token, {});
  return true;
}

size_t Matcher::accept_bytes_in_scopes(Engine& engine, std::string_view data) {
  Distinct& distinct = engine.distinct();
  const size_t made = distinct.size();
  Position at = position();
  size_t count = 0;
  for (; count < data.size(); ++count) {
    engine.renew_steps();
    Position next = at;
    if (!distinct.step(next, static_cast<uint8_t>(data[count]))) break;
    if (engine.byte_complete() && !distinct.completable(next, constraint_->effort())) break;
    at = std::move(next);
  }
  if (count > 0) record(engine, std::move(at), {}, made, kNone, std::string(data.substr(0, count)));
  return count;
}

size_t Matcher::validate_in_scopes(Engine& engine, std::span<const uint32_t> tokens) const {
  Distinct& distinct = engine.distinct();
  const size_t made = distinct.size();
  Position at = position();
  std::vector<uint32_t> way = trace_.way;
  size_t count = 0;
  for (; count < tokens.size(); ++count) {
    engine.renew_steps();
    if (constraint_->is_eos(tokens[count])) {
      count += engine.machine()[at.node].accepting;
      break;
    }
    if (!take(distinct, at, way, tokens[count])) break;
  }
  distinct.release(made);
  return count;
}

// Reads everything once more, after the engine has forgotten.
void Matcher::sync_scopes(Home& here) {
  Engine& engine = *here.engine;
  Position at{here.start(), {}, {}};
  traces_.resize(steps_.size());
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& taken = steps_[i];
    taken.before = at.node;
    traces_[i].lexer = at.lexer;
    traces_[i].label = at.label;
    if (terminated_ && i + 1 == steps_.size()) break;
    engine.renew_steps();
    if (taken.token == kNone) engine.distinct().step(at, taken.text);
    else engine.distinct().step_token(at, taken.token);
  }
  engine.renew_steps();
  trace_.lexer = std::move(at.lexer);
  trace_.label = std::move(at.label);
  enter(engine, at.node);
  engine_ = here.engine;
  epoch_ = engine.epoch();
}

void Matcher::fill_in_scopes(Engine& engine, const Position& at, std::span<const uint32_t> way, uint32_t* words) const {
  if (!engine.byte_complete()) {
    engine.distinct().fill_within(at, words, kNone - 1, constraint_->limits().distance_steps);
    return;
  }
  if (engine.distinct().must_count(at)) {
    engine.distinct().fill_counted(at, words, constraint_->effort());
    if (!way.empty()) words[way.back() >> 5] |= uint32_t{1} << (way.back() & 31);  // what was let through stays possible
    return;
  }
  if (!engine.try_fill(at.node, words)) engine.fill(at.node, words, constraint_->limits().distance_steps);
  engine.distinct().correct(at, words, constraint_->effort());
}

void Matcher::fill_within_in_scopes(Engine& engine, uint32_t* words, uint32_t budget) {
  const Position at = position();
  if (trace_.plan.empty()) {
    uint64_t fuel = constraint_->limits().distance_steps;
    if (const auto tokens = engine.distinct().shortest(at, fuel)) trace_.plan.assign(tokens->rbegin(), tokens->rend());
  }
  engine.distinct().fill_within(at, words, budget, constraint_->limits().distance_steps / kMaskShare);
  if (!trace_.plan.empty() && trace_.plan.size() <= size_t{budget} + 1) {  // what was found to fit stays allowed
    const uint32_t token = trace_.plan.back();
    words[token >> 5] |= uint32_t{1} << (token & 31);
  }
}

bool Matcher::needs_budget_in_scopes(Engine& engine, uint32_t budget) {
  if (engine.distinct().must_count(position())) return true;
  // The distances of the machine are those of texts whose labels may be any, and that may repeat what is required.
  const uint64_t reach = uint64_t{engine.reach(node_)} + (constraint_->has_labels() ? engine.distinct().label_slack() : 0);
  if (constraint_->scope() == Scope::kNone) return reach > budget;
  if (constraint_->scope() != Scope::kSpare || reach > budget) return true;
  std::vector<uint32_t> words(engine.words());
  engine.fill(node_, words.data(), constraint_->limits().distance_steps);
  return engine.distinct().correct(position(), words.data(), constraint_->effort(), true) > budget;
}

std::string Matcher::forced_in_scopes(Engine& engine) const {
  Distinct& distinct = engine.distinct();
  const size_t made = distinct.size();
  std::string forced;
  for (Position at = position();;) {
    engine.renew_steps();
    const Node& here = engine.machine()[at.node];
    if (here.accepting || here.has_specials) break;
    const ByteSet live = here.live.size() == 1 ? here.live : distinct.live(at, constraint_->effort(), 2);
    if (live.size() != 1) break;
    forced.push_back(static_cast<char>(live.first()));
    if (!distinct.step(at, live.first())) break;
  }
  distinct.release(made);
  return forced;
}

}  // namespace structgen
