// One vocabulary bound to one machine: mask rows, residual tries, and distances in tokens.
//
// A mask is made of rows.  row(trie, state) returns, for a state's own automaton and the rules it calls, which
// tokens of the trie end inside, and which suffixes of tokens are left over where it can end (the residual trie).
// Rows depend on neither the stack nor the text, so they are computed once and shared by all grammars.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "automaton/machine.h"
#include "automaton/program.h"
#include "base/limits.h"
#include "base/turns.h"
#include "masks/row.h"
#include "masks/trie.h"
#include "scopes/distinct.h"

namespace structgen {

using TrieId = uint32_t;
constexpr TrieId kVocabularyTrie = 0;
enum Tail : uint8_t;  // of a character, see absorption.cpp

class Engine : public std::enable_shared_from_this<Engine> {
 public:
  Engine(std::shared_ptr<const TokenTrie> tokens, uint32_t vocabulary_size);
  ~Engine();
  // Deletes an engine; a large one on a thread of its own, for that takes a while.
  static void dispose(Engine* engine);

  Machine& machine() { return machine_; }
  const Machine& machine() const { return machine_; }
  Distinct& distinct() { return distinct_; }
  const TokenTrie& tokens() const { return *tokens_; }
  uint32_t vocabulary_size() const { return vocabulary_size_; }
  uint32_t words() const { return (vocabulary_size_ + 31) / 32; }
  bool byte_complete() const { return tokens_->byte_complete(); }
  TurnMutex& mutex() { return mutex_; }
  SharedRules& shared_rules() { return shared_rules_; }

  struct Plan {  // the rows of a node's mask, in plan_rows_
    uint32_t begin = 0, count = kNone;
    uint32_t room = kNone;  // a budget that the mask does not depend on, nor on a larger one; kNone: none is known
  };
  // How the mask of a node is written; none if something is not known yet.
  const Plan* find_plan(NodeId node) const { return plans_[node].count != kNone ? &plans_[node] : nullptr; }
  // Prefetches the memory that write() reads, so that what several plans need is waited for at the same time.
  void prefetch(const Plan& plan) const;
  void write(const Plan& plan, uint32_t* words) const;
  const Row& plan_row(const Plan& plan, uint32_t index) const { return *plan_rows_[plan.begin + index]; }
  // A number that no other engine has, and that this one had for no other rows: plans of it begin at the same place only
  // if they are the same.
  uint64_t rows_epoch() const { return rows_epoch_; }

  // The mask of a node without EOS bits.  try_fill makes nothing and fails if something is not known yet.
  bool try_fill(NodeId node, uint32_t* words) const;
  void fill(NodeId node, uint32_t* words, uint64_t fuel);
  // The mask of the tokens after which at most `budget` further tokens complete the text.  Of a byte-complete
  // vocabulary those that are known to do so when the fuel ends, which are the same each time.
  void fill_within(NodeId node, uint32_t* words, uint32_t budget, uint64_t fuel);
  // Adds the tokens that begin the completion which min_tokens() found, here or on the way here, if at most `budget`
  // tokens follow.
  void allow_fewest(NodeId node, uint32_t* words, uint32_t budget, uint64_t fuel);
  // An upper bound on the tokens that are missing after any allowed token.  For byte-complete vocabularies.
  uint32_t reach(NodeId node);
  // Whether the mask within a budget may be another than the mask.  For byte-complete vocabularies.
  bool needs_budget(NodeId node, uint32_t budget);

  // Lets the next token, of several that one call takes, have all steps of the limit.
  void renew_steps() {
    Meter& meter = machine_.automaton().meter();
    meter.steps = 0;
    meter.pulse.beat(1);
  }

  // The node after a token that has bytes, as text and as a symbol.
  NodeId step_token(NodeId node, uint32_t token);
  // After a token without bytes.
  NodeId step_special(NodeId node, uint32_t token);
  NodeId known_step_token(NodeId node, uint32_t token) const;

  // Fewest tokens that complete the text from `node`.  Exact while `fuel` lasts (A* over nodes), else the fewest
  // tokens that spell the shortest completion in bytes; kNone if no tokens complete it.
  uint32_t min_tokens(NodeId node, uint64_t& fuel);
  // Whether tokens complete the text, within all budgets.  Of a byte-complete vocabulary, where there are budgets and the
  // fuel ends: whether that is known.
  bool completable(NodeId node, uint64_t fuel);
  // Whether no token of the mask that the rows make would break a budget.
  bool keeps_budgets(NodeId node);
  // A shortest completion: bytes, with special tokens as negative numbers -1 - id.
  std::vector<int64_t> shortest_completion(NodeId node);
  bool visit_completion(NodeId node, const std::function<bool(uint64_t, int64_t)>& visit);  // see Matcher

