#include "automaton/program.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <span>
#include <stdexcept>

#include "base/packed.h"

namespace structgen {

namespace {

constexpr uint32_t kMaxCodePoint = 0x10FFFF, kBeforeSurrogates = 0xD7FF, kAfterSurrogates = 0xE000;

// Makes the terms of one program.
class Run {
 public:
  Run(const Program& program, Automaton& automaton, SharedRules& shared)
      : program_(program), automaton_(automaton), terms_(automaton.terms()), shared_(shared) {}

  std::vector<TermId> all() {
    const auto first = static_cast<RuleId>(terms_.rule_count());
    for (const std::string& name : program_.rules) terms_.add_rule(name);
    made_.resize(program_.instructions.size());
    make_literals();
    for (size_t i = 0; i < made_.size(); ++i) {
      const Instruction& one = program_.instructions[i];
      const bool is_literal = one.kind == Instruction::Kind::kLiteral;
      const uint64_t parts = is_literal ? (one.end - one.begin) / kBytesAStep : one.end - one.begin;
      automaton_.meter().work(kInstructionSteps + parts, "making the terms of a grammar");
      if (!is_literal) made_[i] = make(one, first);
    }
    return std::move(made_);
  }

 private:
  static constexpr size_t kFetched = 64;  // literals for which memory is fetched at once
  static constexpr uint64_t kInstructionSteps = 20, kBytesAStep = 16;

  // Literals depend on nothing, so that none needs to wait for the memory of another.
  void make_literals() {
    struct Literal {
      size_t instruction;
      uint64_t hash;
      uint32_t blob;
    };
    std::vector<Literal> batch;
    const auto text = [&](const Literal& one) {
      const Instruction& instruction = program_.instructions[one.instruction];
      return std::string_view(program_.text).substr(instruction.begin, instruction.end - instruction.begin);
    };
    for (size_t i = 0; i < made_.size() || !batch.empty(); ++i) {
      if (i < made_.size() && program_.instructions[i].kind == Instruction::Kind::kLiteral) {
        batch.push_back({i, 0, kNone});
        batch.back().hash = terms_.prefetch_blob(text(batch.back()));
      }
      if (batch.size() < kFetched && i < made_.size()) continue;
      for (Literal& one : batch)
        one.blob = spelled(program_.instructions[one.instruction].decoded, [&] { return terms_.literal_blob(text(one), one.hash); });
      for (const Literal& one : batch) made_[one.instruction] = one.blob == kNone ? kEmptyTerm : terms_.literal_rest(one.blob, 0);
      batch.clear();
    }
  }

  TermId make(const Instruction& one, RuleId first_rule) {
    using Kind = Instruction::Kind;
    const std::span<const uint32_t> operands{program_.operands.data() + one.begin, one.end - one.begin};
    switch (one.kind) {
      case Kind::kLiteral: break;  // made already
      case Kind::kBytes: {
        ByteSet set;
        for (const auto& [low, high] : ranges(one)) set |= ByteSet::range(low, high);
        return spelled(one.decoded, [&] { return terms_.bytes(set); });
      }
      case Kind::kChars: return spelled(one.decoded, [&] { return terms_.chars(ranges(one)); });
      case Kind::kSpecial: return terms_.special(one.low);
      case Kind::kTokens: return terms_.token_set(ranges(one));
      case Kind::kSequence: return terms_.sequence(parts(operands));
      case Kind::kChoice: return terms_.choice(parts(operands));
      case Kind::kRepeat: return terms_.repeat(made_[operands[0]], one.low, one.high);
      case Kind::kPermutation: return permutation(one, operands);
      case Kind::kAnd: return automaton_.conjunction(operands.empty() ? std::vector{any_text(one.decoded)} : parts(operands));
      case Kind::kNot: return automaton_.conjunction({any_text(one.decoded), automaton_.negation(made_[operands[0]])});
      case Kind::kJsonString: {
        const TermId quote = spelled(false, [&] { return terms_.literal("\""); });
        return terms_.sequence(quote, terms_.sequence(automaton_.json(made_[operands[0]]), quote));
      }
      case Kind::kCall: return terms_.call(first_rule + one.low);
      case Kind::kSetRule: terms_.set_rule(first_rule + one.low, made_[operands[0]]); return kEmptyTerm;
      case Kind::kShare: return terms_.call(shared_rule(shared_.plain, made_[operands[0]]).first);
      case Kind::kScope: return scoped(made_[operands[0]], static_cast<Scope>(one.low));
      case Kind::kTempered: {
        const Scope scope = terms_.temperature_scope(std::bit_cast<double>(uint64_t{one.high} << 32 | one.low));
        const auto [rule, is_new] = shared_rule(shared_.scoped[static_cast<size_t>(scope)], made_[operands[0]]);
        if (is_new) terms_.set_scope(rule, scope);
        return terms_.call(rule);
      }
      case Kind::kBudget: return budgeted(made_[operands[0]], one.low);
      case Kind::kTerm: return one.low;
    }
    return kEmptyTerm;
  }

