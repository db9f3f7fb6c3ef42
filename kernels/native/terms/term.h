// Hash-consed terms: the grammar as the engine holds it.
//
// A term denotes a set of byte strings (with special tokens as symbols of their own).  The automaton is never built
// ahead: its states are sets of terms and its edges partial derivatives (Antimirov 1996; with the boolean operators
// as in Owens, Reppy and Turon 2009), made when they are first needed.  Equal contents get equal ids, in all
// grammars of a vocabulary, so whatever two grammars have in common is derived once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_set.h"
#include "base/intern.h"
#include "base/limits.h"
#include "base/turns.h"

namespace structgen {

using TermId = uint32_t;
using RuleId = uint32_t;
using StateId = uint32_t;

// Lengths of shortest completions.  Every symbol weighs at least 1, so 0 means "contains the empty string".
using Distance = uint32_t;
constexpr Distance kInfinite = UINT32_MAX / 2;  // the language is empty
constexpr Distance kUnsolved = UINT32_MAX;      // depends on rules that are not solved yet
constexpr Distance kFar = kInfinite - 1;        // longer than can be counted, but finite

inline Distance add(Distance a, Distance b) {
  if (a >= kInfinite || b >= kInfinite) return kInfinite;
  return a + b >= kFar ? kFar : a + b;
}

enum class Kind : uint8_t {
  kEmpty,       // no string
  kEpsilon,     // the empty string
  kLiteral,     // a: blob, b: offset
  kBytes,       // a: byte set
  kSequence,    // a then b
  kChoice,      // a: list of at least two terms
  kRepeat,      // a repeated from b to c times; c = kNone is unbounded
  kCall,        // a: rule
  kSpecial,     // a: symbol: a token id, or kTokenSet and a list of ranges of ids: any one token in them
  kAnd,         // a: list
  kNot,         // a
  kJson,        // what remains of the inside of a JSON string whose decoded remainder is in a
  kJsonEscape,  // the same after a backslash
  kPermutation,        // at least one member, in any order; a: list as in permutation.h, b to c members
  kPermutationPrefix,  // the same after the first bytes of a member; a: permutation, b: list {first, last, depth}:
                       // it is one of these items, which agree in `depth` bytes of the literals they begin with
  kPermutationTail,    // what may follow a member; a: permutation, b: index of the item, kNone: a further member
};

struct Term {
  Kind kind;
  uint32_t a, b, c;
  bool operator==(const Term&) const = default;
};

constexpr TermId kEmptyTerm = 0;
constexpr TermId kEpsilonTerm = 1;

enum class Weight : uint8_t { kPlain, kJson };

// How a permutation, or its prefix, goes on: a byte and what follows it; other terms; and pairs of a term and what
// follows it, where the term must not be empty.
struct Openings {
  std::vector<std::pair<uint8_t, TermId>> bytes;
  std::vector<TermId> terms;
  std::vector<std::pair<TermId, TermId>> consuming;
};

// Of the symbols of tokens, those that stand for sets.
constexpr uint32_t kTokenSet = uint32_t{1} << 31;

struct OpenPermutation;

using CodePoints = std::pair<uint32_t, uint32_t>;  // an inclusive range

// What is known of a rule that admits only some of its strings: labels that decode to valid ones (label.h), JSON arrays
// and objects without repetition (distinct.h).
enum class Scope : uint8_t {
  kNone,       // any other rule
  kLabel,      // begins with an A-label without right-to-left characters
  kBidiLabel,  // ... with one that obeys the rule for names that have such
  kLetterLabel,  // begins with a label of letters beyond ASCII, of two bytes each
  kSpare,      // at most one of the items or members is required that another could repeat
  kEndless,    // any number, but they never run out
  kUnknown,
};
constexpr size_t kScopes = 7;
// From here on scopes are parts of the text with a temperature of their own, which admit all their strings: a number
// each.
constexpr size_t kTempered = kScopes, kAllScopes = 256;
constexpr bool is_label(Scope scope) { return scope >= Scope::kLabel && scope <= Scope::kLetterLabel; }
constexpr bool is_container(Scope scope) { return scope >= Scope::kSpare && scope <= Scope::kUnknown; }
constexpr bool is_tempered(Scope scope) { return static_cast<size_t>(scope) >= kTempered; }

class TermStore {
 public:
  // `spellable`: the bytes that tokens can write.  Text is made of those alone; inside JSON strings any character
  // is possible, for it may be escaped.
  explicit TermStore(const ByteSet& spellable);
  ~TermStore();

  const ByteSet& spellable() const { return spellable_; }
  // While on, literals and classes that are made keep to the spellable bytes.
  void restrict(bool on) { restricted_ = on; }
  // The first byte that kept a literal or class from being made since the last call.
  std::optional<uint8_t> take_unspellable() { return std::exchange(unspellable_, std::nullopt); }
  // What a JSON string writes for one byte of decoded text, in bytes, at least.
  Distance json_weight(uint8_t byte) const;

