#include "program.h"

#include <span>
#include <stdexcept>

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
    made_.reserve(program_.instructions.size());
    for (const Instruction& instruction : program_.instructions) made_.push_back(make(instruction, first));
    return std::move(made_);
  }

 private:
  TermId make(const Instruction& one, RuleId first_rule) {
    using Kind = Instruction::Kind;
    const std::span<const uint32_t> operands{program_.operands.data() + one.begin, one.end - one.begin};
    switch (one.kind) {
      case Kind::kLiteral:
        return spelled(one.decoded, [&] { return terms_.literal(std::string_view(program_.text).substr(one.begin, one.end - one.begin)); });
      case Kind::kBytes: {
        ByteSet set;
        for (const auto& [low, high] : ranges(one)) set |= ByteSet::range(low, high);
        return spelled(one.decoded, [&] { return terms_.bytes(set); });
      }
      case Kind::kChars: return spelled(one.decoded, [&] { return terms_.chars(ranges(one)); });
      case Kind::kSpecial: return terms_.special(one.low);
      case Kind::kSequence: {
        TermId term = kEpsilonTerm;
        for (size_t i = operands.size(); i-- > 0;) term = terms_.sequence(made_[operands[i]], term);
        return term;
      }
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
      case Kind::kDistinct: return distinct(made_[operands[0]], static_cast<Scope>(one.low));
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
    const auto [place, is_new] = rules.try_emplace(body, 0);
    if (is_new) {
      place->second = terms_.add_rule("");
      terms_.set_rule(place->second, body);
    }
    return {place->second, is_new};
  }
  TermId distinct(TermId item, Scope scope) {
    if (terms_.distance(item) == 0) throw std::domain_error("the item of a distinct term may be empty");
    const auto [rule, is_new] = shared_rule(shared_.distinct[static_cast<size_t>(scope)], item);
    if (is_new) terms_.set_scope(rule, scope);
    return terms_.call(rule);
  }

  const Program& program_;
  Automaton& automaton_;
  TermStore& terms_;
  SharedRules& shared_;
  std::vector<TermId> made_;
};

}  // namespace

std::vector<TermId> run(const Program& program, Automaton& automaton, SharedRules& shared) {
  return Run(program, automaton, shared).all();
}

}  // namespace structgen