  // Fewest tokens that spell the shortest completion in bytes, kNone if none do.
  uint32_t plan(NodeId node);
  // The first token of it; kNone where there is none.
  uint32_t planned_token(NodeId node);

  // Whether a token that begins with all of `text` and goes on may continue, `end` being the node after `text`.
  bool may_go_beyond(NodeId end, std::string_view text);

  // Drops all states, nodes and rows: every node id is void then, and the epoch is another.  Terms and rules stay.
  void forget();
  // A number that no other engine has, and that this one had not before.
  uint64_t epoch() const { return epoch_; }
  void trim(size_t cache_bytes);
  size_t cache_bytes() const { return cache_bytes_; }
  size_t bytes_used() const { return machine_.bytes_used() + distinct_.bytes_used() + leaps_.bytes() + cache_bytes_; }
  size_t row_count() const { return rows_.size(); }
  size_t trie_count() const { return tries_.size(); }

 private:
  template <class Visit>
  void traverse(NodeId node, Visit&& visit);
  // Makes the plan of a node that keeps its budgets, if there is none.
  void make_plan(NodeId node);
  NodeId read_token(NodeId node, uint32_t token);
  bool same_symbols(StateId one, StateId other);
  Distance missing_after_symbols(StateId state);
  static uint64_t row_key(TrieId trie, StateId state) { return uint64_t{trie} << 32 | state; }

  // Rows (rows.cpp, walk.cpp).  A row of the vocabulary's trie leaves out the rules that its state calls before it has consumed
  // anything, for the closure of a node has entered them; rows of residual tries include them.
  const Row& row(TrieId trie, StateId state);
  const Row* find_row(TrieId trie, StateId state) const;
  const Row& keep(TrieId trie, StateId state, const Row& made);
  const Row& own(Row&& made);
  struct Found {
    std::vector<uint32_t> tokens;  // that end inside
    std::vector<uint32_t> exits;   // nodes of the trie with more below, where the automaton may end
    uint32_t reach = 0;            // as in a row
    Words bits;                    // more of the tokens, as a bitmask, where many were found; else empty

    void list();  // moves them all to the list
  };
  struct Near {
    StateId state = kNone;
    uint32_t same = 0;  // texts of at most so many bytes, their completions counted, are in both or in neither
    enum class Way : uint8_t {
      kCompare,
      kLength,    // `same` bounds all characters of a JSON string, and is the only difference
      kExcluded,  // the state has none of `texts` as a JSON string, which is the only difference
    } way = Way::kCompare;
    std::vector<TermId> texts;  // literals
  };
  Row make_row(StateId state, const Near& near);
  Row plain_row(TrieId trie, StateId state);
  Row class_row(StateId state, const TriePart& beyond);
  std::optional<Row> near_row(StateId state, const Near& near);
  Near near_state(StateId state);
  StateId successor_alike(StateId state);
  Near unbounded(StateId state, uint32_t least);
  Near without_length(StateId state);
  bool cut(StateId state, const Near& near, const Row& base, Found& fewer);
  Near without_excluded(StateId state);
  void exclude(const Near& near, Found& fewer);
  uint32_t reach_without(const Near& near, uint32_t reach);
  Row pack(Found&& found, std::shared_ptr<const Words> mask);
  // Where a walk of one configuration's own automaton stands: a state as long as nothing is called, for most walks
  // need no nodes, and a node from there on.
  struct Spot {
    StateId state = kNone;  // kNone: at the node
    NodeId node = kNone;
    bool operator==(const Spot&) const = default;
  };
  Spot spot(StateId state);
  Spot step(Spot from, uint8_t byte);
  bool same_step(Spot one, Spot other, uint8_t byte) const;
  Distance distance_after(Spot from, uint8_t byte) const;
  const ByteSet& live(Spot at) const { return at.state == kNone ? machine_[at.node].live : machine_.automaton()[at.state].live; }
  Distance distance(Spot at) const { return at.state == kNone ? machine_[at.node].distance : machine_.automaton()[at.state].distance; }
  bool accepting(Spot at) const { return at.state == kNone ? machine_[at.node].accepting : machine_.automaton()[at.state].final; }
  bool only_accepting(Spot at) const {
    return at.state == kNone ? machine_[at.node].only_accepting : machine_.automaton()[at.state].only_final;
  }
  static void add_tokens(const Trie& trie, uint32_t position, Found& found);
  void add_leaf(const Trie& trie, uint32_t position, Spot above, Found& found);
  bool enter(const Trie& trie, uint32_t position, Spot here, Found& found);
  class DenseWalk;
  struct DenseScratch;
  void walk(const Trie& trie, uint32_t top, Spot from, Found& found);
  void walk_levels(const Trie& trie, uint32_t top, Spot from, Found& found);
  bool follow_literal(const Trie& trie, uint32_t& position, StateId& state, Found& found);
  bool compare(StateId one, StateId other, uint32_t same, Found& more, Found& fewer);
  // Counts the nodes of a trie that are about to be looked at.
  void look_at(uint64_t nodes) { machine_.automaton().meter().work(nodes, "walking the tokens"); }
  uint32_t exit_list(std::vector<uint32_t> exits);
  TrieId residual(TrieId of, uint32_t list, uint16_t groups);
  // What is left of tokens after the automaton of a row of the trie ended, as far as the text may go on so after a return
  // to the frame; kNone: nothing.  The rest, such as all endings of words after a name, would take milliseconds.
  TrieId residual(TrieId of, const Row& row, FrameId frame);
  std::shared_ptr<const Words> class_mask(uint16_t groups);

