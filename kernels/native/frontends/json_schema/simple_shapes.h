// The normal form of simple schemas, as normal/normal_form.py has it: a disjunction of shapes (`Disjunct` there), each a
// conjunction of the assertions of the schemas that apply to one value.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontends/json_schema/simple_objects.h"
#include "frontends/json_schema/simple_reading.h"

namespace structgen {

// The values that are left by `enum` or `const`, or by several alternatives that list values.
struct SimpleValues {
  std::vector<ValueId> members;
  std::vector<std::string> keys;  // their canonical texts, sorted

  bool has(const std::string& key) const;
  bool excludes(const SimpleValues& other) const;
};

// Simple keywords: those of a schema, or a text of its own in the same words, with `not`.
struct SimpleScalar {
  ValueId schema;    // kNone: it has a text
  std::string text;  // a JSON object
  bool of_strings, of_numbers;

  bool operator==(const SimpleScalar&) const = default;
};

struct SimpleShape {
  struct Branch {  // an alternative of a `oneOf`; kNone: all that list values
    ValueId schema;
    uint32_t index;
  };

  uint8_t types = kAnyType;
  std::vector<SimpleScalar> scalars;  // what constrains strings or numbers
  std::vector<ValueId> arrays;        // the schemas that constrain arrays
  std::vector<const SimpleObject*> objects;
  std::vector<const SimpleValues*> values;
  std::vector<Branch> branches;
  uint32_t identity = 0;  // which copies share

  bool is_free() const { return types == kAnyType && says_only_types() && values.empty(); }
  bool is_constant() const { return values.size() == 1 && says_only_types(); }
  // Whether types or values alone show that the two have nothing in common,
  bool excludes(const SimpleShape& other) const;
  // or that all of the other are among these.
  bool admits_all_of(const SimpleShape& other) const;

 private:
  bool says_only_types() const { return scalars.empty() && arrays.empty() && objects.empty() && branches.empty(); }
};

// The pairs of alternatives of a `oneOf` that may have values in common, the lower index first, by its schema.
using SimpleOverlaps = std::map<ValueId, std::set<std::pair<uint32_t, uint32_t>>>;

// Multiplies out the schemas that apply to one value.  All of it throws NotSimple where the planner in Python would need
// more than is here.
class SimpleShapes {
 public:
  // Two shapes that took different alternatives of the `oneOf` of a schema, and must have nothing in common.
  struct Exclusion {
    SimpleShape first, second;
    ValueId schema;
    std::pair<uint32_t, uint32_t> indices;
  };

  // restricts: it counts which schema names a member.
  // overlaps: the alternatives that are met with the complement of others.
  SimpleShapes(SimpleReader& reader, const JsonDocument& document, bool restricts, const SimpleOverlaps& overlaps)
      : reader_(reader), document_(document), objects_(reader, document), restricts_(restricts), overlaps_(overlaps) {}

  // The shapes of one schema.
  const std::vector<SimpleShape>& of(SchemaRef schema) { return of(schema, 0); }
  // The shapes of the conjunction of schemas.
  std::vector<SimpleShape> of_all(std::span<const SchemaRef> schemas);
  // What one schema asserts itself, without the parts that apply in place.
  SimpleShape own(ValueId id, const SimpleSchema& schema);
  const SimpleObject* object_of(ValueId id) { return objects_.of(id, reader_.read(id)); }
  // The schemas that were met with what only the planner in Python reads: simple keywords, or patterns of names.
  std::span<const ValueId> unread() const { return unread_; }
  // Whether a schema only lists values.
  bool is_constant(ValueId id);
  // The other alternatives of a `oneOf` that may overlap with one.
  std::vector<ValueId> rivals(ValueId schema, std::span<const ValueId> branches, uint32_t index) const;

  // The pairs of alternatives of the `oneOf` of a schema, or of shapes that took different ones, that may overlap.
  void exclude(ValueId schema, std::span<const ValueId> branches, bool is_settled, std::vector<Exclusion>& out);
  void exclude(std::span<const SimpleShape> shapes, std::vector<Exclusion>& out);

  enum class Relation { kInside, kOutside, kUnknown };
  // Whether the values of a conjunction are inside or outside of a schema, as far as types, constants and equality tell.
  Relation compare(std::span<const SchemaRef> schemas, SchemaRef other);
  // The values of both, as they are.
  SimpleShape both(const SimpleShape& a, const SimpleShape& b);

 private:
  using Shapes = std::vector<SimpleShape>;
  // What distinguishes objects.
  struct Traits {
    const SimpleShape* shape;
    std::unordered_map<std::string_view, std::vector<std::string>> constants = {};  // of required names
  };
  struct Labelled {
    const Traits* traits;
    uint32_t label;  // which alternative
  };

  Relation compared(std::span<const SchemaRef> schemas, SchemaRef other);
  const Shapes& of(SchemaRef schema, uint32_t depth);
  Shapes conjunction(ValueId id, const SimpleSchema& schema, uint32_t depth);
  Shapes alternatives(ValueId id, const SimpleSchema& schema, Keyword keyword, uint32_t depth);
  Shapes condition(const SimpleSchema& schema, uint32_t depth);
  // The schemas that hold where names occur, as unions.
  std::vector<Shapes> dependents(ValueId id, const SimpleSchema& schema, Keyword keyword, uint32_t depth);
  bool may_join(ValueId schema, std::span<const ValueId> branches);
  SimpleShape joined(const std::vector<const SimpleShape*>& shapes, bool is_one_of);
  Shapes product(const Shapes& left, const Shapes& right);
  Shapes met(const Shapes& left, const Shapes& right);
  static Shapes each_once(const Shapes& shapes);
  bool meet(const SimpleShape& a, const SimpleShape& b, SimpleShape& out);
  // The same shapes, which name no members.
  Shapes silenced(Shapes shapes);
  SimpleShape& renewed(SimpleShape& shape) {
    shape.identity = ++identities_;
    return shape;
  }

  // The values that are not valid against a schema, or outside of a shape.
  Shapes negation(ValueId id, const SimpleSchema& schema, uint32_t depth);
  Shapes outside_union(ValueId id, const SimpleSchema& schema, Keyword keyword, uint32_t depth);
  Shapes outside(const SimpleShape& shape);
  Shapes outside_values(const SimpleShape& shape);
  void outside_scalar(const SimpleScalar& scalar, uint8_t types, Shapes& out);
  void outside_object(const SimpleObject& object, Shapes& out);
  SimpleShape object_shape(std::vector<const SimpleObject*> objects);

  const SimpleValues* add_values(std::vector<ValueId> members);
  std::string constant(ValueId id, uint8_t& type) const;
  Traits traits_of(const SimpleShape& shape);
  bool are_apart(const Traits& a, const Traits& b);
  bool are_disjoint(const Shapes& left, const Shapes& right);
  static bool have_distinct_labels(const std::vector<Labelled>& shapes);
  ValueId branch_of_if(const SimpleSchema& schema, Keyword keyword) const { return schema.has(keyword) ? schema.value(keyword) : kAnything; }

  SimpleReader& reader_;
  const JsonDocument& document_;
  SimpleObjects objects_;
  const bool restricts_;
  const SimpleOverlaps& overlaps_;
  std::deque<SimpleValues> values_;
  std::vector<ValueId> unread_;
  uint32_t identities_ = 0;
  std::map<std::vector<SchemaRef>, Relation> relations_;  // by the keys of the schemas and the other
  std::unordered_map<SchemaRef, std::unique_ptr<Shapes>> known_;  // null: on the way
};

}  // namespace structgen
