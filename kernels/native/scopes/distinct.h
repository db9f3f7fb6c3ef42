// Arrays whose items, and objects whose names, must differ: the part of a constraint that no automaton can hold.
//
// A rule may have a scope (term.h): its strings are JSON arrays or objects, and only those without repetition are
// admitted: no two items of the array are equal values, no object inside has a name twice.  The machine keeps
// the configurations inside such a rule apart from all others by their call frames.  A JsonLexer follows the text from
// where the first scope opens to where the last one closes; when it sees a repetition, the configurations inside that
// scope are dropped.  So the masks of the machine are right but for tokens that complete a repetition, or after
// which every completion would: those are found by walking the trie where the lexer says that this is possible.
//
// It must be certain from the text where a scope begins; a grammar that leaves two ways is refused when they are met.
//
// Labels of host names are followed in the same way (distinct_labels.cpp): the text of an open one is kept, and where it
// ends the configurations inside its rule are dropped unless it decodes to a valid label.  No search is needed there:
// what was written can be completed as long as there is room, and near the end of that the bytes after which nothing
// completes it are dropped at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "automaton/machine.h"
#include "base/byte_set.h"
#include "scopes/json_lexer.h"

namespace structgen {

class Engine;

struct Position {
  NodeId node = kDeadNode;
  JsonLexer lexer;
  std::string label;  // that is open: small letters, then an open escape as it stands
};

class Distinct {
 public:
  explicit Distinct(Engine& engine);

  // Each returns false where nothing valid begins so; the position is void then.
  bool step(Position& at, uint8_t byte);
  bool step(Position& at, std::string_view text);
  bool read_token(Position& at, uint32_t token);  // no EOS
  bool step_token(Position& at, uint32_t token);  // the same, counted in the budgets of tokens that are open

  // How hard to look: whether there are containers and labels at all, `thorough` where nothing is known of containers,
  // and the steps that one search may take.
  struct Effort {
    bool has_containers;
    bool has_labels;
    bool thorough;
    uint64_t fuel;
  };
  // Whether some text completes it and repeats nothing.  Throws LimitError where the fuel does not suffice to decide.
  bool completable(const Position& at, Effort effort);
  // The same of tokens, within all budgets.  `way`: where a search has found it, the tokens, last one first, to where no
  // search is needed; else empty.
  bool completable_by_tokens(const Position& at, Effort effort, std::vector<uint32_t>& way);
  // Whether a mask must be made by completable_by_tokens(); and that mask.
  bool must_count(const Position& at);
  void fill_counted(const Position& at, uint32_t* words, Effort effort);
  // Clears the bits of `words`, a mask of at.node, that are none of `at`.  Returns a bound on the tokens that complete
  // the text after those of the tokens left which the distances of the machine do not bound; 0 without `measure`.
  uint32_t correct(const Position& at, uint32_t* words, Effort effort, bool measure = false);
  ByteSet live(const Position& at, Effort effort, unsigned enough = 256);
  // The tokens of a completion, the fewest while the fuel lasts; nothing if there is none.
  std::optional<std::vector<uint32_t>> shortest(const Position& at, uint64_t& fuel);
  // The mask of the tokens after which at most `budget` further tokens complete the text, as far as that is known.
  void fill_within(const Position& at, uint32_t* words, uint32_t budget, uint64_t fuel);
  // Some completion: bytes, with special tokens as -1 - id.  That of the machine where it repeats nothing.
  std::optional<std::vector<int64_t>> completion(const Position& at, uint64_t fuel);

  // How many tokens beyond the machine's distances may be needed to complete an open label and what follows it.
  uint32_t label_slack();

  // How much the lexer holds, and a return to when it held less: what positions made since then hold is void.
  size_t size() const { return scopes_.size(); }
  void release(size_t size) { scopes_.release(size); }
  void forget() { scopes_.clear(); }
  size_t bytes_used() const { return scopes_.bytes_used(); }

 private:
  struct Lists {  // tokens that may go on after the end of a string or number, or open a scope and go on after a member
    std::vector<uint32_t> strings, numbers, openers;
  };
  enum class Goal : uint8_t { kSafe, kEnd };
  class Trial;  // drops what the lexer has made when it ends

  bool drop(Position& at, std::span<const FrameId> scopes);
  // What becomes of an open label: it ends, or reads a byte.  False where nothing is left.
  bool end_label(Position& at);
  static bool is_end(const std::string& label, uint8_t byte);
  bool may_escape(const std::string& label, Scope scope);
  bool may_go_on(const std::string& label, NodeId node, Scope scope);
  bool read_label(Position& at, uint8_t byte);
  template <class Holds>
  bool keep_labels(Position& at, Holds&& holds);
  std::optional<std::vector<int64_t>> label_completion(const Position& at);
  // Nodes of the trie, each with all below it, after which an open label may be no valid one.
  std::vector<uint32_t> doubtful(const Position& at);
  bool handle(Position& at, JsonScopes::Event event);
  void check_entry(const Position& at, bool opens);
  bool is_uncertain(const Position& at, bool thorough, std::vector<ValueId>& targets) const;
  // The bytes from a position to the goal; those that have led there from elsewhere are tried first.
  const std::vector<int64_t>* way(const Position& at, Goal goal, Effort effort);
  void fill_fitting(const Position& start, uint32_t* words, const std::function<bool(const Position&)>& fits);
  bool leads(const Position& at, std::span<const int64_t> symbols, Goal goal, Effort effort);
  // Budgets (distinct_budgets.cpp).
  bool count_token(Position& at);
  bool is_settled(const Position& at, Effort effort);
  bool follows_plan(const Position& at, Effort effort);
  std::optional<std::vector<uint32_t>> search_tokens(const Position& at, Effort effort);
  bool leads_by_tokens(const Position& at, std::span<const uint32_t> tokens);
  // Tokens that spell a completion and keep to all budgets, as far as they are soon found.
  std::optional<std::vector<uint32_t>> spelled_within_budgets(const Position& at, std::span<const int64_t> symbols);
  std::optional<std::vector<int64_t>> search(const Position& at, Goal goal, Effort effort);
  std::optional<std::vector<uint32_t>> spelled(std::span<const int64_t> symbols) const;
  std::optional<std::vector<uint32_t>> fewest(const Position& at, uint32_t bound, uint64_t& fuel);
  std::string key(const Position& at) const;
  const Lists& lists();
  bool in_string(NodeId node) const;
  const std::vector<uint32_t>& label_openers();  // tokens that hold the start of a label and may hold its end

  Engine& engine_;
  JsonScopes scopes_;
  std::unique_ptr<Lists> lists_;
  std::optional<std::vector<uint32_t>> label_openers_;
  std::optional<uint32_t> label_slack_;
  std::vector<std::vector<int64_t>> ways_[2];  // by goal: found before, latest last
};

class Distinct::Trial {
 public:
  explicit Trial(JsonScopes& scopes) : scopes_(scopes), mark_(scopes.mark()) {}
  ~Trial() { scopes_.release(mark_); }
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

 private:
  JsonScopes& scopes_;
  size_t mark_;
};

}  // namespace structgen
