// Which tokens a tokenizer writes after which, and which of them some output of a grammar goes on with.
//
// What the tokenizer does is decided elsewhere (structgen/engine/tokenizers); its answers are kept here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/byte_set.h"
#include "canonical/pair_map.h"
#include "canonical/token_pairs.h"
#include "matcher/matcher.h"

namespace structgen {

// A state of the tokenizer: a place among the splits, the state of the rules, the last token of the text.
struct CanonicalState {
  static constexpr unsigned kLastBits = 24, kBits = 20;
  uint32_t place, rules, last;  // last is kNone where the text begins

  static CanonicalState of(uint64_t number) {
    const auto last = static_cast<uint32_t>(number & ((1u << kLastBits) - 1));
    return {static_cast<uint32_t>(number >> (kLastBits + kBits)), static_cast<uint32_t>(number >> kLastBits & ((1u << kBits) - 1)), last - 1};
  }
  uint64_t number() const { return (uint64_t{place} << kBits | rules) << kLastBits | (last + 1); }
};

// Masks of the tokens that have a place: after a split, and without one.
struct PlaceRows {
  std::vector<uint32_t> splitting, going_on;
};

// The tokenizer.  Sets of readings, places and states of its rules are numbered; see pretokens.py and text_rules.py.
class Tokenizer {
 public:
  struct Place {
    bool ends;     // the text may end
    bool is_open;  // a piece is open, which the next character may belong to
    ByteSet free;  // before these bytes it can be split so that anything may follow
  };
  struct Rules {
    std::vector<uint32_t> alive;   // a mask of the tokens that may follow
    std::vector<uint32_t> ending;  // a mask of those that may where the text may end: they end it
  };

  virtual ~Tokenizer() = default;
  // The readings after a character of a class; `splits` if a piece begins with it.
  virtual uint32_t move(uint32_t readings, uint32_t kind, bool splits) = 0;
  virtual uint32_t unite(uint32_t one, uint32_t other) = 0;
  virtual Place place(uint32_t place) = 0;
  virtual PlaceRows rows(uint32_t place) = 0;  // of a place within a character
  virtual bool is_settled(uint32_t rules) = 0;
  virtual Rules rules(uint32_t rules) = 0;
  // The CanonicalState after a token, which may stand in one piece with the token before it if it `joins`; 0 for none.
  virtual uint64_t after(uint32_t place, uint32_t rules, uint32_t token, bool joins) = 0;
  virtual bool lets_through(uint32_t rules, std::string_view text) = 0;
  // Whether they let every text of harmless bytes through that begins with this one.
  virtual bool settles(uint32_t rules, uint8_t byte) = 0;
  virtual bool has_tokens(std::string_view text) = 0;
};

// The search for a completion has taken the steps that it may; what() is how many tokens it has tried.
class SearchLimit : public std::runtime_error {
 public:
  explicit SearchLimit(uint64_t tried) : std::runtime_error(std::to_string(tried)) {}
};

// What is known of the tokens, once for a vocabulary.
struct CanonicalTokens {
  enum Kind : uint8_t {
    kNever,    // it is never written
    kPlain,    // complete characters, whose shape decides where it may be split
    kAsked,    // the tokenizer is asked
    kSpecial,  // it ends a text
  };
  std::vector<uint8_t> kinds;
  std::vector<uint32_t> shapes;        // of each token; 0 for no text
  std::vector<uint32_t> shape_begins;  // into the classes of the characters of each shape
  std::vector<uint8_t> classes;
  std::vector<uint8_t> has_rest;  // of each shape, whether an incomplete character comes last
  uint32_t class_count = 0;
  std::vector<uint32_t> settled;    // the state of the rules after each token, from every settled one; kNone: not known
  std::array<uint32_t, 256> single; // the token of each byte; kNone
  std::vector<uint32_t> by_length;  // those with most bytes first, EOS left out
  ByteSet harmless;                 // the rules let texts of these bytes through from every settled state
  bool has_rules = false;
};

// Safe to share between threads: all functions but the constructor lock, so call them without the GIL.  The tokenizer is
// asked under that lock.
class Canonical {
 public:
  static constexpr uint32_t kDead = 0, kFresh = 1;      // sets of readings: none, and before a text
  static constexpr uint32_t kOpen = uint32_t{1} << 16;  // from here on, places within a character
  using Number = uint64_t;                              // of a CanonicalState; 0 for none
  static constexpr Number kStart = Number{kFresh} << (CanonicalState::kLastBits + CanonicalState::kBits);

  Canonical(std::shared_ptr<const TokenPairs> pairs, CanonicalTokens tokens, std::unique_ptr<Tokenizer> tokenizer);

  size_t tokens() const { return tokens_.kinds.size(); }
  size_t words() const { return (tokens() + 31) / 32; }

  bool is_state(Number number) const {
    const CanonicalState state = CanonicalState::of(number);
    return state.place != kDead && (state.last == kNone || (state.last < tokens() && pairs_->reachable(state.last)));
  }

  // Of what is kept.  It is dropped, and found out anew, where it is more than the limit when a function is called.
  size_t memory_bytes();
  void set_limit(size_t bytes);
  void drop();

