// What the planner of simple schemas leaves to others: the terms of simple types and constants, and names with patterns.
//
// The reference is structgen.frontends.json_schema.native_parts.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "build_program.h"
#include "decimal.h"
#include "frontends/json_schema/json_document.h"
#include "languages.h"
#include "library.h"

namespace structgen {

class Leaves {
 public:
  // `draft`: as the library names it.
  Leaves(const Library& library, std::string draft) : library_(library), draft_(std::move(draft)) {}

  // The term of a schema of simple keywords, as SimplePlanner wants it; None where it is refused.
  nanobind::object term(const std::string& text);
  // The indices of the constants of a list that a schema of simple keywords excludes; None where it is refused.
  nanobind::object excluded(const std::string& text, const std::string& constants);
  // Whether a conjunction of strings and numbers is proved to have no values; None where it is refused.
  nanobind::object empty(const std::string& text);
  // Which patterns the names of a schema match, and the regions of other names; None where they are refused.
  nanobind::object names(const std::string& text);

  // Why something was refused first, in the words of its schema.
  struct Refusal {
    std::string keyword, problem;
    std::string member;                                         // by which the place is found: the keyword, or a name
    std::vector<std::pair<std::string, std::string>> members;  // with the sources of their values, of that schema
  };
  std::optional<Refusal> refusal;
  std::optional<Refusal> contradiction;  // likewise, why there are no values somewhere

 private:
  // A scalar constant.
  struct Constant {
    JsonKind kind;
    std::string written, text;  // the latter of strings
    std::optional<Decimal> number;
  };
  // What the simple keywords of one schema, or of several together, say.
  struct Leaf {
    bool null = true, boolean = true, integer = true, fraction = true, string = true, array = true, object = true;
    uint32_t fewest = 0, most = kNone;  // characters
    std::vector<std::string> patterns, formats;
    Interval numbers;
    std::optional<std::vector<Constant>> constants;
    std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> outside;  // patterns and formats that do not all hold
    std::vector<Constant> others;                                                        // what no value equals

    bool has_strings() const { return fewest > 0 || most != kNone || !patterns.empty() || !formats.empty() || !outside.empty() || !others.empty(); }
    bool has_numbers() const { return !numbers.is_free() || !others.empty(); }
  };

  bool refuse(std::string_view keyword, std::string problem, std::string_view member = {});
  void contradict(std::string_view keyword, std::string problem, std::string_view member);
  bool read(const JsonDocument& document, ValueId id, Leaf& leaf);
  bool read_types(const JsonDocument& document, ValueId schema, ValueId value, Leaf& leaf);
  bool read_bound(const JsonDocument& document, ValueId schema, std::string_view name, ValueId value, Leaf& leaf);
  bool read_constants(const JsonDocument& document, std::string_view name, ValueId value, Leaf& leaf);
  bool read_constant(const JsonDocument& document, std::string_view name, ValueId value, std::vector<Constant>& out);
  bool read_negation(const JsonDocument& document, ValueId value, Leaf& leaf);
  std::optional<std::string> text_of(const JsonDocument& document, std::string_view name, ValueId value);

  // With `is_empty` nothing, since there are no values.
  std::optional<Program> made(const Leaf& leaf, bool& is_empty);
  std::optional<std::vector<bool>> admits(const Leaf& leaf);
  std::optional<Program> constants(const Leaf& leaf, bool& is_empty);
  // The languages of strings, without their length; nothing where one is refused.
  std::optional<std::vector<Program>> languages_of(const Leaf& leaf);
  bool strings(ProgramBuilder& builder, const Leaf& leaf, std::vector<uint32_t>& ways);
  bool numbers(ProgramBuilder& builder, const Leaf& leaf, std::vector<uint32_t>& ways);
  std::optional<Program> pattern(const std::string& pattern, std::string_view keyword, std::string_view member = {});
  const Program* library_program(const std::string& name) const;
  std::string in_draft(std::string_view kind, std::string_view name) const;
  Languages& languages();

  const Library& library_;
  const std::string draft_;
  std::vector<std::pair<std::string, std::string>> members_;  // of all schemas that are read for a leaf
  std::unique_ptr<Languages> languages_;
};

}  // namespace structgen
