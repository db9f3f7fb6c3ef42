// Makes the terms of simple schemas: leaves, literals, arrays, and objects with their members in the declared order.
//
// The terms are the same as in term.py, emit/array.py and emit/object_term.py of structgen.frontends.json_schema.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/intern.h"
#include "frontends/json_schema/simple_terms.h"

namespace structgen {

// The terms that all grammars of a policy share.
struct SimpleSyntax {
  enum Term : size_t {
    kOpenObject, kEndObject, kCloseObject, kOpenArray, kEndArray, kCloseArray, kComma, kColon, kAnyValue, kAnyString, kTerms,
  };
  std::array<nanobind::object, kTerms> terms;
};

// A term of the Python side.
struct SimpleLeaf {
  enum class Size : uint8_t { kLarge, kSmall, kAtom };  // small: as well repeated as called; atom: also within a choice
  nanobind::object term;
  Size size = Size::kLarge;
};

struct SimpleEntry {
  std::string_view name;
  bool is_required;
};

// What an array or object holds, without the terms of its items or values.
struct SimpleContainer {
  uint32_t fewest = 0, most = kNone;  // items, or members
  std::vector<SimpleEntry> entries;
  std::vector<SimpleNode> regions;  // the keys of other names; kNone: all that are not among the entries
};

class SimpleEmitter {
 public:
  using Kind = SimpleTerms::Kind;

  explicit SimpleEmitter(const SimpleSyntax& syntax) : syntax_(syntax), terms_(std::make_unique<SimpleTerms>()) { shared_.fill(kNone); }

  SimpleTerms& terms() { return *terms_; }
  std::unique_ptr<SimpleTerms> take() { return std::move(terms_); }

  SimpleNode combine(Kind kind, std::span<const SimpleNode> parts, uint32_t low = 0, uint32_t high = 0);
  SimpleNode literal(std::string_view text, Kind kind = Kind::kLiteral);
  SimpleNode call(uint32_t rule) { return emit({Kind::kCall, 0, 0, rule, 0}); }
  SimpleNode shared(SimpleSyntax::Term term);
  SimpleNode add_leaf(const SimpleLeaf& leaf);
  // The term of no text.
  SimpleNode nothing();
  bool is_nothing(SimpleNode node) const { return node == nothing_; }
  // Any one of the terms, each once.
  SimpleNode either(std::span<const SimpleNode> terms);
  // The terms of containers; `values`: those of the entries, then those of the regions.
  SimpleNode array_term(const SimpleContainer& container, SimpleNode item);
  SimpleNode object_term(const SimpleContainer& container, std::span<const SimpleNode> values);
  // Whether a term is as well repeated as called.
  bool is_small(SimpleNode node) const;

 private:
  // The chain of members for one number of them beyond the required ones.
  struct Chain {
    struct Tail {
      bool is_possible = false;  // to end from there
      SimpleNode more = kNone;    // what follows other members; kNone: nothing
    };
    SimpleNode first = kNone;  // what an object can hold, if it holds anything
    SimpleNode loop = kNone;   // (comma other)*; kNone: others are counted, or there are none
    std::vector<Tail> tails;  // what may follow a member, by the number of names that are decided
  };

  SimpleNode emit(SimpleTerms::Node node);
  SimpleNode sequence(std::initializer_list<SimpleNode> parts) { return combine(Kind::kSequence, {parts.begin(), parts.size()}); }
  SimpleNode choice(std::initializer_list<SimpleNode> parts) { return combine(Kind::kChoice, {parts.begin(), parts.size()}); }
  SimpleNode empty_string();
  Chain member_chain(std::span<const SimpleEntry> entries, std::span<const SimpleNode> values, SimpleNode other, const Chain* after,
                     bool is_capped, bool may_end);
  SimpleNode other_names(const std::vector<SimpleEntry>& entries);

  const SimpleSyntax& syntax_;
  std::unique_ptr<SimpleTerms> terms_;
  std::vector<SimpleNode> leaf_nodes_;
  std::array<SimpleNode, SimpleSyntax::kTerms> shared_;
  std::vector<SimpleLeaf::Size> leaf_sizes_;
  SimpleNode empty_string_ = kNone;
  SimpleNode nothing_ = kNone;
};

}  // namespace structgen
