// Distances in tokens: what a budget of tokens can still complete.
#include <algorithm>
#include <cstring>
#include <queue>
#include <tuple>
#include <unordered_set>

#include "masks/engine.h"

namespace structgen {

namespace {

constexpr uint64_t kSearchShare = 50;  // one search for a completion within budgets may spend this part of the fuel
constexpr uint64_t kPlanSteps = 4;  // of work, for a byte of a token that spells a completion
// Of the fuel of min_tokens(), for a node that the search has not met before.  To make one takes 150 to 500 steps the
// first time and none later; with this price the fuel of `Limits` ends before their steps do, and at the same node of a
// new engine and of one that has made all of them.
constexpr uint64_t kNodeFuel = 100;

}  // namespace

// Calls visit(token, node after it) for every token that may follow, special tokens included; a false answer ends
// the walk.  Returns the trie nodes walked.
template <class Visit>
void Engine::for_each_successor(NodeId start, Visit&& visit) {
  const Trie& all = tokens_->trie();
  std::vector<NodeId> path(all.max_depth + 1u);
  path[0] = start;
  uint64_t walked = 0;
  for (uint32_t node = 1; node < all.size();) {
    ++walked;
    const NodeId here = machine_.step(path[all.depth[node] - 1u], all.byte[node]);
    if (here == kDeadNode) {
      node = all.end[node];
      continue;
    }
    path[all.depth[node]] = here;
    const auto tokens = all.tokens_at(node);
    if (!tokens.empty())
      if (const NodeId next = machine_.tick(here); next != kDeadNode && !visit(tokens, next, walked)) return;
    ++node;
  }
  for (const auto& [tokens, here] : machine_.special_steps(start))
    if (const NodeId next = machine_.tick(here); next != kDeadNode && !visit(std::span<const uint32_t>(tokens), next, walked)) return;
}

const Engine::PathStep& Engine::path_step(NodeId node) {
  if (const auto found = path_steps_.find(node); found != path_steps_.end()) return found->second;
  // The choice depends on the node alone, so the completion of any node on the way is the rest of this one.
  PathStep best{0, kNone};
  const Distance wanted = machine_[node].distance - 1;
  Distance distance = machine_[node].distance;  // a step must come nearer
  const auto consider = [&](int64_t symbol, NodeId next) {
    if (next == kDeadNode || machine_[next].distance >= distance) return;
    distance = machine_[next].distance;
    best = {symbol, next};
  };
  const ByteSet live = machine_[node].live;
  live.for_each([&](uint8_t byte) {
    if (distance > wanted) consider(byte, machine_.step(node, byte));
  });
  if (distance > wanted)
    for (const auto& [tokens, next] : machine_.special_steps(node)) consider(-1 - static_cast<int64_t>(tokens.front()), next);
  return path_steps_.emplace(node, best).first->second;
}

std::vector<int64_t> Engine::shortest_completion(NodeId node) {
  std::vector<int64_t> symbols;
  while (!machine_[node].accepting) {
    const PathStep step = path_step(node);
    if (step.next == kNone) break;
    symbols.push_back(step.symbol);
    node = step.next;
  }
  return symbols;
}

bool Engine::visit_completion(NodeId node, const std::function<bool(uint64_t, int64_t)>& visit) {
  while (!machine_[node].accepting) {
    const PathStep step = path_step(node);
    if (step.next == kNone || !visit(epoch() << 32 | node, step.symbol)) return false;
    node = step.next;
  }
  return true;
}

// Fewest tokens that spell the shortest completion in bytes; also settles the nodes on the way.
uint32_t Engine::plan(NodeId start) {
  std::vector<NodeId> chain;  // nodes on the way that are not settled yet
  for (NodeId node = start; !planned_.contains(node);) {
    const NodeId next = machine_[node].accepting ? kNone : path_step(node).next;
    if (next == kNone) {
      planned_.emplace(node, machine_[node].accepting ? 0 : kNone);
      break;
    }
    chain.push_back(node);
    node = next;
  }
  const Trie& all = tokens_->trie();
  for (; !chain.empty(); chain.pop_back()) {
    uint32_t fewest = kNone;
    const PathStep first = path_step(chain.back());
    if (first.symbol < 0) {
      const uint32_t rest = planned_.at(first.next);
      fewest = rest == kNone ? kNone : rest + 1;
    }
    uint32_t position = 0;
    for (PathStep step = first; step.symbol >= 0;) {
      look_at(kPlanSteps);
      uint32_t child = position + 1;
      while (child < all.end[position] && all.byte[child] != step.symbol) child = all.end[child];
      if (child >= all.end[position]) break;
      const uint32_t rest = planned_.at(step.next);
      if (!all.tokens_at(child).empty() && rest != kNone) fewest = std::min(fewest, rest + 1);
      if (machine_[step.next].accepting) break;
      position = child;
      step = path_step(step.next);
      if (step.next == kNone) break;
    }
    planned_.emplace(chain.back(), fewest);
  }
  return planned_.at(start);
}

// A* over nodes, one edge a token.  The heuristic (bytes missing / longest token) never overestimates and is
// consistent.  Returns the fewest tokens if below `bound`, else `bound`; `complete` returns whether that is proven.
// The nodes on the way are settled then.  What is found, and for how much fuel, depends on the arguments alone: a node
// of the trie takes one, a node that is met for the first time `price` more.
uint32_t Engine::search(NodeId start, uint32_t bound, uint64_t& fuel, uint64_t price, bool& complete, Settled& settled) {
  const uint32_t longest = std::max<uint32_t>(tokens_->trie().max_depth, 1);
  const auto estimate = [&](NodeId node) {
    if (const auto found = settled.find(node); found != settled.end()) return found->second.tokens;
    return (machine_[node].distance + longest - 1) / longest;
  };
  struct Reached {
    uint32_t tokens;
    NodeId parent;
  };
  std::unordered_map<NodeId, Reached> reached{{start, {0, kNone}}};
  // Of equal ones the deeper, then the one that was found first: ids of nodes depend on what the engine did before.
  struct Entry {
    uint32_t estimate, tokens;
    uint64_t order;
    NodeId node;
    bool operator>(const Entry& other) const {
      return std::tuple(estimate, other.tokens, order) > std::tuple(other.estimate, tokens, other.order);
    }
  };
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  uint64_t order = 0;
  std::unordered_set<NodeId> closed;
  queue.push({estimate(start), 0, order, start});
  complete = true;
  while (!queue.empty()) {
    const Entry nearest = queue.top();
    const NodeId node = nearest.node;
    queue.pop();
    if (nearest.estimate >= bound) return bound;
    if (!closed.insert(node).second) continue;
    const uint32_t tokens = reached.at(node).tokens;
    const auto known = settled.find(node);
    if (machine_[node].accepting || known != settled.end()) {
      const uint32_t total = tokens + (machine_[node].accepting ? 0 : known->second.tokens);
      for (NodeId next = kNone, back = node; back != kNone; next = back, back = reached.at(back).parent)
        settled.emplace(back, Way{total - reached.at(back).tokens, next});
      return total;
    }
    uint64_t spent = 0, met = 0;
    for_each_successor(node, [&](std::span<const uint32_t>, NodeId next, uint64_t walked) {
      const auto held = reached.find(next);
      met += held == reached.end();
      spent = walked + price * met;
      if (held == reached.end() || held->second.tokens > tokens + 1) {
        reached[next] = {tokens + 1, node};
        const uint32_t rest = estimate(next);
        if (rest != kNone && tokens + 1 + rest < bound) queue.push({tokens + 1 + rest, tokens + 1, ++order, next});
      }
      return spent <= fuel;
    });
    if (spent > fuel) {
      fuel = 0;
      complete = false;
      return bound;
    }
    fuel -= spent;
  }
  return bound;
}

// The first token that spells the shortest completion in bytes in the fewest tokens, and the node after it; dead if none
// does.
std::pair<uint32_t, NodeId> Engine::planned_step(NodeId start) {
  constexpr std::pair<uint32_t, NodeId> kNothing{kNone, kDeadNode};
  const uint32_t fewest = plan(start);
  if (fewest == kNone || fewest == 0) return kNothing;
  PathStep step = path_step(start);
  if (step.symbol < 0) return {static_cast<uint32_t>(-1 - step.symbol), machine_.tick(step.next)};
  const Trie& all = tokens_->trie();
  for (uint32_t position = 0; step.next != kNone && step.symbol >= 0; step = path_step(step.next)) {
    look_at(kPlanSteps);
    position = all.child(position, static_cast<uint8_t>(step.symbol));
    if (position == 0) break;
    const auto tokens = all.tokens_at(position);
    if (!tokens.empty() && planned_.at(step.next) == fewest - 1) return {tokens[0], machine_.tick(step.next)};
    if (machine_[step.next].accepting) break;
  }
  return kNothing;
}

uint32_t Engine::planned_token(NodeId node) { return planned_step(node).first; }

uint32_t Engine::plan_within_budgets(NodeId start) {
  if (machine_[start].least == kNone) return plan(start);
  constexpr size_t kMaxTokens = 100'000;  // a plan comes nearer to the end, but for parts that are left on the way
  std::vector<NodeId> chain;
  uint32_t rest = kNone;
  for (NodeId node = start; node != kDeadNode; node = planned_step(node).second) {
    const auto known = within_budgets_.find(node);
    if (known != within_budgets_.end()) rest = known->second;
    else if (machine_[node].accepting) rest = 0;
    else if (machine_[node].least == kNone) rest = plan(node);
    else if (chain.size() < kMaxTokens) {
      chain.push_back(node);
      continue;
    }
    break;
  }
  for (; !chain.empty(); chain.pop_back()) {
    const Distance sure = byte_complete() ? machine_[chain.back()].sure : kInfinite;
    rest = std::min(rest == kNone ? kNone : rest + 1, sure == kInfinite ? kNone : sure);
    within_budgets_.emplace(chain.back(), rest);
  }
  return rest;
}

// Whether tokens complete the text within all budgets; searched among all tokens, those nodes first that miss fewest
// bytes.  What is found is kept, for each node on the way.
bool Engine::completable_within_budgets(NodeId start, uint64_t fuel) {
  const auto is_known = [&](NodeId node) {
    return machine_[node].accepting || (byte_complete() && machine_[node].sure < kInfinite) || plan_within_budgets(node) != kNone;
  };
  if (is_known(start)) return true;
  if (const auto found = completable_.find(start); found != completable_.end()) return found->second;
  using Entry = std::tuple<Distance, uint64_t, NodeId>;  // missing bytes, order
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  std::unordered_map<NodeId, NodeId> parents{{start, kNone}};
  uint64_t order = 0;
  queue.emplace(machine_[start].distance, order, start);
  while (!queue.empty()) {
    const NodeId node = std::get<2>(queue.top());
    queue.pop();
    NodeId found = kNone;
    uint64_t spent = 0;
    for_each_successor(node, [&](std::span<const uint32_t>, NodeId next, uint64_t walked) {
      spent = walked;
      if (walked > fuel) return false;
      if (!parents.try_emplace(next, node).second) return true;
      const auto known = completable_.find(next);
      if (known != completable_.end() ? known->second : is_known(next)) found = next;
      else if (known == completable_.end()) queue.emplace(machine_[next].distance, ++order, next);
      return found == kNone;
    });
    if (found != kNone) {
      for (; found != kNone; found = parents.at(found)) completable_.insert_or_assign(found, true);
      return true;
    }
    if (spent > fuel) return completable_[start] = false;  // not known: what is let through is certain
    fuel -= spent;
  }
  for (const auto& [node, parent] : parents) completable_.try_emplace(node, false);
  return false;
}

uint32_t Engine::min_tokens(NodeId node, uint64_t& fuel) {
  if (machine_[node].accepting) return 0;
  if (const auto found = searched_.find(node); found != searched_.end() && found->second.fuel == fuel) {
    fuel -= found->second.spent;
    return found->second.tokens;
  }
  const uint64_t given = fuel;
  Settled own;
  bool complete = true;
  const uint32_t planned = plan_within_budgets(node);
  const uint64_t price = planned == kNone ? 0 : kNodeFuel;  // without a plan, only the search knows an answer
  uint32_t best = search(node, planned, fuel, price, complete, byte_complete() ? own : exact_);
  exact_.insert(own.begin(), own.end());
  if (!complete) {
    if (best == kNone) throw LimitError("distance_steps", 0, "searching a completion that the tokens can spell");
    if (const auto on_a_way = exact_.find(node); on_a_way != exact_.end()) best = on_a_way->second.tokens;
  }
  searched_.insert_or_assign(node, Searched{given, given - fuel, best});
  return best;
}

bool Engine::within(NodeId node, uint32_t limit, uint64_t& fuel, Settled& settled) {
  if (machine_[node].accepting) return true;
  if (node == kDeadNode) return false;
  if (byte_complete() && machine_[node].sure <= limit) return true;
  if (const auto found = settled.find(node); found != settled.end()) return found->second.tokens <= limit;
  const uint32_t longest = std::max<uint32_t>(tokens_->trie().max_depth, 1);
  if ((machine_[node].distance + longest - 1) / longest > limit) return false;
  const uint32_t upper = plan_within_budgets(node);
  if (upper <= limit) return true;
  if (byte_complete() && fuel == 0) return false;  // only what is known to fit
  bool complete = true;
  const bool fits = search(node, limit + 1, fuel, 0, complete, settled) <= limit;
  if (!complete && !byte_complete())
    throw LimitError("distance_steps", 0, "searching a completion that the tokens can spell");
  return fits;
}

bool Engine::completable(NodeId node, uint64_t fuel) {
  if (machine_[node].least != kNone && byte_complete()) return completable_within_budgets(node, fuel / kSearchShare);
  if (byte_complete() || machine_[node].accepting || plan_within_budgets(node) != kNone) return true;
  uint64_t left = fuel;
  return min_tokens(node, left) != kNone;
}

// The mask of the tokens that end in a node for which fits(node) holds; with fits_beyond(node, bytes, is_same), all texts
// that lead from there to the same node, or else to nodes with the same shortest completion, and end within a character so
// many bytes further on.
template <class Fits, class FitsBeyond>
void Engine::fill_fitting(NodeId start, uint32_t* out, Fits&& fits, FitsBeyond&& fits_beyond) {
  std::memset(out, 0, size_t{words()} * 4);
  const auto allow = [&](std::span<const uint32_t> tokens) {
    for (uint32_t token : tokens) out[token >> 5] |= uint32_t{1} << (token & 31);
  };
  const Trie& all = tokens_->trie();
  std::vector<NodeId> path(all.max_depth + 1u);
  path[0] = start;
  for (uint32_t node = 1; node < all.size();) {
    look_at(1);
    const uint32_t end = all.end[node];
    const NodeId here = machine_.step(path[all.depth[node] - 1u], all.byte[node]);
    if (here == kDeadNode) {
      node = end;
      continue;
    }
    path[all.depth[node]] = here;
    const auto tokens = all.tokens_at(node);
    if (!tokens.empty() && fits(machine_.tick(here))) allow(tokens);
    if (end > node + 1 && byte_complete()) {
      // One outcome holds for a whole subtree if its texts share their shortest completion, but for the rest of a
      // character within which they end.  (Where more characters are required they do not: seven of them may take
      // more tokens than eight.)  With budgets, what is kept must be what the outcome is about.
      const bool is_one = machine_[here].least == kNone || machine_.configs(here).size() == 1;
      const auto all_fit = [&](bool is_same) {
        return fits_beyond(machine_.tick(here), character_tail(all.groups[node]), is_same);
      };
      const Absorption held = absorption({kNone, here});
      if (is_one && held.may_end && absorbs({kNone, here}, all, node) && all_fit(held.count == kNone)) {
        allow(std::span(all.tokens).subspan(all.token_begin[node + 1], all.token_begin[end] - all.token_begin[node + 1]));
        node = end;
        continue;
      }
    }
    ++node;
  }
  for (const auto& [tokens, next] : machine_.special_steps(start))
    if (fits(machine_.tick(next))) allow(tokens);
}

void Engine::fill_within(NodeId start, uint32_t* out, uint32_t budget, uint64_t fuel) {
  std::unordered_map<NodeId, bool> outcomes;
  // Where all outcomes are proven, those of earlier calls may serve.  Where fuel may end, a mask must not depend on
  // earlier queries: the same text and budget have the same mask.
  Settled own;
  Settled& settled = byte_complete() ? own : exact_;
  const auto fits = [&](NodeId node) {
    const auto found = outcomes.find(node);
    return found != outcomes.end() ? found->second : (outcomes[node] = within(node, budget, fuel, settled));
  };
  fill_fitting(start, out, fits, [&](NodeId node, uint32_t tail, bool is_same) {
    if (tail > budget || !machine_.is_sure(node, tail)) return false;
    const uint32_t limit = budget - tail;
    if (is_same) return tail == 0 ? fits(node) : within(node, limit, fuel, settled);
    // In fewer tokens than the shortest completion there may be one that reads more of the class, and a longer text
    // leaves less of it.
    return (machine_[node].least == kNone ? plan(node) : machine_[node].sure) <= limit;
  });
}

void Engine::fill_completable(NodeId start, uint32_t* out, uint64_t fuel) {
  std::unordered_map<NodeId, bool> outcomes{{kDeadNode, false}};
  const auto fits = [&](NodeId node) {
    const auto found = outcomes.find(node);
    return found != outcomes.end() ? found->second : (outcomes[node] = completable(node, fuel));
  };
  fill_fitting(start, out, fits, [&](NodeId node, uint32_t tail, bool) { return machine_.is_sure(node, tail); });
}

void Engine::allow_fewest(NodeId start, uint32_t* out, uint32_t budget, uint64_t fuel) {
  auto way = exact_.find(start);
  if (way == exact_.end()) {
    min_tokens(start, fuel);
    way = exact_.find(start);
  }
  if (way == exact_.end() || way->second.tokens > uint64_t{budget} + 1) return;
  for_each_successor(start, [&](std::span<const uint32_t> tokens, NodeId next, uint64_t) {
    if (next == way->second.next)
      for (uint32_t token : tokens) out[token >> 5] |= uint32_t{1} << (token & 31);
    return true;
  });
}

}  // namespace structgen
