// The immutable constraint and the moving state of one sequence over it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "masks/engine.h"

namespace structgen {

// What a matcher may ask for at a node.
enum class Request : uint8_t { kMask, kMaskWithin, kToken, kForced, kFewest, kCompletion, kBudget };

// A grammar in an engine, and what it has used there.
class Home {
 public:
  Home(std::shared_ptr<Engine> engine, TermId term) : engine(std::move(engine)), term(term) {}

  const std::shared_ptr<Engine> engine;
  const TermId term;

  // The first node.  This and all that follows: call it with exclusive access.
  NodeId start() const { return engine->machine().start(term); }
  // Begins to count a call against `limits`.
  void prepare(const Limits& limits);
  void finish() { used_.store(engine->machine().automaton().meter().used, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }  // also without

  // A limit on steps that `work` met at a node is not met again: it is thrown at once, as long as the engine does not forget.
  template <class Work>
  auto once(NodeId node, Request request, uint64_t argument, Work&& work) {
    const Met key{node, request, argument};
    if (const auto met = met_.find(key); met != met_.end()) throw met->second;
    try {
      return work();
    } catch (const LimitError& error) {
      if (met_.size() == kMaxMet) met_.clear();
      if (error.limit == "steps") met_.emplace(key, error);
      throw;
    }
  }

 private:
  using Met = std::tuple<NodeId, Request, uint64_t>;
  static constexpr size_t kMaxMet = 256;
  std::atomic<uint64_t> used_ = 0;
  uint64_t epoch_ = 0;
  std::map<Met, LimitError> met_;
};

// It begins in the engine that all grammars of a vocabulary share.  Where its work there would hold up others, and where
// it has used up its states there, it moves to an engine of its own, for good.
class Constraint : public std::enable_shared_from_this<Constraint> {
 public:
  Constraint(std::shared_ptr<Engine> engine, TermId start, std::vector<uint32_t> eos, const Limits& limits);
  // Meets the limits that the first state meets; call it with exclusive access, once, before anything else.
  void begin();

  // Where work is done from now on.
  std::shared_ptr<Home> home() const;
  // `make` makes the grammar in a new engine, or nothing where it cannot; it may take the GIL.
  void set_elsewhere(std::function<std::shared_ptr<Home>()> make) { elsewhere_ = std::move(make); }
  // Whether it has moved, or has tried to.
  bool has_moved() const { return moved_; }

  const TokenTrie& tokens() const { return *tokens_; }
  bool byte_complete() const { return tokens_->byte_complete(); }
  uint32_t vocabulary_size() const { return vocabulary_size_; }
  uint32_t words() const { return (vocabulary_size_ + 31) / 32; }
  const std::vector<uint32_t>& eos() const { return eos_; }
  bool is_eos(uint32_t token) const;
  const Limits& limits() const { return limits_; }
  uint64_t states_used() const { return home()->used(); }
  // What is known of the rules without repetition that the grammar has.
  Scope scope() const { return scopes_.containers; }
  bool has_labels() const { return scopes_.labels; }
  bool has_temperatures() const { return scopes_.temperatures; }
  bool has_token_sets() const { return scopes_.token_sets; }
  bool has_scope() const { return scope() != Scope::kNone || has_labels(); }
  // Whether a completion must be searched for anywhere, since nothing is promised of what must differ.
  bool is_searched() const { return scope() == Scope::kUnknown; }
  bool has_budgets() const { return scopes_.budgets; }
  // Whether a live byte is a token that may come: there are no budgets of tokens and no sets of them.
  bool takes_live_bytes() const { return byte_complete() && !has_scope() && !has_budgets() && !has_token_sets(); }
  // Whether needs_budget_mask() is a table look-up that may say no.
  bool has_reach() const { return !has_scope() && byte_complete(); }
  Distinct::Effort effort() const { return {scope() != Scope::kNone, has_labels(), is_searched(), limits_.distance_steps}; }

  // Runs `work(home)` alone on the engine, counting what it makes against the limits of this constraint.  Where others
  // wait too long, or the limit was used up by earlier work, `work` runs once more, perhaps in another engine, or after
  // the engine has forgotten all states: node ids must therefore be taken from sync(), inside `work`.
  template <class Work>
  auto exclusively(Work&& work) const {
    for (unsigned turns = 0;; ++turns) {
      const std::shared_ptr<Home> here = home();
      Engine& engine = *here->engine;
      const bool may_move = elsewhere_ && !has_moved() && !Uninterruptible::holds();
      {
        const Turn turn(engine.mutex(), engine.machine().automaton().meter().pulse, may_move ? turns : Turn::kTurns);
        engine.trim(limits_.cache_bytes);
        here->prepare(limits_);
        const bool fresh = here->used() == 0;
        try {
          const Charge charge(*here);
          return work(*here);
        } catch (const TurnOver&) {
          if (turns + 1 < Turn::kTurns) continue;
        } catch (const LimitError& error) {
          if (fresh || error.limit != "states") throw;
          if (!may_move) engine.forget();
        }
      }
      if (may_move) move(here);
    }
  }