  std::span<const CodePoints> ranges(const Instruction& one) const {
    return {program_.ranges.data() + one.begin, one.end - one.begin};
  }
  std::vector<TermId> parts(std::span<const uint32_t> operands) const {
    std::vector<TermId> terms;
    terms.reserve(operands.size());
    for (uint32_t operand : operands) terms.push_back(made_[operand]);
    return terms;
  }
  TermId permutation(const Instruction& one, std::span<const uint32_t> operands) {
    std::vector<std::pair<TermId, bool>> items;
    for (size_t i = 0; i + 2 < operands.size(); ++i) items.emplace_back(made_[operands[i]], i < one.required);
    return terms_.permutation(made_[operands.back()], made_[operands[operands.size() - 2]], items, one.low, one.high);
  }
  // Symbols keep to the bytes that tokens can write, unless they are decoded text.
  template <class Make>
  TermId spelled(bool decoded, Make&& symbol) {
    terms_.restrict(!decoded);
    const TermId term = symbol();
    terms_.restrict(false);
    return term;
  }
  TermId any_text(bool decoded) {
    constexpr CodePoints all[] = {{0, kBeforeSurrogates}, {kAfterSurrogates, kMaxCodePoint}};
    return terms_.repeat(spelled(decoded, [&] { return terms_.chars(all); }), 0, kNone);
  }
  // The rule of a body, and whether it is new.
  std::pair<RuleId, bool> shared_rule(std::unordered_map<TermId, RuleId>& rules, TermId body) {
    const auto [slot, is_new] = rules.try_emplace(body, 0);
    if (is_new) {
      slot->second = terms_.add_rule("");
      terms_.set_rule(slot->second, body);
    }
    return {slot->second, is_new};
  }
  TermId scoped(TermId item, Scope scope) {
    if (is_label(scope) && !shared_.has_labels) return kEmptyTerm;
    if (terms_.distance(item) == 0) throw std::domain_error("the item of a distinct term or label may be empty");
    const auto [rule, is_new] = shared_rule(shared_.scoped[static_cast<size_t>(scope)], item);
    if (is_new) terms_.set_scope(rule, scope);
    return terms_.call(rule);
  }

  TermId budgeted(TermId item, uint32_t tokens) {
    if (tokens == 0 && terms_.distance(item) != kUnsolved) return terms_.distance(item) == 0 ? kEpsilonTerm : kEmptyTerm;
    const auto [slot, is_new] = shared_.budgets.try_emplace(uint64_t{item} << 32 | tokens, 0);
    if (is_new) {
      slot->second = terms_.add_rule("");
      terms_.set_rule(slot->second, item);
      terms_.set_budget(slot->second, tokens);
    }
    return terms_.call(slot->second);
  }

  const Program& program_;
  Automaton& automaton_;
  TermStore& terms_;
  SharedRules& shared_;
  std::vector<TermId> made_;
};

constexpr size_t kInstructionWords = 6;

// Whether the parts of an instruction are there, those that it takes as operands made before it.
bool is_sound(const Program& program, size_t index) {
  using Kind = Instruction::Kind;
  const Instruction& one = program.instructions[index];
  if (one.begin > one.end) return false;
  const size_t count = one.end - one.begin;
  switch (one.kind) {
    case Kind::kLiteral: return one.end <= program.text.size();
    case Kind::kBytes:
    case Kind::kChars: {
      if (one.end > program.ranges.size()) return false;
      const uint32_t max = one.kind == Kind::kBytes ? 0xFF : kMaxCodePoint;
      for (uint32_t i = one.begin; i < one.end; ++i)
        if (program.ranges[i].first > program.ranges[i].second || program.ranges[i].second > max) return false;
      return true;
    }
    case Kind::kCall: return one.low < program.rules.size();
    case Kind::kSpecial:
    case Kind::kTokens:
    case Kind::kTerm: return false;
    default: break;
  }
  if (one.end > program.operands.size()) return false;
  for (uint32_t i = one.begin; i < one.end; ++i)
    if (program.operands[i] >= index) return false;
  switch (one.kind) {
    case Kind::kSequence:
    case Kind::kChoice:
    case Kind::kAnd: return true;
    case Kind::kRepeat: return count == 1 && one.low <= one.high;
    case Kind::kPermutation: return count >= 2 && one.required <= count - 2 && one.low <= one.high;
    case Kind::kSetRule: return count == 1 && one.low < program.rules.size();
    case Kind::kScope: return count == 1 && one.low < kScopes;
    case Kind::kNot:
    case Kind::kJsonString:
    case Kind::kTempered:
    case Kind::kBudget:
    case Kind::kShare: return count == 1;
    default: return false;
  }
}

bool is_sound(const Program& program) {
  std::vector<bool> is_set(program.rules.size());
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (!is_sound(program, i)) return false;
    const Instruction& one = program.instructions[i];
    if (one.kind != Instruction::Kind::kSetRule) continue;
    if (is_set[one.low]) return false;
    is_set[one.low] = true;
  }
  return program.result < program.instructions.size() && std::ranges::all_of(is_set, std::identity());
}

}  // namespace

