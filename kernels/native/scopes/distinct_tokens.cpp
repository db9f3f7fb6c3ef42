// Completions in tokens where values must differ: the fewest tokens, and the masks of what so many tokens complete.
#include <algorithm>
#include <cstring>
#include <queue>

#include "masks/engine.h"
#include "scopes/distinct.h"
#include "scopes/label.h"

namespace structgen {

namespace {

// Of the fuel of a search: a byte after a position, which holds what was read, takes so many times what one after a node
// does; and a position that is kept takes as many more.
constexpr uint64_t kPositionFuel = 8, kKeptFuel = 64;
constexpr uint64_t kCompletionSteps = 1'000'000;  // of the search for any completion, where the nearest is looked for

}  // namespace

std::optional<std::vector<uint32_t>> Distinct::spelled(std::span<const int64_t> symbols) const {
  const Trie& all = engine_.tokens().trie();
  std::vector<uint32_t> fewest(symbols.size() + 1, kNone), first(symbols.size() + 1, kNone);
  fewest[symbols.size()] = 0;
  for (size_t i = symbols.size(); i-- > 0;) {
    if (symbols[i] < 0) {
      if (fewest[i + 1] == kNone) continue;
      fewest[i] = fewest[i + 1] + 1;
      first[i] = static_cast<uint32_t>(-1 - symbols[i]);
      continue;
    }
    uint32_t trie_node = 0;
    for (size_t j = i; j < symbols.size() && symbols[j] >= 0; ++j) {
      uint32_t child = trie_node + 1;
      while (child < all.end[trie_node] && all.byte[child] != symbols[j]) child = all.end[child];
      if (child >= all.end[trie_node]) break;
      trie_node = child;
      if (all.tokens_at(trie_node).empty() || fewest[j + 1] >= fewest[i] - 1 || fewest[j + 1] == kNone) continue;
      fewest[i] = fewest[j + 1] + 1;
      first[i] = all.tokens_at(trie_node)[0];
    }
  }
  if (fewest[0] == kNone) return std::nullopt;
  std::vector<uint32_t> tokens;
  for (size_t i = 0; i < symbols.size();) {
    tokens.push_back(first[i]);
    i += symbols[i] < 0 ? 1 : engine_.tokens().token(first[i]).size();
  }
  return tokens;
}

// A* over positions, one edge a token, as Engine::search does it over nodes: fewer tokens than `bound`, or nothing.
std::optional<std::vector<uint32_t>> Distinct::fewest(const Position& start, uint32_t bound, uint64_t& fuel) {
  struct Reached {
    Position at;
    uint32_t tokens, parent, token;
  };
  const Trial trial(scopes_);
  Machine& machine = engine_.machine();
  const Trie& all = engine_.tokens().trie();
  const uint32_t longest = std::max<uint32_t>(all.max_depth, 1);
  const auto estimate = [&](NodeId node) { return (machine[node].distance + longest - 1) / longest; };
  using Entry = std::pair<std::pair<uint32_t, uint32_t>, uint32_t>;  // (estimate, -tokens), index
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::vector<Reached> reached{{start, 0, kNone, kNone}};
  std::unordered_map<std::string, uint32_t> nearest{{key(start), 0}};
  queue.push({{estimate(start.node), 0}, 0});
  std::vector<Position> path(all.max_depth + 1u);
  while (!queue.empty()) {
    const auto [priority, index] = queue.top();
    queue.pop();
    if (priority.first >= bound) return std::nullopt;
    const uint32_t tokens = reached[index].tokens;
    path[0] = reached[index].at;
    if (nearest.at(key(path[0])) < tokens) continue;
    if (machine[path[0].node].accepting) {
      std::vector<uint32_t> way;
      for (uint32_t i = index; reached[i].parent != kNone; i = reached[i].parent) way.push_back(reached[i].token);
      std::reverse(way.begin(), way.end());
      return way;
    }
    const auto push = [&, index = index](const Position& at, uint32_t token) {  // clang 14 captures no bindings
      const uint32_t total = tokens + 1 + estimate(at.node);
      if (total >= bound) return;
      const auto [slot, is_new] = nearest.emplace(key(at), tokens + 1);
      if (!is_new && slot->second <= tokens + 1) return;
      slot->second = tokens + 1;
      fuel -= std::min(fuel, kKeptFuel);
      reached.push_back({at, tokens + 1, index, token});
      queue.push({{total, UINT32_MAX - tokens - 1}, static_cast<uint32_t>(reached.size() - 1)});
    };
    for (uint32_t node = 1; node < all.size();) {
      if (fuel == 0) {
        if (bound == kNone) throw LimitError("distance_steps", 0, "searching a completion that the tokens can spell");
        return std::nullopt;
      }
      fuel -= std::min(fuel, kPositionFuel);
      Position next = path[all.depth[node] - 1u];
      if (!step(next, all.byte[node])) {
        node = all.end[node];
        continue;
      }
      if (!all.tokens_at(node).empty()) {
        Position after = next;
        if (count_token(after)) push(after, all.tokens_at(node)[0]);
      }
      path[all.depth[node]] = std::move(next);
      ++node;
    }
    for (uint32_t token : machine.specials(path[0].node)) {
      Position next = path[0];
      if (step_token(next, token)) push(next, token);
    }
  }
  return std::nullopt;
}

std::optional<std::vector<uint32_t>> Distinct::shortest(const Position& at, uint64_t& fuel) {
  if (engine_.machine()[at.node].accepting) return std::vector<uint32_t>{};
  const auto way = completion(at, kCompletionSteps);
  if (!way) return std::nullopt;
  auto tokens = spelled_within_budgets(at, *way);
  const uint32_t upper = tokens ? static_cast<uint32_t>(tokens->size()) : kNone;
  const Node& node = engine_.machine()[at.node];
  const bool is_measured = node.least == kNone || node.sure < kInfinite || !engine_.byte_complete();
  if (tokens && is_measured && engine_.min_tokens(at.node, fuel) >= upper) return tokens;  // without scopes it takes as many
  auto better = fewest(at, upper, fuel);
  return better ? better : tokens;
}

void Distinct::fill_within(const Position& start, uint32_t* words, uint32_t budget, uint64_t fuel) {
  Machine& machine = engine_.machine();
  std::unordered_map<std::string, bool> outcomes;
  const uint32_t longest = std::max<uint32_t>(engine_.tokens().trie().max_depth, 1);
  const auto fits = [&](const Position& at) {
    if (machine[at.node].accepting) return true;
    if ((machine[at.node].distance + longest - 1) / longest > budget) return false;
    const bool is_counted = machine[at.node].least != kNone;
    if (!is_counted && engine_.plan(at.node) <= budget && leads(at, engine_.shortest_completion(at.node), Goal::kEnd, {true, true, true, fuel})) return true;
    if (!is_counted && machine[at.node].in_label && !at.lexer.active() && add(machine[at.node].distance, kLongestRest) <= budget) return true;
    const auto [slot, is_new] = outcomes.emplace(key(at), false);
    if (is_new) {
      try {
        const auto symbols = completion(at, kCompletionSteps);
        const auto tokens = symbols ? spelled_within_budgets(at, *symbols) : std::nullopt;
        // Of an open label too many texts would have to be tried.
        const bool is_searched = symbols && !machine[at.node].in_label;
        slot->second = (tokens && tokens->size() <= budget) || (is_searched && fewest(at, budget + 1, fuel));
      } catch (const LimitError& error) {
        if (error.limit != "distance_steps" || !engine_.byte_complete()) throw;  // not known to fit
      }
    }
    return slot->second;
  };
  fill_fitting(start, words, fits);
}

// Sets the tokens after which `fits` holds.
void Distinct::fill_fitting(const Position& start, uint32_t* words, const std::function<bool(const Position&)>& fits) {
  const Trie& all = engine_.tokens().trie();
  std::memset(words, 0, size_t{engine_.words()} * 4);
  const Trial trial(scopes_);
  const auto allow = [&](std::span<const uint32_t> tokens) {
    for (uint32_t token : tokens) words[token >> 5] |= uint32_t{1} << (token & 31);
  };
  std::vector<Position> path(all.max_depth + 1u);
  path[0] = start;
  for (uint32_t node = 1; node < all.size();) {
    Position next = path[all.depth[node] - 1u];
    if (!step(next, all.byte[node])) {
      node = all.end[node];
      continue;
    }
    if (const auto tokens = all.tokens_at(node); !tokens.empty()) {
      Position after = next;
      if (count_token(after) && fits(after)) allow(tokens);
    }
    path[all.depth[node]] = std::move(next);
    ++node;
  }
  for (uint32_t token : engine_.machine().specials(start.node)) {
    Position next = start;
    if (step_token(next, token) && fits(next)) allow(std::span(&token, 1));
  }
}

}  // namespace structgen
