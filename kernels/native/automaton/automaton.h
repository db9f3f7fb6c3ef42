// The lazily derived automaton: states are sets of terms, made when they are first reached.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "base/byte_set.h"
#include "base/intern.h"
#include "base/limits.h"
#include "base/turns.h"
#include "terms/symbol_counts.h"
#include "terms/term.h"

namespace structgen {

constexpr StateId kDead = 0;  // the empty set of terms

// The escapes of JSON strings by one letter.
struct SimpleEscape {
  uint8_t letter, value;
};
constexpr SimpleEscape kSimpleEscapes[] = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                           {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};

// A set of bytes, and where all of them lead.
using ByteEdge = std::pair<ByteSet, uint32_t>;

// Edges by byte in the making; their sets are disjoint.
struct ByteEdges {
  std::vector<ByteEdge> groups;

  // Every byte of `set` goes to `target`.
  void assign(const ByteSet& set, uint32_t target) { groups.emplace_back(set, target); }
  // The same where the target may be that of one of the first groups.
  void merge(const ByteSet& set, uint32_t target, size_t first) {
    for (size_t group = 0; group < first; ++group) {
      if (groups[group].second != target) continue;
      groups[group].first |= set;
      return;
    }
    assign(set, target);
  }
};

// Edges by byte: groups of bytes, with an index by byte where there are many.
class ByteMap {
 public:
  ByteMap() = default;
  ByteMap(const ByteEdges& edges, Arena& arena);  // where they are kept

  uint32_t operator[](uint8_t byte) const {
    if (index_) {
      const uint16_t group = index_[byte];
      return group == kNoGroup ? kDead : groups_[group].second;
    }
    for (const auto& [set, target] : groups_)
      if (set.contains(byte)) return target;
    return kDead;
  }
  // The distinct targets with the bytes that lead there.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& [set, target] : groups_) visit(set, target);
  }
  size_t group_count() const { return groups_.size(); }

 private:
  static constexpr uint16_t kNoGroup = 256;
  std::span<const ByteEdge> groups_;
  const uint16_t* index_ = nullptr;
};

struct State {
  uint32_t items = 0;  // list of term ids, sorted
  TermId term = kNone; // their choice, once it was queried
  Distance distance = kInfinite;
  bool expanded = false;
  bool final = false;  // contains the empty string
  bool only_final = false;  // contains nothing else
  enum class Position : uint8_t { kUnknown, kInString, kElsewhere } position = Position::kUnknown;
  ByteSet live;
  ByteMap next;
  std::span<const std::pair<RuleId, StateId>> calls;       // rule called, state after its return
  std::span<const std::pair<uint32_t, StateId>> specials;  // special token, state after it
};

// Counts what is made on behalf of one caller, so that a limit is a limit of that caller, and the steps of one call.  A
// step is worth some ten nanoseconds.
struct Meter {
  // Begins the count of a call.
  void begin(uint64_t used_before, const Limits& limits) {
    used = used_before;
    maximum = limits.states;
    steps = 0;
    max_steps = limits.steps;
  }
  uint64_t used = 0;
  uint64_t maximum = UINT64_MAX;
  uint64_t steps = 0;
  uint64_t max_steps = UINT64_MAX;
  Pulse pulse{};
  void charge(const char* what) {
    if (++used > maximum) throw LimitError("states", maximum, what);
  }
  void work(uint64_t count, const char* what) {
    steps += count;
    if (steps > max_steps) throw LimitError("steps", max_steps, what);
    pulse.beat(count);
  }
};

struct Expansion;

class Automaton {
 public:
  explicit Automaton(const ByteSet& spellable);

  TermStore& terms() { return terms_; }
  const TermStore& terms() const { return terms_; }
  Meter& meter() { return meter_; }
  uint64_t regular_limit() const { return regular_limit_; }
  void set_regular_limit(uint64_t limit) { regular_limit_ = limit; }

  StateId state_of(TermId term);
  StateId union_of(StateId a, StateId b);
  const State& operator[](StateId id) const { return states_[id]; }
  const State& expanded(StateId id) {
    State& state = states_[id];
    if (!state.expanded) expand(id);
    return state;
  }
  StateId rule_start(RuleId rule);
  // Longest chain of rules that call each other before consuming anything; callers are higher than callees.
  uint32_t height(RuleId rule);
  // A state that reads a literal and nothing else before `tail`.
  struct LiteralState {
    Term head;
    TermId tail;
  };
  std::optional<LiteralState> literal(StateId id) const;
  // The state after the first bytes of that literal, without those between.
  StateId after_literal(StateId id, size_t bytes);
  // How many bytes of `text` can be read at once from a state within a literal or a string that excludes texts, and the
  // state after so many of them; 0: none, as in all other states.
  size_t leap(StateId id, std::string_view text);
  StateId after_leap(StateId id, std::string_view read);
  // Whether a state is within a JSON string, whichever way it was read, so that nothing but a quote ends it.
  bool in_string(StateId id);
  // The state after a byte, made without those after other bytes; nothing where rules are called before, or where all
  // edges are made at once.
  std::optional<StateId> after_alone(StateId id, uint8_t byte);
  std::span<const TermId> items(StateId id) const { return item_lists_[states_[id].items]; }
  void forget();  // all states; terms and rules stay
  void trim();    // what can be derived anew, where it is much
  size_t size() const { return states_.size(); }
  size_t bytes_used() const;

