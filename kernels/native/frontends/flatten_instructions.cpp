// The instructions that nodes become once their parts are made.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>
#include <string_view>

#include "frontends/flattening.h"

namespace nb = nanobind;

namespace structgen {

namespace {

constexpr uint32_t kMaxCount = std::numeric_limits<int32_t>::max();

}  // namespace

uint32_t Flattening::combined(const Frame& frame, std::span<const uint32_t> parts) {
  using Kind = Instruction::Kind;
  switch (frame.node_class) {
    case NodeClass::kSequence: return emit({.kind = Kind::kSequence}, parts);
    case NodeClass::kChoice: return emit({.kind = Kind::kChoice}, parts);
    case NodeClass::kRepeat: {
      const auto [min, max] = bounds(frame.node, "repetition count");
      return emit({.kind = Kind::kRepeat, .low = min, .high = max}, parts);
    }
    case NodeClass::kPermutation: {
      const auto [min, max] = bounds(frame.node, "number of members");
      const auto required = static_cast<uint32_t>(tuple_size(frame.items));
      return emit({.kind = Kind::kPermutation, .low = min, .high = max, .required = required}, parts);
    }
    case NodeClass::kIntersection: return emit({.kind = Kind::kAnd, .decoded = frame.mode == kDecoded}, parts);
    case NodeClass::kComplement: return emit({.kind = Kind::kNot, .decoded = frame.mode == kDecoded}, parts);
    case NodeClass::kJsonString: {
      const uint32_t instruction = emit({.kind = Kind::kJsonString}, parts);
      if (frame.mode != kText) return instruction;
      // A rule of its own: its states, and so its mask rows, do not depend on what follows the string.
      return emit({.kind = Kind::kShare}, std::span(&instruction, 1));
    }
    case NodeClass::kDistinct: {
      const auto holds = [&](const nb::object& name) { return nb::cast<bool>(nb::handle(attribute(frame.node, name))); };
      using Known = structgen::Scope;
      const Known known = holds(of_.is_spare_) ? Known::kSpare : holds(of_.is_endless_) ? Known::kEndless : Known::kUnknown;
      return emit({.kind = Kind::kScope, .low = static_cast<uint32_t>(known)}, parts);
    }
    case NodeClass::kLabel: {
      const auto kind = nb::cast<std::string>(nb::handle(attribute(frame.node, of_.kind_)));
      using Known = structgen::Scope;
      const Known scope = kind == "bidi" ? Known::kBidiLabel : kind == "u-label" ? Known::kLetterLabel : Known::kLabel;
      return emit({.kind = Kind::kScope, .low = static_cast<uint32_t>(scope)}, parts);
    }
    case NodeClass::kBudget: return budget(frame, parts[0]);
    case NodeClass::kTempered: {
      if (frame.mode != kText) return parts[0];  // of a regular part no piece has a temperature of its own
      const auto temperature = nb::cast<double>(nb::handle(attribute(frame.node, of_.temperature_)));
      const auto bits = std::bit_cast<uint64_t>(temperature);
      return emit({.kind = Kind::kTempered, .low = static_cast<uint32_t>(bits), .high = static_cast<uint32_t>(bits >> 32)}, parts);
    }
    case NodeClass::kShared: {
      if (frame.mode != kText) return parts[0];
      const uint32_t instruction = emit({.kind = Kind::kShare}, parts);
      flat_.shared.push_back({nb::borrow(frame.node), instruction, false});
      return instruction;
    }
    default: return parts.back();  // what stands for its only part, or for the body of rules
  }
}

// The texts of an item that are short enough, and those that few enough tokens write.
uint32_t Flattening::budget(const Frame& frame, uint32_t item) {
  using Kind = Instruction::Kind;
  PyObject* tokens = attribute(frame.node, of_.tokens_);
  PyObject* characters = attribute(frame.node, of_.characters_);
  if (!nb::handle(characters).is_none()) {
    const bool decoded = frame.mode == kDecoded;
    auto& ranges = flat_.program.ranges;
    const auto begin = static_cast<uint32_t>(ranges.size());
    ranges.insert(ranges.end(), {{0, 0xD7FF}, {0xE000, 0x10FFFF}});
    const uint32_t any = emit({.kind = Kind::kChars, .decoded = decoded, .begin = begin, .end = begin + 2});
    const uint32_t short_texts = emit({.kind = Kind::kRepeat, .high = count(characters, "characters of a part")}, std::span(&any, 1));
    item = emit({.kind = Kind::kAnd, .decoded = decoded}, std::array{item, short_texts});
  }
  if (nb::handle(tokens).is_none()) return item;
  return emit({.kind = Kind::kBudget, .low = count(tokens, "tokens of a part")}, std::span(&item, 1));
}

// The instruction of terms that hold no objects but for their leaves.
uint32_t Flattening::plain(const SimpleTerms& terms) {
  using Kind = Instruction::Kind;
  const auto first_rule = static_cast<uint32_t>(flat_.program.rules.size());
  for (const auto& [name, body] : terms.rules) flat_.program.rules.push_back(name);
  if (entries_.size() + terms.nodes.size() > max_nodes_) host_.attr("exceeded")("grammar_nodes", max_nodes_);
  std::vector<uint32_t> made, parts;
  made.reserve(terms.nodes.size());
  for (const SimpleTerms::Node& node : terms.nodes) {
    pulse_.beat();
    parts.clear();
    const auto take_parts = [&] {
      for (SimpleNode part : terms.parts_of(node)) parts.push_back(made[part]);
    };
    switch (node.kind) {
      case SimpleTerms::Kind::kLeaf: made.push_back(leaf(terms.leaves[node.low].ptr())); break;
      case SimpleTerms::Kind::kLiteral: made.push_back(literal(terms.text_of(node), kText)); break;
      case SimpleTerms::Kind::kName: made.push_back(literal(terms.text_of(node), kDecoded)); break;
      case SimpleTerms::Kind::kSequence: take_parts(); made.push_back(emit({.kind = Kind::kSequence}, parts)); break;
      case SimpleTerms::Kind::kChoice: take_parts(); made.push_back(emit({.kind = Kind::kChoice}, parts)); break;
      case SimpleTerms::Kind::kRepeat:
        take_parts();
        made.push_back(emit({.kind = Kind::kRepeat, .low = node.low, .high = node.high}, parts));
        break;
      case SimpleTerms::Kind::kCall: made.push_back(emit({.kind = Kind::kCall, .low = first_rule + node.low})); break;
      case SimpleTerms::Kind::kDistinct: take_parts(); made.push_back(emit({.kind = Kind::kScope, .low = node.low}, parts)); break;
      case SimpleTerms::Kind::kPermutation:
        take_parts();
        made.push_back(emit({.kind = Kind::kPermutation, .low = node.low, .high = node.high}, parts));
        break;
      case SimpleTerms::Kind::kOtherNames: take_parts(); made.push_back(other_strings(parts)); break;
    }
  }
  for (uint32_t rule = 0; rule < terms.rules.size(); ++rule)
    emit({.kind = Kind::kSetRule, .low = first_rule + rule}, std::span(&made[terms.rules[rule].body], 1));
  return made[terms.result];
}

// The instruction of a whole program that was made before.
uint32_t Flattening::spliced(const Program& other) {
  Program& program = flat_.program;
  if (entries_.size() + other.instructions.size() > max_nodes_) host_.attr("exceeded")("grammar_nodes", max_nodes_);
  const uint32_t result = program.splice(other);
  for (size_t i = boolean_nesting_.size(); i < program.instructions.size(); ++i) {
    const Instruction& one = program.instructions[i];
    boolean_nesting_.push_back(holds_instructions(one.kind) ? nesting(one) : 0);
  }
  return result;
}

// Leaves live long and many grammars use them, as they do shared nodes.
uint32_t Flattening::leaf(PyObject* node) {
  const bool is_shared = class_of(node) == NodeClass::kShared;
  if (!is_shared) {
    if (const uint32_t term = known_term(node); term != kNone) return emit({.kind = Instruction::Kind::kTerm, .low = term});
  }
  const size_t height = stack_.size();
  need(node, kNoScope, kText);
  finish_above(height);
  const uint32_t instruction = results_.back();
  results_.pop_back();
  if (!is_shared) flat_.shared.push_back({nb::borrow(node), instruction, true});
  return instruction;
}

// JSON strings whose value is none of `values`.
uint32_t Flattening::other_strings(std::span<const uint32_t> values) {
  using Kind = Instruction::Kind;
  uint32_t last = values.size() == 1 ? values[0] : emit({.kind = Kind::kChoice}, values);
  for (const Instruction& next : {Instruction{.kind = Kind::kNot, .decoded = true}, {.kind = Kind::kJsonString}, {.kind = Kind::kShare}})
    last = emit(next, std::span(&last, 1));
  return last;
}

uint32_t Flattening::literal(std::string_view data, Mode mode) {
  const auto begin = static_cast<uint32_t>(flat_.program.text.size());
  flat_.program.text += data;
  return emit({.kind = Instruction::Kind::kLiteral,
               .decoded = mode == kDecoded,
               .begin = begin,
               .end = static_cast<uint32_t>(flat_.program.text.size())});
}

uint32_t Flattening::literal(PyObject* node, Mode mode) {
  char* data = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(attribute(node, of_.data_), &data, &size) < 0) throw nb::python_error();
  return literal(std::string_view(data, static_cast<size_t>(size)), mode);
}