  // Whether tokens complete the empty text.
  bool is_completable() const {
    return exclusively([&](Home& here) {
      std::vector<uint32_t> way;
      if (has_scope()) return here.engine->distinct().completable_by_tokens({here.start(), {}, {}}, effort(), way);
      return here.engine->completable(here.start(), limits_.distance_steps);
    });
  }
  // Whether a budget of tokens lies within a rule without repetition or a label, or one of these within it.
  bool has_budgets_in_scopes() const {
    return has_budgets() && has_scope() && exclusively([&](Home& here) {
             return here.engine->machine().automaton().terms().has_budgets_in_scopes(here.term);
           });
  }

 private:
  struct Charge {
    explicit Charge(Home& home) : home(home) {}
    ~Charge() { home.finish(); }
    Charge(const Charge&) = delete;
    Charge& operator=(const Charge&) = delete;
    Home& home;
  };
  // Leaves `from` for an engine of its own, if nobody has yet.
  void move(const std::shared_ptr<Home>& from) const;

  std::shared_ptr<const TokenTrie> tokens_;
  uint32_t vocabulary_size_;
  std::vector<uint32_t> eos_;
  Limits limits_;
  TermStore::Scopes scopes_;
  std::function<std::shared_ptr<Home>()> elsewhere_;
  mutable std::mutex home_mutex_, move_mutex_;
  mutable std::shared_ptr<Home> home_;  // guarded by home_mutex_
  mutable std::atomic<bool> moved_ = false;
};

// Continuations of one text that share prefixes.
struct Branches {
  std::vector<uint32_t> tokens;
  std::vector<int32_t> parents;  // of each the index of the token that it follows, which is smaller; -1: it comes first
};

class Matcher {
 public:
  // How long a caller with the GIL waits for a thread that extends the engine; the turns of that thread are shorter.
  static constexpr std::chrono::microseconds kPatience{1000};

  explicit Matcher(std::shared_ptr<const Constraint> constraint);

  const Constraint& constraint() const { return *constraint_; }
  bool accept(uint32_t token);
  // The same where the transition is known and no other thread extends the engine for long; else nothing, and the state
  // is as before.  For callers with the GIL: whoever gives it up waits for a thread that runs Python, for milliseconds.
  std::optional<bool> accept_known(uint32_t token);
  size_t accept_bytes(std::string_view data);
  size_t validate(std::span<const uint32_t> tokens);
  // Which tokens may come, each after those above it; where one may not, none below it may.  If `rows` is given, the
  // masks: here, and after each token; those after tokens that may not come, and after EOS, are empty.
  std::vector<bool> follow_tree(const Branches& tree, uint32_t* rows);
  void rollback(size_t count);  // throws std::invalid_argument
  void reset();
  // Takes what `other` has taken, a matcher of the same grammar and vocabulary in any engine.
  void replay(const Matcher& other);
  // Calls visit(token, text) for each step: a token, or kNone and a text.
  template <class Visit>
  void for_each_step(Visit&& visit) const {
    for (const Step& step : steps_) visit(step.token, std::string_view(step.text));
  }
  void fill_mask(uint32_t* words);
  // The same for at most kTogether matchers, known masks first.
  static void fill_together(std::span<Matcher* const> matchers, std::span<uint32_t* const> rows);
  static constexpr size_t kTogether = 8;
  void fill_mask_within(uint32_t* words, uint32_t budget);
  // Tokens that may come next, EOS left out: all of them, or `max` of them.
  std::vector<uint32_t> allowed_tokens(size_t max);
  bool needs_budget_mask(uint32_t budget);
  std::string forced_bytes(size_t most = SIZE_MAX);  // the first ones; `most` only where the grammar has no scopes
  // The first of `starts`, offsets into `forced`, from which some token that may come there covers the rest of
  // `forced` and goes on; starts.size() if there is none.  `forced` must be allowed.
  size_t uncertain_from(std::string_view forced, std::span<const size_t> starts);
  uint32_t min_tokens();
  // Whether at most so many tokens complete the text: seldom needs the search of min_tokens().
  bool completes_within(uint32_t budget);
  std::vector<int64_t> shortest_completion();
  // Calls visit(mask_id, text) along that of a mask_id until that is false, with each id before its text: a byte, a whole
  // literal, or nothing, where a special token comes and the visit ends; whether all were visited.  For grammars without
  // scopes; `visit` must not use the engine.
  bool visit_completion(uint64_t id, const std::function<bool(uint64_t, std::string_view)>& visit);
  bool is_accepting() const { return accepting_ && !terminated_; }
  bool is_terminated() const { return terminated_; }
  size_t history() const { return steps_.size(); }
  // How many steps the text may have in all, which RowBuffer keeps to; kNone: there is no limit.
  uint32_t limit() const { return limit_; }
  void set_limit(uint32_t limit) { limit_ = limit; }
  uint64_t state_id();  // equal for equal futures, until the engine forgets
  // Equal for equal masks of matchers of one constraint, for as long as that lives; nothing where more than the node
  // decides.
  std::optional<uint64_t> mask_id();
  // What is after a token: the mask_id(), whether the text may end, which special tokens and bytes may come, and the
  // literal that all continuations begin with, up to some bytes, with the mask_id() after it.
  struct After {
    uint64_t id;
    bool is_accepting, has_specials;
    ByteSet live;
    std::string literal;
    uint64_t after_literal;
  };
  // After each of some tokens, none of them EOS; nothing after one that may not come.  For grammars without scopes.
  std::vector<std::optional<After>> after_each(std::span<const uint32_t> tokens, size_t most_of_literal);
  std::string live_bytes();
  std::vector<uint32_t> live_specials();
  // The highest temperature of the parts of the text that the next token may stand in; none where none has one.
  std::optional<double> temperature();
  std::vector<std::string> rule_path();

