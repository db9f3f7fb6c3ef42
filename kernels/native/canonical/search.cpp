// The search for a canonical completion, over pairs of a grammar's state and a state of the tokenizer.
//
// Nearly always the first look decides: where the text may end, or where a byte may follow at which the tokenizer begins
// anew: there the tokens of what follows are canonical, whatever it is.
#include <algorithm>
#include <bit>
#include <optional>

#include "canonical/canonical.h"
#include "canonical/forced.h"

namespace structgen {

namespace {

constexpr uint64_t kTrySteps = 512;  // of a token that is taken; one that is looked at counts as one
constexpr size_t kFewTokens = 256, kManyTries = 16, kMaxWitnesses = 8;

// Calls visit(token) for each token of a mask, and of another if there is one; false, and perhaps not for all, if there
// are more than `most`.
template <class Visit>
bool for_each_of(const std::vector<uint64_t>& mask, const uint64_t* also, size_t most, Visit&& visit) {
  const uint64_t* const words = mask.data();
  size_t count = 0;
  for (size_t i = 0; i < mask.size(); ++i) {
    uint64_t left = words[i];
    if (left == 0) continue;
    if (also) left &= also[i];
    count += static_cast<size_t>(std::popcount(left));
    if (count > most) return false;
    for (; left != 0; left &= left - 1) visit(i * 64 + static_cast<size_t>(std::countr_zero(left)));
  }
  return true;
}

}  // namespace

class Canonical::Search {
 public:
  Search(Canonical& canonical, Matcher& matcher, uint64_t steps) : canonical_(canonical), matcher_(matcher), start_(matcher.history()), steps_(steps) {}
  ~Search() { matcher_.rollback(matcher_.history() - start_); }
  Search(const Search&) = delete;
  Search& operator=(const Search&) = delete;

  bool completes(Number state) {
    const auto id = matcher_.mask_id();
    if (id)
      if (const bool* known = known_.find({*id, state})) return *known;
    if (is_certain(id, state)) {
      keep(id, state, true);
      return true;
    }
    if (id)
      if (const auto decided = Forced(canonical_, matcher_).completes(0, state)) {
        keep(id, state, *decided);
        return *decided;
      }
    return found(id, state);
  }
  bool follows(Number state, uint32_t token) {
    if (token >= canonical_.tokens()) return false;
    const Number after = canonical_.found_after(state, token);
    if (!after || !matcher_.accept(token)) return false;
    const bool may_follow = matcher_.is_terminated() || completes(after);
    matcher_.rollback(1);
    return may_follow;
  }

 private:
  // A point of a search, and the tokens that the grammar allows there, those with most bytes first.
  struct Point {
    std::optional<uint64_t> id;
    Number state;
    size_t depth;
    std::vector<uint32_t> few;    // by rank; unless they are many
    std::vector<uint32_t> first;  // to be tried before, last one first
    bool is_few = true;
    size_t at = 0;
  };

  Point point(std::optional<uint64_t> id, Number state, size_t depth) {
    Point made{id, state, depth, {}, {}};
    const auto take_few = [&] {
      made.few.clear();
      return for_each_of(words_, nullptr, kFewTokens, [&](size_t token) {
        if (const uint32_t rank = canonical_.rank_[token]; rank != kNone) made.few.push_back(rank);
      });
    };
    fill(depth);
    if (!take_few()) {
      leave(state);
      made.is_few = take_few();
    }
    std::sort(made.few.begin(), made.few.end());
    if (!made.is_few || made.few.size() > kManyTries) put_goal(made.first);
    return made;
  }
  // The next token at the last point of the way, where the matcher is; kNone after the last one.
  uint32_t next(Point& point) {
    if (!point.first.empty()) {
      const uint32_t token = point.first.back();
      point.first.pop_back();
      return token;
    }
    const auto& by_length = canonical_.tokens_.by_length;
    if (point.is_few) return point.at < point.few.size() ? by_length[point.few[point.at++]] : kNone;
    if (filled_ != point.depth) {  // to keep many masks would take much memory
      fill(point.depth);
      leave(point.state);
    }
    while (point.at < by_length.size()) {
      const uint32_t token = by_length[point.at++];
      if (words_[token >> 6] >> (token & 63) & 1) return token;
    }
    return kNone;
  }
  // Puts the tokens with which the shortest completion begins, short ones first.
  void put_goal(std::vector<uint32_t>& first) {
    std::string text;
    if (!write_completion(matcher_, text)) return;
    const Trie& trie = matcher_.constraint().tokens().trie();
    uint32_t node = 0;
    for (char byte : text) {
      if ((node = trie.child(node, static_cast<uint8_t>(byte))) == 0) break;
      for (uint32_t token : trie.tokens_at(node)) first.push_back(token);
    }
  }
  // Fills words_ with the mask at a depth.
  void fill(size_t depth) {
    words_.resize(two_words(canonical_.words()));
    matcher_.fill_mask(reinterpret_cast<uint32_t*>(words_.data()));
    filled_ = depth;
  }
  // Leaves those of words_ that have a state after them.
  void leave(Number state) {
    const uint64_t* const mask = canonical_.mask_after(state).data();
    for (size_t i = 0; i < words_.size(); ++i) words_[i] &= mask[i];
  }