uint32_t Flattening::ranges_of(Instruction::Kind kind, PyObject* given, Mode mode) {
  auto& ranges = flat_.program.ranges;
  const auto begin = static_cast<uint32_t>(ranges.size());
  PyObject* pairs = tuple(given);
  for (Py_ssize_t i = 0; i < tuple_size(pairs); ++i) {
    PyObject* pair = tuple(tuple_item(pairs, static_cast<size_t>(i)));
    ranges.emplace_back(count(PyTuple_GetItem(pair, 0), "code point"), count(PyTuple_GetItem(pair, 1), "code point"));
  }
  return emit({.kind = kind, .decoded = mode == kDecoded, .begin = begin, .end = static_cast<uint32_t>(ranges.size())});
}

uint32_t Flattening::special(PyObject* node, Mode mode) {
  const nb::object token = host_.attr("special_id")(vocabulary_, nb::handle(node));
  if (token.is_none()) {  // its text stands for it
    const auto text = nb::cast<std::string>(nb::handle(node).attr("token"));
    return literal(std::string_view(text), mode);
  }
  if (mode != kText) host_.attr("special_in_regular")(nb::handle(node));
  return emit({.kind = Instruction::Kind::kSpecial, .low = nb::cast<uint32_t>(token)});
}

// The attributes `min` and `max` of a node; kNone is unbounded.
std::pair<uint32_t, uint32_t> Flattening::bounds(PyObject* node, const char* limit) const {
  PyObject* max = attribute(node, of_.max_);
  const bool unbounded = nb::handle(max).is_none();
  return {count(attribute(node, of_.min_), limit), unbounded ? kNone : count(max, limit)};
}

