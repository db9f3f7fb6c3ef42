// The planner of simple JSON Schemas: objects, arrays, constants, references, simple types, and what joins and negates them.
//
// It makes what structgen.frontends.json_schema.emit.planner makes, node by node, in a small part of the time; that is
// the reference implementation, and takes over for every schema that needs more, or that is invalid.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "frontends/json_schema/json_document.h"
#include "frontends/json_schema/simple_emit.h"
#include "frontends/json_schema/simple_reading.h"
#include "frontends/json_schema/simple_terms.h"

namespace structgen {

class SimplePlanner {
 public:
  // Which of several patterns names match.
  struct Names {
    struct Region {
      std::vector<uint32_t> matched;
      nanobind::object key;  // the texts of the names of the region
    };
    std::vector<std::vector<uint32_t>> matched;  // by declared names
    std::vector<Region> regions;                 // of all others
  };

  // keywords: a dict from names to numbers of `Keyword`.
  // closes: objects whose schemas name members, and say nothing of others, have no others.
  // requires_all: all members that schemas declare are required.
  // notation: of the arguments that schemas describe; null: they describe JSON.
  // others: names of keywords that mean nothing in the dialect, a sequence.
  SimplePlanner(nanobind::dict keywords, bool reference_stands_alone, SimpleSyntax syntax, SimpleLimits limits,
                bool closes, bool requires_all, std::unique_ptr<const SimpleNotation> notation, nanobind::handle others = {});

  // Null where the schema is not simple.  O(size of what is reached).
  //   make_leaf: called with the text of a schema of simple keywords that was not met before; returns its term, whether
  //     that is as well repeated as called, and whether it is a choice; or None where there is none.  Its method
  //     `excluded` returns which constants such a schema excludes, as `values` reads them; None where it is refused.
  //   helper: its method `whole` does the same for constants and conjunctions of simple keywords, `argument` for the
  //     values of arguments; `empty` tells whether a conjunction of strings and numbers is proved to have no values;
  //     `names` partitions the names of objects by patterns.  All return None where something is refused.
  std::unique_ptr<SimpleTerms> plan(const JsonDocument& document, nanobind::handle make_leaf, nanobind::handle helper);

 private:
  friend class SimplePlanning;
  // The leaf of a schema of simple keywords, made by a method, or by calling the maker; an empty object where there is none.
  SimpleLeaf leaf(const std::string& text, nanobind::handle maker, const char* method = nullptr, bool is_argument = false);
  // The same of the names of a schema with patterns; null where there are none.
  std::shared_ptr<const Names> names(const std::string& text, nanobind::handle make_names);

  SimpleDialect dialect_;
  SimpleSyntax syntax_;
  std::unique_ptr<const SimpleNotation> notation_;
  SimpleLimits limits_;
  bool closes_, requires_all_;
  std::unordered_map<std::string, SimpleLeaf, SimpleDialect::Hash, std::equal_to<>> leaves_, argument_leaves_;
  std::unordered_map<std::string, std::shared_ptr<const Names>> names_;
};

}  // namespace structgen
