// Random programs in the engine, walked: a libFuzzer target, to be built with the address and undefined-behaviour
// sanitizers (`make fuzz`).
//
// The bytes of an input are choices.  Most inputs make one or two programs in one engine and walk through one of them,
// while other matchers go elsewhere: in each state the mask agrees with accept() and validate(), masks within budgets with
// min_tokens(), trees with forks; rollback and replay lead to the masks that were there.  The other inputs are read as
// they are by the readers of packed programs, packed tries, JSON documents and Lark grammars.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "automaton/program.h"
#include "frontends/json_schema/json_document.h"
#include "frontends/lark/lark_syntax.h"
#include "masks/engine.h"
#include "masks/trie.h"
#include "matcher/matcher.h"

namespace {

using namespace structgen;
using Kind = Instruction::Kind;
using Words = std::vector<uint32_t>;

[[noreturn]] void fail(const char* what, size_t step) {
  std::fprintf(stderr, "FINDING: %s, in step %zu\n", what, step);
  std::abort();
}

class Choices {
 public:
  Choices(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint32_t below(uint32_t count) { return at_ < size_ ? data_[at_++] % count : 0; }
  bool once_in(uint32_t count) { return below(count) == count - 1; }
  std::string_view rest() const { return {reinterpret_cast<const char*>(data_ + at_), size_ - at_}; }
  bool is_over() const { return at_ >= size_; }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

constexpr std::string_view kTexts[] = {"a", "b", "ab", "abc", "\"", "\\", "[", "]", "{\"a\":", "}", ",", "\xc3\xa9", "\xe2\x82\xac", "1", "xn--a", "-", "\n", "null"};

// Makes a program.  What stands below a boolean operator or in a JSON string has no calls, as front ends see to.
class Builder {
 public:
  Builder(Choices& choices, uint32_t specials, uint32_t vocabulary) : choices_(choices), specials_(specials), vocabulary_(vocabulary) {}

  Program made() {
    const uint32_t rules = 1 + choices_.below(4);
    for (uint32_t rule = 0; rule < rules; ++rule) program_.rules.push_back("r" + std::to_string(rule));
    for (uint32_t rule = 0; rule < rules; ++rule) {
      const uint32_t body = term(1 + choices_.below(3));
      emit({.kind = Kind::kSetRule, .low = rule}, {body});
    }
    program_.result = choices_.once_in(3) ? term(2) : emit({.kind = Kind::kCall, .low = 0}, {});
    return std::move(program_);
  }

 private:
  static constexpr size_t kMost = 200;  // instructions

  uint32_t emit(Instruction one, std::vector<uint32_t> operands) {
    if (!operands.empty()) {
      one.begin = static_cast<uint32_t>(program_.operands.size());
      program_.operands.insert(program_.operands.end(), operands.begin(), operands.end());
      one.end = static_cast<uint32_t>(program_.operands.size());
    }
    program_.instructions.push_back(one);
    return static_cast<uint32_t>(program_.instructions.size() - 1);
  }
  uint32_t literal(std::string_view text, bool decoded) {
    const auto begin = static_cast<uint32_t>(program_.text.size());
    program_.text += text;
    return emit({.kind = Kind::kLiteral, .decoded = decoded, .begin = begin, .end = static_cast<uint32_t>(program_.text.size())}, {});
  }
  uint32_t ranges(Kind kind, std::vector<CodePoints> pairs, bool decoded) {
    const auto begin = static_cast<uint32_t>(program_.ranges.size());
    program_.ranges.insert(program_.ranges.end(), pairs.begin(), pairs.end());
    return emit({.kind = kind, .decoded = decoded, .begin = begin, .end = static_cast<uint32_t>(program_.ranges.size())}, {});
  }
  uint32_t leaf(bool decoded) {
    switch (choices_.below(8)) {
      case 0: return ranges(Kind::kChars, {{'a', 'a' + choices_.below(26)}}, decoded);
      case 1: return ranges(Kind::kChars, {{0, 0x21}, {0x23, 0xD7FF}, {0xE000, 0x10FFFF}}, decoded);
      case 2: return ranges(Kind::kBytes, {{'a' + choices_.below(3), 'd'}}, decoded);
      case 3: return choices_.once_in(4) ? ranges(Kind::kBytes, {{choices_.below(256), 0xFF}}, decoded) : ranges(Kind::kChars, {{'0', '9'}}, decoded);
      case 4: return literal("", decoded);
      default: return literal(kTexts[choices_.below(std::size(kTexts))], decoded);
    }
  }
  std::pair<uint32_t, uint32_t> counts() {
    const uint32_t low = choices_.below(4);
    const uint32_t more = choices_.below(6);
    return {low, more == 0 ? kNone : low + (choices_.once_in(30) ? 1000 : more - 1)};
  }
  uint32_t regular(uint32_t depth, bool decoded) {
    if (depth == 0 || choices_.is_over() || program_.instructions.size() > kMost) return leaf(decoded);
    std::vector<uint32_t> parts;
    for (uint32_t i = 0, count = 1 + choices_.below(3); i < count; ++i) parts.push_back(regular(depth - 1, decoded));
    switch (choices_.below(10)) {
      case 0: case 1: case 2: return emit({.kind = Kind::kSequence}, parts);
      case 3: case 4: return emit({.kind = Kind::kChoice}, parts);
      case 5: return repeated(parts[0]);
      case 6: return emit({.kind = Kind::kAnd, .decoded = decoded}, {parts[0], parts.back()});
      case 7: return emit({.kind = Kind::kNot, .decoded = decoded}, {parts[0]});
      case 8: return permutation(parts, decoded);
      default: return decoded ? parts[0] : json_string(depth);
    }
  }
  uint32_t json_string(uint32_t depth) { return emit({.kind = Kind::kJsonString}, {regular(depth - 1, true)}); }
  uint32_t repeated(uint32_t item) {
    const auto [low, high] = counts();
    return emit({.kind = Kind::kRepeat, .low = low, .high = high}, {item});
  }
  uint32_t permutation(std::vector<uint32_t> parts, bool decoded) {
    const auto required = choices_.below(static_cast<uint32_t>(parts.size()) + 1);
    const uint32_t low = choices_.below(3);
    const uint32_t high = choices_.below(2) == 0 ? kNone : std::max(low, required) + choices_.below(3);
    parts.push_back(choices_.below(2) == 0 ? emit({.kind = Kind::kChoice}, {}) : literal("b", decoded));  // further members
    parts.push_back(literal(choices_.below(2) == 0 ? "" : ",", decoded));
    return emit({.kind = Kind::kPermutation, .low = low, .high = high, .required = required}, parts);
  }
  // A JSON array whose items must differ, and have no budgets inside.
  uint32_t distinct(uint32_t depth) {
    const uint32_t item = choices_.below(3) == 0 ? ranges(Kind::kChars, {{'0', '2'}}, false) : json_string(1 + (depth > 1));
    const uint32_t comma = literal(",", false);
    const uint32_t more = emit({.kind = Kind::kSequence}, {comma, item});
    const auto [low, high] = counts();
    const uint32_t all = emit({.kind = Kind::kSequence}, {literal("[", false), item, emit({.kind = Kind::kRepeat, .low = low % 2, .high = high}, {more}), literal("]", false)});
    return emit({.kind = Kind::kScope, .low = static_cast<uint32_t>(Scope::kUnknown)}, {all});
  }
  uint32_t term(uint32_t depth) {
    if (depth == 0 || choices_.is_over() || program_.instructions.size() > kMost) {
      if (choices_.once_in(3)) return emit({.kind = Kind::kCall, .low = choices_.below(static_cast<uint32_t>(program_.rules.size()))}, {});
      if (choices_.once_in(9)) return emit({.kind = Kind::kSpecial, .low = specials_ + choices_.below(2)}, {});
      return leaf(false);
    }
    std::vector<uint32_t> parts;
    for (uint32_t i = 0, count = 1 + choices_.below(3); i < count; ++i) parts.push_back(term(depth - 1));
    switch (choices_.below(16)) {
      case 0: case 1: case 2: case 3: return emit({.kind = Kind::kSequence}, parts);
      case 4: case 5: case 6: return emit({.kind = Kind::kChoice}, parts);
      case 7: return repeated(parts[0]);
      case 8: return regular(depth, false);
      case 9: return json_string(depth);
      case 10: return emit({.kind = Kind::kShare}, {parts[0]});
      case 11: return permutation(parts, false);
      case 12: return with_distinct_ ? parts[0] : emit({.kind = Kind::kBudget, .low = choices_.below(6)}, {(with_budgets_ = true, parts[0])});
      case 13: {
        const auto bits = std::bit_cast<uint64_t>(0.25 * choices_.below(4));
        return emit({.kind = Kind::kTempered, .low = static_cast<uint32_t>(bits), .high = static_cast<uint32_t>(bits >> 32)}, {parts[0]});
      }
      case 14:
        if (with_distinct_) return parts[0];
        if (!with_budgets_ && choices_.below(2) == 0) return ranges(Kind::kTokens, {{1, vocabulary_ / 2}, {specials_, specials_}}, (with_tokens_ = true, false));
        return parts[0];
      default:
        if (with_budgets_ || with_tokens_ || choices_.below(4) != 0) return parts[0];  // the first are refused together
        with_distinct_ = true;
        return distinct(depth);
    }
  }

  Choices& choices_;
  uint32_t specials_, vocabulary_;
  bool with_budgets_ = false, with_distinct_ = false, with_tokens_ = false;
  Program program_;
};

struct Vocabulary {
  std::shared_ptr<const TokenTrie> trie;
  uint32_t size, specials;
};

constexpr uint32_t kEos = 0;

Vocabulary make_vocabulary(bool complete) {
  std::vector<std::string> tokens = {""};
  for (unsigned byte = 0; byte < 256; ++byte)
    if (complete || std::string_view("abcd\"\\[]{},:01u-\xc3\xa9").find(static_cast<char>(byte)) != std::string_view::npos)
      tokens.push_back(std::string(1, static_cast<char>(byte)));
  for (const char* text : {"ab", "abc", "aab", "bb", "\"a", "a\"", "\",\"", "[\"", "\"]", "\\u", "\\u00", "00e9", "\\n", "\xc3\xa9", "\xe2\x82", "\xac", "\xa9""b", "12", "0,1",
                           "aaaaaaaa", "ab", "xn--", "null", "\":", "{\"", "}}", "]]"})
    tokens.emplace_back(text);
  const auto specials = static_cast<uint32_t>(tokens.size());
  tokens.insert(tokens.end(), 2, "");
  const auto size = static_cast<uint32_t>(tokens.size());
  return {std::make_shared<TokenTrie>(tokens), size + 5, specials};
}

const Vocabulary& vocabulary(bool complete) {
  static const Vocabulary both[] = {make_vocabulary(false), make_vocabulary(true)};
  return both[complete];
}

bool has(const Words& mask, uint32_t token) { return (mask[token >> 5] >> (token & 31) & 1) != 0; }

// As the bindings compile a program; null where it is left-recursive or has no strings.
std::shared_ptr<Constraint> compiled(const std::shared_ptr<Engine>& engine, const Program& program, const Limits& limits) {
  Automaton& automaton = engine->machine().automaton();
  Meter& meter = automaton.meter();
  meter.begin(0, limits);
  automaton.set_regular_limit(limits.regular_states);
  TermStore& terms = automaton.terms();
  const auto first = static_cast<RuleId>(terms.rule_count());
  const auto made = run(program, automaton, engine->shared_rules());
  terms.solve_rules(meter.pulse);
  if (terms.left_recursive(first, meter.pulse) || terms.distance(made[program.result]) >= kInfinite) return nullptr;
  auto constraint = std::make_shared<Constraint>(engine, made[program.result], std::vector<uint32_t>{kEos}, limits);
  constraint->begin();
  return constraint;
}

class Walk {
 public:
  Walk(Choices& choices, const Vocabulary& words, std::shared_ptr<const Constraint> constraint, Limits limits)
      : choices_(choices), words_(words), constraint_(std::move(constraint)), limits_(limits), matcher_(constraint_) {}

  void go() {
    const uint32_t length = 1 + choices_.below(8);
    for (; step_ < length; ++step_) {
      const Words here = mask(matcher_);
      masks_.push_back(here);
      check_tokens(here);
      if (choices_.once_in(3)) check_budget(here);
      if (choices_.once_in(3)) check_tree(here);
      if (choices_.once_in(4)) check_forced();
      std::vector<uint32_t> allowed;
      for (uint32_t token = 1; token < words_.size; ++token)
        if (has(here, token)) allowed.push_back(token);
      if (allowed.empty()) {
        if (!matcher_.is_accepting()) fail("the mask is empty before the end", step_);
        break;
      }
      path_.push_back(allowed[choices_.below(static_cast<uint32_t>(std::min<size_t>(allowed.size(), 256)))]);
      if (!matcher_.accept(path_.back())) fail("a token of the mask is refused", step_);
      if (choices_.once_in(4)) go_back();
    }
    end();
  }

 private:
  Words mask(Matcher& matcher) const {
    Words words((words_.size + 31) / 32, UINT32_MAX);
    matcher.fill_mask(words.data());
    for (uint32_t token = words_.size; token < words.size() * 32; ++token)
      if (has(words, token)) fail("a bit beyond the vocabulary", step_);
    return words;
  }
  void check_tokens(const Words& here) {
    if (has(here, kEos) != matcher_.is_accepting()) fail("EOS is not allowed as is_accepting says", step_);
    const uint32_t first = choices_.below(256);
    const uint32_t count = words_.size < 64 ? words_.size : 24;  // of a large vocabulary, those that are allowed, and some
    for (uint32_t i = 0; i < words_.size; ++i) {
      const uint32_t token = (first + i) % words_.size;
      if (i >= count && !(has(here, token) && i < 120)) continue;
      Matcher fork(matcher_);
      if (fork.accept(token) != has(here, token)) fail("accept and the mask differ", step_);
      const uint32_t one[] = {token};
      if ((matcher_.validate(one) == 1) != has(here, token)) fail("validate and the mask differ", step_);
    }
    if (mask(matcher_) != here) fail("trying tokens changed the mask", step_);
  }
  void check_budget(const Words& here) {
    const uint32_t budget = choices_.below(7);
    Words within(here.size(), UINT32_MAX);
    matcher_.fill_mask_within(within.data(), budget);
    const bool is_needed = matcher_.needs_budget_mask(budget);
    if (!is_needed && within != here) fail("needs_budget_mask says no, and the mask differs", step_);
    for (uint32_t token = 0; token < words_.size; ++token) {
      if (has(within, token) && !has(here, token)) fail("a mask within a budget has a token against the mask", step_);
      if (token == kEos || !has(here, token) || choices_.below(4) != 0) continue;
      Matcher fork(matcher_);
      if (!fork.accept(token)) fail("a token of the mask is refused", step_);
      const uint32_t needed = fork.min_tokens();
      if (has(within, token) != (needed != kNone && needed < budget)) fail("a mask within a budget and min_tokens differ", step_);
    }
  }
  void check_tree(const Words& here) {
    Branches tree;
    for (uint32_t i = 0; i < 5; ++i) {
      uint32_t token = choices_.below(256) % words_.size;
      if (choices_.below(3) != 0)
        while (!has(here, token) && token > 0) --token;
      tree.tokens.push_back(token);
      tree.parents.push_back(static_cast<int32_t>(choices_.below(i + 1)) - 1);
    }
    Words rows(here.size() * 6, UINT32_MAX);
    const std::vector<bool> allowed = matcher_.follow_tree(tree, rows.data());
    std::vector<std::unique_ptr<Matcher>> forks;
    for (size_t i = 0; i < tree.tokens.size(); ++i) {
      Matcher* const above = tree.parents[i] < 0 ? &matcher_ : forks[static_cast<size_t>(tree.parents[i])].get();
      auto fork = above ? std::make_unique<Matcher>(*above) : nullptr;
      if (fork && !fork->accept(tree.tokens[i])) fork = nullptr;
      if (allowed[i] != (fork != nullptr)) fail("a tree and forks differ", step_);
      const Words row(rows.begin() + static_cast<ptrdiff_t>(here.size() * (i + 1)), rows.begin() + static_cast<ptrdiff_t>(here.size() * (i + 2)));
      if (row != (fork ? mask(*fork) : Words(here.size()))) fail("the row of a tree and the mask of a fork differ", step_);
      forks.push_back(std::move(fork));
    }
  }
  void check_forced() {
    const std::string forced = matcher_.forced_bytes();
    Matcher fork(matcher_);
    if (fork.accept_bytes(forced) != forced.size()) fail("forced bytes are refused", step_);
    if (!forced.empty() && matcher_.is_accepting()) fail("bytes are forced where the text may end", step_);
    const size_t starts[] = {0};
    if (!forced.empty()) matcher_.uncertain_from(forced, starts);
    matcher_.live_bytes();
    matcher_.allowed_tokens(choices_.below(9));
    matcher_.temperature();
    matcher_.mask_id();
    matcher_.rule_path();
    matcher_.shortest_completion();
  }
  void go_back() {
    const size_t count = 1 + choices_.below(static_cast<uint32_t>(path_.size()));
    matcher_.rollback(count);
    path_.resize(path_.size() - count);
    masks_.resize(path_.size() + 1);
    if (mask(matcher_) != masks_.back()) fail("rollback leads to another mask", step_);
    masks_.pop_back();
  }
  void end() {
    const Words last = mask(matcher_);
    Matcher replayed(constraint_), taken(constraint_), copied(matcher_);
    replayed.replay(matcher_);
    for (uint32_t token : path_)
      if (!taken.accept(token)) fail("a new matcher refuses the path", step_);
    if (mask(replayed) != last || mask(taken) != last || mask(copied) != last) fail("replay, or a fork, leads to another mask", step_);
    if (matcher_.is_accepting()) {
      if (!copied.accept(kEos) || !copied.is_terminated() || mask(copied) != Words(last.size())) fail("EOS does not end", step_);
      copied.rollback(1);
      if (mask(copied) != last) fail("undoing EOS leads to another mask", step_);
    }
    matcher_.reset();
    if (mask(matcher_) != (masks_.empty() ? last : masks_.front())) fail("reset leads to another mask", step_);
  }

  Choices& choices_;
  const Vocabulary& words_;
  std::shared_ptr<const Constraint> constraint_;
  Limits limits_;
  Matcher matcher_;
  std::vector<uint32_t> path_;
  std::vector<Words> masks_;  // before each token of the path, and here
  size_t step_ = 0;
};

void read_as_it_is(uint32_t reader, std::string_view data) {
  switch (reader) {
    case 0: unpack(data); return;
    case 1: TokenTrie::deserialize(data); return;
    case 2: JsonDocument::parse(std::string(data), 50); return;
    default: LarkFile::parse(std::string(data), 50); return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Choices choices(data, size);
  const uint32_t mode = choices.below(16);
  try {
    if (mode < 3) {
      read_as_it_is(choices.below(4), choices.rest());
      return 0;
    }
    const Vocabulary& words = vocabulary(choices.once_in(4));
    Limits limits;
    // Few states: the engine forgets what it has made, and matchers take it again.
    limits.states = choices.once_in(8) ? 60 : 20'000;
    limits.regular_states = 2'000;
    limits.steps = 300'000;
    limits.distance_steps = 5'000'000;  // a mask may spend a fiftieth, and is exact within that
    const auto engine = std::make_shared<Engine>(words.trie, words.size);
    std::shared_ptr<Constraint> constraint;
    for (uint32_t i = 0, count = 1 + choices.below(2); i < count; ++i) {
      const Program program = Builder(choices, words.specials, words.size).made();
      constraint = compiled(engine, program, limits);
      if (!constraint) return 0;
    }
    if (constraint->has_budgets_in_scopes() || !constraint->is_completable()) return 0;
    Walk(choices, words, constraint, limits).go();
  } catch (const LimitError&) {
  } catch (const std::invalid_argument&) {
    if (mode >= 3) throw;  // only readers refuse their input
  } catch (const std::domain_error&) {
  }
  return 0;
}