  // Rows of counted classes (counted.cpp): `C{min,max} T`, also inside a JSON string, for a class of characters C.
  struct Counted {
    uint32_t min, max;
    StateId star;  // the same with `C*`
  };
  struct CountTable;
  std::optional<Counted> counted(StateId state);
  CountTable& count_table(StateId star);
  ByteSet closing_bytes(StateId star);
  const Row& counted_row(StateId state, const Counted& bounds);
  const Row& counted_row(CountTable& table, const Counted& bounds, Distance missing);

  // `attempt` with small limits on work and on deciding whether terms are empty; a default value where they are not
  // enough.  What only saves work may not fail, nor take long.
  static constexpr uint64_t kLittleWork = 500'000;
  template <class Attempt>
  auto cheaply(Attempt&& attempt, uint64_t work = kLittleWork) {
    constexpr uint64_t kLittle = 500;
    Automaton& automaton = machine_.automaton();
    Meter& meter = automaton.meter();
    const uint64_t usual = automaton.regular_limit(), max_steps = meter.max_steps;
    automaton.set_regular_limit(std::min(usual, kLittle));
    meter.max_steps = std::min(max_steps, meter.steps + work);
    const auto restore = [&] {
      automaton.set_regular_limit(usual);
      meter.max_steps = max_steps;
    };
    decltype(attempt()) result{};
    try {
      result = attempt();
    } catch (const LimitError& error) {
      restore();
      const bool spent_all = error.limit == "steps" && meter.steps > max_steps;
      if (spent_all || (error.limit != "steps" && error.limit != "regular_states")) throw;
      return decltype(attempt()){};
    }
    restore();
    return result;
  }

  // What a node lets pass without a closer look: any text of bytes in `groups` of at most `count` bytes keeps it
  // alive and cannot end its own automaton.  True of the inside of strings, also of counted ones.
  struct Absorption {
    uint16_t groups = 0;
    uint32_t count = 0;
    Distance distance = 0;  // what completes such a text, in bytes, at most
    TermId kept = kNone;       // the alternative that the class begins, of several
    bool is_outside = false;  // see Engine::is_outside
    bool may_end = false;   // nothing more of the class is required: all such texts share one shortest completion
    bool known = false;
    bool is_closed = false;    // found by close_absorption()
    bool is_searched = false;  // close_absorption() was called
  };
  Absorption absorption(Spot at);
  bool close_absorption(StateId state);
  bool returns(StateId state, Tail tail, StateId home);
  Absorption foreign_absorption(Spot at);
  bool is_json(StateId state);
  struct Closure;
  Absorption compute_absorption(StateId state);
  Absorption item_absorption(TermId item);
  std::optional<uint8_t> way_out(TermId conjunction);
  bool is_outside(StateId state);
  const ByteSet& used_bytes(TermId root);
  uint16_t absorption_breaks(StateId state, uint16_t groups);
  bool absorbs(Spot at, const Trie& trie, uint32_t position) {
    const uint16_t groups = trie.groups[position];
    const Absorption held = absorption(at);
    return (groups & ~held.groups) == 0 && trie.height[position] <= held.count;
  }
  uint16_t groups_of(const ByteSet& bytes) const;
  uint16_t char_groups(TermId item);
  TrieId intern_trie(std::shared_ptr<const Trie> trie);
  template <class Visit>
  void for_each_successor(NodeId node, Visit&& visit);
  // The first symbol of the shortest completion of a node, and the node after it.
  struct PathStep {
    int64_t symbol;  // a byte, or -1 - id of a special token
    NodeId next;     // kNone: there is no completion
  };
  const PathStep& path_step(NodeId node);
  uint32_t frame_plan(FrameId frame);
  std::optional<uint32_t> spare_tokens(FrameId frame);
  uint32_t row_reach(TrieId trie, StateId state);
  struct Way {
    uint32_t tokens;  // fewest, proven
    NodeId next;      // after the first of them; kNone: there is none
  };
  using Settled = std::unordered_map<NodeId, Way>;
  uint32_t search(NodeId start, uint32_t bound, uint64_t& fuel, uint64_t price, bool& complete, Settled& settled);
  bool within(NodeId node, uint32_t limit, uint64_t& fuel, Settled& settled);
  std::pair<uint32_t, NodeId> planned_step(NodeId node);
  // Tokens of a completion within all budgets, as far as there is one along plans; kNone: none is found.
  uint32_t plan_within_budgets(NodeId node);
  bool completable_within_budgets(NodeId node, uint64_t fuel);
  template <class Fits, class FitsBeyond>
  void fill_fitting(NodeId node, uint32_t* words, Fits&& fits, FitsBeyond&& fits_beyond);
  void fill_completable(NodeId node, uint32_t* words, uint64_t fuel);

