// The walk over the rows of a mask, for the two files that need it.
#pragma once

#include <algorithm>
#include <unordered_set>
#include <vector>

#include "engine.h"

namespace structgen {

// Visits the rows whose union is the mask of `node`.  False as soon as get_row or get_state has nothing.
template <class GetRow, class GetState, class Visit>
bool Engine::traverse(NodeId node, GetRow&& get_row, GetState&& get_state, Visit&& visit) const {
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
  {
    const auto configs = machine_.configs(node);
    for (const Config& config : configs) add(kVocabularyTrie, config);
  }
  for (size_t i = 0; i < places.size(); ++i) {
    const Place place = places[i];
    const Row* row = get_row(place.trie, place.state);
    if (!row) return false;
    visit(*row, place.trie, place.state, place.frame);
    if (row->residual == kNone || place.frame == kRoot) continue;
    const TrieId residual = row->residual;
    std::vector<FrameId> pops{place.frame};  // frames whose returns may follow at once
    for (size_t k = 0; k < pops.size(); ++k) {
      const auto held = machine_.entries(pops[k]);  // copied: rows that are made may move the pool
      const std::vector<Config> returns(held.begin(), held.end());
      for (const Config& entry : returns) {
        add(residual, entry);
        const State* state = get_state(entry.first);
        if (!state) return false;
        if (state->final && entry.second != kRoot && std::find(pops.begin(), pops.end(), entry.second) == pops.end())
          pops.push_back(entry.second);
      }
    }
  }
  return true;
}

}  // namespace structgen
