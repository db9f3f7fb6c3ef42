// Values that must differ: how a position reads on, searches for a completion, and the corrections of a mask.
#include "scopes/distinct.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <unordered_set>

#include "masks/engine.h"

namespace structgen {

namespace {

constexpr size_t kKnownWays = 4;
constexpr uint32_t kMaxMade = UINT32_MAX - 1'000;  // steps of a search, which are numbered
constexpr uint64_t kByteSteps = 8;  // of work, for a byte that is read

bool is_space(char byte) { return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r'; }
bool may_follow_value(char byte) { return byte == ',' || byte == ']' || byte == '}' || byte == ':' || is_space(byte); }

bool in_scalar(const JsonLexer& lexer) { return lexer.mode == LexMode::kString || lexer.mode == LexMode::kNumber; }

void clear(std::span<const uint32_t> tokens, uint32_t* words) {
  for (uint32_t token : tokens) words[token >> 5] &= ~(uint32_t{1} << (token & 31));
}

}  // namespace

Distinct::Distinct(Engine& engine) : engine_(engine) {}

std::string Distinct::key(const Position& at) const {
  std::string key(reinterpret_cast<const char*>(&at.node), sizeof at.node);
  key += at.label;
  key.push_back('.');
  return key + scopes_.key(at.lexer);
}

bool Distinct::drop(Position& at, std::span<const FrameId> scopes) {
  at.node = engine_.machine().without(at.node, scopes);
  const Node& left = engine_.machine()[at.node];
  if (!left.in_scope) at.lexer = {};
  if (!left.in_label) at.label.clear();
  return at.node != kDeadNode;
}

bool Distinct::handle(Position& at, JsonScopes::Event event) {
  if (event == JsonScopes::Event::kNothing) return true;
  if (event == JsonScopes::Event::kRepeatedItem) {
    const std::vector<FrameId> scopes = scopes_.level(at.lexer.level).scopes;
    return drop(at, scopes);
  }
  std::vector<FrameId> scopes;
  for (LevelId id = at.lexer.level; id != kNone; id = scopes_.level(id).below)
    scopes.insert(scopes.end(), scopes_.level(id).scopes.begin(), scopes_.level(id).scopes.end());
  return drop(at, scopes);
}

// A scope that could begin here must do so at an opening bracket that the lexer takes for one.
void Distinct::check_entry(const Position& at, bool opens) {
  if (!at.lexer.active()) return;
  for (FrameId frame : engine_.machine().pending_scopes(at.node)) {
    bool known = !opens;
    for (LevelId id = at.lexer.level; id != kNone && !known; id = scopes_.level(id).below) {
      const auto& held = scopes_.level(id).scopes;
      known = std::find(held.begin(), held.end(), frame) != held.end();
    }
    if (known) throw LimitError("readings", 1, "deciding where a value without repetition begins");
  }
}

bool Distinct::step(Position& at, uint8_t byte) {
  Machine& machine = engine_.machine();
  machine.automaton().meter().work(kByteSteps, "looking for values that occur twice");
  if (at.lexer.mode == LexMode::kNumber && !is_number_byte(byte) && !handle(at, scopes_.end_number(at.lexer))) return false;
  if (!at.label.empty() && is_end(at.label, byte) && !end_label(at)) return false;
  const bool is_bracket = byte == '[' || byte == '{';
  const bool opens = is_bracket && at.lexer.mode <= LexMode::kAfter;
  if (is_bracket) check_entry(at, opens);
  at.node = machine.step(at.node, byte);
  if (!machine[at.node].in_label) at.label.clear();
  else if (!read_label(at, byte)) return false;
  if (at.node == kDeadNode) return false;
  if (!machine[at.node].in_scope) {
    if (at.lexer.active()) at.lexer = {};
    return true;
  }
  if (opens) {
    std::vector<FrameId> scopes = machine.scopes(at.node);
    for (LevelId id = at.lexer.level; id != kNone; id = scopes_.level(id).below)
      for (FrameId held : scopes_.level(id).scopes) std::erase(scopes, held);
    scopes_.open(at.lexer, byte == '{', std::move(scopes));
    return true;
  }
  if (!at.lexer.active()) throw LimitError("readings", 1, "deciding where a value without repetition begins");
  return handle(at, scopes_.read(at.lexer, byte));
}

bool Distinct::step(Position& at, std::string_view text) {
  for (char byte : text)
    if (!step(at, static_cast<uint8_t>(byte))) return false;
  return true;
}

bool Distinct::read_token(Position& at, uint32_t token) {
  if (token >= engine_.tokens().size()) return false;
  const std::string_view text = engine_.tokens().token(token);
  if (!text.empty()) return step(at, text);
  at.node = engine_.machine().step_special(at.node, token);
  if (!engine_.machine()[at.node].in_scope) at.lexer = {};
  at.label.clear();  // none holds a special token
  return at.node != kDeadNode;
}

bool Distinct::step_token(Position& at, uint32_t token) { return read_token(at, token) && count_token(at); }

// Whether what the machine knows does not settle that the text can be completed.
bool Distinct::is_uncertain(const Position& at, bool thorough, std::vector<ValueId>& targets) const {
  return scopes_.may_repeat(at.lexer, targets) || thorough;
}

// The way to the nearest position that is certain, or to the end: best first by missing bytes.
std::optional<std::vector<int64_t>> Distinct::search(const Position& start, Goal goal, Effort effort) {
  struct Visit {
    Position at;
    uint32_t parent, length;
    int64_t symbol;
  };
  struct Entry {  // small: there are millions
    uint64_t rank;
    uint32_t age;  // ties go by age, so that a plateau is searched breadth first
    uint32_t parent;
    int32_t symbol;
    bool operator>(const Entry& other) const { return std::pair(rank, age) > std::pair(other.rank, other.age); }
  };
  if (auto known = label_completion(start); known && leads(start, *known, goal, effort)) return known;
  const Trial trial(scopes_);
  Machine& machine = engine_.machine();
  std::vector<Visit> visits{{start, kNone, 0, 0}};
  std::unordered_set<std::string> seen{key(start)};
  std::priority_queue<Entry, std::deque<Entry>, std::greater<>> queue;  // a vector would have twice as much room
  std::vector<ValueId> targets;
  uint32_t made = 0;
  for (uint32_t current = 0;;) {
    const Position at = visits[current].at;
    const bool done = machine[at.node].accepting || (goal == Goal::kSafe && !is_uncertain(at, effort.thorough, targets));
    if (done) {
      std::vector<int64_t> way;
      for (uint32_t i = current; visits[i].parent != kNone; i = visits[i].parent) way.push_back(visits[i].symbol);
      std::reverse(way.begin(), way.end());
      return way;
    }
    const auto push = [&](int64_t symbol, NodeId next) {
      if (next == kDeadNode) return;
      const uint64_t rank = uint64_t{machine[next].distance} << 32 | (visits[current].length + 1);
      queue.push({rank, made++, current, static_cast<int32_t>(symbol)});
    };
    const ByteSet live = machine[at.node].live;
    live.for_each([&](uint8_t byte) { push(byte, machine.step(at.node, byte)); });
    for (uint32_t token : machine.specials(at.node)) push(-1 - static_cast<int64_t>(token), machine.step_special(at.node, token));
    if (made > effort.fuel || made >= kMaxMade) throw LimitError("distance_steps", effort.fuel, "searching a completion without repetition");
    for (;;) {
      if (queue.empty()) return std::nullopt;
      const Entry entry = queue.top();
      queue.pop();
      Position next = visits[entry.parent].at;
      const bool alive = entry.symbol < 0 ? read_token(next, static_cast<uint32_t>(-1 - entry.symbol))
                                          : step(next, static_cast<uint8_t>(entry.symbol));
      if (!alive || !seen.insert(key(next)).second) continue;
      visits.push_back({std::move(next), entry.parent, visits[entry.parent].length + 1, entry.symbol});
      current = static_cast<uint32_t>(visits.size() - 1);
      break;
    }
  }
}

bool Distinct::leads(const Position& start, std::span<const int64_t> symbols, Goal goal, Effort effort) {
  const Trial trial(scopes_);
  Position at = start;
  std::vector<ValueId> targets;
  for (int64_t symbol : symbols) {
    if (!(symbol < 0 ? read_token(at, static_cast<uint32_t>(-1 - symbol)) : step(at, static_cast<uint8_t>(symbol)))) return false;
    if (goal == Goal::kSafe && !is_uncertain(at, effort.thorough, targets)) return true;
  }
  return engine_.machine()[at.node].accepting;
}

const std::vector<int64_t>* Distinct::way(const Position& at, Goal goal, Effort effort) {
  auto& known = ways_[static_cast<size_t>(goal)];
  for (size_t i = known.size(); i-- > 0;) {
    if (!leads(at, known[i], goal, effort)) continue;
    std::rotate(known.begin() + static_cast<std::ptrdiff_t>(i), known.begin() + static_cast<std::ptrdiff_t>(i) + 1, known.end());
    return &known.back();
  }
  auto found = search(at, goal, effort);
  if (!found) return nullptr;
  if (known.size() == kKnownWays) known.erase(known.begin());
  known.push_back(std::move(*found));
  return &known.back();
}

std::optional<std::vector<int64_t>> Distinct::completion(const Position& at, uint64_t fuel) {
  std::vector<int64_t> straight = engine_.shortest_completion(at.node);
  if (leads(at, straight, Goal::kEnd, {true, true, true, fuel})) return straight;
  return search(at, Goal::kEnd, {true, true, true, fuel});
}

bool Distinct::completable(const Position& at, Effort effort) {
  if (engine_.machine()[at.node].accepting) return true;
  if (!engine_.byte_complete()) return shortest(at, effort.fuel).has_value();
  std::vector<ValueId> targets;
  return !is_uncertain(at, effort.thorough, targets) || way(at, Goal::kSafe, effort) != nullptr;
}

const Distinct::Lists& Distinct::lists() {
  if (lists_) return *lists_;
  lists_ = std::make_unique<Lists>();
  for (uint32_t token = 0; token < engine_.tokens().size(); ++token) {
    const std::string_view text = engine_.tokens().token(token);
    bool string = false, number = false, opener = false, open = false;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool goes_on = i + 1 < text.size() && may_follow_value(text[i + 1]);
      string |= goes_on && text[i] == '"';
      number |= goes_on && (is_number_byte(static_cast<uint8_t>(text[i])));
      opener |= open && text[i] == ',';
      open |= text[i] == '[' || text[i] == '{';
    }
    if (string) lists_->strings.push_back(token);
    if (number) lists_->numbers.push_back(token);
    if (opener) lists_->openers.push_back(token);
  }
  return *lists_;
}

// Whether all ways to read the text so far are within a JSON string.
bool Distinct::in_string(NodeId node) const {
  Automaton& automaton = engine_.machine().automaton();
  return std::ranges::all_of(engine_.machine().closure(node), [&](const Config& at) { return automaton.in_string(at.first); });
}

uint32_t Distinct::correct(const Position& start, uint32_t* words, Effort effort, bool measure) {
  Machine& machine = engine_.machine();
  const Trie& all = engine_.tokens().trie();
  uint32_t farthest = 0;
  const Trial trial(scopes_);
  std::vector<ValueId> targets;
  std::unordered_map<std::string, bool> outcomes;
  // Whether an uncertain position can be completed.
  const auto can_end = [&](const Position& at) {
    if (machine[at.node].accepting && !measure) return true;
    const auto [slot, is_new] = outcomes.emplace(key(at), false);
    if (is_new) {
      const auto* found = way(at, measure ? Goal::kEnd : Goal::kSafe, effort);
      slot->second = found != nullptr;
      if (found) farthest = std::max(farthest, static_cast<uint32_t>(found->size()));
    }
    return slot->second;
  };
  const auto walks_on = [&](const Position& at, bool uncertain) {  // where a token may still meet a repetition
    return effort.thorough || (at.lexer.active() && (uncertain || !in_scalar(at.lexer)));
  };
  struct Step {
    Position at;
    std::optional<ByteSet> wanted;  // other bytes lead nowhere that matters
  };
  const auto prepared = [&](Position at) {
    Step step{std::move(at), std::nullopt};
    if (!effort.thorough && in_scalar(step.at.lexer)) step.wanted = scopes_.towards(step.at.lexer, targets);
    return step;
  };
  const bool uncertain = is_uncertain(start, effort.thorough, targets);
  if (walks_on(start, uncertain) || start.lexer.mode == LexMode::kNumber) {
    std::vector<Step> path(all.max_depth + 1u);
    path[0] = prepared(start);
    for (uint32_t node = 1; node < all.size();) {
      const uint32_t end = all.end[node];
      const Step& before = path[all.depth[node] - 1u];
      const uint8_t byte = all.byte[node];
      if ((before.wanted && !before.wanted->contains(byte)) || machine.step(before.at.node, byte) == kDeadNode) {
        node = end;
        continue;
      }
      Position next = before.at;
      bool alive = step(next, byte);
      const bool open = alive && is_uncertain(next, effort.thorough, targets);
      if (open) alive = can_end(next);
      if (!alive) clear(std::span(all.tokens).subspan(all.token_begin[node], all.token_begin[end] - all.token_begin[node]), words);
      if (!alive || !walks_on(next, open)) {
        node = end;
        continue;
      }
      path[all.depth[node]] = prepared(std::move(next));
      ++node;
    }
  }
  if (effort.thorough) {
    for (uint32_t token : machine.specials(start.node)) {
      Position next = start;
      if (!step_token(next, token) || !can_end(next)) clear(std::span(&token, 1), words);
    }
    return farthest;
  }
  const bool inside = in_string(start.node);  // and nothing begins before a quote
  const auto try_each = [&](std::span<const uint32_t> tokens) {
    for (uint32_t token : tokens) {
      if (!(words[token >> 5] >> (token & 31) & 1)) continue;
      if (inside && engine_.tokens().token(token).find('"') == std::string_view::npos) continue;
      Position next = start;
      if (!step_token(next, token) || (is_uncertain(next, false, targets) && !can_end(next))) clear(std::span(&token, 1), words);
    }
  };
  if (start.lexer.active()) {
    try_each(lists().strings);
    if (start.lexer.mode != LexMode::kString) try_each(lists().numbers);
  }
  if (effort.has_containers) try_each(lists().openers);
  if (!effort.has_labels) return farthest;
  try_each(label_openers());
  for (uint32_t node : doubtful(start))
    try_each(std::span(all.tokens).subspan(all.token_begin[node], all.token_begin[all.end[node]] - all.token_begin[node]));
  return farthest;
}

ByteSet Distinct::live(const Position& at, Effort effort, unsigned enough) {
  const Trial trial(scopes_);
  ByteSet found;
  unsigned count = 0;
  engine_.machine()[at.node].live.for_each([&](uint8_t byte) {
    if (count >= enough) return;
    Position next = at;
    if (!step(next, byte) || !completable(next, effort)) return;
    found.insert(byte);
    ++count;
  });
  return found;
}

}  // namespace structgen
