// A grammar as a flat list of instructions; each makes a term from earlier ones.
//
// It is what the nodes of the Python side come to once names are resolved: free of Python objects, so that terms are
// made without the GIL, and free of any engine, so that one program serves several.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "automaton/automaton.h"

namespace structgen {

struct Instruction {
  enum class Kind : uint8_t {
    kLiteral,     // operands: bytes of `text`
    kBytes,       // operands: `ranges`
    kChars,       // operands: `ranges`
    kSpecial,     // low: token id
    kTokens,      // operands: `ranges`, of token ids
    kSequence,    // operands: instructions, as below
    kChoice,
    kRepeat,      // one operand, from low to high times
    kPermutation, // operands: the items, `required` of them first, then the rest and the separator; low to high members
    kAnd,         // texts that belong to all operands
    kNot,         // texts that do not belong to the operand
    kJsonString,  // JSON strings whose value belongs to the operand
    kCall,        // low: rule
    kSetRule,     // the operand becomes the body of rule low; makes no term
    kShare,       // the operand as a rule that is one for all grammars of an engine
    kScope,       // the strings of the operand that a Scope admits, as a shared rule; low: that scope
    kTempered,    // the operand as a rule with a temperature of its own: the bits of a double in `low` and `high`
    kBudget,      // the texts of the operand that at most `low` tokens write, as a shared rule
    kTerm,        // low: a term that the engine has already
  };
  Kind kind;
  bool decoded = false;  // the value of a JSON string: of any bytes, since what no token spells can be escaped
  uint32_t begin = 0, end = 0;
  uint32_t low = 0, high = 0;
  uint32_t required = 0;
};

struct Program {
  std::vector<Instruction> instructions;
  uint32_t result = 0;  // the instruction that makes the whole grammar
  std::vector<uint32_t> operands;
  std::string text;
  std::vector<CodePoints> ranges;
  std::vector<std::string> rules;  // names
  std::vector<Distance> distances;  // of the rules, as somebody says; empty: to be found

  size_t bytes() const {
    return instructions.size() * sizeof(Instruction) + operands.size() * 4 + text.size() + ranges.size() * sizeof(CodePoints);
  }
  // Appends another program; the instruction that makes what the other makes.
  uint32_t splice(const Program& other);
};

// How deep boolean operators may be nested, which bounds the engine's recursion.
constexpr uint8_t kMaxBooleanNesting = 64;
constexpr bool is_boolean(Instruction::Kind kind) {
  return kind == Instruction::Kind::kAnd || kind == Instruction::Kind::kNot || kind == Instruction::Kind::kJsonString;
}

// A program as bytes, for the same build, with the distances of its rules, or none.  Throws std::invalid_argument where it
// names terms of an engine, or tokens, or where the distances are not one for each rule.
std::string pack(const Program& program, std::span<const Distance> distances);
// The program that was packed, its boolean operators not nested too deeply.  Throws std::invalid_argument where it is
// none, and LimitError where it has too many instructions.  O(bytes), in memory too.
Program unpack(std::string_view data, uint32_t max_instructions = kNone);

// Rules that are one for all grammars of an engine, by the term of their body.
struct SharedRules {
  std::unordered_map<TermId, RuleId> plain;
  std::unordered_map<TermId, RuleId> scoped[kAllScopes];
  std::unordered_map<uint64_t, RuleId> budgets;  // by body and tokens
  // Whether tokens spell whatever completes a label; else there are none in the grammars of the engine.
  bool has_labels = false;
};

// Runs a program: the term of each instruction (kEmptyTerm for kSetRule).  O(instructions + operands), and what
// deciding the emptiness of intersections and complements takes.  Throws std::domain_error where the operand of
// kScope may be empty.
std::vector<TermId> run(const Program& program, Automaton& automaton, SharedRules& shared);
// Whether the rules, from `first` on, have the distances that the program says, once they are solved.  Where these agree
// with the bodies and no rule is left-recursive, they are right: each step from a rule to the calls in a shortest
// alternative leads to a smaller distance, or to an equal one along a left call, and so to an end.
bool has_expected_distances(const Program& program, const TermStore& terms, RuleId first);

}  // namespace structgen
