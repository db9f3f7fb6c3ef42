// Labels of host names beside the automaton: see distinct.h and label.h.
#include <algorithm>

#include "masks/engine.h"
#include "scopes/distinct.h"
#include "scopes/label.h"

namespace structgen {

namespace {

constexpr std::string_view kPrefix = "xn--";
constexpr const char* kJudging = "judging labels";
constexpr uint64_t kJudgeSteps = 100;  // of work
constexpr uint16_t kAlphanumeric = kLower | kUpper | kDigit;

char small(uint8_t byte) { return static_cast<char>(byte >= 'A' && byte <= 'Z' ? byte | 0x20 : byte); }

// A label as it is kept: what is decoded, then an escape of JSON that is not complete.
struct Parts {
  std::string_view text, escape;
};

Parts parts_of(std::string_view label) {
  const size_t at = std::min(label.find('\\'), label.size());
  return {label.substr(0, at), label.substr(at)};
}

std::string escape_of(uint32_t code) {
  std::string escape = "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) escape.push_back("0123456789abcdef"[code >> shift & 15]);
  return escape;
}

// The characters that an escape may still spell: its first and last one.
std::pair<uint32_t, uint32_t> spelled_by(std::string_view escape) {
  uint32_t low = 0, high = 0xFFFF;
  int shift = 12;
  for (char digit : escape.substr(std::min<size_t>(escape.size(), 2))) {
    const auto small_digit = static_cast<uint32_t>(digit | 0x20);
    const uint32_t value = digit <= '9' ? static_cast<uint32_t>(digit - '0') : small_digit - 'a' + 10;
    low |= value << shift;
    high = low | ((uint32_t{1} << shift) - 1);
    shift -= 4;
  }
  return {low, high};
}

bool is_whole(std::string_view escape) { return escape.size() == 6; }

bool is_label_code(uint32_t code) { return code < 0x80 && is_label_byte(static_cast<uint8_t>(code)); }

bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

size_t letters_of(std::string_view label) {  // that have begun
  return static_cast<size_t>(std::count_if(label.begin(), label.end(), [](char byte) { return !is_continuation(byte); }));
}

Direction direction_of(Scope scope) { return scope == Scope::kBidiLabel ? Direction::kBidi : Direction::kLeftToRight; }

std::string_view after_prefix(std::string_view label) { return label.substr(std::min(label.size(), kPrefix.size())); }

bool may_end(std::string_view label, Scope scope) {
  return scope == Scope::kLetterLabel || is_a_label(after_prefix(parts_of(label).text), direction_of(scope));
}

// Whether what ends a label may be spelled so: one of the four full stops.
bool spells_end(uint32_t low, uint32_t high) {
  constexpr uint32_t kStops[] = {0x2E, 0x3002, 0xFF0E, 0xFF61};
  return std::any_of(std::begin(kStops), std::end(kStops), [&](uint32_t stop) { return stop >= low && stop <= high; });
}

void append_letter(std::string& text, uint32_t code) {
  text.push_back(static_cast<char>(0xC0 | code >> 6));
  text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
}

// A letter, in an A-label, by which an escape can be completed, and what completes the label after it.
std::optional<std::pair<char, std::string>> letter_and_rest(const Parts& parts, Direction direction) {
  const auto [low, high] = spelled_by(parts.escape);
  for (uint32_t code = std::max<uint32_t>(low, '-'); code <= std::min<uint32_t>(high, 'z'); ++code) {
    if (!is_label_code(code)) continue;
    std::string text(parts.text);
    text.push_back(small(static_cast<uint8_t>(code)));
    if (text.size() <= kPrefix.size()) {
      if (!kPrefix.starts_with(text)) continue;
      return std::pair{static_cast<char>(code), std::string(kPrefix.substr(text.size())) + *a_label_rest("", direction)};
    }
    if (auto rest = a_label_rest(after_prefix(text), direction)) return std::pair{static_cast<char>(code), std::move(*rest)};
  }
  return std::nullopt;
}

// Calls visit(frame, scope) for the labels that configurations of a node stand in.
template <class Visit>
void for_each_label(const Machine& machine, NodeId node, Visit&& visit) {
  const auto held = machine.configs(node);
  const std::vector<Config> configs(held.begin(), held.end());  // for `visit` may make some
  for (const auto& [state, frame] : configs)
    if (const Scope scope = machine.frame(frame).scope; is_label(scope)) visit(frame, scope);
}

// Whether `holds(scope)` for all of them that can read a byte of `next`; each kind is queried once.
template <class Holds>
bool all_labels(const Machine& machine, NodeId node, const ByteSet& next, Holds&& holds) {
  bool is_met[kScopes] = {};
  for (const auto& [state, frame] : machine.configs(node))
    if (!(machine.automaton()[state].live & next).empty()) is_met[static_cast<size_t>(machine.frame(frame).scope)] = true;
  for (Scope scope : {Scope::kLabel, Scope::kBidiLabel, Scope::kLetterLabel})
    if (is_met[static_cast<size_t>(scope)] && !holds(scope)) return false;
  return true;
}

}  // namespace

// Whether an escape that is open in a label can be completed.
bool Distinct::may_escape(const std::string& label, Scope scope) {
  const Parts parts = parts_of(label);
  const auto [low, high] = spelled_by(parts.escape);
  if (spells_end(low, high) && may_end(label, scope)) return true;
  if (scope != Scope::kLetterLabel) {
    for (uint32_t code = std::max<uint32_t>(low, '-'); code <= std::min<uint32_t>(high, 'z'); ++code) {
      if (!is_label_code(code)) continue;
      const std::string longer = std::string(parts.text) + small(static_cast<uint8_t>(code));
      if (longer.size() <= kPrefix.size() ? kPrefix.starts_with(longer)
                                          : longer.size() <= kPrefix.size() + kFreeLabel || a_label_goes_on(after_prefix(longer), direction_of(scope)))
        return true;
    }
    return false;
  }
  if (letters_of(parts.text) < kFreeLetters) return true;
  const bool is_greek = static_cast<uint8_t>(parts.text[0]) < 0xD0;
  for (uint32_t code = std::max(low, is_greek ? 0x380u : 0x400u); code <= std::min(high, is_greek ? 0x3FFu : 0x4FFu); ++code) {
    std::string longer(parts.text);
    append_letter(longer, code);
    if (is_letter(code) && u_label_fits(longer)) return true;
  }
  return false;
}

// Whether a label can go on or end, `node` being that after its last byte.
bool Distinct::may_go_on(const std::string& label, NodeId node, Scope scope) {
  if (!parts_of(label).escape.empty()) return may_escape(label, scope);
  if (scope != Scope::kLetterLabel)
    return label.size() <= kPrefix.size() + kFreeLabel || a_label_goes_on(after_prefix(label), direction_of(scope));
  if (letters_of(label) <= kFreeLetters) return true;
  if (is_continuation(label.back())) return u_label_fits(label);
  Machine& machine = engine_.machine();
  const ByteSet live = machine[node].live;
  for (unsigned byte = live.next(0x80); byte < 0xC0; byte = live.next(byte + 1))
    if (machine[machine.step(node, static_cast<uint8_t>(byte))].in_label && u_label_fits(label + static_cast<char>(byte))) return true;
  return false;
}

// Drops the configurations inside labels for which `holds(scope)` is not true.
template <class Holds>
bool Distinct::keep_labels(Position& at, Holds&& holds) {
  const Machine& machine = engine_.machine();
  if (all_labels(machine, at.node, ByteSet::all(), holds)) return true;
  std::vector<FrameId> lost;
  for_each_label(machine, at.node, [&](FrameId frame, Scope scope) {
    if (!holds(scope)) lost.push_back(frame);
  });
  return drop(at, lost);
}

bool Distinct::end_label(Position& at) {
  const std::string label = at.label;
  return keep_labels(at, [&](Scope scope) { return may_end(label, scope); });
}

bool Distinct::is_end(const std::string& label, uint8_t byte) {
  std::string escape(parts_of(label).escape);
  if (escape.empty()) return byte != '\\' && !is_label_byte(byte);
  escape.push_back(static_cast<char>(byte));
  return is_whole(escape) && !is_label_code(spelled_by(escape).first);
}

bool Distinct::read_label(Position& at, uint8_t byte) {
  const bool is_escaped = byte == '\\' || !parts_of(at.label).escape.empty();
  at.label.push_back(is_escaped ? static_cast<char>(byte) : small(byte));
  if (const std::string escape(parts_of(at.label).escape); is_whole(escape)) {
    const uint32_t code = spelled_by(escape).first;
    at.label.resize(at.label.size() - escape.size());
    if (is_label_code(code)) at.label.push_back(small(static_cast<uint8_t>(code)));
    else append_letter(at.label, code);
  }
  const std::string label = at.label;
  return keep_labels(at, [&, node = at.node](Scope scope) { return may_go_on(label, node, scope); });
}

// What completes an open A-label, then the rest as the machine has it.
std::optional<std::vector<int64_t>> Distinct::label_completion(const Position& start) {
  const Trial trial(scopes_);
  std::optional<std::vector<int64_t>> found;
  for_each_label(engine_.machine(), start.node, [&](FrameId, Scope scope) {
    if (found || scope == Scope::kLetterLabel) return;
    const Parts parts = parts_of(start.label);
    std::string rest;
    if (parts.escape.empty()) {
      const auto tail = a_label_rest(after_prefix(parts.text), direction_of(scope));
      if (!tail) return;
      rest = std::string(kPrefix.substr(std::min(parts.text.size(), kPrefix.size()))) + *tail;
    } else {
      const auto found_letter = letter_and_rest(parts, direction_of(scope));
      if (!found_letter) return;
      rest = escape_of(static_cast<uint8_t>(found_letter->first)).substr(parts.escape.size()) + found_letter->second;
    }
    Position at = start;
    if (!step(at, rest)) return;
    found.emplace();
    for (char byte : rest) found->push_back(static_cast<uint8_t>(byte));
    const std::vector<int64_t> straight = engine_.shortest_completion(at.node);
    found->insert(found->end(), straight.begin(), straight.end());
  });
  return found;
}

std::vector<uint32_t> Distinct::doubtful(const Position& start) {
  Machine& machine = engine_.machine();
  std::vector<uint32_t> found;
  if (!machine[start.node].in_label) return found;
  const Trie& all = engine_.tokens().trie();
  if (!parts_of(start.label).escape.empty()) {  // few tokens go on with it
    for (uint32_t node = 1; node < all.size(); node = all.end[node])
      if (machine.step(start.node, all.byte[node]) != kDeadNode) found.push_back(node);
    return found;
  }
  const bool is_encoded = is_label_byte(static_cast<uint8_t>(start.label[0]));
  const size_t free_size = is_encoded ? kPrefix.size() + kFreeLabel : 2 * kFreeLetters;
  const auto all_hold = [&](NodeId node, const ByteSet& next, auto&& holds) {
    machine.automaton().meter().work(kJudgeSteps, kJudging);
    return all_labels(machine, node, next, holds);
  };
  std::vector<NodeId> path(all.max_depth + 1u);
  path[0] = start.node;
  std::string label = start.label;
  for (uint32_t node = 1; node < all.size();) {
    machine.automaton().meter().work(1, kJudging);
    const uint32_t depth = all.depth[node];
    const uint8_t byte = all.byte[node];
    const NodeId before = path[depth - 1], here = machine.step(before, byte);
    path[depth] = here;
    label.resize(start.label.size() + depth - 1);
    bool walks_on = false;
    if (byte == '\\') {
      if (here != kDeadNode) found.push_back(node);
    } else if (machine[here].in_label) {
      label.push_back(small(byte));
      // Where no token ends within a character, the whole one is judged.
      const bool is_passed = label.size() <= free_size || (byte >= 0xC0 && all.tokens_at(node).empty());
      if (!is_passed && !all_hold(here, ByteSet::all(), [&](Scope scope) { return may_go_on(label, here, scope); })) {
        found.push_back(node);
      } else {
        const bool may_meet_end = is_encoded && (all.groups[node] & ~kAlphanumeric) != 0;
        walks_on = may_meet_end || label.size() + all.height[node] > free_size;
      }
    } else if (here != kDeadNode && is_encoded && !is_label_byte(byte) &&
               !all_hold(before, ByteSet::range(byte, byte), [&](Scope scope) { return may_end(label, scope); })) {
      found.push_back(node);
    }
    node = walks_on ? node + 1 : all.end[node];
  }
  return found;
}

const std::vector<uint32_t>& Distinct::label_openers() {
  if (label_openers_) return *label_openers_;
  label_openers_.emplace();
  for (uint32_t token = 0; token < engine_.tokens().size(); ++token) {
    const std::string_view text = engine_.tokens().token(token);
    // Perhaps many letters, which are bytes beyond ASCII, or a label in escapes.
    const auto letters = static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char byte) { return static_cast<uint8_t>(byte) >= 0x80; }));
    bool opens = letters > 2 * kFreeLetters || (text.size() > kPrefix.size() + 5 && text.find("\\u") != std::string_view::npos);
    for (size_t at = text.find("--", 2); at != std::string_view::npos && !opens; at = text.find("--", at + 1))
      opens = small(static_cast<uint8_t>(text[at - 2])) == 'x' && small(static_cast<uint8_t>(text[at - 1])) == 'n';
    if (opens) label_openers_->push_back(token);
  }
  return *label_openers_;
}

// The bytes of a token after what belongs to a label are spelled anew where that is another one.
uint32_t Distinct::label_slack() {
  if (label_slack_) return *label_slack_;
  size_t longest_tail = 0;
  const auto belongs = [](char byte) { return is_label_byte(static_cast<uint8_t>(byte)); };
  for (uint32_t token = 0; token < engine_.tokens().size(); ++token) {
    const std::string_view text = engine_.tokens().token(token);
    const auto first = std::find_if(text.begin(), text.end(), belongs);
    longest_tail = std::max(longest_tail, static_cast<size_t>(text.end() - std::find_if_not(first, text.end(), belongs)));
  }
  label_slack_ = static_cast<uint32_t>(kLongestRest + longest_tail);
  return *label_slack_;
}

}  // namespace structgen
