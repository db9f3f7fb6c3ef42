// The walk over the rows of a mask, for the two files that need it.
#pragma once

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "masks/engine.h"

namespace structgen {

// Calls visit(trie, state, frame) for the rows whose union is the mask of `node`; it returns the row.
template <class Visit>
void Engine::traverse(NodeId node, Visit&& visit) {
  struct Source {
    TrieId trie;
    StateId state;
    FrameId frame;
    bool operator==(const Source&) const = default;
  };
  struct Hash {
    size_t operator()(const Source& source) const { return combine(row_key(source.trie, source.state), source.frame); }
  };
  constexpr size_t kFew = 32;  // are looked through one by one
  std::vector<Source> sources;
  std::unordered_set<Source, Hash> seen;
  const auto add = [&](TrieId trie, const Config& config) {
    const Source source{trie, config.first, config.second};
    if (sources.size() < kFew) {
      if (std::find(sources.begin(), sources.end(), source) != sources.end()) return;
    } else {
      if (seen.empty()) seen.insert(sources.begin(), sources.end());
      if (!seen.insert(source).second) return;
    }
    sources.push_back(source);
  };
  // Rows of the vocabulary leave out what their state calls at once: the closure has entered it, and what is called
  // has rows that many callers share.
  for (const Config& config : machine_.closure(node)) add(kVocabularyTrie, config);
  // The same of what is left of tokens, where that is much; else it is quicker walked at once.
  const auto enter = [&](TrieId left, std::span<const Config> configs) {
    for (const Config& config : machine_.closure(machine_.node_of(configs)))
      add(machine_.automaton().expanded(config.first).calls.empty() ? left : left | kOwn, config);
  };
  // Frames that what is left of tokens has returned to: in ambiguous grammars, many sources lead to the same ones.
  std::vector<uint64_t> returned;
  std::unordered_set<uint64_t> returned_to;
  const auto is_new = [&](TrieId left, FrameId frame) {
    const uint64_t key = uint64_t{left} << 32 | frame;
    if (returned.size() < kFew) {
      if (std::find(returned.begin(), returned.end(), key) != returned.end()) return false;
      returned.push_back(key);
      return true;
    }
    if (returned_to.empty()) returned_to.insert(returned.begin(), returned.end());
    return returned_to.insert(key).second;
  };
  std::vector<FrameId> pops;  // frames whose returns may follow at once
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source source = sources[i];
    const Row& row = visit(source.trie, source.state, source.frame);
    for (const auto& [begun, state] : row.onward) enter(begun, std::vector{Config{state, source.frame}});
    const TrieId left = residual(source.trie, row, source.frame);
    if (left == kNone || !is_new(left, source.frame)) continue;
    if (trie(left).size() >= kManyNodes) {
      enter(left, machine_.entries(source.frame));
      continue;
    }
    pops.assign(1, source.frame);
    while (!pops.empty()) {
      const auto held = machine_.entries(pops.back());  // copied: rows that are made may move the pool
      const std::vector<Config> returns(held.begin(), held.end());
      pops.pop_back();
      for (const Config& entry : returns) {
        add(left, entry);
        if (machine_.automaton().expanded(entry.first).final && entry.second != kRoot && is_new(left, entry.second))
          pops.push_back(entry.second);
      }
    }
  }
}

}  // namespace structgen
