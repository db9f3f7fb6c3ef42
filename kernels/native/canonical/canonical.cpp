#include "canonical/canonical.h"

#include <algorithm>
#include <numeric>

namespace structgen {

namespace {

// What is kept of each kind: beyond that all of it is dropped.
constexpr size_t kMaxRowWords = size_t{1} << 20;
constexpr size_t kMaxRules = 64, kMaxFirsts = 4096;

void add(uint32_t* words, const uint32_t* others, size_t count) {
  for (size_t i = 0; i < count; ++i) words[i] |= others[i];
}

void drop_beyond(auto& kept, size_t most) {
  if (kept.size() >= most) kept.clear();
}

}  // namespace

Canonical::Canonical(std::shared_ptr<const TokenPairs> pairs, CanonicalTokens tokens, std::unique_ptr<Tokenizer> tokenizer)
    : pairs_(std::move(pairs)),
      tokens_(std::move(tokens)),
      tokenizer_(std::move(tokenizer)),
      rank_(tokens_.kinds.size(), kNone),
      reachable_(words()) {
  for (uint32_t rank = 0; rank < tokens_.by_length.size(); ++rank) rank_[tokens_.by_length[rank]] = rank;
  for (uint32_t token = 0; token < this->tokens(); ++token)
    if (pairs_->reachable(token)) reachable_[token >> 5] |= uint32_t{1} << (token & 31);
  for (size_t byte = 0; byte < tokens_.single.size(); ++byte)
    if (tokens_.single[byte] != kNone) singles_.insert(static_cast<uint8_t>(byte));
  const size_t shapes = tokens_.shape_begins.size() - 1;
  shape_order_.resize(shapes);
  std::iota(shape_order_.begin(), shape_order_.end(), 0);
  std::sort(shape_order_.begin(), shape_order_.end(), [&](uint32_t one, uint32_t other) {
    const auto a = classes_of(one), b = classes_of(other);
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  });
  shape_same_.assign(shapes, 0);
  for (size_t i = 1; i < shapes; ++i) {
    const auto a = classes_of(shape_order_[i - 1]), b = classes_of(shape_order_[i]);
    const size_t shorter = std::min(a.size(), b.size());
    while (shape_same_[i] < shorter && a[shape_same_[i]] == b[shape_same_[i]]) ++shape_same_[i];
  }
}

uint32_t Canonical::move(uint32_t readings, uint32_t kind, bool splits) {
  auto& moves = moves_[splits];
  const size_t at = size_t{readings} * tokens_.class_count + kind;
  if (at < moves.size() && moves[at] != kNone) return moves[at];
  const uint32_t next = tokenizer_->move(readings, kind, splits);
  if (at >= moves.size()) moves.resize(std::max(at + tokens_.class_count, 2 * moves.size()), kNone);
  return moves[at] = next;
}

uint32_t Canonical::walk(uint32_t readings, uint32_t token, bool splits) {
  bool is_first = splits;
  for (uint8_t kind : classes_of(tokens_.shapes[token])) {
    if (readings == kDead) return kDead;
    readings = move(readings, kind, is_first);
    is_first = false;
  }
  return readings;
}

uint32_t Canonical::both(uint32_t one, uint32_t other) {
  if (one == other || one == kDead || other == kDead) return one == kDead ? other : one;
  if (const uint32_t* known = unions_.find({one, other})) return *known;
  const uint32_t united = tokenizer_->unite(one, other);
  unions_.set({one, other}, united);
  return united;
}

bool Canonical::is_settled(uint32_t rules) {
  if (const auto known = settled_.find(rules); known != settled_.end()) return known->second;
  return settled_[rules] = tokenizer_->is_settled(rules);
}

std::unique_lock<std::mutex> Canonical::use() {
  std::unique_lock lock(mutex_);
  if (kept_bytes() > limit_) drop_kept();
  return lock;
}

size_t Canonical::kept_bytes() const {
  constexpr size_t kEntryBytes = 64;  // of a map
  const size_t moves = (moves_[0].capacity() + moves_[1].capacity()) * sizeof(uint32_t);
  const size_t row_words = row_words_ + 2 * words() * (rules_.size() + bases_.size());
  const size_t pairs = settles_.bytes() + firsts_.size() * (sizeof(Firsts) + kEntryBytes) + unions_.bytes() + after_.bytes() + completes_.bytes() + certain_.bytes() + goals_.bytes();
  const size_t entries = settled_.size() + places_.size() + places_.size() * sizeof(Known) / kEntryBytes;
  return moves + row_words * sizeof(uint32_t) + pairs + entries * kEntryBytes;
}

void Canonical::drop_kept() {
  for (auto& moves : moves_) moves = std::vector<uint32_t>();
  unions_.clear();
  places_ = {};
  bases_ = {};
  row_words_ = 0;
  rules_ = {};
  settled_ = {};
  settles_.clear();
  firsts_ = {};
  after_.clear();
  completes_.clear();
  certain_.clear();
  goals_.clear();
}

size_t Canonical::memory_bytes() {
  const std::lock_guard lock(mutex_);
  return kept_bytes();
}

void Canonical::set_limit(size_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  if (kept_bytes() > limit_) drop_kept();
}

void Canonical::drop() {
  const std::lock_guard lock(mutex_);
  drop_kept();
}

Canonical::Number Canonical::after(Number state, uint32_t token) {
  const auto lock = use();
  return found_after(state, token);
}

bool Canonical::may_end(Number state) {
  const auto lock = use();
  return place(CanonicalState::of(state).place).place.ends;
}

Canonical::Number Canonical::found_after(Number number, uint32_t token) {
  const CanonicalState state = CanonicalState::of(number);
  switch (tokens_.kinds[token]) {
    case CanonicalTokens::kNever:
      return 0;
    case CanonicalTokens::kSpecial:
      return place(state.place).place.ends ? kStart : 0;
    case CanonicalTokens::kPlain: {
      if (state.place >= kOpen) break;
      uint32_t rules = 0;
      if (tokens_.has_rules) {
        rules = is_settled(state.rules) ? tokens_.settled[token] : kNone;
        if (rules == kNone) break;
      }
      const uint32_t split = walk(state.place, token, true);
      uint32_t joined = state.last == kNone ? kDead : walk(state.place, token, false);
      if (joined != kDead && joined != split && pairs_->conflict(state.last, token)) joined = kDead;
      const uint32_t next = both(split, joined);
      return next == kDead ? 0 : CanonicalState{next, rules, token}.number();
    }
    default:
      break;
  }
  const bool joins = state.last != kNone && pairs_->reachable(token) && !pairs_->conflict(state.last, token);
  const std::pair key{CanonicalState{state.place, state.rules, joins}.number(), uint64_t{token}};
  if (const Number* known = after_.find(key)) return *known;
  const Number next = tokenizer_->after(state.place, state.rules, token, joins);
  after_.set(key, next);
  return next;
}

Canonical::Known& Canonical::place(uint32_t number) {
  if (const auto known = places_.find(number); known != places_.end()) return known->second;
  const Tokenizer::Place found = tokenizer_->place(number);
  return places_[number] = {found, {}};
}

// The tokens that have readings after them; `has_anew`: also those without a complete character.
std::vector<uint32_t> Canonical::alive(uint32_t readings, bool splits, bool has_anew) {
  std::vector<uint8_t> lives(shape_order_.size());
  std::vector<uint32_t> path{readings};  // after each character of the shape before; it ends where that is dead
  for (size_t i = 0; i < shape_order_.size(); ++i) {
    const uint32_t shape = shape_order_[i], same = shape_same_[i];
    const auto classes = classes_of(shape);
    bool is_dead = path.size() < same + size_t{1};
    if (!is_dead) path.resize(same + size_t{1});
    while (!is_dead && path.size() <= classes.size()) {
      const uint32_t next = move(path.back(), classes[path.size() - 1], splits && path.size() == 1);
      is_dead = next == kDead;
      if (!is_dead) path.push_back(next);
    }
    lives[shape] = classes.empty() ? tokens_.has_rest[shape] && has_anew : !is_dead;
  }
  std::vector<uint32_t> row(words());
  for (size_t token = 0; token < tokens(); ++token) row[token >> 5] |= uint32_t{lives[tokens_.shapes[token]]} << (token & 31);
  for (size_t i = 0; i < row.size(); ++i) row[i] &= reachable_[i];
  return row;
}

const PlaceRows& Canonical::rows(uint32_t number) {
  Known& found = place(number);
  if (!found.rows.splitting.empty()) return found.rows;
  PlaceRows made = number >= kOpen ? tokenizer_->rows(number) : PlaceRows{alive(number, true, true), alive(number, false, found.place.is_open)};
  if (row_words_ > kMaxRowWords) {
    for (auto& [_, each] : places_) each.rows = {};
    row_words_ = 0;
  }
  row_words_ += 2 * words();
  return found.rows = std::move(made);
}

const Tokenizer::Rules& Canonical::rules(uint32_t number) {
  if (const auto known = rules_.find(number); known != rules_.end()) return known->second;
  Tokenizer::Rules found = tokenizer_->rules(number);
  drop_beyond(rules_, kMaxRules);
  return rules_[number] = std::move(found);
}

void Canonical::mask(Number state, uint32_t* words) {
  const auto lock = use();
  write_mask(state, words);
}

const PlaceRows& Canonical::base(const CanonicalState& state) {
  const uint64_t key = state.number() >> CanonicalState::kLastBits;
  if (const auto known = bases_.find(key); known != bases_.end()) return known->second;
  drop_beyond(bases_, kMaxRowWords / (2 * words()));
  const PlaceRows& here = rows(state.place);
  const Tokenizer::Rules& rules = this->rules(state.rules);
  PlaceRows made = here;
  for (auto* row : {&made.splitting, &made.going_on})
    for (size_t i = 0; tokens_.has_rules && i < row->size(); ++i) (*row)[i] &= rules.alive[i];
  if (place(state.place).place.ends) add(made.splitting.data(), rules.ending.data(), words());
  return bases_[key] = std::move(made);
}

// Nothing is kept of it for a last token: memory for a row of its own takes longer to get from the system than to fill.
void Canonical::meet_mask(Number number, uint32_t* words) {
  const CanonicalState state = CanonicalState::of(number);
  const PlaceRows& here = base(state);
  const uint32_t* const always = here.splitting.data();
  const size_t count = this->words();
  if (state.last == kNone) {
    for (size_t i = 0; i < count; ++i) words[i] &= always[i];
    return;
  }
  barred_.assign(count, 0);
  pairs_->add_conflicts(state.last, barred_.data());
  const uint32_t *const joining = here.going_on.data(), *const barred = barred_.data();
  for (size_t i = 0; i < count; ++i) words[i] &= (joining[i] & ~barred[i]) | always[i];
}

void Canonical::write_mask(Number state, uint32_t* words) {
  std::fill_n(words, this->words(), UINT32_MAX);
  meet_mask(state, words);
}

bool Canonical::may_begin(const Trie& trie, Number state, const ByteSet& bytes) {
  if (!firsts_.contains(state)) drop_beyond(firsts_, kMaxFirsts);
  Firsts& known = firsts_[state];
  if (!(known.found & bytes).empty()) return true;
  const ByteSet open = bytes & ~known.asked;
  bool is_found = false;
  (open & singles_).for_each([&](uint8_t byte) { is_found = is_found || found_after(state, tokens_.single[byte]) != 0; });
  if (is_found || open.empty()) return is_found;
  std::vector<uint32_t> mask(words());
  write_mask(state, mask.data());
  open.for_each([&](uint8_t byte) {
    known.asked.insert(byte);
    const uint32_t top = trie.child(0, byte);
    for (uint32_t node = top; top != 0 && node < trie.end[top]; ++node)
      for (uint32_t token : trie.tokens_at(node))
        if (mask[token >> 5] >> (token & 31) & 1) {
          known.found.insert(byte);
          is_found = true;
          return;
        }
  });
  return is_found;
}

// Whether a completion has tokens that the rules let through.
bool Canonical::lets_through(const Matcher& matcher, uint32_t rules, std::string_view text) {
  const auto is_harmless = [&](char byte) { return tokens_.harmless.contains(static_cast<uint8_t>(byte)); };
  if (!matcher.constraint().byte_complete() && !tokenizer_->has_tokens(text)) return false;
  return (is_settled(rules) && std::all_of(text.begin(), text.end(), is_harmless)) || tokenizer_->lets_through(rules, text);
}

// The shortest completion, if it is a text.
bool Canonical::write_completion(Matcher& matcher, std::string& text) {
  text.clear();
  for (int64_t symbol : matcher.shortest_completion()) {
    if (symbol < 0) return false;  // a special token
    text.push_back(static_cast<char>(symbol));
  }
  return true;
}

}  // namespace structgen
