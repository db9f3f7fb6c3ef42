#include "engine.h"
#include "traverse.h"

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace structgen {

namespace {

// Above this many tokens a row is a bitmask; below, writing single bits is cheaper than merging all words.
constexpr size_t kSparseTokens = 600;

}  // namespace

namespace {

ByteSet single_bytes(const Trie& trie) {
  ByteSet alone;
  for (uint32_t node = 1; node < trie.size(); node = trie.end[node])
    if (!trie.tokens_at(node).empty()) alone.insert(trie.byte[node]);
  return alone;
}

bool is_complete(const Trie& trie, const ByteSet& alone) {
  for (uint32_t node = 1; node < trie.size(); ++node)
    if (!alone.contains(trie.byte[node])) return false;
  const ByteSet needed = ByteSet::range(0x20, 0x7E) | ByteSet::range(0x80, 0xBF);
  return (needed & ~alone).empty();
}

}  // namespace

Engine::Engine(std::shared_ptr<const TokenTrie> tokens, uint32_t vocabulary_size)
    : tokens_(std::move(tokens)),
      vocabulary_size_(vocabulary_size),
      alone_(single_bytes(tokens_->trie())),
      byte_complete_(is_complete(tokens_->trie(), alone_)),
      machine_(byte_complete_ ? alone_ : ByteSet::all()),
      distinct_(*this) {
  tries_.emplace_back();
}

const Row* Engine::find_row(TrieId trie, StateId state) const {
  const auto found = rows_.find(row_key(trie, state));
  return found == rows_.end() ? nullptr : &found->second;
}

const Row* Engine::row(TrieId trie, StateId state) {
  if (const Row* found = find_row(trie, state)) return found;
  Row made = compute_row(trie, state);
  cache_bytes_ += made.data.capacity() * 4 + sizeof(Row) + 32;
  return &rows_.emplace(row_key(trie, state), std::move(made)).first->second;
}

namespace {

void merge(const Row& row, uint32_t* words) {
  if (row.dense) {
    for (size_t i = 0; i < row.data.size(); ++i) words[i] |= row.data[i];
  } else {
    for (uint32_t token : row.data) words[token >> 5] |= uint32_t{1} << (token & 31);
  }
}

}  // namespace

bool Engine::try_fill(NodeId node, uint32_t* words) const {
  bool first = true;
  const size_t count = this->words();
  if (!byte_complete_) return false;
  const bool done = traverse(
      node, [&](TrieId trie, StateId state) { return find_row(trie, state); },
      [&](StateId id) {
        const State& state = machine_.automaton()[id];
        return state.expanded ? &state : nullptr;
      },
      [&](const Row& row, TrieId, StateId, FrameId) {
        if (first && row.dense) {
          std::memcpy(words, row.data.data(), count * 4);
        } else {
          if (first) std::memset(words, 0, count * 4);
          merge(row, words);
        }
        first = false;
      });
  if (done && first) std::memset(words, 0, count * 4);
  return done;
}

void Engine::fill(NodeId node, uint32_t* words, uint64_t fuel) {
  if (!byte_complete_) {  // a byte sequence that can be completed may still have no tokens that do
    fill_within(node, words, kNone - 1, fuel);
    return;
  }
  std::memset(words, 0, size_t{this->words()} * 4);
  traverse(
      node, [&](TrieId trie, StateId state) { return row(trie, state); },
      [&](StateId id) { return &machine_.automaton().expanded(id); },
      [&](const Row& row, TrieId, StateId, FrameId) { merge(row, words); });
}

Row Engine::compute_row(TrieId trie_id, StateId state) {
  const Trie& walked = trie(trie_id);
  Row row;
  std::vector<uint32_t> found, exits;
  std::vector<NodeId> path(walked.max_depth + 1u);
  path[0] = machine_.local(state);
  for (uint32_t node = 1; node < walked.size();) {
    const NodeId here = machine_.step(path[walked.depth[node] - 1u], walked.byte[node]);
    if (here == kDeadNode) {
      node = walked.end[node];
      continue;
    }
    path[walked.depth[node]] = here;
    const Node& reached = machine_[here];
    const auto tokens = walked.tokens_at(node);
    found.insert(found.end(), tokens.begin(), tokens.end());
    const uint32_t end = walked.end[node];
    if (reached.accepting && end > node + 1) exits.push_back(node);
    if (end == node + 1 || reached.only_accepting) {
      node = end;
      continue;
    }
    const Absorption& absorbed = absorption(here);
    if ((walked.groups[node] & ~absorbed.groups) == 0 && walked.height[node] <= absorbed.count) {
      found.insert(found.end(), walked.tokens.begin() + walked.token_begin[node + 1],
                   walked.tokens.begin() + walked.token_begin[end]);
      node = end;
      continue;
    }
    ++node;
  }
  if (trie_id == kVocabularyTrie) {
    for (uint32_t token : machine_.specials(path[0])) found.push_back(token);
  }
  if (!exits.empty()) row.residual = intern_trie(residual_trie(walked, exits));
  if (found.size() > kSparseTokens) {
    row.dense = true;
    row.data.assign(words(), 0);
    for (uint32_t token : found) row.data[token >> 5] |= uint32_t{1} << (token & 31);
  } else {
    row.data = std::move(found);
    row.data.shrink_to_fit();
  }
  return row;
}

const Engine::Absorption& Engine::absorption(NodeId node) {
  const auto found = absorptions_.find(node);
  if (found != absorptions_.end()) return found->second;
  const Absorption made = compute_absorption(node);
  return absorptions_.emplace(node, made).first->second;
}

Engine::Absorption Engine::compute_absorption(NodeId node) {
  const auto configs = machine_.configs(node);
  if (configs.size() != 1) return {};
  Automaton& automaton = machine_.automaton();
  TermStore& terms = automaton.terms();
  const auto items = automaton.items(configs[0].first);
  if (items.size() != 1) return {};
  const Term whole = terms[items[0]];
  if (whole.kind != Kind::kSequence) return {};
  Term head = terms[whole.a];
  uint16_t allowed = kLower | kUpper | kDigit | kSpace | kPunctuation | kQuoting | kControl | kForeign;
  if (head.kind == Kind::kJson) {  // what JSON writes as it is
    allowed &= ~(kQuoting | kControl);
    head = terms[head.a];
  }
  if (head.kind != Kind::kRepeat || terms.distance(whole.b) == 0) return {};
  Absorption result{static_cast<uint16_t>(char_groups(head.a) & allowed), head.c, head.b == 0};
  if (result.groups == 0) return {};
  // The same bytes must not also begin what follows, or they could end the automaton.
  const ByteSet next = machine_[machine_.start(whole.b)].live;
  next.for_each([&](uint8_t byte) { result.groups &= ~(byte < 0x80 ? group_of(byte) : kForeign); });
  return result;
}

// The groups whose characters are all members of `item`, a class of single characters; none if it is anything else.
uint16_t Engine::char_groups(TermId item) {
  const auto found = char_groups_.find(item);
  if (found != char_groups_.end()) return found->second;
  uint16_t groups = 0;
  if (const auto ranges = machine_.automaton().as_char_class(item)) {
    const auto covers = [&](uint32_t low, uint32_t high) {
      for (const auto& [first, last] : *ranges)
        if (first <= low && high <= last) return true;
      return false;
    };
    for (ByteGroup group : kAsciiGroups) {
      bool all = true;
      for (unsigned byte = 0; byte < 0x80; ++byte)
        if (group_of(static_cast<uint8_t>(byte)) == group) all = all && covers(byte, byte);
      if (all) groups |= group;
    }
    if (covers(0x80, 0xD7FF) && covers(0xE000, 0x10FFFF)) groups |= kForeign;
  }
  char_groups_.emplace(item, groups);
  return groups;
}

TrieId Engine::intern_trie(Trie made) {
  const uint64_t hash = made.hash();
  const uint32_t held = trie_table_.find(hash, [&](uint32_t id) { return tries_[id] == made; });
  if (held != kNone) return held;
  cache_bytes_ += made.bytes();
  tries_.push_back(std::move(made));
  const auto id = static_cast<TrieId>(tries_.size() - 1);
  trie_table_.insert(hash, id);
  return id;
}

void Engine::trim(size_t maximum) {
  if (cache_bytes_ <= maximum) return;
  reaches_.clear();
  rows_.clear();  // rows name residual tries, so both go together
  tries_.resize(1);
  trie_table_.clear();
  cache_bytes_ = 0;
}

void Engine::forget() {
  machine_.forget();
  distinct_.forget();
  trim(0);
  reaches_.clear();
  frame_plans_.clear();
  exact_.clear();
  unproven_.clear();
  path_steps_.clear();
  planned_.clear();
  absorptions_.clear();
  ++epoch_;
}

bool Engine::may_go_beyond(NodeId end, std::string_view text) {
  const Trie& all = tokens_->trie();
  uint32_t place = 0;
  for (char byte : text) {
    const uint32_t parent = place;
    place = parent + 1;
    while (place < all.end[parent] && all.byte[place] != static_cast<uint8_t>(byte)) place = all.end[place];
    if (place >= all.end[parent]) return false;
  }
  std::vector<NodeId> path(all.max_depth + 1u);
  path[all.depth[place]] = end;
  for (uint32_t node = place + 1; node < all.end[place];) {
    const NodeId here = machine_.step(path[all.depth[node] - 1u], all.byte[node]);
    if (here == kDeadNode) {
      node = all.end[node];
      continue;
    }
    if (!all.tokens_at(node).empty()) return true;
    path[all.depth[node]] = here;
    ++node;
  }
  return false;
}

NodeId Engine::known_step_token(NodeId node, uint32_t token) const {
  for (char byte : tokens_->token(token)) {
    node = machine_.known_step(node, static_cast<uint8_t>(byte));
    if (node == kDeadNode || node == kNone) break;
  }
  return node;
}

NodeId Engine::step_token(NodeId node, uint32_t token) {
  for (char byte : tokens_->token(token)) {
    node = machine_.step(node, static_cast<uint8_t>(byte));
    if (node == kDeadNode) break;
  }
  return node;
}

}  // namespace structgen