 private:
  friend class RowBuffer;
  struct Step {
    NodeId before;
    bool was_accepting;
    uint32_t token;    // kNone: text without token boundaries
    std::string text;  // that text
  };
  // With the engine's lock; none if the mask is not known yet, or is made for this text alone.
  const Engine::Plan* find_plan() const;
  template <class Work>
  auto run(Work&& work) {
    return constraint_->exclusively([&](Home& here) {
      sync(here);
      return work(*here.engine);
    });
  }
  // The same for what depends on the node alone, and on `argument`.
  template <class Work>
  auto run(Request request, uint64_t argument, Work&& work) {
    return constraint_->exclusively([&](Home& here) {
      sync(here);
      return here.once(node_, request, argument, [&] { return work(*here.engine); });
    });
  }
  void sync(Home& here);
  NodeId step(Engine& engine, NodeId node, uint32_t token) const;
  // With the engine's lock, in which the matcher is up to date.
  std::optional<bool> take_known(const Engine& engine, uint32_t token);
  void enter(const Engine& engine, NodeId node);
  // The same where the grammar has scopes (matcher_scopes.cpp).
  struct Trace {
    JsonLexer lexer;
    std::string label;
    std::vector<uint32_t> plan;  // tokens, last one first, that are known to complete the text; none: not looked for
    std::vector<uint32_t> way;   // the same to where it is certain that all budgets can be kept; none: here
  };
  Position position() const { return {node_, trace_.lexer, trace_.label}; }
  void sync_scopes(Home& here);
  bool accept_in_scopes(Engine& engine, uint32_t token);
  size_t accept_bytes_in_scopes(Engine& engine, std::string_view data);
  size_t validate_in_scopes(Engine& engine, std::span<const uint32_t> tokens) const;
  // Reads a token if the text can be completed after it; `way` as in a trace.
  bool take(Distinct& distinct, Position& at, std::vector<uint32_t>& way, uint32_t token) const;
  void fill_in_scopes(Engine& engine, const Position& at, std::span<const uint32_t> way, uint32_t* words) const;
  void fill_within_in_scopes(Engine& engine, uint32_t* words, uint32_t budget);
  bool needs_budget_in_scopes(Engine& engine, uint32_t budget);
  std::string forced_in_scopes(Engine& engine) const;
  void record(Engine& engine, Position next, std::vector<uint32_t> way, size_t made, uint32_t token, std::string text);
  // Trees (matcher_tree.cpp).
  bool follow_known(const Branches& tree, std::vector<bool>& allowed, uint32_t* rows) const;
  void follow(Engine& engine, const Branches& tree, std::vector<bool>& allowed, uint32_t* rows) const;
  void follow_in_scopes(Engine& engine, const Branches& tree, std::vector<bool>& allowed, uint32_t* rows) const;
  void add_eos(uint32_t* words) const;
  void set_eos(uint32_t* words) const {
    if (is_accepting()) add_eos(words);
  }

  std::shared_ptr<const Constraint> constraint_;
  std::shared_ptr<Engine> engine_;  // that the node ids are of, perhaps one that the constraint has left
  NodeId node_ = kDeadNode;
  uint64_t epoch_ = 0;  // of that engine when they were taken
  bool accepting_ = false;
  bool terminated_ = false;
  uint32_t limit_ = kNone;
  std::vector<Step> steps_;
  Trace trace_;
  std::vector<Trace> traces_;  // before each step, where the grammar has scopes
};

// Fills row i of `rows` for matcher i, on as many threads as there are processors for the process.
void fill_masks(std::span<Matcher* const> matchers, std::span<uint32_t* const> rows);
// follow_tree() of each, in the same way.
std::vector<std::vector<bool>> follow_trees(std::span<Matcher* const> matchers, std::span<const Branches> trees, std::span<uint32_t* const> rows);

}  // namespace structgen