uint32_t Program::splice(const Program& other) {
  using Kind = Instruction::Kind;
  const auto first = static_cast<uint32_t>(instructions.size()), first_rule = static_cast<uint32_t>(rules.size()),
             first_range = static_cast<uint32_t>(ranges.size()), first_byte = static_cast<uint32_t>(text.size()),
             first_operand = static_cast<uint32_t>(operands.size());
  rules.insert(rules.end(), other.rules.begin(), other.rules.end());
  ranges.insert(ranges.end(), other.ranges.begin(), other.ranges.end());
  for (uint32_t operand : other.operands) operands.push_back(first + operand);
  text += other.text;
  for (Instruction one : other.instructions) {
    const bool is_set = one.kind == Kind::kSetRule;
    const bool has_ranges = one.kind == Kind::kBytes || one.kind == Kind::kChars || one.kind == Kind::kTokens;
    const uint32_t moved = one.kind == Kind::kLiteral ? first_byte : has_ranges ? first_range : first_operand;
    one.begin += moved;
    one.end += moved;
    if (is_set || one.kind == Kind::kCall) one.low += first_rule;
    instructions.push_back(one);
  }
  return first + other.result;
}

std::string pack(const Program& program) {
  if (!is_sound(program)) throw std::invalid_argument("a program that names terms or tokens cannot be packed");
  std::vector<uint32_t> words = {program.result}, ranges, ends;
  for (const Instruction& one : program.instructions)
    words.insert(words.end(), {static_cast<uint32_t>(one.kind) | uint32_t{one.decoded} << 8, one.begin, one.end, one.low, one.high, one.required});
  for (const auto& [low, high] : program.ranges) ranges.insert(ranges.end(), {low, high});
  std::vector<char> names;
  for (const std::string& name : program.rules) {
    names.insert(names.end(), name.begin(), name.end());
    ends.push_back(static_cast<uint32_t>(names.size()));
  }
  std::string out;
  put(out, words);
  put(out, program.operands);
  put(out, std::vector<char>(program.text.begin(), program.text.end()));
  put(out, ranges);
  put(out, names);
  put(out, ends);
  return out;
}

Program unpack(std::string_view data) {
  std::vector<uint32_t> words, ranges, ends;
  std::vector<char> text, names;
  Program program;
  take(data, words);
  take(data, program.operands);
  take(data, text);
  take(data, ranges);
  take(data, names);
  take(data, ends);
  const std::invalid_argument damaged("the program is damaged");
  if (!data.empty() || words.size() % kInstructionWords != 1 || ranges.size() % 2 != 0) throw damaged;
  program.result = words[0];
  for (size_t i = 1; i < words.size(); i += kInstructionWords) {
    const uint32_t kind = words[i] & 0xFF;
    if (kind > static_cast<uint32_t>(Instruction::Kind::kTerm) || words[i] >> 9 != 0) throw damaged;
    program.instructions.push_back({.kind = static_cast<Instruction::Kind>(kind), .decoded = (words[i] >> 8 & 1) != 0, .begin = words[i + 1],
                                    .end = words[i + 2], .low = words[i + 3], .high = words[i + 4], .required = words[i + 5]});
  }
  program.text.assign(text.begin(), text.end());
  for (size_t i = 0; i < ranges.size(); i += 2) program.ranges.emplace_back(ranges[i], ranges[i + 1]);
  uint32_t begin = 0;
  for (uint32_t end : ends) {
    if (end < begin || end > names.size()) throw damaged;
    program.rules.emplace_back(names.begin() + begin, names.begin() + end);
    begin = end;
  }
  if (!is_sound(program)) throw damaged;
  return program;
}

std::vector<TermId> run(const Program& program, Automaton& automaton, SharedRules& shared) {
  return Run(program, automaton, shared).all();
}

}  // namespace structgen
