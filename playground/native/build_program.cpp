#include "build_program.h"

namespace structgen {

uint32_t ProgramBuilder::emit(Instruction instruction, std::span<const uint32_t> parts) {
  auto& operands = program_.operands;
  if (!parts.empty()) {
    instruction.begin = static_cast<uint32_t>(operands.size());
    operands.insert(operands.end(), parts.begin(), parts.end());
    instruction.end = static_cast<uint32_t>(operands.size());
  }
  program_.instructions.push_back(instruction);
  return static_cast<uint32_t>(program_.instructions.size() - 1);
}

uint32_t ProgramBuilder::literal(std::string_view text, bool decoded) {
  const auto begin = static_cast<uint32_t>(program_.text.size());
  program_.text += text;
  return emit({.kind = Kind::kLiteral, .decoded = decoded, .begin = begin, .end = static_cast<uint32_t>(program_.text.size())});
}

uint32_t ProgramBuilder::ranges(Kind kind, std::span<const CodePoints> ranges, bool decoded) {
  const auto begin = static_cast<uint32_t>(program_.ranges.size());
  program_.ranges.insert(program_.ranges.end(), ranges.begin(), ranges.end());
  return emit({.kind = kind, .decoded = decoded, .begin = begin, .end = static_cast<uint32_t>(program_.ranges.size())});
}

uint32_t ProgramBuilder::any_character(bool decoded) {
  constexpr CodePoints kAll[] = {{0, 0xD7FF}, {0xE000, 0x10FFFF}};
  return ranges(Kind::kChars, kAll, decoded);
}

uint32_t ProgramBuilder::splice(const Program& other, bool decoded) {
  const size_t first = program_.instructions.size();
  const uint32_t result = program_.splice(other);
  for (size_t i = first; decoded && i < program_.instructions.size(); ++i) {
    Instruction& one = program_.instructions[i];
    const bool may_be_decoded = one.kind == Kind::kLiteral || one.kind == Kind::kBytes || one.kind == Kind::kChars || one.kind == Kind::kAnd || one.kind == Kind::kNot;
    one.decoded |= may_be_decoded;
  }
  return result;
}

Program simple_program(const SimpleTerms& terms) {
  using Kind = Instruction::Kind;
  ProgramBuilder builder;
  Program rules;  // their names come first, so that calls know their numbers
  for (const auto& [name, body] : terms.rules) rules.rules.push_back(name);
  builder.splice(rules);
  std::unordered_map<const void*, uint32_t> leaves;
  std::vector<uint32_t> made, parts;
  made.reserve(terms.nodes.size());
  for (const SimpleTerms::Node& node : terms.nodes) {
    parts.clear();
    if (node.kind != SimpleTerms::Kind::kLeaf && node.kind != SimpleTerms::Kind::kLiteral && node.kind != SimpleTerms::Kind::kName)
      for (SimpleNode part : terms.parts_of(node)) parts.push_back(made[part]);
    switch (node.kind) {
      case SimpleTerms::Kind::kLeaf: {
        const void* leaf = terms.leaves[node.low].native();
        const auto [known, is_new] = leaves.try_emplace(leaf, 0);
        if (is_new) known->second = builder.splice(*static_cast<const Program*>(leaf));
        made.push_back(known->second);
        break;
      }
      case SimpleTerms::Kind::kLiteral: made.push_back(builder.literal(terms.text_of(node))); break;
      case SimpleTerms::Kind::kName: made.push_back(builder.literal(terms.text_of(node), true)); break;
      case SimpleTerms::Kind::kSequence: made.push_back(builder.emit({.kind = Kind::kSequence}, parts)); break;
      case SimpleTerms::Kind::kChoice: made.push_back(builder.emit({.kind = Kind::kChoice}, parts)); break;
      case SimpleTerms::Kind::kRepeat: made.push_back(builder.emit({.kind = Kind::kRepeat, .low = node.low, .high = node.high}, parts)); break;
      case SimpleTerms::Kind::kCall: made.push_back(builder.emit({.kind = Kind::kCall, .low = node.low})); break;
      case SimpleTerms::Kind::kDistinct: made.push_back(builder.emit({.kind = Kind::kScope, .low = node.low}, parts)); break;
      case SimpleTerms::Kind::kPermutation: made.push_back(builder.emit({.kind = Kind::kPermutation, .low = node.low, .high = node.high}, parts)); break;
      case SimpleTerms::Kind::kOtherNames:
        made.push_back(builder.json_string(builder.emit({.kind = Kind::kNot, .decoded = true}, {builder.choice(parts)})));
        break;
    }
  }
  for (uint32_t rule = 0; rule < terms.rules.size(); ++rule) builder.emit({.kind = Kind::kSetRule, .low = rule}, {made[terms.rules[rule].body]});
  return builder.take(made[terms.result]);
}

}  // namespace structgen