  std::shared_ptr<const TokenTrie> tokens_;
  uint32_t vocabulary_size_;
  Machine machine_;
  Distinct distinct_;
  std::deque<std::shared_ptr<const Trie>> tries_;  // [0] is unused: the vocabulary's own trie stands for it
  IdTable trie_table_;
  Pages<Row> own_rows_;
  Arena row_lists_;  // of those
  NumberMap<const Row*> rows_;
  ListPool<uint32_t> exit_lists_;
  std::unique_ptr<DenseScratch> dense_scratch_;  // kept from one walk to the next
  NumberMap<uint32_t> begun_;    // by list of exits and groups of first bytes: a number
  NumberMap<TrieId> residuals_;  // by trie and that number
  std::unordered_map<uint16_t, std::shared_ptr<const Words>> class_masks_;
  std::unordered_map<StateId, std::unique_ptr<CountTable>> count_tables_;
  ById<Plan> plans_;
  Pages<const Row*> plan_rows_;
  size_t cache_bytes_ = 0;
  std::unordered_map<uint64_t, uint32_t> reaches_;      // by trie and state, as rows are
  std::unordered_map<FrameId, uint32_t> frame_plans_;
  std::unordered_map<FrameId, std::optional<uint32_t>> spare_tokens_;
  // What min_tokens() found: by node with the fuel that was given, and for the nodes on the ways.
  struct Searched {
    uint64_t fuel, spent;
    uint32_t tokens;
  };
  std::unordered_map<NodeId, Searched> searched_;
  Settled exact_;
  std::unordered_map<NodeId, PathStep> path_steps_;
  std::unordered_map<NodeId, uint32_t> planned_;  // fewest tokens of the shortest completion in bytes
  std::unordered_map<NodeId, uint32_t> within_budgets_;  // plan_within_budgets() of nodes
  std::unordered_map<NodeId, bool> completable_;         // of nodes that were searched from
  NumberMap<NodeId> leaps_;  // by node and token, where the nodes between were not made
  ById<Absorption> absorptions_;  // by state
  std::unordered_map<TermId, uint16_t> char_groups_;
  std::unordered_map<TermId, ByteSet> used_bytes_;
  SharedRules shared_rules_;
  uint64_t epoch_ = next_epoch(), rows_epoch_ = next_epoch();
  static uint64_t next_epoch();
  TurnMutex mutex_;

  void drop_rows();
  const Trie& trie(TrieId id) const { return id == kVocabularyTrie ? tokens_->trie() : *tries_[id & ~kOwn]; }
  // With the id of a trie: its rows leave out the rules that their state calls at once, as those of the vocabulary do.
  static constexpr TrieId kOwn = TrieId{1} << 31;
  // From so many nodes on, what is left of tokens is walked by the rules that are called, each by itself.
  static constexpr uint32_t kManyNodes = 512;
  static constexpr uint32_t kDearness = 32;  // of a node of the trie when two states are compared, where a walk has one
};

}  // namespace structgen
