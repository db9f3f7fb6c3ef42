// The planner of plain JSON Schemas: objects, arrays, constants, references, simple types, and unions of these.
//
// It makes what structgen.grammar.json_schema.planner makes, node by node, in a small part of the time; that one is
// its reference, and takes over for every schema that says more, or that is at fault.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "json_document.h"
#include "plain_terms.h"

namespace structgen {

// What a keyword is to the planner, in the order of `_KEYWORDS` in plain.py.  Keywords that are not in the table are
// annotations.
enum class Keyword : uint8_t {
  kOther,       // not plain
  kSimple,      // of strings and numbers: part of a leaf
  kIdentifier,  // plain where no reference depends on it
  kType, kNullable, kEnum, kConst, kReference, kAnyOf, kOneOf, kAllOf, kProperties, kRequired, kAdditionalProperties, kItems,
  kMinItems, kMaxItems, kUniqueItems, kAdditionalItems,
};
constexpr size_t kKeywords = 19;

// The terms that all grammars of a policy share.
struct PlainSyntax {
  enum Term : size_t {
    kOpenObject, kEndObject, kCloseObject, kOpenArray, kEndArray, kCloseArray, kComma, kColon, kAnyValue, kAnyString, kTerms,
  };
  std::array<nanobind::object, kTerms> terms;
};

struct PlainLimits {
  uint64_t cost;    // of the whole schema, as NormalForm.spend counts it
  uint32_t depth;   // of arrays and objects, and of references to references
};

class PlainPlanner {
 public:
  // keywords: a dict from names to numbers of `Keyword`.
  PlainPlanner(nanobind::dict keywords, bool reference_stands_alone, PlainSyntax syntax, PlainLimits limits);

  // Null where the schema is not plain.  O(size of what is reached).
  //   make_leaf: called with the text of a schema of simple keywords that was not met before; gives its term and whether
  //     that is as well repeated as called, or None where there is none.
  std::unique_ptr<PlainTerms> plan(const JsonDocument& document, nanobind::handle make_leaf);

 private:
  friend class PlainPlanning;
  struct Leaf {
    nanobind::object term;
    bool is_small = false;
  };
  // The leaf of a schema of simple keywords; an empty object where there is none.
  Leaf leaf(const std::string& text, nanobind::handle make_leaf);

  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, Keyword, Hash, std::equal_to<>> keywords_;
  bool reference_stands_alone_;
  PlainSyntax syntax_;
  PlainLimits limits_;
  std::unordered_map<std::string, Leaf, Hash, std::equal_to<>> leaves_;
};

}  // namespace structgen