  // The state after a token; 0 if it cannot follow, whatever comes later.
  Number after(Number state, uint32_t token);
  // Whether the text may end.
  bool may_end(Number state);
  // The mask of the tokens with a state after them.
  void mask(Number state, uint32_t* words);
  // Whether some canonical sequence of the grammar begins with what was taken; the matcher is as before then.
  bool completes(Matcher& matcher, Number state, uint64_t steps);
  // The same after one more token; false where the grammar refuses it.
  bool follows(Matcher& matcher, Number state, uint32_t token, uint64_t steps);
  // The tokens that follow, ascending, and their mask; nothing if more than `most` of the grammar's have a state after them,
  // whose mask it is then.  `is_completable`: completes() is known to be true.
  std::optional<std::vector<uint32_t>> allowed(Matcher& matcher, Number state, bool is_completable, size_t most, uint64_t steps, uint32_t* words);
  // The same, but all others are taken out of a mask of the grammar, or of a part of its tokens.
  std::optional<std::vector<uint32_t>> narrow(Matcher& matcher, Number state, bool is_completable, size_t most, uint64_t steps, uint32_t* words);

 private:
  struct Known {
    Tokenizer::Place place;
    PlaceRows rows;  // empty: not known
  };
  class Search;
  class Forced;
  std::unique_lock<std::mutex> use();  // locks what is kept, within the limit

  std::span<const uint8_t> classes_of(uint32_t shape) const {
    return std::span(tokens_.classes).subspan(tokens_.shape_begins[shape], tokens_.shape_begins[shape + 1] - tokens_.shape_begins[shape]);
  }
  uint32_t move(uint32_t readings, uint32_t kind, bool splits);
  uint32_t walk(uint32_t readings, uint32_t token, bool splits);
  uint32_t both(uint32_t one, uint32_t other);
  bool is_settled(uint32_t rules);
  // Whether the rules let every text of harmless bytes through that begins with this one, as far as that is seen.
  bool settles(uint32_t rules, uint8_t byte) {
    if (!tokens_.has_rules) return true;
    if (!tokens_.harmless.contains(byte)) return false;
    if (is_settled(rules)) return true;
    if (const bool* known = settles_.find({rules, byte})) return *known;
    const bool found = tokenizer_->settles(rules, byte);
    settles_.set({rules, byte}, found);
    return found;
  }
  // Whether some token that begins with one of the bytes has a state after it.
  bool may_begin(const Trie& trie, Number state, const ByteSet& bytes);
  Number found_after(Number state, uint32_t token);
  Known& place(uint32_t number);
  const PlaceRows& rows(uint32_t number);
  std::vector<uint32_t> alive(uint32_t readings, bool splits, bool has_anew);
  const Tokenizer::Rules& rules(uint32_t number);
  void leave_following(std::vector<uint32_t>& tokens, Matcher& matcher, Number state, bool is_completable, uint64_t steps);
  // What a place and the rules say of the tokens, whatever the last one was.
  const PlaceRows& base(const CanonicalState& state);
  void write_mask(Number state, uint32_t* words);
  void meet_mask(Number state, uint32_t* words);  // leaves its tokens in a mask
  std::optional<std::vector<uint32_t>> few(Matcher& matcher, Number state, bool is_completable, size_t most, uint64_t steps, uint32_t* mask);
  // The first byte of the shortest completion from a mask_id, if that is a text that the rules let through from every settled
  // state.
  static constexpr int kNoGoal = -1, kAtEnd = 256;
  int goal(Matcher& matcher, uint64_t id);
  bool lets_through(const Matcher& matcher, uint32_t rules, std::string_view text);
  static bool write_completion(Matcher& matcher, std::string& text);

  const std::shared_ptr<const TokenPairs> pairs_;
  const CanonicalTokens tokens_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<uint32_t> rank_;                      // of each token in by_length; kNone
  std::vector<uint32_t> shape_order_, shape_same_;  // shapes sorted by their classes, and how many are as in the one before
  std::vector<uint32_t> reachable_;                 // a mask
  ByteSet singles_;                                 // the bytes that are tokens

  size_t kept_bytes() const;
  void drop_kept();

  std::mutex mutex_;
  size_t limit_ = SIZE_MAX;
  std::array<std::vector<uint32_t>, 2> moves_;  // by readings and class; kNone: not known
  PairMap<uint32_t> unions_{1 << 14};
  std::unordered_map<uint32_t, Known> places_;
  size_t row_words_ = 0;  // of all places
  std::unordered_map<uint64_t, PlaceRows> bases_;  // by place and rules
  std::map<uint32_t, Tokenizer::Rules> rules_;
  std::unordered_map<uint32_t, bool> settled_;
  PairMap<Number> after_{1 << 15};  // what was asked, by state without the last token, and token
  // By the state of a grammar (mask_id) and a state: whether the text can be completed, and whether that is seen at once,
  // which does not depend on the last token.
  PairMap<bool> completes_{1 << 16}, certain_{1 << 14};
  PairMap<int> goals_{1 << 14};  // by mask_id, 0
  PairMap<bool> settles_{1 << 12};  // by rules and byte
  struct Firsts {
    ByteSet asked, found;
  };
  std::unordered_map<Number, Firsts> firsts_;  // see may_begin()
  std::vector<uint32_t> scratch_, barred_, mask_;  // masks
};

}  // namespace structgen
