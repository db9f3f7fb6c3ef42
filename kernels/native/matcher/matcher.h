// The immutable constraint and the moving state of one sequence over it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "masks/engine.h"

namespace structgen {

class Constraint : public std::enable_shared_from_this<Constraint> {
 public:
  Constraint(std::shared_ptr<Engine> engine, TermId start, std::vector<uint32_t> eos, const Limits& limits);

  Engine& engine() const { return *engine_; }
  const std::shared_ptr<Engine>& shared_engine() const { return engine_; }
  TermId term() const { return term_; }
  const std::vector<uint32_t>& eos() const { return eos_; }
  bool is_eos(uint32_t token) const;
  const Limits& limits() const { return limits_; }
  uint64_t states_used() const { return used_; }
  // What is known of the rules without repetition that the grammar has.
  Scope scope() const { return scopes_.containers; }
  bool has_labels() const { return scopes_.labels; }
  bool has_temperatures() const { return scopes_.temperatures; }
  bool has_token_sets() const { return scopes_.token_sets; }
  bool has_scope() const { return scope() != Scope::kNone || has_labels(); }
  // Whether a completion must be searched for anywhere, since nothing is promised of what must differ.
  bool is_searched() const { return scope() == Scope::kUnknown; }
  bool has_budgets() const { return scopes_.budgets; }
  // Whether needs_budget_mask() is a table look-up that may say no.
  bool has_reach() const { return !has_scope() && engine_->byte_complete(); }
  Distinct::Effort effort() const { return {scope() != Scope::kNone, has_labels(), is_searched(), limits_.distance_steps}; }

  // Runs `work` alone on the engine, counting what it makes against the limits of this constraint.  Where the limit
  // was used up by earlier work, the engine forgets all states and `work` runs once more: node ids must therefore
  // be taken from sync(), inside `work`.
  template <class Work>
  auto exclusively(Work&& work) const {
    const std::unique_lock lock(engine_->mutex());
    engine_->trim(limits_.cache_bytes);
    prepare();
    const bool fresh = used_ == 0;
    try {
      const Charge charge(*this);
      return work(*engine_);
    } catch (const LimitError& error) {
      if (fresh || error.limit != "states") throw;
    }
    engine_->forget();
    prepare();
    const Charge charge(*this);
    return work(*engine_);
  }

  // Whether tokens complete the empty text.
  bool is_completable() const {
    return exclusively([&](Engine& engine) {
      std::vector<uint32_t> way;
      if (has_scope()) return engine.distinct().completable_by_tokens({start(), {}, {}}, effort(), way);
      return engine.completable(start(), limits_.distance_steps);
    });
  }
  // Whether a budget of tokens lies within a rule without repetition or a label, or one of these within it.
  bool has_budgets_in_scopes() const {
    return has_budgets() && has_scope() &&
           exclusively([&](Engine& engine) { return engine.machine().automaton().terms().has_budgets_in_scopes(term_); });
  }

  // The first node; call it with exclusive access.
  NodeId start() const;

 private:
  struct Charge {
    explicit Charge(const Constraint& constraint) : self(constraint) {}
    ~Charge() { self.used_ = self.engine_->machine().automaton().meter().used; }
    const Constraint& self;
  };
  void prepare() const;

  std::shared_ptr<Engine> engine_;
  TermId term_;
  std::vector<uint32_t> eos_;
  Limits limits_;
  TermStore::Scopes scopes_;
  // Guarded by the engine's mutex:
  mutable uint64_t used_ = 0;
  mutable uint64_t epoch_ = 0;
};

// Continuations of one text that share prefixes.
struct Branches {
  std::vector<uint32_t> tokens;
  std::vector<int32_t> parents;  // of each the index of the token that it follows, which is smaller; -1: it comes first
};

class Matcher {
 public:
  explicit Matcher(std::shared_ptr<const Constraint> constraint);

  const Constraint& constraint() const { return *constraint_; }
  bool accept(uint32_t token);
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
  std::string forced_bytes();
  // The first of `starts`, offsets into `forced`, from which some token that may come there covers the rest of
  // `forced` and goes on; starts.size() if there is none.  `forced` must be allowed.
  size_t uncertain_from(std::string_view forced, std::span<const size_t> starts);
  uint32_t min_tokens();
  std::vector<int64_t> shortest_completion();
  bool is_accepting() const { return accepting_ && !terminated_; }
  bool is_terminated() const { return terminated_; }
  size_t history() const { return steps_.size(); }
  NodeId state_id();  // equal for equal futures, until the engine forgets
  // Equal for equal masks of matchers of one constraint, for as long as that lives; nothing where more than the node
  // decides.
  std::optional<uint64_t> mask_id();
  std::string live_bytes();
  std::vector<uint32_t> live_specials();
  // The highest temperature of the parts of the text that the next token may stand in; none where none has one.
  std::optional<double> temperature();
  std::vector<std::string> rule_path();

 private:
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
    return constraint_->exclusively([&](Engine& engine) {
      sync(engine);
      return work(engine);
    });
  }
  void sync(Engine& engine);
  NodeId step(Engine& engine, NodeId node, uint32_t token) const;
  void enter(Engine& engine, NodeId node);
  // The same where the grammar has scopes (matcher_scopes.cpp).
  struct Trace {
    JsonLexer lexer;
    std::string label;
    std::vector<uint32_t> plan;  // tokens, last one first, that are known to complete the text; none: not looked for
    std::vector<uint32_t> way;   // the same to where it is certain that all budgets can be kept; none: here
  };
  Position position() const { return {node_, trace_.lexer, trace_.label}; }
  void sync_scopes(Engine& engine);
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
  NodeId node_ = kDeadNode;
  uint64_t epoch_ = 0;  // of the engine when the node ids were taken
  bool accepting_ = false;
  bool terminated_ = false;
  std::vector<Step> steps_;
  Trace trace_;
  std::vector<Trace> traces_;  // before each step, where the grammar has scopes
};

// Fills row i of `rows` for matcher i, on as many threads as there are processors for the process.
void fill_masks(std::span<Matcher* const> matchers, std::span<uint32_t* const> rows);
// follow_tree() of each, in the same way.
std::vector<std::vector<bool>> follow_trees(std::span<Matcher* const> matchers, std::span<const Branches> trees, std::span<uint32_t* const> rows);

}  // namespace structgen