uint32_t Flattening::count(PyObject* number, const char* limit) const {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
  if (value == -1 && PyErr_Occurred()) throw nb::python_error();
  if (overflow != 0 || value > kMaxCount) host_.attr("exceeded")(limit, kMaxCount);
  return static_cast<uint32_t>(value);
}

// How deep boolean operators are nested in an instruction with operands.
uint8_t Flattening::nesting(const Instruction& one) const {
  uint8_t inner = 0;
  for (uint32_t i = one.begin; i < one.end; ++i) inner = std::max(inner, boolean_nesting_[flat_.program.operands[i]]);
  inner += is_boolean(one.kind);
  if (inner > kMaxBooleanNesting) host_.attr("exceeded")("boolean nesting", kMaxBooleanNesting);
  return inner;
}

uint32_t Flattening::emit(Instruction instruction, std::span<const uint32_t> parts) {
  auto& operands = flat_.program.operands;
  if (!parts.empty()) {
    instruction.begin = static_cast<uint32_t>(operands.size());
    operands.insert(operands.end(), parts.begin(), parts.end());
    instruction.end = static_cast<uint32_t>(operands.size());
  }
  boolean_nesting_.push_back(parts.empty() ? 0 : nesting(instruction));
  flat_.program.instructions.push_back(instruction);
  return static_cast<uint32_t>(flat_.program.instructions.size() - 1);
}

}  // namespace structgen
