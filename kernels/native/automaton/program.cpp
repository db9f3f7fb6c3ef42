#include "automaton/program.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "base/packed.h"

namespace structgen {

namespace {

constexpr uint8_t kDecodedBit = 0x80;  // of the kind of a packed instruction
constexpr uint32_t kMaxCodePoint = 0x10FFFF, kBeforeSurrogates = 0xD7FF, kAfterSurrogates = 0xE000;

// Makes the terms of one program.
class Run {
 public:
  Run(const Program& program, Automaton& automaton, SharedRules& shared)
      : program_(program), automaton_(automaton), terms_(automaton.terms()), shared_(shared) {}

  std::vector<TermId> all() {
    const auto first = static_cast<RuleId>(terms_.rule_count());
    for (size_t rule = 0; rule < program_.rules.size(); ++rule) {
      const RuleId added = terms_.add_rule(program_.rules[rule]);
      if (!program_.distances.empty()) terms_.expect_distance(added, program_.distances[rule]);
    }
    made_.resize(program_.instructions.size());
    reserve();
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

  void reserve() {
    // At most, but for characters and what the automaton makes: room that is never used has to be cleared, too.
    size_t terms = 0, literals = 0, choices = 0;
    for (const Instruction& one : program_.instructions) {
      literals += one.kind == Instruction::Kind::kLiteral;
      choices += one.kind == Instruction::Kind::kChoice;
      terms += one.kind == Instruction::Kind::kSequence ? std::max(one.end - one.begin, 1U) - 1 : one.kind != Instruction::Kind::kSetRule;
    }
    terms_.reserve(terms, literals, choices);
  }

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
      case Kind::kSequence: return terms_.sequence(std::span<const TermId>(scratch(operands)));
      case Kind::kChoice: return terms_.choice_of(scratch(operands));
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
  std::vector<TermId>& scratch(std::span<const uint32_t> operands) {
    scratch_.resize(operands.size());
    std::ranges::transform(operands, scratch_.begin(), [&](uint32_t operand) { return made_[operand]; });
    return scratch_;
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
  std::vector<TermId> made_, scratch_;
};

// What a packed instruction has, by its kind: parts, then numbers.
struct Form {
  enum Parts : uint8_t { kNoParts, kOne, kSome, kText, kRanges } parts = kNoParts;
  bool low = false, high = false, required = false;
};

constexpr size_t kKinds = static_cast<size_t>(Instruction::Kind::kTerm) + 1;

// Nothing where an instruction cannot be packed.
constexpr auto kForms = [] {
  using Kind = Instruction::Kind;
  std::array<std::optional<Form>, kKinds> forms;
  const auto set = [&](std::initializer_list<Kind> kinds, Form form) {
    for (Kind kind : kinds) forms[static_cast<size_t>(kind)] = form;
  };
  set({Kind::kLiteral}, {Form::kText});
  set({Kind::kBytes, Kind::kChars}, {Form::kRanges});
  set({Kind::kSequence, Kind::kChoice, Kind::kAnd}, {Form::kSome});
  set({Kind::kPermutation}, {.parts = Form::kSome, .low = true, .high = true, .required = true});
  set({Kind::kRepeat, Kind::kTempered}, {.parts = Form::kOne, .low = true, .high = true});
  set({Kind::kNot, Kind::kJsonString, Kind::kShare}, {Form::kOne});
  set({Kind::kSetRule, Kind::kScope, Kind::kBudget}, {.parts = Form::kOne, .low = true});
  set({Kind::kCall}, {.low = true});
  return forms;
}();

const Form* form_of(Instruction::Kind kind) {
  const auto index = static_cast<size_t>(kind);
  return index < kKinds && kForms[index] ? &*kForms[index] : nullptr;
}

// Whether the numbers of an instruction go together.
bool is_sound(const Instruction& one) {
  using Kind = Instruction::Kind;
  const uint32_t count = one.end - one.begin;
  switch (one.kind) {
    case Kind::kRepeat: return one.low <= one.high;
    case Kind::kPermutation: return count >= 2 && one.required <= count - 2 && one.low <= one.high;
    case Kind::kScope: return one.low < kScopes;
    default: return true;
  }
}

}  // namespace

// Packed: the numbers of instructions, operands, ranges, bytes of text, rules, and distances; the result; the rules' names;
// their distances, if there are any; for each instruction, its kind with a bit for `decoded`, its parts and numbers.  An operand is the number of instructions back to
// it, a range two differences, and a bound one more than it is, so that most numbers take a byte.  Of equal instructions
// only the first is there.
std::string pack(const Program& program, std::span<const Distance> distances) {
  const auto is_packable = [](const Instruction& one) { return form_of(one.kind) != nullptr; };
  if (!std::ranges::all_of(program.instructions, is_packable)) throw std::invalid_argument("a program that names terms or tokens cannot be packed");
  if (!distances.empty() && distances.size() != program.rules.size()) throw std::invalid_argument("a length for each rule is needed");
  std::string body, key;
  std::unordered_map<std::string, uint32_t> known;
  std::vector<uint32_t> places;
  uint32_t count = 0, operands = 0, ranges = 0, bytes = 0;
  const auto write = [&](std::string& out, const Instruction& one, uint32_t place) {
    const Form form = *form_of(one.kind);
    out.push_back(static_cast<char>(static_cast<uint8_t>(one.kind) | (one.decoded ? kDecodedBit : 0)));
    if (form.parts > Form::kOne) put_number(out, one.end - one.begin);
    if (form.parts == Form::kText) {
      out.append(program.text, one.begin, one.end - one.begin);
    } else if (form.parts == Form::kRanges) {
      uint32_t last = 0;
      for (uint32_t at = one.begin; at < one.end; ++at) {
        put_number(out, program.ranges[at].first - last);
        put_number(out, program.ranges[at].second - program.ranges[at].first);
        last = program.ranges[at].second;
      }
    } else {
      for (uint32_t at = one.begin; at < one.end; ++at) put_number(out, place - places[program.operands[at]]);
    }
    if (form.low) put_number(out, one.low);
    if (form.high) put_number(out, one.high + 1);
    if (form.required) put_number(out, one.required);
    return form.parts;
  };
  for (const Instruction& one : program.instructions) {
    key.clear();
    write(key, one, 0);
    const auto [slot, is_new] = known.try_emplace(key, count);
    places.push_back(slot->second);
    if (!is_new) continue;
    const Form::Parts parts = write(body, one, count++);
    (parts == Form::kText ? bytes : parts == Form::kRanges ? ranges : operands) += one.end - one.begin;
  }
  std::string out;
  for (const uint32_t number : {count, operands, ranges, bytes, static_cast<uint32_t>(program.rules.size()), static_cast<uint32_t>(distances.size()), places[program.result]})
    put_number(out, number);
  for (const std::string& name : program.rules) {
    put_number(out, static_cast<uint32_t>(name.size()));
    out += name;
  }
  for (const Distance distance : distances) put_number(out, distance);
  return out + body;
}

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

Program unpack(std::string_view data, uint32_t max_instructions) {
  using Kind = Instruction::Kind;
  const std::invalid_argument damaged("the program is damaged");
  PackedReader reader(data);
  uint32_t counts[6];
  for (uint32_t& count : counts) count = reader.number();
  const auto [instructions, operands, ranges, bytes, rules, distances] = counts;
  if (instructions > max_instructions) throw LimitError("grammar_nodes", max_instructions, "reading a program");
  if (std::ranges::max(counts) > reader.left()) throw damaged;  // each takes a byte at least
  if (distances != 0 && distances != rules) throw damaged;
  Program program;
  program.instructions.reserve(instructions);
  program.operands.resize(operands);
  program.ranges.reserve(ranges);
  program.text.reserve(bytes);
  program.rules.reserve(rules);
  program.distances.reserve(distances);
  program.result = reader.number();
  for (uint32_t rule = 0; rule < rules; ++rule) program.rules.emplace_back(reader.text(reader.number()));
  for (uint32_t rule = 0; rule < distances; ++rule) {
    program.distances.push_back(reader.number());
    if (program.distances.back() > kInfinite) throw damaged;
  }
  std::vector<uint8_t> nesting(instructions), is_set(rules);
  uint32_t operand = 0;
  for (uint32_t i = 0; i < instructions; ++i) {
    const auto head = static_cast<uint8_t>(reader.text(1)[0]);
    Instruction one{static_cast<Kind>(head & ~kDecodedBit), (head & kDecodedBit) != 0};
    const Form* form = form_of(one.kind);
    if (form == nullptr) throw damaged;
    const uint32_t count = form->parts == Form::kNoParts ? 0 : form->parts == Form::kOne ? 1 : reader.number();
    uint8_t inner = 0;
    if (form->parts == Form::kText) {
      one.begin = static_cast<uint32_t>(program.text.size());
      program.text += reader.text(count);
    } else if (form->parts == Form::kRanges) {
      one.begin = static_cast<uint32_t>(program.ranges.size());
      const uint32_t most = one.kind == Kind::kBytes ? 0xFF : kMaxCodePoint;
      for (uint32_t last = 0, part = 0; part < count; ++part) {
        const uint32_t low = last + reader.number();
        if (part > 0 && low <= last) throw damaged;  // terms are made of ranges in order that have nothing in common
        last = low + reader.number();
        if (low > last || last > most) throw damaged;
        program.ranges.emplace_back(low, last);
      }
    } else {
      one.begin = operand;
      if (count > operands - operand) throw damaged;
      for (uint32_t* const end = program.operands.data() + operand + count; program.operands.data() + operand != end; ++operand) {
        const uint32_t back = reader.number();
        if (back - 1 >= i) throw damaged;  // made of itself, or of what is not there
        program.operands.data()[operand] = i - back;
        inner = std::max(inner, nesting.data()[i - back]);
      }
    }
    one.end = one.begin + count;
    if (form->low) one.low = reader.number();
    if (form->high) one.high = reader.number() - 1;
    if (form->required) one.required = reader.number();
    nesting[i] = inner + is_boolean(one.kind);
    if (nesting[i] > kMaxBooleanNesting || !is_sound(one)) throw damaged;
    const bool names_rule = one.kind == Kind::kCall || one.kind == Kind::kSetRule;
    if (names_rule && (one.low >= rules || (one.kind == Kind::kSetRule && std::exchange(is_set[one.low], true)))) throw damaged;
    program.instructions.push_back(one);
  }
  if (reader.left() != 0 || program.result >= instructions || !std::ranges::all_of(is_set, std::identity())) throw damaged;
  return program;
}

bool has_expected_distances(const Program& program, const TermStore& terms, RuleId first) {
  for (size_t rule = 0; rule < program.distances.size(); ++rule)
    if (terms.distance(terms.rule_body(first + static_cast<RuleId>(rule))) != program.distances[rule]) return false;
  return true;
}

std::vector<TermId> run(const Program& program, Automaton& automaton, SharedRules& shared) {
  return Run(program, automaton, shared).all();
}

}  // namespace structgen
