// Programs put together from parts: what the front ends of this page make, in the form that the engine runs.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "automaton/program.h"
#include "frontends/json_schema/simple_terms.h"

namespace structgen {

class ProgramBuilder {
 public:
  using Kind = Instruction::Kind;

  uint32_t emit(Instruction instruction, std::span<const uint32_t> parts = {});
  uint32_t emit(Instruction instruction, std::initializer_list<uint32_t> parts) { return emit(instruction, std::span(parts.begin(), parts.size())); }
  uint32_t literal(std::string_view text, bool decoded = false);
  uint32_t ranges(Kind kind, std::span<const CodePoints> ranges, bool decoded = false);
  uint32_t any_character(bool decoded);
  // All of another program; `decoded`: as the value of a JSON string.
  uint32_t splice(const Program& other, bool decoded = false);
  // A JSON string with the value, as a rule that is one for all grammars.
  uint32_t json_string(uint32_t value) { return emit({.kind = Kind::kShare}, {emit({.kind = Kind::kJsonString}, {value})}); }
  uint32_t choice(std::span<const uint32_t> parts) { return parts.size() == 1 ? parts[0] : emit({.kind = Kind::kChoice}, parts); }
  Program take(uint32_t result) {
    program_.result = result;
    return std::move(program_);
  }

 private:
  Program program_;
};

// The program of the terms of a simple schema; their leaves hold programs.  The reference is Flattening::plain.
Program simple_program(const SimpleTerms& terms);

}  // namespace structgen
