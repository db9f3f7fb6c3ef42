// The normal form of simple schemas, as normal/normal_form.py has it: a disjunction of shapes (`Disjunct` there), each a
// conjunction of the assertions of the schemas that apply to one value.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "frontends/json_schema/simple_reading.h"

namespace structgen {

// The values that are left by `enum` or `const`, or by several alternatives that list values.
struct SimpleValues {
  std::vector<ValueId> members;
  std::vector<std::string> keys;  // their canonical texts, sorted

  bool has(const std::string& key) const;
  bool excludes(const SimpleValues& other) const;
};

struct SimpleShape {
  struct Branch {  // an alternative of a `oneOf`; kNone: all that list values
    ValueId schema;
    uint32_t index;
  };

  uint8_t types = kAnyType;
  std::vector<ValueId> scalars, arrays, objects;  // the schemas that constrain strings or numbers, arrays, objects
  std::vector<const SimpleValues*> values;
  std::vector<Branch> branches;

  bool is_free() const { return types == kAnyType && says_only_types() && values.empty(); }
  bool is_constant() const { return values.size() == 1 && says_only_types(); }
  // Whether types or values alone show that the two have nothing in common.
  bool excludes(const SimpleShape& other) const;

 private:
  bool says_only_types() const { return scalars.empty() && arrays.empty() && objects.empty() && branches.empty(); }
};

// Multiplies out the schemas that apply to one value.  All of it throws NotSimple where more than types, constants and
// required names would be needed to distinguish the alternatives.
class SimpleShapes {
 public:
  SimpleShapes(SimpleReader& reader, const JsonDocument& document) : reader_(reader), document_(document) {}

  // The shapes of one schema.
  const std::vector<SimpleShape>& of(ValueId id) { return of(id, 0); }
  // The shapes of the conjunction of schemas.
  std::vector<SimpleShape> of_all(std::span<const ValueId> ids);
  // What one schema asserts itself, without the parts that apply in place.
  SimpleShape own(ValueId id, const SimpleSchema& schema);
  // The schemas that were met with what only the planner in Python reads: simple keywords, or patterns of names.
  std::span<const ValueId> unread() const { return unread_; }
  // Whether a schema only lists values.
  bool is_constant(ValueId id);

  // Makes sure that no value belongs to two alternatives of a `oneOf`,
  void require_apart(std::span<const ValueId> branches);
  // or to two shapes that took different ones.
  void require_apart(std::span<const SimpleShape> shapes);

 private:
  using Shapes = std::vector<SimpleShape>;
  // What distinguishes objects.
  struct Traits {
    const SimpleShape* shape;
    std::unordered_set<std::string_view> required = {};
    std::unordered_map<std::string_view, std::vector<std::string>> constants = {};  // of required names
    std::vector<std::unordered_set<std::string_view>> closed = {};                  // the names of schemas without others
    uint32_t entries = 0;
  };
  struct Labelled {
    const Traits* traits;
    uint32_t label;  // which alternative
  };

  const Shapes& of(ValueId id, uint32_t depth);
  Shapes conjunction(ValueId id, const SimpleSchema& schema, uint32_t depth);
  Shapes alternatives(ValueId id, const SimpleSchema& schema, Keyword keyword, uint32_t depth);
  bool may_join(std::span<const ValueId> branches);
  SimpleShape joined(const std::vector<const SimpleShape*>& shapes, bool is_one_of);
  Shapes product(const Shapes& left, const Shapes& right);
  bool meet(const SimpleShape& a, const SimpleShape& b, SimpleShape& out);
  // Whether required names and their constants leave objects.
  bool has_objects(const SimpleShape& shape);
  const SimpleValues* add_values(std::vector<ValueId> members);
  std::string constant(ValueId id, uint8_t& type) const;
  enum class Known { kNothing, kConstants, kPattern };
  Known constants_of(ValueId id, std::vector<std::string>& out);
  Traits traits_of(const SimpleShape& shape);
  bool are_apart(const Traits& a, const Traits& b);
  static bool have_distinct_labels(const std::vector<Labelled>& shapes);

  SimpleReader& reader_;
  const JsonDocument& document_;
  std::deque<SimpleValues> values_;
  std::vector<ValueId> unread_;
  std::unordered_map<ValueId, std::unique_ptr<Shapes>> known_;  // null: on the way
};

}  // namespace structgen