  bool found(std::optional<uint64_t> id, Number state) {
    std::vector<Point> way;
    PairMap<bool> seen(SIZE_MAX);
    const size_t before = matcher_.history();
    way.push_back(point(id, state, 1));
    if (id) seen.set({*id, state}, true);
    while (!way.empty()) {
      const uint32_t token = next(way.back());
      if (token == kNone) {
        way.pop_back();
        if (!way.empty()) matcher_.rollback(1);
        continue;
      }
      spend(1);
      const Number after = canonical_.found_after(way.back().state, token);
      if (!after || !matcher_.accept(token)) continue;
      spend(kTrySteps);
      ++tried_;
      const auto here = matcher_.mask_id();
      bool is_new = true, completes = false;
      if (here) {
        const bool* const known = known_.find({*here, after});
        completes = known && *known;
        is_new = !known && seen.set({*here, after}, true);
      }
      if (completes || (is_new && is_certain(here, after))) {
        keep(here, after, true);
        for (const Point& each : way) keep(each.id, each.state, true);
        matcher_.rollback(matcher_.history() - before);
        return true;
      }
      if (is_new) way.push_back(point(here, after, way.size() + 1));
      else matcher_.rollback(1);
    }
    seen.for_each([&](const auto& each, bool) { keep(each.first, each.second, false); });
    return false;
  }

  // Whether a completion can be seen at once.
  bool is_certain(std::optional<uint64_t> id, Number number) {
    const CanonicalState state = CanonicalState::of(number);
    const Number anyone = CanonicalState{state.place, state.rules, kNone}.number();
    if (id)
      if (const bool* known = canonical_.certain_.find({*id, anyone})) return *known;
    const bool is_seen = is_certain(state);
    if (id) canonical_.certain_.set({*id, anyone}, is_seen);
    return is_seen;
  }
  bool is_certain(const CanonicalState& state) {
    const Tokenizer::Place& place = canonical_.place(state.place).place;
    if (matcher_.is_accepting() && place.ends) return true;
    if (place.free.empty()) return false;
    const bool is_settled = canonical_.tokens_.has_rules && canonical_.is_settled(state.rules);
    if (is_settled)
      if (const int first = goal(); first >= 0 && first < kAtEnd && place.free.contains(static_cast<uint8_t>(first)) &&
                                    canonical_.tokens_.single[static_cast<size_t>(first)] != kNone)
        return true;
    std::string firsts;
    for (char byte : matcher_.live_bytes())
      if (const auto value = static_cast<uint8_t>(byte); place.free.contains(value) && canonical_.tokens_.single[value] != kNone) firsts.push_back(byte);
    if (!canonical_.tokens_.has_rules)
      return std::any_of(firsts.begin(), firsts.end(), [&](char byte) {
        const uint32_t token = canonical_.tokens_.single[static_cast<uint8_t>(byte)];
        return matcher_.validate({&token, 1}) == 1;
      });
    if (firsts.empty()) return false;
    // The rules may forbid a text: they are shown one, the shortest if it will do, else the shortest after some byte.
    std::string text;
    if (write_completion(matcher_, text) && !text.empty() && firsts.find(text[0]) != std::string::npos &&
        canonical_.lets_through(matcher_, state.rules, text))
      return true;
    for (size_t i = 0; i < std::min(firsts.size(), kMaxWitnesses); ++i) {
      spend(kTrySteps);
      if (matcher_.accept_bytes(std::string_view(firsts).substr(i, 1)) != 1) continue;
      const bool is_harmless = is_settled && canonical_.tokens_.harmless.contains(static_cast<uint8_t>(firsts[i])) && goal() != kNoGoal;
      const bool is_text = is_harmless || write_completion(matcher_, text);
      matcher_.rollback(1);
      if (is_harmless || (is_text && canonical_.lets_through(matcher_, state.rules, firsts[i] + text))) return true;
    }
    return false;
  }

