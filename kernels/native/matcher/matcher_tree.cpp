// Trees of tokens that may follow: which of them may, and the masks after them.  Nothing is recorded in the matcher, so
// it is as before, whatever is thrown on the way.
#include <cstring>
#include <shared_mutex>

#include "base/thread_pool.h"
#include "matcher/matcher.h"

namespace structgen {

namespace {

// What the lexer holds for positions that are forgotten at the end.
class Held {
 public:
  explicit Held(Distinct& distinct) : distinct_(distinct), size_(distinct.size()) {}
  ~Held() { distinct_.release(size_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  Distinct& distinct_;
  size_t size_;
};

}  // namespace

std::vector<bool> Matcher::follow_tree(const Branches& tree, uint32_t* rows) {
  std::vector<bool> allowed(tree.tokens.size());
  const size_t words = constraint_->words();
  if (terminated_) {
    if (rows) std::memset(rows, 0, (1 + allowed.size()) * words * sizeof(uint32_t));
  } else if (constraint_->has_scope()) {
    run([&](Engine& engine) { follow_in_scopes(engine, tree, allowed, rows); });
  } else if (!follow_known(tree, allowed, rows)) {
    run([&](Engine& engine) { follow(engine, tree, allowed, rows); });
  }
  return allowed;
}

// With transitions and masks that are known, which need no exclusive access; false if one is not.
bool Matcher::follow_known(const Branches& tree, std::vector<bool>& allowed, uint32_t* rows) const {
  Engine& engine = *engine_;
  const std::shared_lock lock(engine.mutex());
  if (epoch_ != engine.epoch() || !engine.byte_complete()) return false;
  std::vector<NodeId> nodes(1 + allowed.size(), kDeadNode);  // after each token that may be followed; the first is here
  nodes[0] = node_;
  for (size_t i = 0; i < allowed.size(); ++i) {
    const NodeId before = nodes[static_cast<size_t>(tree.parents[i] + 1)];
    const uint32_t token = tree.tokens[i];
    if (before == kDeadNode) continue;
    if (constraint_->is_eos(token)) {
      allowed[i] = engine.machine()[before].accepting;
    } else if (token < engine.tokens().size()) {
      if (engine.tokens().token(token).empty()) return false;
      nodes[i + 1] = engine.known_step_token(before, token);
      if (nodes[i + 1] == kNone || (nodes[i + 1] != kDeadNode && !engine.machine().is_sure(nodes[i + 1], 0))) return false;
      allowed[i] = nodes[i + 1] != kDeadNode;
    }
  }
  if (!rows) return true;
  std::vector<const Engine::Plan*> plans(nodes.size(), nullptr);
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i] == kDeadNode) continue;
    plans[i] = engine.find_plan(nodes[i]);
    if (!plans[i]) return false;
    engine.prefetch(*plans[i]);
  }
  for (size_t i = 0; i < nodes.size(); ++i, rows += engine.words()) {
    if (plans[i]) engine.write(*plans[i], rows);
    else std::memset(rows, 0, size_t{engine.words()} * sizeof(uint32_t));
    if (plans[i] && engine.machine()[nodes[i]].accepting) add_eos(rows);
  }
  return true;
}

void Matcher::follow(Engine& engine, const Branches& tree, std::vector<bool>& allowed, uint32_t* rows) const {
  const uint64_t fuel = constraint_->limits().distance_steps;
  std::vector<NodeId> nodes(1 + allowed.size(), kDeadNode);
  nodes[0] = node_;
  const auto fill = [&](size_t i) {
    if (!rows) return;
    uint32_t* words = rows + i * engine.words();
    engine.renew_steps();
    if (nodes[i] == kDeadNode) std::memset(words, 0, size_t{engine.words()} * sizeof(uint32_t));
    else engine.fill(nodes[i], words, fuel);
    if (engine.machine()[nodes[i]].accepting) add_eos(words);
  };
  fill(0);
  for (size_t i = 0; i < allowed.size(); ++i) {
    const NodeId before = nodes[static_cast<size_t>(tree.parents[i] + 1)];
    engine.renew_steps();
    if (before == kDeadNode) {
      allowed[i] = false;  // also where this is done anew
    } else if (constraint_->is_eos(tree.tokens[i])) {
      allowed[i] = engine.machine()[before].accepting;
    } else {
      nodes[i + 1] = step(engine, before, tree.tokens[i]);
      allowed[i] = nodes[i + 1] != kDeadNode;
    }
    fill(i + 1);
  }
}