  const Term& operator[](TermId id) const { return terms_[id]; }
  size_t size() const { return terms_.size(); }
  std::span<const TermId> list(uint32_t id) const { return lists_[id]; }
  std::string_view blob(uint32_t id) const {
    const auto bytes = blobs_[id];
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  const ByteSet& byte_set(uint32_t id) const { return sets_[id]; }

  TermId literal(std::string_view text);
  // literal() in three steps, so that the memory for many literals is fetched at once; the last is literal_rest().
  uint64_t prefetch_blob(std::string_view text) const;          // a hash for the next step
  uint32_t literal_blob(std::string_view text, uint64_t hash);  // kNone: the term is empty
  TermId bytes(const ByteSet& set);
  TermId chars(std::span<const CodePoints> ranges);  // sorted, disjoint, without surrogates
  TermId sequence(TermId head, TermId tail);
  TermId sequence(std::span<const TermId> items);
  TermId choice(std::vector<TermId> items);
  TermId choice_of(std::vector<TermId>& items);  // which are changed
  // Drops alternatives, sorted, that differ from another only in narrower bounds of repetitions, or that begin with more
  // of what another begins with.  O(n) comparisons.
  void drop_narrower(std::vector<TermId>& alternatives) const;
  TermId repeat(TermId item, uint32_t min, uint32_t max);
  // Members in any order, `separator` between: each of `items` at most once, exactly once where its flag says that it
  // is required, those of `rest` any number of times; from `min` to `max` members in all (kNone is unbounded).
  TermId permutation(TermId separator, TermId rest, std::span<const std::pair<TermId, bool>> items, uint32_t min,
                     uint32_t max);
  // How a permutation or its prefix goes on.  O(items left).
  Openings openings(TermId permutation);
  // An equal term that is no prefix or tail itself.
  TermId spelled_out(TermId permutation);
  TermId call(RuleId rule) { return make({Kind::kCall, rule, 0, 0}); }
  TermId special(uint32_t token) { return make({Kind::kSpecial, token, 0, 0}); }
  // Any one of the tokens in the ranges, as a symbol of its own, whatever its bytes.
  TermId token_set(std::span<const CodePoints> ranges);  // sorted, disjoint
  // Whether a symbol of `special` or `token_set` stands for a token.
  bool is_symbol_of(uint32_t symbol, uint32_t token) const;
  template <class Visit>
  void for_each_token(uint32_t symbol, Visit&& visit) const {
    if ((symbol & kTokenSet) == 0) return visit(symbol);
    for (const auto& [low, high] : token_sets_[symbol & ~kTokenSet])
      for (uint32_t token = low; token <= high; ++token) visit(token);
  }
  TermId conjunction(std::vector<TermId> items);
  TermId negation(TermId item);
  TermId json(TermId value) { return wrap(Kind::kJson, value); }
  TermId json_escape(TermId value) { return wrap(Kind::kJsonEscape, value); }
  TermId everything() const { return everything_; }  // all byte strings

  // The rest of a literal from `offset` on.
  TermId literal_rest(uint32_t blob, uint32_t offset);
  // Terms that spell a 16-bit code unit in `digits` hex digits, then go on with the target of its range.
  struct Target {
    uint32_t low, high;
    TermId term;
  };
  TermId hex(unsigned digits, std::span<const Target> targets);

  RuleId add_rule(std::string name);
  void set_rule(RuleId rule, TermId body);
  // What distance(body) will be, if that is known before the rule is set; not checked here.
  void expect_distance(RuleId rule, Distance distance) { rules_[rule].distance = distance; }
  TermId rule_body(RuleId rule) const { return rules_[rule].body; }
  const std::string& rule_name(RuleId rule) const { return rules_[rule].name; }
  void set_scope(RuleId rule, Scope scope) {
    rules_[rule].scope = scope;
    has_scopes_ = true;
  }
  Scope rule_scope(RuleId rule) const { return rules_[rule].scope; }
  // The maximum number of tokens that may write one text of a rule; kNone: any number.  It is set before the rules are
  // solved.
  void set_budget(RuleId rule, uint32_t tokens) {
    rules_[rule].tokens = tokens;
    has_scopes_ = has_budgets_ = true;
  }
  uint32_t rule_budget(RuleId rule) const { return rules_[rule].tokens; }
  bool has_budgets() const { return has_budgets_; }
  // The smallest budget of the rules that a term can call; kNone: there is none.  It is 0 where one of them has fewer
  // tokens than the bytes of its shortest text.  Of solved rules.  O(1) after O(terms below it), and the rules.
  uint32_t least_budget(TermId id);
  // The scope of parts with this temperature.  Throws LimitError beyond kAllScopes.
  Scope temperature_scope(double temperature);
  double temperature(Scope scope) const { return temperatures_[static_cast<size_t>(scope) - kTempered]; }
  struct Scopes {
    Scope containers = Scope::kNone;  // the least that is known of any
    bool labels = false;
    bool temperatures = false;
    bool budgets = false;
    bool token_sets = false;  // not one of scopes, but it has to be known as they have
  };
  // The scopes in rules that a term can call.  O(terms below it), and nothing without scopes.
  Scopes scopes_below(TermId id) const;
  // Whether, below a term, a budget of tokens lies within a container or label with a scope, or one of these within it.
  bool has_budgets_in_scopes(TermId id) const;
  size_t rule_count() const { return rules_.size(); }
  Distance rule_distance(RuleId rule) const { return rules_[rule].distance; }
  // Finds the distances of all terms that depended on rules without a body.  O(n log n) in the number of such terms,
  // which `pulse` counts.
  void solve_rules(Pulse& pulse);
  // Whether one of the rules from `first` on can call itself before it has consumed anything.
  bool left_recursive(RuleId first, Pulse& pulse) const;

  Distance distance(TermId id) const { return distances_[id]; }
  void set_distance(TermId id, Distance distance) { distances_[id] = distance; }
  // Of a regular term as the value of a JSON string: the shortest spelling.  Fails (nullopt) where a boolean
  // operator must be explored first; `missing` then names it.
  std::optional<Distance> json_distance(TermId id, TermId& missing);
  void set_json_distance(TermId id, Distance distance);
  bool json_known(TermId id) const { return json_distances_[id] != kUnsolved; }

  size_t bytes_used() const;
  // Makes room for so many more terms, of them so many literals and choices, if they are many.
  void reserve(size_t terms, size_t literals, size_t choices);

 private:
  struct Rule {
    std::string name;
    TermId body = kEmptyTerm;
    Distance distance = kUnsolved;
    Scope scope = Scope::kNone;
    uint32_t tokens = kNone;
  };
  template <class Visit>
  void for_each_part(TermId id, Visit&& visit) const;
  void bound_rules();
  struct Numbering;
  bool solve_in_rounds(const Numbering& numbering, Pulse& pulse);
  void solve_by_distance(const Numbering& numbering, Pulse& pulse);
  template <class Of>
  Distance distance_from(const Term& term, Of&& of) const;
  TermId make(const Term& term) { return make(term, std::nullopt); }
  TermId make(const Term& term, std::optional<Distance> distance);
  TermId make(const Term& term, uint64_t hash, std::optional<Distance> distance);
  TermId sequence(TermId head, TermId tail, std::optional<uint64_t> hash);
  void prefetch(const Term& term) const;  // for make()
  TermId wrap(Kind kind, TermId value);
  bool is_narrower(TermId one, TermId other) const;
  bool absorbs(TermId term, TermId item) const;
  void drop_absorbed(std::vector<TermId>& alternatives) const;
  Distance structural_distance(const Term& term) const;
  TermId encoded(std::span<const CodePoints> ranges);
  TermId continuation(unsigned count, std::span<const CodePoints> ranges);
  TermId some_members(std::vector<uint32_t> list, uint32_t min, uint32_t max);
  const OpenPermutation& open(TermId permutation);
  TermId permutation_tail(const OpenPermutation& from, uint32_t index);
  std::pair<TermId, bool> further_members(TermId tail);

  ByteSet spellable_;
  bool restricted_ = false;
  std::optional<uint8_t> unspellable_;
  Pages<Term> terms_;
  Pages<Distance> distances_;
  ById<Distance, kUnsolved> json_distances_;
  IdTable table_;
  ListPool<TermId> lists_;
  ListPool<uint8_t> blobs_;
  ListPool<uint32_t> classes_;        // of characters, as ranges
  std::vector<TermId> class_terms_;  // of those; kNone: not kept
  ListPool<CodePoints> token_sets_;
  std::vector<double> temperatures_;
  std::vector<ByteSet> sets_;
  IdTable set_table_;
  std::vector<Rule> rules_;
  std::vector<TermId> unsolved_;
  std::vector<RuleId> open_rules_;   // made since the rules were last solved
  bool has_scopes_ = false, has_budgets_ = false;
  std::vector<uint32_t> rule_budgets_;  // of the rules that existed at the last query: least_budget() of a call
  std::vector<std::optional<uint32_t>> term_budgets_;
  TermId everything_ = 0;
  TermId continuations_[4] = {};
  std::unique_ptr<OpenPermutation> opened_;  // the last one that was queried
};

}  // namespace structgen
