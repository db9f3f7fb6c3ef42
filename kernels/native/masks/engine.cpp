#include "masks/counted.h"
#include "masks/dense_walk.h"
#include "masks/traverse.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <tuple>

namespace structgen {

Engine::Engine(std::shared_ptr<const TokenTrie> tokens, uint32_t vocabulary_size)
    : tokens_(std::move(tokens)),
      vocabulary_size_(vocabulary_size),
      machine_(tokens_->byte_complete() ? tokens_->alone() : ByteSet::all()),
      distinct_(*this) {
  tries_.emplace_back();
  shared_rules_.has_labels = byte_complete();
}

Engine::~Engine() = default;

namespace {

constexpr size_t kLarge = size_t{8} << 20;  // bytes that take a while to free

// Empties containers.  Where they are large a thread of its own frees them, since the engine's lock is held.
template <class... Container>
void let_go(size_t bytes, Container&... containers) {
  auto held = std::make_unique<std::tuple<Container...>>();
  std::apply([&](auto&... own) { (std::swap(own, containers), ...); }, *held);
  if (bytes < kLarge) return;
  try {
    std::thread([held = std::move(held)] {}).detach();
  } catch (const std::system_error&) {  // no thread can be had: they are freed here
  }
}

}  // namespace

uint64_t Engine::next_epoch() {
  static std::atomic<uint64_t> count = 0;
  return ++count;
}

void Engine::dispose(Engine* engine) {
  std::unique_ptr<Engine> owned(engine);
  if (engine->bytes_used() < kLarge) return;
  // What others share, such as an object of Python, is let go here; the rest is this engine's alone.
  const auto tokens = std::move(engine->tokens_);
  try {
    std::thread([engine] { delete engine; }).detach();
    static_cast<void>(owned.release());
  } catch (const std::system_error&) {  // no thread can be had: it is deleted here
  }
}

void Engine::prefetch(const Plan& plan) const {
  for (uint32_t i = 0; i < plan.count; ++i) plan_rows_[plan.begin + i]->prefetch();
}

void Engine::write(const Plan& plan, uint32_t* words) const {
  if (plan.count == 0) {
    std::memset(words, 0, size_t{this->words()} * 4);
    return;
  }
  plan_rows_[plan.begin]->write(words, this->words());
  for (uint32_t i = 1; i < plan.count; ++i) plan_rows_[plan.begin + i]->merge(words);
}

bool Engine::try_fill(NodeId node, uint32_t* words) const {
  const Plan* plan = find_plan(node);
  if (plan) write(*plan, words);
  return plan != nullptr;
}

void Engine::fill(NodeId node, uint32_t* words, uint64_t fuel) {
  if (!byte_complete()) {  // a byte sequence that can be completed may still have no tokens that do
    fill_within(node, words, kNone - 1, fuel);
    return;
  }
  if (try_fill(node, words)) return;
  if (!keeps_budgets(node)) {
    fill_completable(node, words, fuel);
    return;
  }
  make_plan(node);
  write(plans_[node], words);
}

void Engine::make_plan(NodeId node) {
  if (find_plan(node)) return;
  std::vector<const Row*> rows;
  uint64_t missing = 0;  // bytes, each a token, that complete the text after any of the mask's tokens
  traverse(node, [&](TrieId trie, StateId state, FrameId frame) -> const Row& {
    const Row& made = row(trie, state);
    if (made.empty()) return made;
    rows.push_back(&made);
    missing = std::max<uint64_t>(missing, add(made.missing, machine_.frame(frame).distance));
    return made;
  });
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  std::stable_partition(rows.begin(), rows.end(), [](const Row* held) { return held->mask != nullptr; });
  Plan& plan = plans_.at(node);
  plan.begin = static_cast<uint32_t>(plan_rows_.size());
  plan.count = static_cast<uint32_t>(rows.size());
  if (missing < kFar) plan.room = static_cast<uint32_t>(missing) + 1;
  for (const Row* held : rows) plan_rows_.push_back(held);
  cache_bytes_ += sizeof(Plan) + rows.size() * sizeof(rows[0]);
}

void Engine::trim(size_t maximum) {
  machine_.automaton().trim();
  if (cache_bytes_ > maximum) drop_rows();
}

void Engine::drop_rows() {
  // Rows name residual tries and lists of exits, so all go together.
  let_go(cache_bytes_, reaches_, plans_, plan_rows_, own_rows_, row_lists_, rows_, count_tables_, class_masks_, exit_lists_,
         begun_, residuals_, tries_, trie_table_);
  tries_.emplace_back();
  cache_bytes_ = 0;
  rows_epoch_ = next_epoch();
}

void Engine::forget() {
  machine_.forget();
  distinct_.forget();
  drop_rows();
  frame_plans_.clear();
  exact_.clear();
  searched_.clear();
  within_budgets_.clear();
  spare_tokens_.clear();
  completable_.clear();
  path_steps_.clear();
  planned_.clear();
  leaps_.clear();
  absorptions_.clear();
  epoch_ = next_epoch();
}

bool Engine::may_go_beyond(NodeId end, std::string_view text) {
  const Trie& all = tokens_->trie();
  uint32_t position = 0;
  for (char byte : text) {
    const uint32_t parent = position;
    position = parent + 1;
    while (position < all.end[parent] && all.byte[position] != static_cast<uint8_t>(byte)) position = all.end[position];
    if (position >= all.end[parent]) return false;
  }
  std::vector<NodeId> path(all.max_depth + 1u);
  path[all.depth[position]] = end;
  for (uint32_t node = position + 1; node < all.end[position];) {
    const NodeId here = machine_.step(path[all.depth[node] - 1u], all.byte[node]);
    if (here == kDeadNode) {
      node = all.end[node];
      continue;
    }
    if (!all.tokens_at(node).empty()) return true;
    path[all.depth[node]] = here;
    ++node;
  }
  return false;
}

NodeId Engine::known_step_token(NodeId node, uint32_t token) const {
  if (machine_[node].has_token_sets) return kNone;
  NodeId next = node;
  for (char byte : tokens_->token(token)) {
    next = machine_.known_step(next, static_cast<uint8_t>(byte));
    if (next == kDeadNode) break;
    if (next == kNone) {
      const NodeId* known = leaps_.find(uint64_t{node} << 32 | token);
      next = known ? *known : kNone;
      break;
    }
  }
  return next == kNone ? kNone : machine_.known_tick(next);
}

NodeId Engine::step_token(NodeId node, uint32_t token) {
  const NodeId read = read_token(node, token);
  return machine_.tick(machine_[node].has_token_sets ? machine_.joined(read, machine_.step_special(node, token)) : read);
}

NodeId Engine::step_special(NodeId node, uint32_t token) { return machine_.tick(machine_.step_special(node, token)); }

NodeId Engine::read_token(NodeId node, uint32_t token) {
  const uint64_t key = uint64_t{node} << 32 | token;
  if (const NodeId* known = leaps_.find(key)) return *known;
  bool leaps = false;
  for (std::string_view text = tokens_->token(token); !text.empty();) {
    const size_t before = text.size();
    node = machine_.advance(node, text);
    if (node == kDeadNode) return node;
    leaps |= before > text.size() + 1;
  }
  if (leaps) leaps_.insert(key, node);
  return node;
}

}  // namespace structgen
