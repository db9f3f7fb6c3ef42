// The pushdown part: configurations of the whole automaton, hash-consed into nodes.
//
// A configuration is a state with a frame; a frame is a set of (state after return, frame below), so it stands for
// all call stacks that led to the same call at once (the graph-structured stack of Tomita's parser, made canonical
// by content).  A node is a set of configurations with at most one state a frame.  Ambiguity therefore stays
// polynomial, and two texts with the same future have the same node id whenever their sets agree.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "automaton/automaton.h"

namespace structgen {

using FrameId = uint32_t;
using NodeId = uint32_t;

constexpr FrameId kRoot = 0;    // below the outermost rule: popping it ends the text
constexpr NodeId kDeadNode = 0;

constexpr double kNoTemperature = -1;

using Config = std::pair<StateId, FrameId>;

struct Frame {
  uint32_t entries = 0;  // list of (state after return, frame below)
  RuleId rule = kNone;   // the rule called when the frame was first made, for explanations
  Distance distance = 0; // shortest completion after the call returns
  Scope scope = Scope::kNone;  // of that rule
  bool in_scope = false;       // this frame or one below it is that of a container's scope
  double temperature = kNoTemperature;  // of the innermost part that has one, this frame's or one's below it
  // Budgets of tokens.  `slack`: how many bytes may be missing until the call returns so that single bytes complete the
  // text within all budgets that are open, with `rest` bytes after it; `rest` is infinite where none may be missing.
  uint32_t tokens = kNone;  // that may still write text of the rule; kNone: any number
  bool in_budget = false;   // this frame or one below it has such a number
  uint32_t least = kNone;   // the smallest number of those frames, and of TermStore::least_budget() after them
  bool meets_budget = false;  // some budget may begin after them
  Distance slack = kInfinite, rest = 0;
};

struct Node {
  uint32_t configs = 0;  // list, sorted by frame
  uint32_t closure = 0;  // list: the configurations with all rules that they call entered
  ByteSet live;
  Distance distance = kInfinite;
  bool accepting = false;    // the text may end here
  bool only_accepting = false;  // ... and nothing may follow
  bool has_specials = false;
  bool has_token_sets = false;  // sets that may hold tokens with bytes
  bool in_scope = false;  // some configuration stands inside a rule with the scope of a container
  bool in_label = false;  // ... of a label, after its first byte
  double temperature = kNoTemperature;  // the highest of the parts that the next token may stand in
  bool in_budget = false;  // some configuration stands in a frame with a number of tokens
  uint32_t least = kNone;  // the smallest budget of tokens that is open or may be met; kNone: there is none
  bool meets_budget = false;  // some budget may begin later
  Distance sure = kInfinite;  // bytes, each a token, that complete the text within all budgets; infinite: not known
  NodeId ticked = kNone;      // tick() of it, where that is known
  std::span<std::pair<uint8_t, NodeId>> few;  // capacity for transitions; the first `known` of them were found so far
  uint8_t known = 0;
  NodeId* many = nullptr;  // by byte, when there are more; kNone is unknown
};

class Machine {
 public:
  explicit Machine(const ByteSet& spellable);

  Automaton& automaton() { return automaton_; }
  const Automaton& automaton() const { return automaton_; }

  NodeId start(TermId term);
  // The node at which the walk of one configuration's own automaton begins: `state` over the root frame.
  NodeId local(StateId state);
  // The node of some configurations; those that are finished are replaced by what follows their return.
  NodeId node_of(std::span<const Config> configs);
  NodeId step(NodeId node, uint8_t byte);
  // The same without making anything: kNone where the transition is not known yet.
  NodeId known_step(NodeId node, uint8_t byte) const;
  // Takes the first bytes from `text`, as many as can be read at once, and returns the node after them.
  NodeId advance(NodeId node, std::string_view& text);
  // What is left of the literal that a node stands in; empty where it stands in none, or not in one alone.
  std::string_view literal(NodeId node) const;
  // Whether both go to the same node by `byte`, as far as that shows without making it.
  bool same_step(NodeId one, NodeId other, uint8_t byte) const;
  NodeId step_special(NodeId node, uint32_t token);
  std::vector<uint32_t> specials(NodeId node) const;
  // The same in groups, with the node after each.
  std::vector<std::pair<std::vector<uint32_t>, NodeId>> special_steps(NodeId node);
  // The node of both; one may be dead.
  NodeId joined(NodeId one, NodeId other);

  // The node after a token that ended here: all parts that are open have one token less, and those without any are left.
  NodeId tick(NodeId node);
  NodeId known_tick(NodeId node) const { return nodes_[node].in_budget ? nodes_[node].ticked : node; }

  // The smallest budget of tokens among the rules that a state may call; kNone: there is none.
  uint32_t least_budget(StateId state);
  // Whether single bytes complete the text within all budgets, after so many bytes that change nothing else.
  bool is_sure(NodeId node, Distance more) const;

  // Whether single bytes complete each part with a budget that is open, in all readings.
  bool is_sure_everywhere(NodeId node) const;

  // The frames of containers that configurations of the node stand in, and the node without these configurations.
  std::vector<FrameId> scopes(NodeId id) const;
  NodeId without(NodeId id, std::span<const FrameId> scopes);
  // The frames of containers that have not been read from yet.
  std::vector<FrameId> pending_scopes(NodeId id);

  const Node& operator[](NodeId id) const { return nodes_[id]; }
  std::span<const Config> configs(NodeId id) const { return lists_[nodes_[id].configs]; }
  std::span<const Config> closure(NodeId id) const { return lists_[nodes_[id].closure]; }
  std::span<const Config> entries(FrameId id) const { return lists_[frames_[id].entries]; }
  const Frame& frame(FrameId id) const { return frames_[id]; }

  void forget();  // all states, frames and nodes

  size_t size() const { return nodes_.size(); }
  size_t frame_count() const { return frames_.size(); }
  size_t bytes_used() const;

 private:
  NodeId intern(std::vector<Config>& configs);
  FrameId intern_frame(std::vector<Config>& entries, RuleId rule, Scope scope, uint32_t tokens);
  template <class IsTouched, class Remake>
  NodeId rebuilt(NodeId id, std::map<FrameId, FrameId> kept, IsTouched&& is_touched, Remake&& remake);
  std::vector<Config> enter_calls(std::span<const Config> configs);
  void remember(NodeId node, uint8_t byte, NodeId target);

  Automaton automaton_;
  ListPool<Config> lists_;
  Pages<Frame> frames_;
  Pages<Node> nodes_;
  ById<FrameId, kNone> frame_of_list_[kAllScopes];  // by scope: the same returns from within a scope and from without differ
  std::unordered_map<uint64_t, FrameId> budget_frames_;  // by list and number of tokens
  ById<NodeId, kNone> node_of_list_;
  Arena edge_lists_;  // of nodes
};

}  // namespace structgen