  // The first byte of the shortest completion, if that is a text that the rules let through from every settled state.
  static constexpr int kNoGoal = -1, kAtEnd = 256;
  int goal() {
    std::vector<std::pair<uint64_t, int>> way;
    int found = kAtEnd;
    const auto visit = [&](uint64_t id, int64_t symbol) {
      if (const int* known = canonical_.goals_.find({id, 0})) {
        found = *known;
        return false;
      }
      const bool is_harmless = symbol >= 0 && canonical_.tokens_.harmless.contains(static_cast<uint8_t>(symbol));
      way.emplace_back(id, is_harmless ? static_cast<int>(symbol) : kNoGoal);
      if (!is_harmless) found = kNoGoal;
      return is_harmless;
    };
    if (!matcher_.constraint().byte_complete() || !matcher_.mask_id()) return kNoGoal;
    bool is_whole = matcher_.visit_completion(visit);
    is_whole = is_whole || found != kAtEnd;
    for (const auto& [id, first] : way) canonical_.goals_.set({id, 0}, is_whole && found != kNoGoal ? first : kNoGoal);
    if (!is_whole) return kNoGoal;
    return way.empty() || found == kNoGoal ? found : way.front().second;
  }

  void keep(std::optional<uint64_t> id, Number state, bool completes) {
    if (id) known_.set({*id, state}, completes);
  }

  void spend(uint64_t steps) {
    if (steps > steps_) throw SearchLimit{tried_};
    steps_ -= steps;
  }

  Canonical& canonical_;
  Matcher& matcher_;
  PairMap<bool>& known_ = canonical_.completes_;
  const size_t start_;
  uint64_t steps_;
  uint64_t tried_ = 0;
  std::vector<uint64_t> words_;  // the mask at the point of depth filled_
  size_t filled_ = 0;
};

bool Canonical::completes(Matcher& matcher, Number state, uint64_t steps) {
  const std::lock_guard lock(mutex_);
  return Search(*this, matcher, steps).completes(state);
}

bool Canonical::follows(Matcher& matcher, Number state, uint32_t token, uint64_t steps) {
  const std::lock_guard lock(mutex_);
  return Search(*this, matcher, steps).follows(state, token);
}

std::optional<std::vector<uint32_t>> Canonical::allowed(Matcher& matcher, Number state, size_t most, uint64_t steps) {
  const std::lock_guard lock(mutex_);
  scratch_.resize(two_words(words()));
  matcher.fill_mask(reinterpret_cast<uint32_t*>(scratch_.data()));
  std::vector<uint32_t> tokens;
  const auto take_few = [&](const uint64_t* mask) {
    tokens.clear();
    return for_each_of(scratch_, mask, most, [&](size_t token) { tokens.push_back(static_cast<uint32_t>(token)); });
  };
  if (!take_few(nullptr) && !take_few(mask_after(state).data())) return std::nullopt;
  std::optional<Forced> forced;
  if (matcher.mask_id()) forced.emplace(*this, matcher);
  std::erase_if(tokens, [&](uint32_t token) {
    if (forced && forced->has(token)) {
      const Number after = found_after(state, token);
      if (!after) return true;
      if (const auto decided = forced->completes(matcher.constraint().tokens().token(token).size(), after)) return !*decided;
    }
    return !Search(*this, matcher, steps).follows(state, token);
  });
  return tokens;
}

}  // namespace structgen
