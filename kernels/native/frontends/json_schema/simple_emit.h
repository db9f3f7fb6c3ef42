// Makes the terms of simple schemas: leaves, literals, arrays, and objects with their members in the declared order.
//
// The terms are the same as in term.py, emit/array.py and emit/object_term.py of structgen.frontends.json_schema.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
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

// The terms of a notation of arguments, as emit/arguments.py has it: what stands around names and values that are no JSON.
// An object without a term stands for no text.
struct SimpleNotation {
  enum Term : size_t {
    kBeforeName, kAfterName, kAfterMember, kBetween, kEnd, kAnyName, kBeforeText, kAfterText, kBeforeItem, kAfterItem, kTerms,
  };
  // Values that are written from their JSON.
  struct Written {
    uint8_t types;
    nanobind::object before, after;
  };
  std::array<nanobind::object, kTerms> terms;
  std::vector<Written> written;
  std::optional<Written> array, object;  // written with tags inside the arguments; none: as JSON
  std::string name_end;  // in no name
  std::string text_end;  // in no text
  std::optional<std::pair<std::string, std::string>> around_repeated;  // what stands around the name after a value
  bool has_entities = false;  // whether names have XML's entities
  bool strips = false;   // whether texts lose a line break at each end
};

// A term of the Python side; None: that of no text.
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

  // `notation`: of the arguments that the terms are; null: they are JSON.
  explicit SimpleEmitter(const SimpleSyntax& syntax, const SimpleNotation* notation = nullptr)
      : syntax_(syntax), notation_(notation), terms_(std::make_unique<SimpleTerms>()) {
    shared_.fill(kNone);
    noted_.fill(kNone);
    terms_->nodes.reserve(kUsualNodes);
    terms_->parts.reserve(2 * kUsualNodes);
    terms_->leaves.reserve(kUsualLeaves);
    leaf_nodes_.reserve(kUsualLeaves);
    leaf_sizes_.reserve(kUsualLeaves);
  }

  SimpleTerms& terms() { return *terms_; }
  std::unique_ptr<SimpleTerms> take() { return std::move(terms_); }

  SimpleNode combine(Kind kind, std::span<const SimpleNode> parts, uint32_t low = 0, uint32_t high = 0);
  SimpleNode literal(std::string_view text, Kind kind = Kind::kLiteral);
  SimpleNode call(uint32_t rule) { return emit({Kind::kCall, 0, 0, rule, 0}); }
  SimpleNode shared(SimpleSyntax::Term term);
  SimpleNode add_leaf(const SimpleLeaf& leaf);
  // The term of no text, and that of the empty one.
  SimpleNode nothing();
  SimpleNode empty_string();
  bool is_nothing(SimpleNode node) const { return node == nothing_; }
  // Any one of the terms, each once.
  SimpleNode either(std::span<const SimpleNode> terms);
  // The terms of containers; `values`: those of the entries, then those of the regions.
  SimpleNode array_term(const SimpleContainer& container, SimpleNode item);
  SimpleNode array_of_values(const SimpleContainer& container, std::span<const std::string> texts);  // each at most once
  // Arrays without equal items; at most one is required.
  SimpleNode distinct(SimpleNode array);
  SimpleNode object_term(const SimpleContainer& container, std::span<const SimpleNode> values);
  // The same in the notation.
  SimpleNode items_term(const SimpleContainer& container, SimpleNode item);
  SimpleNode arguments_term(const SimpleContainer& container, std::span<const SimpleNode> values);
  // A value between two terms of the notation.
  SimpleNode written(const nanobind::object& before, SimpleNode value, const nanobind::object& after);
  // The names of an object that are not declared, as JSON strings.
  SimpleNode other_names(const std::vector<SimpleEntry>& entries);
  // Whether a term is as well repeated as called.
  bool is_small(SimpleNode node) const;

 private:
  static constexpr size_t kUsualNodes = 48, kUsualLeaves = 16;

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

  // What objects are written with; kNone: no text.
  struct Punctuation {
    SimpleNode open, end, close, comma;
    bool is_json = true;
  };

  SimpleNode emit(SimpleTerms::Node node);
  SimpleNode outside(const nanobind::object& term);
  SimpleNode notation(SimpleNotation::Term term) {
    if (noted_[term] == kNone) noted_[term] = outside(notation_->terms[term]);
    return noted_[term];
  }
  // The sequence of those that have a term.
  SimpleNode chain(std::initializer_list<SimpleNode> parts);
  void append_member(std::vector<SimpleNode>& parts, std::string_view name, SimpleNode value);
  SimpleNode members_term(const SimpleContainer& container, std::span<const SimpleNode> values);
  SimpleNode sequence(std::initializer_list<SimpleNode> parts) { return combine(Kind::kSequence, {parts.begin(), parts.size()}); }
  SimpleNode choice(std::initializer_list<SimpleNode> parts) { return combine(Kind::kChoice, {parts.begin(), parts.size()}); }
  Chain member_chain(std::span<const SimpleEntry> entries, std::span<const SimpleNode> values, SimpleNode other, const Chain* after,
                     bool is_capped, bool may_end);

  const SimpleSyntax& syntax_;
  const SimpleNotation* notation_;
  Punctuation object_{};  // of the object that is made
  std::unique_ptr<SimpleTerms> terms_;
  std::vector<SimpleNode> leaf_nodes_;
  std::array<SimpleNode, SimpleSyntax::kTerms> shared_;
  std::array<SimpleNode, SimpleNotation::kTerms> noted_;
  std::vector<SimpleLeaf::Size> leaf_sizes_;
  SimpleNode empty_string_ = kNone;
  SimpleNode nothing_ = kNone;
};

}  // namespace structgen
