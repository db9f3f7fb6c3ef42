// What one schema says of objects, as ObjectAssertion in normal/container_assertion.py has it, and what several say of
// names together, as NameConstraints in normal/exclusion.py has it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/intern.h"
#include "frontends/json_schema/simple_reading.h"

namespace structgen {

struct SimpleObject {
  ValueId schema;
  std::vector<JsonDocument::Member> properties = {};  // their values are references to schemas
  std::span<const JsonDocument::Member> patterns = {};
  SchemaRef additional = kNone;  // kNone: anything
  std::vector<std::string_view> required = {};
  SimpleReader::Dependents dependents = {};
  uint32_t fewest = 0, most = kNone;  // members
  bool annotates = true;     // whether it names members
  bool is_negated = false;   // it stands for the objects that violate it, but for `dependents`
  bool is_outside = false;   // the values of its properties must violate their schemas
  bool is_written = true;    // it is what its schema says
  bool covers_rest = false;  // it says something of all other names
  bool names_some = false;
  const SimpleObject* complement = nullptr;  // made at first use, as is the next
  const SimpleObject* silent = nullptr;
  std::vector<uint32_t> order = {};  // of the properties, by name

  bool is_closed() const { return additional == complement_of_anything && patterns.empty(); }
  bool is_plain() const { return is_written && dependents.empty() && patterns.empty(); }
  // The property of a name, or null.  O(log(properties)).
  const JsonDocument::Member* find(std::string_view name) const;

 private:
  static constexpr SchemaRef complement_of_anything = kAnything | kNegated;
};

// The objects of a document, each made once, so that those of one schema are one.
class SimpleObjects {
 public:
  SimpleObjects(SimpleReader& reader, const JsonDocument& document) : reader_(reader), document_(document) {}

  // What a schema with keywords of objects says of them.
  const SimpleObject* of(ValueId id, const SimpleSchema& schema);
  // Those that violate it, without `dependents`.
  const SimpleObject* complement(const SimpleObject* object);
  // The same objects, which name no members.
  const SimpleObject* silent(const SimpleObject* object);
  // Those that violate an object which restricts a single name, as a positive one; null: it says more.
  const SimpleObject* complement_of_name(const SimpleObject& object);
  // Objects with a member, all values without it, and all values, where the names count as declared.
  const SimpleObject* requiring(ValueId schema, std::string_view name);
  const SimpleObject* lacking(ValueId schema, std::string_view name);
  const SimpleObject* mentioning(ValueId schema, std::span<const std::string_view> names);

  // The only values that a schema can admit, as canonical texts, sorted; false where they are unknown.
  bool constants_of(SchemaRef schema, std::vector<std::string>& keys, bool& is_all);
  // Leaves out what the others make redundant; false where they leave no objects.
  bool settle(std::vector<const SimpleObject*>& objects);

 private:
  using Keys = std::vector<std::string>;
  struct Label {
    std::string_view name;
    Keys keys;
    bool is_all;
  };
  struct Constraints {
    std::unordered_map<std::string_view, Keys> listed, allowed;  // without denied constants the latter
    std::unordered_map<std::string_view, uint32_t> required;    // by how many
    std::vector<const SimpleObject*> holding, closed;
    bool is_possible = true;
  };

  SimpleObject* add(SimpleObject object);
  SimpleObject made(ValueId schema, std::string_view name, SchemaRef value) const;
  const std::vector<Label>& labels_of(const SimpleObject& object);
  Constraints constraints_of(std::span<const SimpleObject* const> objects);
  bool is_idle(Constraints& all, const SimpleObject& object);
  bool holds(const Constraints& all, const SimpleObject& object);
  bool is_absent(const Constraints& all, std::string_view name) const;

  SimpleReader& reader_;
  const JsonDocument& document_;
  std::deque<SimpleObject> objects_;
  std::unordered_map<ValueId, const SimpleObject*> of_schema_;
  std::unordered_map<const SimpleObject*, std::vector<Label>> labels_;
};

}  // namespace structgen
