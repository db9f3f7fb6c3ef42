// How mask rows are made.
//
// Most states that are wide, such as the inside of a string, resemble one that is known: after a byte that leaves the
// declared names, a key is any key.  Their rows are that one's mask with corrections, and only the paths on which the
// two differ are walked.  Where a class of characters is repeated, the tokens inside it are one mask for all states.
#include <algorithm>
#include <array>
#include <bit>
#include <map>

#include "masks/dense_walk.h"
#include "masks/engine.h"

namespace structgen {

namespace {

// Up to this many tokens a row is a list; beyond, setting single bits is dearer than merging all words.
constexpr size_t kSparseTokens = 600;
constexpr size_t kLongestChain = 8;
constexpr unsigned kWideState = 24;  // bytes; narrower ones are walked in no time
constexpr uint32_t kUsualReach = 6;  // of a row: bytes that complete the text that begins a token
constexpr uint64_t kResidualSteps = 2;  // of work, for each node of a residual trie

}  // namespace

const Row* Engine::find_row(TrieId trie, StateId state) const {
  const auto found = rows_.find(row_key(trie, state));
  return found ? *found : nullptr;
}

const Row& Engine::keep(TrieId trie, StateId state, const Row& made) {
  cache_bytes_ += 48;
  return *rows_.insert(row_key(trie, state), &made);
}

const Row& Engine::own(Row&& made) {
  cache_bytes_ += made.bytes();
  return own_rows_.emplace_back(std::move(made));
}

const Row& Engine::row(TrieId trie, StateId state) {
  if (const Row* found = find_row(trie, state)) return *found;
  if (trie != kVocabularyTrie) return keep(trie, state, own(plain_row(trie, state)));
  if (const auto bounds = counted(state)) return keep(trie, state, counted_row(state, *bounds));
  std::vector<Near> chain(1);  // each with the one before it
  chain[0].state = state;
  while (chain.size() < kLongestChain) {
    Near near = cheaply([&] { return near_state(chain.back().state); });
    const auto met = std::find_if(chain.begin(), chain.end(), [&](const Near& held) { return held.state == near.state; });
    if (near.state == kNone || met != chain.end()) break;
    chain.push_back(std::move(near));
    if (find_row(trie, chain.back().state)) break;
  }
  for (Near near; !chain.empty(); chain.pop_back()) {
    const StateId next = chain.back().state;
    if (!find_row(trie, next)) keep(trie, next, own(make_row(next, near)));
    near = std::move(chain.back());
  }
  return *find_row(trie, state);
}

// Whether tokens as symbols may stand next in both states alike.
bool Engine::same_symbols(StateId one, StateId other) {
  const auto& first = machine_.automaton().expanded(one).specials;
  const auto& second = machine_.automaton().expanded(other).specials;
  const auto equal = [](const auto& a, const auto& b) { return a.first == b.first; };
  return std::equal(first.begin(), first.end(), second.begin(), second.end(), equal);
}

// How many bytes are missing after any token as a symbol, at most.
Distance Engine::missing_after_symbols(StateId state) {
  Distance most = 0;
  for (const auto& [symbol, after] : machine_.automaton().expanded(state).specials) most = std::max(most, machine_.automaton()[after].distance);
  return most;
}

// Whether the state is within a JSON string, whichever way it was read.
bool Engine::is_json(StateId state) {
  const TermStore& terms = machine_.automaton().terms();
  const auto items = machine_.automaton().items(state);
  return std::all_of(items.begin(), items.end(), [&](TermId item) {
    const Term whole = terms[item];
    return (whole.kind == Kind::kSequence ? terms[whole.a].kind : whole.kind) == Kind::kJson;
  });
}

Row Engine::make_row(StateId state, const Near& near) {
  if (near.state != kNone && same_symbols(state, near.state)) {
    const Row& base = *find_row(kVocabularyTrie, near.state);
    const bool is_bound = near.same != 0;
    const bool helps = !is_bound || (base.reach != kNone && base.reach < near.same);
    if (base.mask && helps)
      if (auto made = near_row(state, near)) return std::move(*made);
  }
  const Absorption absorbed = absorption({state, kNone});
  if (absorbed.groups != 0 && absorbed.count >= tokens_->trie().max_depth)
    if (!absorbed.is_closed || absorbed.groups == kPlainString) {  // or too few have these groups to be worth a part
      // A JSON string goes on by itself, or ends; any other text may also go on by a character outside of the groups.
      const bool is_string = absorbed.is_outside || (absorbed.is_closed && is_json(state));
      if (const auto beyond = tokens_->part(absorbed.groups, is_string ? kStringBreaks : absorption_breaks(state, absorbed.groups)))
        return class_row(state, *beyond);
    }
  return plain_row(kVocabularyTrie, state);
}

// A state whose row is likely to agree with most of this one's.
Engine::Near Engine::near_state(StateId id) {
  const State& state = machine_.automaton().expanded(id);
  if (state.live.size() < kWideState) return {};
  const bool has_calls = !state.calls.empty();
  if (Near near; !has_calls && (near = without_excluded(id)).state != kNone) return near;
  if (!has_calls && is_outside(id)) return {};
  if (Near near; !has_calls && (near = without_length(id)).state != kNone) return near;
  // First the bounds that no token reaches, then those that few do: the states between have rows that others share.
  const Trie& all = tokens_->trie();
  for (const uint32_t length : {uint32_t{all.max_depth}, tokens_->usual_length(state.live, all.size() / kDearness)})
    if (Near near = unbounded(id, length + kUsualReach); near.state != kNone) return near;
  if (has_calls) return {};
  if (close_absorption(id) && absorption({id, kNone}).groups == kPlainString) return {};
  Near near;
  near.state = successor_alike(id);
  return near;
}

// The state after most bytes, or after the first bytes of most tokens, if from there the first bytes of most tokens lead
// to the same states as from here.
StateId Engine::successor_alike(StateId id) {
  Automaton& automaton = machine_.automaton();
  const State& state = automaton.expanded(id);
  if (!state.calls.empty() || state.live.size() < kWideState) return kNone;
  const Trie& all = tokens_->trie();
  std::array<uint32_t, 256> weights{};  // tokens by their first bytes, about
  for (uint32_t at = all.child_begin[0]; at < all.child_begin[1]; ++at)
    weights[all.child_byte[at]] = all.end[all.child_node[at]] - all.child_node[at];
  StateId widest = kNone, heaviest = kNone;
  unsigned max_bytes = 0;
  uint64_t max_weight = 0;
  state.next.for_each([&](const ByteSet& set, StateId target) {
    uint64_t weight = 0;
    set.for_each([&](uint8_t byte) { weight += weights[byte]; });
    if (const unsigned size = set.size(); size > max_bytes) max_bytes = size, widest = target;
    if (weight > max_weight) max_weight = weight, heaviest = target;
  });
  const auto is_alike = [&](StateId near) {
    if (near == id) return false;
    const State& other = automaton.expanded(near);
    if (!other.calls.empty()) return false;
    uint64_t alike = 0, differing = 0;
    for (unsigned byte = 0; byte < 256; ++byte) {
      const StateId target = state.next[static_cast<uint8_t>(byte)];
      if (target != other.next[static_cast<uint8_t>(byte)]) differing += weights[byte];
      else if (target != kDead) alike += weights[byte];
    }
    return differing < alike;
  };
  if (widest == kNone) return kNone;
  if (is_alike(widest)) return widest;
  return heaviest != kNone && heaviest != widest && is_alike(heaviest) ? heaviest : kNone;
}

Row Engine::plain_row(TrieId id, StateId state) {
  const Trie& walked = trie(id);
  const bool is_own = id == kVocabularyTrie || (id & kOwn) != 0;
  Found found;
  std::map<StateId, std::vector<uint32_t>> onward;
  const State& own = machine_.automaton().expanded(state);
  std::optional<DenseWalk> dense;  // one for all that follows the bytes of a state with calls
  const auto follow = [&](uint32_t position, StateId after) {
    if (!follow_literal(walked, position, after, found)) return;
    const Spot here = spot(after);
    if (position != 0 && !enter(walked, position, here, found)) return;
    if (id == kVocabularyTrie && position != 0 && here.state == kNone && walked.end[position] - position >= kManyNodes) onward[after].push_back(position);
    else if (dense && live(here).size() >= kWideState) dense->run(position, here);
    else walk(walked, position, here, found);
  };
  if (!is_own || own.calls.empty()) {
    follow(0, state);
  } else {  // along the state's own edges only
    const uint32_t stop = walked.child_begin[1];
    if (DenseWalk::pays(walked, 0, own.live)) dense.emplace(*this, walked, found);
    for (uint32_t at = walked.next_child(0, stop, own.live); at < stop; at = walked.next_child(at + 1, stop, own.live)) {
      const uint32_t position = walked.child_node[at];
      if (walked.is_leaf(position)) {
        add_leaf(walked, position, {state, kNone}, found);
      } else {
        follow(position, own.next[walked.child_byte[at]]);
      }
    }
  }
  if (id == kVocabularyTrie) {
    const uint32_t reach = found.reach;
    const bool is_whole = own.specials.empty() && onward.empty();
    for (const auto& [symbol, after] : own.specials)
      machine_.automaton().terms().for_each_token(symbol, [&](uint32_t token) { found.tokens.push_back(token); });
    std::vector<uint32_t> exits = std::move(found.exits);
    Row made = pack(std::move(found), nullptr);
    made.reach = is_whole ? reach : kNone;
    made.missing = std::max(reach, missing_after_symbols(state));
    made.exits = exit_list(std::move(exits));
    std::vector<std::pair<TrieId, StateId>> left;
    for (const auto& [after, positions] : onward) left.emplace_back(residual(kVocabularyTrie, exit_list(positions), kEveryGroup), after);
    made.onward = row_lists_.keep(left);
    return made;
  }
  std::vector<uint32_t> exits = std::move(found.exits);
  const uint32_t missing = found.reach;
  Row made = pack(std::move(found), nullptr);
  made.missing = missing;
  if (!exits.empty()) made.exits = exit_list(std::move(exits));
  return made;
}

// Of a state that absorbs tokens of some groups whole: only those that leave the groups are walked.
Row Engine::class_row(StateId state, const TriePart& beyond) {
  const Absorption absorbed = absorption({state, kNone});
  Found found;
  walk(beyond.trie, 0, spot(state), found);
  for (const auto& [symbol, after] : machine_.automaton().expanded(state).specials)
    machine_.automaton().terms().for_each_token(symbol, [&](uint32_t token) { found.tokens.push_back(token); });
  std::vector<uint32_t> exits = std::move(found.exits);
  for (uint32_t& exit : exits) exit = beyond.origin[exit];
  const uint32_t reach = std::max(found.reach, absorbed.distance);
  Row made = pack(std::move(found), class_mask(absorbed.groups));
  made.reach = reach;
  made.missing = std::max(reach, missing_after_symbols(state));
  made.exits = exit_list(std::move(exits));
  return made;
}

std::optional<Row> Engine::near_row(StateId state, const Near& near) {
  const Row& base = *find_row(kVocabularyTrie, near.state);
  Found more, fewer;
  switch (near.way) {
    case Near::Way::kCompare:
      if (!compare(state, near.state, near.same ? near.same - base.reach : 0, more, fewer)) return std::nullopt;
      fewer.reach = 0;  // of the other state
      break;
    case Near::Way::kLength:
      if (!cut(state, near, base, fewer)) return std::nullopt;
      break;
    case Near::Way::kExcluded:
      exclude(near, fewer);
      fewer.reach = reach_without(near, base.reach);
      break;
  }
  more.list();
  fewer.list();
  Row made;
  made.reach = base.reach == kNone ? kNone : std::max({base.reach, more.reach, fewer.reach});
  made.missing = std::max(made.reach, missing_after_symbols(state));
  if (base.added.size() + base.removed.size() + more.tokens.size() + fewer.tokens.size() > words() / 2) {  // a mask of its own is smaller
    auto mask = std::make_shared<Words>(words());
    base.write(mask->data(), words());
    for (uint32_t token : fewer.tokens) (*mask)[token >> 5] &= ~(uint32_t{1} << (token & 31));
    for (uint32_t token : more.tokens) (*mask)[token >> 5] |= uint32_t{1} << (token & 31);
    cache_bytes_ += mask->size() * 4;
    made.mask = std::move(mask);
  } else {
    made.mask = base.mask;
    std::vector<uint32_t> removed(base.removed.begin(), base.removed.end()), added;
    removed.insert(removed.end(), fewer.tokens.begin(), fewer.tokens.end());
    if (!base.added.empty()) std::sort(fewer.tokens.begin(), fewer.tokens.end());
    for (uint32_t token : base.added)
      if (!std::binary_search(fewer.tokens.begin(), fewer.tokens.end(), token)) added.push_back(token);
    added.insert(added.end(), more.tokens.begin(), more.tokens.end());
    made.removed = row_lists_.keep(removed);
    made.added = row_lists_.keep(added);
  }
  made.exits = base.exits;
  if (more.exits.empty() && fewer.exits.empty()) return made;
  std::vector<uint32_t> kept, exits;
  const auto held = exit_lists_[base.exits];
  std::sort(fewer.exits.begin(), fewer.exits.end());
  std::set_difference(held.begin(), held.end(), fewer.exits.begin(), fewer.exits.end(), std::back_inserter(kept));
  std::set_union(kept.begin(), kept.end(), more.exits.begin(), more.exits.end(), std::back_inserter(exits));
  made.exits = exit_list(std::move(exits));
  return made;
}

void Engine::Found::list() {
  for (uint32_t i = 0; i < bits.size(); ++i)
    for (uint32_t word = bits[i]; word != 0; word &= word - 1) tokens.push_back(i * 32 + static_cast<uint32_t>(std::countr_zero(word)));
  bits.clear();
}

// The row of the tokens found besides those of `mask`.
Row Engine::pack(Found&& found, std::shared_ptr<const Words> mask) {
  size_t count = found.tokens.size();
  for (uint32_t word : found.bits) count += static_cast<unsigned>(std::popcount(word));
  Row made;
  if (!found.bits.empty() && !mask && count > kSparseTokens) {
    for (uint32_t token : found.tokens) found.bits[token >> 5] |= uint32_t{1} << (token & 31);
    cache_bytes_ += found.bits.size() * 4;
    made.mask = std::make_shared<const Words>(std::move(found.bits));
    return made;
  }
  found.list();
  made.mask = std::move(mask);
  if (found.tokens.size() <= (made.mask ? words() / 2 : kSparseTokens)) {
    made.added = row_lists_.keep(found.tokens);
    return made;
  }
  auto own = std::make_shared<Words>(words());
  made.added = found.tokens;
  made.write(own->data(), words());
  cache_bytes_ += own->size() * 4;
  made.mask = std::move(own);
  made.added = {};
  return made;
}

uint32_t Engine::exit_list(std::vector<uint32_t> exits) {
  const size_t before = exit_lists_.bytes();
  const uint32_t list = exit_lists_.intern(std::span<const uint32_t>(exits));
  cache_bytes_ += exit_lists_.bytes() - before;
  return list;
}

// What is left of the tokens of a trie at the nodes of a list, of what begins with a byte of some groups; states of many
// grammars end at the same nodes.
TrieId Engine::residual(TrieId of, uint32_t list, uint16_t groups) {
  const uint64_t kind = uint64_t{list} << 16 | groups;
  const uint32_t* known_kind = begun_.find(kind);
  const uint32_t number = known_kind ? *known_kind : begun_.insert(kind, static_cast<uint32_t>(begun_.size()));
  const uint64_t key = row_key(of, number);
  if (const TrieId* known = residuals_.find(key)) return *known;
  const std::vector<uint32_t> exits(exit_lists_[list].begin(), exit_lists_[list].end());
  const Trie& walked = trie(of);
  const ByteSet bytes = bytes_of(groups);
  for (uint32_t exit : exits) {
    uint64_t nodes = 0;
    const uint32_t first = walked.child_begin[exit], stop = walked.child_begin[exit + 1];
    for (uint32_t at = first; at < stop; ++at)
      if (bytes.contains(walked.child_byte[at])) nodes += walked.end[walked.child_node[at]] - walked.child_node[at];
    look_at(1 + (stop - first) + kResidualSteps * nodes);
  }
  const TrieId made = intern_trie(of == kVocabularyTrie ? tokens_->residual(exits, groups) : std::make_shared<const Trie>(residual_trie(walked, exits, bytes)));
  cache_bytes_ += 96;
  return residuals_.insert(key, made);
}

TrieId Engine::residual(TrieId of, const Row& row, FrameId frame) {
  if (frame == kRoot || row.exits == kNone || exit_lists_[row.exits].empty()) return kNone;
  uint16_t groups = groups_of(machine_[machine_.node_of(machine_.entries(frame))].live);
  if (groups == 0) return kNone;
  // Coarsely, so that more frames share what is left.
  for (const uint16_t together : {uint16_t{kLower | kUpper | kDigit}, uint16_t{kSpace | kPunctuation | kQuoting | kControl | kDelete}})
    if (groups & together) groups |= together;
  return residual(of & ~kOwn, row.exits, groups);
}

std::shared_ptr<const Words> Engine::class_mask(uint16_t groups) {
  auto& held = class_masks_[groups];
  if (held) return held;
  auto mask = std::make_shared<Words>(words());
  tokens_->mark_within(groups, kNone, mask->data());
  cache_bytes_ += mask->size() * 4;
  return held = std::move(mask);
}

TrieId Engine::intern_trie(std::shared_ptr<const Trie> made) {
  const uint64_t hash = made->hash;
  const uint32_t held = trie_table_.find(hash, [&](uint32_t id) { return tries_[id] == made || *tries_[id] == *made; });
  if (held != kNone) return held;
  cache_bytes_ += made->bytes();
  tries_.push_back(std::move(made));
  const auto id = static_cast<TrieId>(tries_.size() - 1);
  trie_table_.insert(hash, id);
  return id;
}

}  // namespace structgen