void Matcher::follow_in_scopes(Engine& engine, const Branches& tree, std::vector<bool>& allowed, uint32_t* rows) const {
  Distinct& distinct = engine.distinct();
  const Held held(distinct);
  std::vector<Position> positions(1 + allowed.size());
  positions[0] = position();
  std::vector<std::vector<uint32_t>> ways(positions.size());
  ways[0] = trace_.way;
  const auto fill = [&](size_t i) {
    if (!rows) return;
    uint32_t* words = rows + i * engine.words();
    engine.renew_steps();
    if (positions[i].node == kDeadNode) std::memset(words, 0, size_t{engine.words()} * sizeof(uint32_t));
    else fill_in_scopes(engine, positions[i], ways[i], words);
    if (engine.machine()[positions[i].node].accepting) add_eos(words);
  };
  fill(0);
  for (size_t i = 0; i < allowed.size(); ++i) {
    const auto parent = static_cast<size_t>(tree.parents[i] + 1);
    const Position& before = positions[parent];
    const uint32_t token = tree.tokens[i];
    engine.renew_steps();
    allowed[i] = false;
    if (before.node != kDeadNode && constraint_->is_eos(token)) {
      allowed[i] = engine.machine()[before.node].accepting;
    } else if (before.node != kDeadNode && token < engine.tokens().size()) {
      Position next = before;
      ways[i + 1] = ways[parent];
      allowed[i] = take(distinct, next, ways[i + 1], token);
      if (allowed[i]) positions[i + 1] = std::move(next);
    }
    fill(i + 1);
  }
}

std::vector<std::vector<bool>> follow_trees(std::span<Matcher* const> matchers, std::span<const Branches> trees, std::span<uint32_t* const> rows) {
  std::vector<std::vector<bool>> allowed(matchers.size());
  parallel_for(matchers.size(), [&](size_t i) { allowed[i] = matchers[i]->follow_tree(trees[i], rows[i]); });
  return allowed;
}

std::vector<std::optional<Matcher::After>> Matcher::after_each(std::span<const uint32_t> tokens, size_t most_of_literal) {
  return run([&](Engine& engine) {
    std::vector<std::optional<After>> found(tokens.size());
    for (size_t i = 0; i < tokens.size() && !terminated_; ++i) {
      engine.renew_steps();
      const NodeId next = step(engine, node_, tokens[i]);
      if (next == kDeadNode) continue;
      Machine& machine = engine.machine();
      std::string literal(machine.literal(next).substr(0, most_of_literal));
      NodeId end = next;
      for (std::string_view left = literal; !left.empty();) end = machine.advance(end, left);
      const uint64_t epoch = engine.epoch() << 32;
      found[i] = After{epoch | next, machine[next].accepting, machine[next].has_specials, machine[next].live, std::move(literal), epoch | end};
    }
    return found;
  });
}

bool Matcher::visit_completion(uint64_t id, const std::function<bool(uint64_t, std::string_view)>& visit) {
  return constraint_->exclusively([&](Home& here) {
    sync(here);
    if (id >> 32 != epoch_) return false;
    return here.once(static_cast<NodeId>(id), Request::kCompletion, 0, [&] {
      Machine& machine = here.engine->machine();
      NodeId node = static_cast<NodeId>(id);
      while (!machine[node].accepting) {
        std::string text(machine.literal(node));
        bool is_over = true;
        if (text.empty())
          here.engine->visit_completion(node, [&](uint64_t, int64_t symbol) {
            is_over = symbol < 0;
            if (!is_over) text.push_back(static_cast<char>(symbol));
            else visit(epoch_ << 32 | node, {});
            return false;
          });
        else is_over = false;
        if (is_over || !visit(epoch_ << 32 | node, text)) return false;
        for (std::string_view left = text; !left.empty();) node = machine.advance(node, left);
      }
      return true;
    });
  });
}

}  // namespace structgen
