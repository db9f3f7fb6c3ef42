// The planner of plain JSON Schemas: objects, arrays, constants, references, simple types, unions and conjunctions.
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
#include "plain_reading.h"
#include "plain_terms.h"

namespace structgen {

// The terms that all grammars of a policy share.
struct PlainSyntax {
  enum Term : size_t {
    kOpenObject, kEndObject, kCloseObject, kOpenArray, kEndArray, kCloseArray, kComma, kColon, kAnyValue, kAnyString, kTerms,
  };
  std::array<nanobind::object, kTerms> terms;
};

class PlainPlanner {
 public:
  // keywords: a dict from names to numbers of `Keyword`.
  PlainPlanner(nanobind::dict keywords, bool reference_stands_alone, PlainSyntax syntax, PlainLimits limits);

  // Null where the schema is not plain.  O(size of what is reached).
  //   make_leaf: called with the text of a schema of simple keywords that was not met before; gives its term, whether
  //     that is as well repeated as called, and whether it is a choice; or None where there is none.  Its method
  //     `excluded` tells which constants such a schema excludes, as `values` reads them; None where it is refused.
  //   helper: its method `whole` does the same for constants and conjunctions of simple keywords; `names` tells the names
  //     of objects apart by patterns, or gives None where these are refused.
  std::unique_ptr<PlainTerms> plan(const JsonDocument& document, nanobind::handle make_leaf, nanobind::handle helper);

 private:
  friend class PlainPlanning;
  enum class LeafSize : uint8_t { kLarge, kSmall, kAtom };  // small: as well repeated as called; atom: also within a choice
  struct Leaf {
    nanobind::object term;
    LeafSize size = LeafSize::kLarge;
  };
  // Which of several patterns names match.
  struct Names {
    struct Region {
      std::vector<uint32_t> matched;
      nanobind::object key;  // the texts of the names of the region
    };
    std::vector<std::vector<uint32_t>> matched;  // by declared names
    std::vector<Region> regions;                 // of all others
  };
  // The leaf of a schema of simple keywords; an empty object where there is none.
  Leaf leaf(const std::string& text, nanobind::handle make_leaf);
  // The same of the names of a schema with patterns; null where there are none.
  std::shared_ptr<const Names> names(const std::string& text, nanobind::handle make_names);

  PlainDialect dialect_;
  PlainSyntax syntax_;
  PlainLimits limits_;
  std::unordered_map<std::string, Leaf, PlainDialect::Hash, std::equal_to<>> leaves_;
  std::unordered_map<std::string, std::shared_ptr<const Names>> names_;
};

}  // namespace structgen