  // JSON terms and boolean terms need derivatives for their distance; these settle it and return the term.
  TermId json(TermId value);
  TermId json_escape(TermId value);
  TermId conjunction(std::vector<TermId> items);
  TermId negation(TermId item);
  bool is_nullable(TermId term) const;
  // The code points of the characters of a term, all its other strings being single bytes that are not valid UTF-8;
  // nothing where it has longer strings.
  std::optional<std::vector<CodePoints>> as_char_class(TermId term);
  bool is_char_class(TermId term);  // whether the strings are those characters alone
  // The term without the upper bounds of repetitions from `least` on, and the smallest of these (unbounded_terms.cpp).
  std::pair<TermId, uint32_t> unbounded_term(TermId root, uint32_t least, size_t& fuel);
  // What a term is made of that is a language without finitely many texts.
  struct Excluding {
    TermId language;
    TermId texts;  // a literal, the empty string, or a choice of those
  };
  std::optional<Excluding> excluding(TermId term) const;
  // The alternatives of a choice; any other term by itself.
  std::vector<TermId> alternatives(TermId term) const;

 private:
  struct Form {
    TermId target;
    ByteSet set;
  };
  struct Code {  // first characters of a term: code points and what remains after them
    uint32_t low, high;
    TermId rest;
  };

  StateId intern(std::vector<TermId>& items);
  void expand(StateId id);
  bool expand_literal(StateId id);
  bool expand_excluding(StateId id);
  // Of a state `json(language & !texts) '"'`.
  struct ExcludingState {
    Excluding value;
    TermId tail;
  };
  std::optional<ExcludingState> excluding_state(StateId id);
  void collect(TermId root, Expansion& out, std::optional<uint8_t> only = {});
  StateId after(StateId id, uint8_t byte);
  static uint64_t edge_key(StateId id, uint8_t byte) { return uint64_t{id} << 8 | byte; }
  StateId keep_edge(StateId id, uint8_t byte, StateId target);
  TermId derivative(TermId term, uint8_t byte);
  const Expansion* collect_item(TermId item, Expansion& out);
  void partition(std::vector<Form>& forms, ByteEdges& next, ByteSet& live);
  TermId as_term(StateId id);
  void merge_counted(std::vector<TermId>& items);
  TermId intersection(std::vector<TermId> items);
  static void append(std::vector<Code>& codes, const Code& next);
  const std::vector<Code>& first_codes(TermId term);
  const std::vector<Code>& foreign_codes(StateId start);
  TermId unicode_escape(TermId value);
  Distance escape_distance(TermId value);
  void settle(TermId term, Weight weight);
  Distance settled_json_distance(TermId value);
  Distance json_distance_unless_nested(TermId value);
  void solve_boolean(TermId term, Weight weight);
  bool solve_directly(TermId term);
  bool solve_without_bounds(TermId term, Weight weight);
  std::optional<uint8_t> nearest_byte(TermId term);
  Distance step_weight(const ByteSet& set, Weight weight) const;
  // What is known of the distance of a term that is not explored.
  struct Estimate {
    Distance least;      // it is no less
    uint64_t remaining;  // the sum over the parts of an intersection: what is left to do
  };
  Estimate estimate(TermId term, Weight weight);
  bool is_excluded(std::span<const TermId> items);
  bool is_class_within(TermId item, TermId other);
  using Edge = std::pair<ByteSet, TermId>;
  const std::vector<Edge>& edges(TermId term);
  std::vector<Edge> product(TermId term);
  void drop_products();

  TermStore terms_;
  TermId quote_ = terms_.literal("\"");  // that ends a JSON string
  SymbolCounter symbols_{terms_};
  Meter meter_;
  uint64_t regular_limit_ = 200'000;
  Pages<State> states_;
  Arena edge_lists_;  // of states
  ListPool<TermId> item_lists_;
  ById<StateId, kNone> state_of_list_;
  ById<StateId, kNone> state_of_term_;  // kNone: not queried yet
  std::unordered_map<TermId, std::vector<Code>> first_codes_;
  std::map<std::vector<uint32_t>, std::vector<Code>> foreign_codes_;  // by the states after the lead bytes
  std::unordered_map<uint64_t, std::vector<Code>> code_tails_;  // by state and number of continuation bytes
  NumberMap<std::vector<Edge>> edges_;  // of boolean terms and their parts
  NumberMap<std::pair<TermId, uint32_t>> unbounded_;  // by term and least bound
  NumberMap<StateId> single_edges_;     // by state and byte, where the others were not made
  std::unordered_map<uint64_t, bool> class_within_;  // by the two classes
  std::vector<StateId> rule_starts_;
  std::vector<uint32_t> heights_;
  std::unordered_map<TermId, std::shared_ptr<const Expansion>> loops_;  // items of many derivatives
  ById<uint32_t> mark_;  // terms seen in the current expansion
  uint32_t epoch_ = 0;
  size_t loop_bytes_ = 0;
  size_t product_bytes_ = 0;  // of edges_
};

}  // namespace structgen
