// Bounds on the tokens that are missing after any token of a mask: where these bounds fit, a mask needs no search.
#include <algorithm>
#include <optional>
#include <vector>

#include "masks/engine.h"
#include "masks/traverse.h"

namespace structgen {

namespace {

// Calls `finish` on the frame and on all frames around it that are not `known`: outer frames first, each once.
template <typename Known, typename Finish>
void finish_outer_first(const Machine& machine, FrameId root, const Known& known, const Finish& finish) {
  std::vector<FrameId> work{root};
  while (!work.empty()) {
    const FrameId frame = work.back();
    if (known(frame)) {
      work.pop_back();
      continue;
    }
    // A copy: what `finish` plans may add frames.
    const auto held = machine.entries(frame);
    const std::vector<Config> entries(held.begin(), held.end());
    const size_t before = work.size();
    for (const auto& [state, around] : entries)
      if (!known(around)) work.push_back(around);
    if (work.size() == before) finish(frame, entries);
  }
}

}  // namespace

// Tokens that surely complete what is around a call: the sum of the plans of one stack of return states.
uint32_t Engine::frame_plan(FrameId root) {
  const auto known = [&](FrameId frame) { return frame == kRoot || frame_plans_.contains(frame); };
  finish_outer_first(machine_, root, known, [&](FrameId frame, const std::vector<Config>& entries) {
    uint64_t best = kFar;
    for (const auto& [state, around] : entries) {
      const uint64_t rest = around == kRoot ? 0 : frame_plans_.at(around);
      best = std::min(best, plan(machine_.local(state)) + rest);
    }
    frame_plans_.emplace(frame, static_cast<uint32_t>(best));
  });
  return root == kRoot ? 0 : frame_plans_.at(root);
}

// The maximum number of tokens that the state's own automaton may still need after one of the tokens of its row.
uint32_t Engine::row_reach(TrieId trie_id, StateId state) {
  const uint64_t key = row_key(trie_id, state);
  if (const auto found = reaches_.find(key); found != reaches_.end()) return found->second;
  const Trie& walked = trie(trie_id);
  uint32_t farthest = 0;
  std::vector<NodeId> path(walked.max_depth + 1u);
  path[0] = machine_.local(state);
  for (uint32_t node = 1; node < walked.size();) {
    look_at(1);
    const uint32_t end = walked.end[node];
    const NodeId here = machine_.step(path[walked.depth[node] - 1u], walked.byte[node]);
    if (here == kDeadNode) {
      node = end;
      continue;
    }
    path[walked.depth[node]] = here;
    const uint32_t tail = character_tail(walked.groups[node]);
    const bool all = absorption({kNone, here}).may_end && absorbs({kNone, here}, walked, node) && (byte_complete() || tail == 0);
    if (all || !walked.tokens_at(node).empty()) {
      const uint32_t rest = plan(here);
      farthest = std::max(farthest, all && rest != kNone ? rest + tail : rest);
    }
    node = all ? end : node + 1;
  }
  if (trie_id == kVocabularyTrie)
    for (const auto& [tokens, next] : machine_.special_steps(path[0])) farthest = std::max(farthest, plan(next));
  reaches_.emplace(key, farthest);
  cache_bytes_ += 32;
  return farthest;
}

// How many tokens, after the next one, may be needed until a call returns, for plans to keep to the budgets that are open
// around it; nothing where there is no such number.
std::optional<uint32_t> Engine::spare_tokens(FrameId root) {
  const auto known = [&](FrameId frame) { return !machine_.frame(frame).in_budget || spare_tokens_.contains(frame); };
  finish_outer_first(machine_, root, known, [&](FrameId frame, const std::vector<Config>& entries) {
    std::optional<uint32_t> max;
    for (const auto& [state, below] : entries) {
      const auto around = machine_.frame(below).in_budget ? spare_tokens_.at(below) : kNone;
      const uint32_t needed = around && *around != kNone ? plan(machine_.local(state)) : 0;
      if (around && needed <= *around) max = std::max(max.value_or(0), *around == kNone ? kNone : *around - needed);
    }
    const uint32_t tokens = machine_.frame(frame).tokens;
    if (max && tokens != kNone) max = std::min(*max, tokens - 1);
    spare_tokens_.emplace(frame, max);
  });
  return machine_.frame(root).in_budget ? spare_tokens_.at(root) : kNone;
}

bool Engine::keeps_budgets(NodeId node) {
  const uint32_t least = machine_[node].least;
  if (least == kNone || least == 0) return least == kNone;
  bool keeps = true;
  traverse(node, [&](TrieId trie, StateId state, FrameId frame) -> const Row& {
    if (keeps) {
      const uint32_t needed = row_reach(trie, state);
      const auto spare = spare_tokens(frame);
      keeps = spare && needed <= *spare && needed < machine_.least_budget(state);  // also in parts that open within a token
    }
    return row(trie, state);
  });
  return keeps;
}

uint32_t Engine::reach(NodeId node) {
  uint64_t farthest = 0;
  traverse(node, [&](TrieId trie, StateId state, FrameId frame) -> const Row& {
    farthest = std::max<uint64_t>(farthest, uint64_t{row_reach(trie & ~kOwn, state)} + frame_plan(frame));
    return row(trie, state);
  });
  return static_cast<uint32_t>(std::min<uint64_t>(farthest, kFar));
}

bool Engine::needs_budget(NodeId node, uint32_t budget) {
  if (budget == 0 || !keeps_budgets(node)) return true;
  make_plan(node);
  if (plans_[node].room <= budget) return false;
  const uint32_t room = reach(node) + 1;
  Plan& plan = plans_.at(node);
  plan.room = std::min(plan.room, room);
  return plan.room > budget;
}

}  // namespace structgen
