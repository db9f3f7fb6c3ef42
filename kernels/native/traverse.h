// The walk over the rows of a mask, for the two files that need it.
#pragma once

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "engine.h"

namespace structgen {

// Calls visit(trie, state, frame) for the rows whose union is the mask of `node`; it returns the row.
template <class Visit>
void Engine::traverse(NodeId node, Visit&& visit) {
  struct Place {
    TrieId trie;
    StateId state;
    FrameId frame;
    bool operator==(const Place&) const = default;
  };
  std::vector<Place> places;
  std::unordered_set<uint64_t> seen_hashes;  // used once the list grows long
  const auto add = [&](TrieId trie, const Config& config) {
    const Place place{trie, config.first, config.second};
    if (places.size() < 32) {
      if (std::find(places.begin(), places.end(), place) != places.end()) return;
    } else {
      if (seen_hashes.empty())
        for (const Place& held : places) seen_hashes.insert(combine(row_key(held.trie, held.state), held.frame));
      // A collision of 64-bit hashes must not lose a row, so it only costs a scan.
      if (!seen_hashes.insert(combine(row_key(place.trie, place.state), place.frame)).second &&
          std::find(places.begin(), places.end(), place) != places.end())
        return;
    }
    places.push_back(place);
  };
  // Rows of the vocabulary leave out what their state calls at once: the closure has entered it, and what is called
  // has rows that many callers share.
  for (const Config& config : machine_.closure(node)) add(kVocabularyTrie, config);
  // The same of what is left of tokens, where that is much; else it is quicker walked at once.
  const auto enter = [&](TrieId left, std::span<const Config> configs) {
    for (const Config& config : machine_.closure(machine_.node_of(configs)))
      add(machine_.automaton().expanded(config.first).calls.empty() ? left : left | kOwn, config);
  };
  std::vector<FrameId> pops;  // frames whose returns may follow at once
  for (size_t i = 0; i < places.size(); ++i) {
    const Place place = places[i];
    const Row& row = visit(place.trie, place.state, place.frame);
    const TrieId residual = row.residual;
    for (const auto& [left, state] : std::vector(row.onward)) enter(left, std::vector{Config{state, place.frame}});
    if (residual == kNone || place.frame == kRoot) continue;
    if (trie(residual).size() >= kManyNodes) {
      enter(residual, machine_.entries(place.frame));
      continue;
    }
    pops.assign(1, place.frame);
    for (size_t k = 0; k < pops.size(); ++k) {
      const auto held = machine_.entries(pops[k]);  // copied: rows that are made may move the pool
      const std::vector<Config> returns(held.begin(), held.end());
      for (const Config& entry : returns) {
        add(residual, entry);
        if (machine_.automaton().expanded(entry.first).final && entry.second != kRoot &&
            std::find(pops.begin(), pops.end(), entry.second) == pops.end())
          pops.push_back(entry.second);
      }
    }
  }
}

}  // namespace structgen
