// Budgets of tokens beside values that must differ and labels: see distinct.h and docs/adr/0017-budgets-of-a-part.md.
//
// No part with a budget lies within a scope, and no scope within one (TermStore::has_budgets_in_scopes), so the text that
// one of them needs says nothing of the other.  What single bytes can complete within all budgets, they complete whatever
// text a scope takes; so it is certain wherever the machine is sure of the budgets and the lexer of what must differ.
// Elsewhere the tokens of the machine's own completion are tried, then others are searched.
#include <algorithm>
#include <cstring>
#include <queue>
#include <tuple>
#include <unordered_set>

#include "masks/engine.h"
#include "scopes/distinct.h"

namespace structgen {

namespace {

constexpr uint64_t kSearchShare = 50;    // one search for tokens may spend this part of the steps
constexpr size_t kMaxTokens = 100'000;  // of the machine's completion, which comes nearer to its end with each

}  // namespace

// At the end of a token.
bool Distinct::count_token(Position& at) {
  Machine& machine = engine_.machine();
  const NodeId counted = machine.tick(at.node);
  if (counted == at.node) return true;
  at.node = counted;
  if (!machine[counted].in_scope) at.lexer = {};
  if (!machine[counted].in_label) at.label.clear();
  return counted != kDeadNode;
}

// Whether the text can be completed, where that needs no search among tokens; false: not known.
bool Distinct::is_settled(const Position& at, Effort effort) {
  const Node& node = engine_.machine()[at.node];
  if (node.accepting) return true;
  if (node.least == kNone) return completable(at, effort);
  if (node.sure == kInfinite) return false;
  std::vector<ValueId> targets;
  if (!is_uncertain(at, effort.thorough, targets)) return true;
  // What is known of the budgets and of the values must hold for the same reading.
  return !node.meets_budget && engine_.machine().is_sure_everywhere(at.node) && completable(at, effort);
}

// Whether the machine's completion leads to where that is known.  It depends on the position alone, so what follows any
// of its tokens is the rest of it.
bool Distinct::follows_plan(const Position& start, Effort effort) {
  const Trial trial(scopes_);
  Position at = start;
  for (size_t i = 0; i < kMaxTokens; ++i) {
    if (is_settled(at, effort)) return true;
    const uint32_t token = engine_.planned_token(at.node);
    if (token == kNone || !step_token(at, token)) return false;
  }
  return false;
}

// The same with any tokens, last one first: those positions first that miss fewest bytes.
std::optional<std::vector<uint32_t>> Distinct::search_tokens(const Position& start, Effort effort) {
  struct Reached {
    Position at;
    uint32_t parent, token;
  };
  const Trial trial(scopes_);
  Machine& machine = engine_.machine();
  const Trie& all = engine_.tokens().trie();
  using Entry = std::pair<Distance, uint32_t>;  // missing bytes, index
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::vector<Reached> reached{{start, kNone, kNone}};
  std::unordered_set<std::string> seen{key(start)};
  queue.emplace(machine[start.node].distance, 0);
  std::vector<Position> path(all.max_depth + 1u);
  uint64_t fuel = effort.fuel / kSearchShare;
  uint32_t found = kNone;
  while (!queue.empty() && found == kNone) {
    const uint32_t index = queue.top().second;
    queue.pop();
    path[0] = reached[index].at;
    const auto visit = [&](Position at, uint32_t token) {
      if (!count_token(at) || !seen.insert(key(at)).second) return;
      const bool is_end = is_settled(at, effort) || follows_plan(at, effort);
      const auto added = static_cast<uint32_t>(reached.size());
      queue.emplace(machine[at.node].distance, added);
      reached.push_back({std::move(at), index, token});
      if (is_end) found = added;
    };
    for (uint32_t node = 1; node < all.size() && found == kNone;) {
      if (fuel-- == 0) return std::nullopt;
      Position next = path[all.depth[node] - 1u];
      if (!step(next, all.byte[node])) {
        node = all.end[node];
        continue;
      }
      if (!all.tokens_at(node).empty()) visit(next, all.tokens_at(node)[0]);
      path[all.depth[node]] = std::move(next);
      ++node;
    }
    for (uint32_t token : machine.specials(path[0].node)) {
      Position next = path[0];
      if (found == kNone && read_token(next, token)) visit(std::move(next), token);
    }
  }
  if (found == kNone) return std::nullopt;
  std::vector<uint32_t> way;
  for (uint32_t i = found; reached[i].parent != kNone; i = reached[i].parent) way.push_back(reached[i].token);
  return way;
}

bool Distinct::completable_by_tokens(const Position& at, Effort effort, std::vector<uint32_t>& way) {
  way.clear();
  if (!engine_.byte_complete() || engine_.machine()[at.node].least == kNone) return completable(at, effort);
  if (is_settled(at, effort) || follows_plan(at, effort)) return true;
  auto found = search_tokens(at, effort);
  if (found) way = std::move(*found);
  return found.has_value();
}

// The rows of the machine are right where no token of them breaks an open budget, and no other budget comes.
bool Distinct::must_count(const Position& at) {
  const Node& node = engine_.machine()[at.node];
  if (node.least == kNone) return false;
  return node.meets_budget || (!engine_.find_plan(at.node) && !engine_.keeps_budgets(at.node));
}

void Distinct::fill_counted(const Position& start, uint32_t* words, Effort effort) {
  std::unordered_map<std::string, bool> outcomes;
  std::vector<uint32_t> way;
  const auto fits = [&](const Position& at) {
    const auto [slot, is_new] = outcomes.emplace(key(at), false);
    if (is_new) slot->second = completable_by_tokens(at, effort, way);
    return slot->second;
  };
  fill_fitting(start, words, fits);
}

bool Distinct::leads_by_tokens(const Position& start, std::span<const uint32_t> tokens) {
  const Trial trial(scopes_);
  Position at = start;
  return std::all_of(tokens.begin(), tokens.end(), [&](uint32_t token) { return step_token(at, token); }) &&
         engine_.machine()[at.node].accepting;
}

std::optional<std::vector<uint32_t>> Distinct::spelled_within_budgets(const Position& at, std::span<const int64_t> symbols) {
  auto tokens = spelled(symbols);
  if (!tokens || engine_.machine()[at.node].least == kNone || leads_by_tokens(at, *tokens)) return tokens;
  tokens->clear();  // tokens of several parts count in each, so that more tokens may keep to the budgets
  const Trie& all = engine_.tokens().trie();
  for (int64_t symbol : symbols) {
    if (symbol < 0) {
      tokens->push_back(static_cast<uint32_t>(-1 - symbol));
      continue;
    }
    const uint32_t trie_node = all.child(0, static_cast<uint8_t>(symbol));
    if (trie_node == 0 || all.tokens_at(trie_node).empty()) return std::nullopt;
    tokens->push_back(all.tokens_at(trie_node)[0]);
  }
  return leads_by_tokens(at, *tokens) ? tokens : std::nullopt;
}

}  // namespace structgen
