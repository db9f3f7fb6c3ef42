// The search for a canonical completion, over pairs of a grammar's state and a state of the tokenizer.
//
// Nearly always the first look decides: where the text may end, or where a byte may follow at which the tokenizer begins
// anew: there the tokens of what follows are canonical, whatever it is.
#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

#include "canonical/canonical.h"
#include "canonical/forced.h"

namespace structgen {

namespace {

constexpr uint64_t kTrySteps = 512;  // of a token that is taken; one that is looked at counts as one
constexpr size_t kFewTokens = 256, kMaxWitnesses = 8;

// Calls visit(token) for each token of a mask; false, and not for all, if there are more than `most`.
template <class Visit>
bool for_each_of(std::span<const uint32_t> words, size_t most, Visit&& visit) {
  constexpr size_t kBlock = 16;  // most words of a mask with few tokens are zero
  size_t count = 0;
  for (size_t begin = 0; begin < words.size(); begin += kBlock) {
    const auto block = words.subspan(begin, std::min(kBlock, words.size() - begin));
    uint32_t any = 0;
    for (uint32_t word : block) any |= word;
    if (any == 0) continue;
    for (size_t i = 0; i < block.size(); ++i)
      for (uint32_t left = block[i]; left != 0; left &= left - 1) {
        if (++count > most) return false;
        visit((begin + i) * 32 + static_cast<size_t>(std::countr_zero(left)));
      }
  }
  return true;
}

bool has_more(std::span<const uint32_t> words, size_t most) {
  return !for_each_of(words, most, [](size_t) {});
}

void write_tokens(std::span<const uint32_t> tokens, std::span<uint32_t> words) {
  std::ranges::fill(words, 0);
  for (uint32_t token : tokens) words[token >> 5] |= uint32_t{1} << (token & 31);
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
  // Whether that is seen at once after some token, without its state of the matcher; false: it is not known.
  bool is_seen(const Matcher::After& after, Number number) {
    const CanonicalState state = CanonicalState::of(number);
    const Number anyone = CanonicalState{state.place, state.rules, kNone}.number();
    if (const bool* known = canonical_.certain_.find({after.id, anyone})) return *known;
    const Tokenizer::Place& place = canonical_.place(state.place).place;
    const ByteSet firsts = place.free & canonical_.singles_ & after.live;
    bool seen = after.is_accepting && place.ends;
    if (!seen && !firsts.empty())
      seen = !canonical_.tokens_.has_rules || is_one_of(canonical_.goal(matcher_, after.id), state.rules, firsts);
    if (seen) canonical_.certain_.set({after.id, anyone}, true);
    return seen;
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
    std::vector<uint32_t> first;  // to be tried before all others, last one first
    std::vector<uint32_t> few;    // by rank; unless they are many
    bool is_listed = false, is_few = true;
    size_t at = 0;
  };

  Point point(std::optional<uint64_t> id, Number state, size_t depth) {
    Point made{id, state, depth, {}, {}};
    put_goal(made);
    return made;
  }
  // Lists the tokens that the grammar allows at the last point of the way.
  void list(Point& point) {
    const auto take_few = [&] {
      point.few.clear();
      return for_each_of(words_, kFewTokens, [&](size_t token) {
        if (const uint32_t rank = canonical_.rank_[token]; rank != kNone) point.few.push_back(rank);
      });
    };
    fill(point.depth);
    if (!take_few()) {
      leave(point.state);
      point.is_few = take_few();
    }
    std::sort(point.few.begin(), point.few.end());
    point.is_listed = true;
  }
  // The next token at the last point of the way, where the matcher is; kNone after the last one.
  uint32_t next(Point& point) {
    if (!point.first.empty()) {
      const uint32_t token = point.first.back();
      point.first.pop_back();
      return token;
    }
    if (!point.is_listed) list(point);
    const auto& by_length = canonical_.tokens_.by_length;
    if (point.is_few) return point.at < point.few.size() ? by_length[point.few[point.at++]] : kNone;
    if (filled_ != point.depth) {  // to keep many masks would take much memory
      fill(point.depth);
      leave(point.state);
    }
    while (point.at < by_length.size()) {
      const uint32_t token = by_length[point.at++];
      if (words_[token >> 5] >> (token & 31) & 1) return token;
    }
    return kNone;
  }
  // Puts the tokens with which the shortest completion begins, short ones first.
  void put_goal(Point& point) {
    std::string text;
    if (point.id) {
      matcher_.visit_completion(*point.id, [&](uint64_t, std::string_view next) {
        text += next;
        return text.size() < Forced::kMost;
      });
    } else if (!write_completion(matcher_, text)) {
      return;
    }
    const Trie& trie = matcher_.constraint().tokens().trie();
    uint32_t node = 0;
    for (char byte : text) {
      if ((node = trie.child(node, static_cast<uint8_t>(byte))) == 0) break;
      for (uint32_t token : trie.tokens_at(node)) point.first.push_back(token);
    }
  }
  // Fills words_ with the mask at a depth.
  void fill(size_t depth) {
    words_.resize(canonical_.words());
    matcher_.fill_mask(words_.data());
    filled_ = depth;
  }
  // Leaves those of words_ that have a state after them.
  void leave(Number state) {
    canonical_.meet_mask(state, words_.data());
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
    const ByteSet wanted = place.free & canonical_.singles_;
    std::string firsts;
    for (char byte : matcher_.live_bytes())
      if (wanted.contains(static_cast<uint8_t>(byte))) firsts.push_back(byte);
    if (firsts.empty()) return false;
    if (canonical_.tokens_.has_rules && is_one_of(goal(), state.rules, wanted)) return true;
    if (!canonical_.tokens_.has_rules)
      return std::any_of(firsts.begin(), firsts.end(), [&](char byte) {
        const uint32_t token = canonical_.tokens_.single[static_cast<uint8_t>(byte)];
        return matcher_.validate({&token, 1}) == 1;
      });
    // The rules may forbid a text: they are shown one, the shortest if it will do, else the shortest after some byte.
    std::string text;
    if (write_completion(matcher_, text) && !text.empty() && firsts.find(text[0]) != std::string::npos &&
        canonical_.lets_through(matcher_, state.rules, text))
      return true;
    for (size_t i = 0; i < std::min(firsts.size(), kMaxWitnesses); ++i) {
      spend(kTrySteps);
      if (matcher_.accept_bytes(std::string_view(firsts).substr(i, 1)) != 1) continue;
      const bool is_harmless = canonical_.settles(state.rules, static_cast<uint8_t>(firsts[i])) && goal() != kNoGoal;
      const bool is_text = is_harmless || write_completion(matcher_, text);
      matcher_.rollback(1);
      if (is_harmless || (is_text && canonical_.lets_through(matcher_, state.rules, firsts[i] + text))) return true;
    }
    return false;
  }

  int goal() {
    const auto id = matcher_.mask_id();
    return id ? canonical_.goal(matcher_, *id) : kNoGoal;
  }
  // Of a goal: whether the rules let it through, and it begins with one of the bytes.
  bool is_one_of(int first, uint32_t rules, const ByteSet& bytes) {
    if (first < 0 || first >= kAtEnd || !bytes.contains(static_cast<uint8_t>(first))) return false;
    return canonical_.settles(rules, static_cast<uint8_t>(first));
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
  std::vector<uint32_t> words_;  // the mask at the point of depth filled_
  size_t filled_ = 0;
};

int Canonical::goal(Matcher& matcher, uint64_t id) {
  if (const int* known = goals_.find({id, 0})) return *known;
  if (!matcher.constraint().byte_complete()) return kNoGoal;
  std::vector<std::pair<uint64_t, int>> way;
  int found = kAtEnd;
  const auto visit = [&](uint64_t here, std::string_view text) {
    if (const int* known = goals_.find({here, 0})) {
      found = *known;
      return false;
    }
    const auto is_harmless_byte = [&](char byte) { return tokens_.harmless.contains(static_cast<uint8_t>(byte)); };
    const bool is_harmless = !text.empty() && std::ranges::all_of(text, is_harmless_byte);
    way.emplace_back(here, is_harmless ? static_cast<uint8_t>(text.front()) : kNoGoal);
    if (!is_harmless) found = kNoGoal;
    return is_harmless;
  };
  bool is_whole = matcher.visit_completion(id, visit);
  is_whole = is_whole || found != kAtEnd;
  for (const auto& [here, first] : way) goals_.set({here, 0}, is_whole && found != kNoGoal ? first : kNoGoal);
  if (!is_whole) return kNoGoal;
  if (way.empty()) goals_.set({id, 0}, found);  // the text may end there
  return way.empty() || found == kNoGoal ? found : way.front().second;
}

bool Canonical::completes(Matcher& matcher, Number state, uint64_t steps) {
  const auto lock = use();
  return Search(*this, matcher, steps).completes(state);
}

bool Canonical::follows(Matcher& matcher, Number state, uint32_t token, uint64_t steps) {
  const auto lock = use();
  return Search(*this, matcher, steps).follows(state, token);
}

std::optional<std::vector<uint32_t>> Canonical::allowed(Matcher& matcher, Number state, bool is_completable, size_t most, uint64_t steps, uint32_t* words) {
  const auto lock = use();
  auto tokens = few(matcher, state, is_completable, most, steps, words);
  if (tokens) write_tokens(*tokens, {words, this->words()});
  return tokens;
}

std::optional<std::vector<uint32_t>> Canonical::narrow(Matcher& matcher, Number state, bool is_completable, size_t most, uint64_t steps, uint32_t* words) {
  const auto lock = use();
  const std::span row(words, this->words());
  if (has_more(row, most)) {
    meet_mask(state, words);
    if (has_more(row, most)) return std::nullopt;
  }
  mask_.resize(row.size());
  auto tokens = few(matcher, state, is_completable, most, steps, mask_.data());
  if (!tokens) {
    for (size_t i = 0; i < row.size(); ++i) row[i] &= mask_[i];
    return tokens;
  }
  std::vector<uint32_t> left;
  std::ranges::copy_if(*tokens, std::back_inserter(left), [&](uint32_t token) { return (row[token >> 5] >> (token & 31) & 1) != 0; });
  write_tokens(left, row);
  return tokens;
}

// The grammar's tokens that follow; nothing if more than `most` of them have a state after them, and then `mask` is that of
// all tokens with one.
std::optional<std::vector<uint32_t>> Canonical::few(Matcher& matcher, Number state, bool is_completable, size_t most, uint64_t steps, uint32_t* mask) {
  scratch_.resize(words());
  matcher.fill_mask(scratch_.data());
  std::vector<uint32_t> tokens;
  const auto take = [&](size_t token) { tokens.push_back(static_cast<uint32_t>(token)); };
  if (!for_each_of(scratch_, most, take)) {
    write_mask(state, mask);
    for (size_t i = 0; i < scratch_.size(); ++i) scratch_[i] &= mask[i];
    tokens.clear();
    if (!for_each_of(scratch_, most, take)) return std::nullopt;
  }
  leave_following(tokens, matcher, state, is_completable, steps);
  return tokens;
}

// Leaves those of the grammar's tokens that follow.
void Canonical::leave_following(std::vector<uint32_t>& tokens, Matcher& matcher, Number state, bool is_completable, uint64_t steps) {
  enum class Verdict : uint8_t { kOpen, kNo, kYes };
  std::vector<Number> after(tokens.size());
  std::vector<Verdict> verdicts(tokens.size(), Verdict::kOpen);
  for (size_t i = 0; i < tokens.size(); ++i) {
    after[i] = found_after(state, tokens[i]);
    if (!after[i]) verdicts[i] = Verdict::kNo;
  }
  const auto verdict_of = [](std::optional<bool> follows) { return !follows ? Verdict::kOpen : *follows ? Verdict::kYes : Verdict::kNo; };
  const auto decide = [&](auto&& ask) {
    auto open = std::ranges::count(verdicts, Verdict::kOpen);
    bool is_last_one_sure = is_completable && std::ranges::count(verdicts, Verdict::kYes) == 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (verdicts[i] != Verdict::kOpen) continue;
      verdicts[i] = is_last_one_sure && open == 1 ? Verdict::kYes : ask(i);
      open -= verdicts[i] != Verdict::kOpen;
      is_last_one_sure &= verdicts[i] != Verdict::kYes;
    }
  };
  if (matcher.mask_id()) {
    std::optional<Forced> forced;
    decide([&](size_t i) {
      if (!forced) forced.emplace(*this, matcher);
      if (!forced->has(tokens[i])) return Verdict::kOpen;
      return verdict_of(forced->completes(matcher.constraint().tokens().token(tokens[i]).size(), after[i]));
    });
  }
  std::vector<uint32_t> open;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (verdicts[i] == Verdict::kOpen && !matcher.constraint().is_eos(tokens[i])) open.push_back(tokens[i]);
  std::vector<std::optional<Matcher::After>> there;
  if ((open.size() > 1 || !is_completable) && matcher.constraint().takes_live_bytes()) there = matcher.after_each(open, Forced::kMost);
  decide([&](size_t i) {
    Search search(*this, matcher, steps);
    const auto at = static_cast<size_t>(std::ranges::lower_bound(open, tokens[i]) - open.begin());
    if (at < there.size() && open[at] == tokens[i] && there[at]) {
      const Matcher::After& next = *there[at];
      if (search.is_seen(next, after[i])) return Verdict::kYes;
      if (!next.literal.empty())
        if (const auto decided = Forced(*this, matcher, next).completes(0, after[i])) return verdict_of(decided);
      if (!next.is_accepting && !next.has_specials && !may_begin(matcher.constraint().tokens().trie(), after[i], next.live)) return Verdict::kNo;
    }
    return verdict_of(search.follows(state, tokens[i]));
  });
  size_t kept = 0;
  for (size_t i = 0; i < tokens.size(); ++i)
    if (verdicts[i] == Verdict::kYes) tokens[kept++] = tokens[i];
  tokens.resize(kept);
}

}  // namespace structgen
