#include "frontends/json_schema/simple_shapes.h"

#include <algorithm>
#include <map>

#include "automaton/automaton.h"

namespace structgen {

namespace {

// As in normal/expansion.py and emit/type_plan.py: what counts against the limit of nodes.
constexpr uint64_t kMeetCost = 16, kShapeCost = 64, kEntryCost = 40;
constexpr size_t kObjectsANode = 10;  // that are looked at again
constexpr uint32_t kMaxSteps = 64;    // from schema to schema in place
constexpr size_t kMaxShapes = 1'000;
constexpr size_t kMaxCompared = 200;  // alternatives that are compared in pairs

template <typename T>
void unite(std::vector<T>& into, const std::vector<T>& more) {
  for (const T& one : more)
    if (std::ranges::find(into, one) == into.end()) into.push_back(one);
}

template <typename T>
void append(std::vector<T>& into, const std::vector<T>& more) {
  into.insert(into.end(), more.begin(), more.end());
}

bool are_disjoint(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::ranges::none_of(a, [&](const std::string& key) { return std::ranges::binary_search(b, key); });
}

}  // namespace

bool SimpleValues::has(const std::string& key) const { return std::ranges::binary_search(keys, key); }

bool SimpleValues::excludes(const SimpleValues& other) const { return are_disjoint(keys, other.keys); }

bool SimpleShape::excludes(const SimpleShape& other) const {
  if (!(types & other.types)) return true;
  return std::ranges::any_of(values, [&](const SimpleValues* one) {
    return std::ranges::any_of(other.values, [&](const SimpleValues* two) { return one->excludes(*two); });
  });
}

std::vector<SimpleShape> SimpleShapes::of_all(std::span<const ValueId> ids) {
  Shapes result = of(ids[0]);
  for (ValueId id : ids.subspan(1)) result = product(result, of(id));
  return result;
}

const SimpleShapes::Shapes& SimpleShapes::of(ValueId id, uint32_t depth) {
  require(depth < std::min(kMaxSteps, reader_.limits().depth));
  const auto [found, is_new] = known_.try_emplace(id);
  if (!is_new) {
    require(found->second != nullptr);  // it refers back to itself
    return *found->second;
  }
  Shapes shapes;
  if (document_.kind(id) != JsonKind::kObject) {
    if (reader_.boolean(id)) shapes.emplace_back();
  } else {
    shapes = conjunction(id, reader_.read(id), depth);
  }
  require(shapes.size() <= kMaxShapes);
  return *(known_[id] = std::make_unique<Shapes>(std::move(shapes)));
}

SimpleShapes::Shapes SimpleShapes::conjunction(ValueId id, const SimpleSchema& schema, uint32_t depth) {
  Shapes result;
  bool is_first = true;
  const auto take = [&](const Shapes& shapes) {
    result = is_first ? shapes : product(result, shapes);
    is_first = false;
  };
  for (Keyword part : reader_.parts(id, schema)) {
    if (part == Keyword::kProperties) take({own(id, schema)});
    else if (part == Keyword::kReference) take(of(reader_.target(schema), depth + 1));
    else if (part != Keyword::kAllOf) take(alternatives(id, schema, part, depth));
    else for (ValueId branch : reader_.branches(schema, part)) take(of(branch, depth + 1));
  }
  return result;
}

SimpleShapes::Shapes SimpleShapes::alternatives(ValueId id, const SimpleSchema& schema, Keyword keyword, uint32_t depth) {
  const std::span<const ValueId> branches = reader_.branches(schema, keyword);
  const bool is_one_of = keyword == Keyword::kOneOf && branches.size() > 1;
  const bool joins = !is_one_of || may_join(branches);
  Shapes found;
  std::vector<const SimpleShape*> constants;
  for (uint32_t index = 0; index < branches.size(); ++index) {
    const Shapes& shapes = of(branches[index], depth + 1);
    if (joins && shapes.size() == 1 && shapes[0].is_constant()) {
      constants.push_back(&shapes[0]);
      continue;
    }
    for (const SimpleShape& shape : shapes) {
      found.push_back(shape);
      if (is_one_of) found.back().branches.push_back({id, index});
    }
  }
  if (!constants.empty()) {
    const bool has_others = !found.empty();
    found.push_back(joined(constants, is_one_of));
    if (is_one_of && has_others) found.back().branches.push_back({id, kNone});
  }
  return found;
}

SimpleShape SimpleShapes::own(ValueId id, const SimpleSchema& schema) {
  SimpleShape shape;
  shape.types = schema.types;
  const bool has_patterns = schema.has(Keyword::kPatternProperties);
  require(!has_patterns || (schema.types & kObjectType && !schema.has(Keyword::kSimple)));
  if (schema.has(Keyword::kSimple)) shape.scalars.push_back(id);
  if (schema.has(Keyword::kSimple) || has_patterns) unread_.push_back(id);
  if (schema.has_any(kArrayKeywords)) shape.arrays.push_back(id);
  if (schema.has_any(kObjectKeywords)) shape.objects.push_back(id);
  reader_.check_arrays(schema);
  reader_.check_objects(schema);
  for (Keyword keyword : {Keyword::kEnum, Keyword::kConst}) {
    if (!schema.has(keyword)) continue;
    const std::span<const ValueId> listed = reader_.listed(schema, keyword);
    shape.values.push_back(add_values({listed.begin(), listed.end()}));
  }
  require(shape.values.size() < 2);                            // whose order counts
  require(shape.values.empty() || shape.scalars.empty());      // which may, or may not, filter the values
  return shape;
}

bool SimpleShapes::is_constant(ValueId id) {
  if (document_.kind(id) != JsonKind::kObject) return false;
  const SimpleSchema schema = reader_.read(id);
  if (!schema.has_values() || schema.has_any(kInPlaceKeywords)) return false;
  require(!schema.has(Keyword::kSimple));  // which may say nothing
  return schema.has(Keyword::kEnum) != schema.has(Keyword::kConst) && !schema.has_any(kArrayKeywords) && !schema.has_any(kObjectKeywords);
}

// Whether those alternatives of a `oneOf` that list values may be read as one list.
bool SimpleShapes::may_join(std::span<const ValueId> branches) {
  std::vector<std::string> keys;
  bool are_all = true;
  for (ValueId branch : branches) {
    if (is_constant(branch)) append(keys, of(branch, 0)[0].values[0]->keys);
    else are_all = false;
  }
  std::ranges::sort(keys);
  return are_all || std::ranges::adjacent_find(keys) == keys.end();
}

// One shape for alternatives that list values; for `oneOf` without what two of them list.
SimpleShape SimpleShapes::joined(const std::vector<const SimpleShape*>& shapes, bool is_one_of) {
  if (shapes.size() == 1) return *shapes[0];
  std::vector<std::pair<ValueId, std::string>> listed;  // each value once for an alternative
  std::map<std::string, uint32_t> counts;
  for (const SimpleShape* shape : shapes) {
    std::map<std::string, size_t> own;
    for (ValueId member : shape->values[0]->members) {
      uint8_t type = 0;
      std::string key = constant(member, type);
      if (!(type & shape->types) || !own.emplace(key, 0).second) continue;
      ++counts[key];
      listed.emplace_back(member, std::move(key));
    }
  }
  std::vector<ValueId> members;
  for (const auto& [member, key] : listed)
    if (!is_one_of || counts[key] == 1) members.push_back(member);
  SimpleShape shape;
  shape.values.push_back(add_values(std::move(members)));
  return shape;
}

SimpleShapes::Shapes SimpleShapes::product(const Shapes& left, const Shapes& right) {
  Shapes met;
  require(left.size() * right.size() <= kMaxShapes);
  for (const SimpleShape& a : left)
    for (const SimpleShape& b : right) {
      SimpleShape both;
      if (!a.excludes(b) && meet(a, b, both)) met.push_back(std::move(both));
    }
  reader_.spend(left.size() * right.size() + kMeetCost * met.size());
  return met;
}

// The values of both; false where there are obviously none.
bool SimpleShapes::meet(const SimpleShape& a, const SimpleShape& b, SimpleShape& out) {
  if (a.is_free() || b.is_free()) {
    out = a.is_free() ? b : a;
    return true;
  }
  out = a;
  out.types &= b.types;
  append(out.scalars, b.scalars);
  unite(out.arrays, b.arrays);
  unite(out.objects, b.objects);
  append(out.values, b.values);
  append(out.branches, b.branches);
  reader_.spend(out.objects.size() / kObjectsANode);
  if (a.objects.empty() || b.objects.empty() || !(out.types & kObjectType) || out.objects.size() < 2 || has_objects(out)) return true;
  if (out.types == kObjectType) return false;
  out.types &= ~kObjectType;
  out.objects.clear();
  return true;
}

bool SimpleShapes::has_objects(const SimpleShape& shape) {
  std::unordered_map<std::string_view, std::pair<Known, std::vector<std::string>>> allowed;
  for (ValueId id : shape.objects)
    for (std::string_view name : reader_.required_names(reader_.read(id))) allowed.try_emplace(name, Known::kNothing, std::vector<std::string>());
  if (allowed.empty()) return true;
  for (ValueId id : shape.objects) {
    const SimpleSchema schema = reader_.read(id);
    for (const auto& [name, value] : reader_.properties(schema)) {
      const auto found = allowed.find(name);
      if (found == allowed.end()) continue;
      auto& [known, keys] = found->second;
      std::vector<std::string> more;
      const Known adds = constants_of(value, more);
      if (adds == Known::kNothing) continue;
      require(known == Known::kNothing || (known == Known::kConstants && adds == Known::kConstants));
      if (known == Known::kNothing) keys = std::move(more);
      else std::erase_if(keys, [&](const std::string& key) { return !std::ranges::binary_search(more, key); });
      known = adds;
      if (known == Known::kConstants && keys.empty()) return false;
    }
  }
  return std::ranges::none_of(shape.objects, [&](ValueId id) {
    const SimpleSchema schema = reader_.read(id);
    if (!reader_.is_closed(schema)) return false;
    size_t declared = 0;
    for (const auto& [name, value] : reader_.properties(schema)) declared += allowed.contains(name);
    return declared < allowed.size();
  });
}

const SimpleValues* SimpleShapes::add_values(std::vector<ValueId> members) {
  SimpleValues& added = values_.emplace_back();
  added.members = std::move(members);
  for (ValueId member : added.members) {
    uint8_t type = 0;
    added.keys.push_back(constant(member, type));
  }
  std::ranges::sort(added.keys);
  added.keys.erase(std::ranges::unique(added.keys).begin(), added.keys.end());
  return &added;
}

std::string SimpleShapes::constant(ValueId id, uint8_t& type) const {
  std::string key;
  type = reader_.append_constant(id, key);
  return key;
}

// What normal/exclusion.py knows of the only values that a schema can admit; of patterns, not which.
SimpleShapes::Known SimpleShapes::constants_of(ValueId id, std::vector<std::string>& out) {
  if (document_.kind(id) != JsonKind::kObject) return reader_.boolean(id) ? Known::kNothing : Known::kConstants;
  const SimpleSchema schema = reader_.read(id);
  require(document_.find(id, "$schema") == nullptr);
  if (schema.has_only({Keyword::kReference})) return Known::kNothing;
  for (Keyword keyword : {Keyword::kConst, Keyword::kEnum}) {
    if (!schema.has(keyword)) continue;
    for (ValueId value : reader_.listed(schema, keyword)) {
      uint8_t type = 0;
      out.push_back(constant(value, type));
    }
    std::ranges::sort(out);
    return Known::kConstants;
  }
  return schema.has(Keyword::kSimple) ? Known::kPattern : Known::kNothing;
}

SimpleShapes::Traits SimpleShapes::traits_of(const SimpleShape& shape) {
  Traits traits{&shape};
  for (ValueId id : shape.objects)
    for (std::string_view name : reader_.required_names(reader_.read(id))) traits.required.insert(name);
  traits.entries = static_cast<uint32_t>(traits.required.size());
  for (ValueId id : shape.objects) {
    const SimpleSchema schema = reader_.read(id);
    const bool is_closed = reader_.is_closed(schema);
    if (is_closed) traits.closed.emplace_back();
    for (const auto& [name, value] : reader_.properties(schema)) {
      ++traits.entries;
      if (is_closed) traits.closed.back().insert(name);
      std::vector<std::string> keys;
      if (traits.required.contains(name) && constants_of(value, keys) == Known::kConstants)
        traits.constants.try_emplace(name, std::move(keys));  // those of one schema suffice
    }
  }
  return traits;
}

bool SimpleShapes::are_apart(const Traits& a, const Traits& b) {
  if (a.shape->excludes(*b.shape)) return true;
  if ((a.shape->types & b.shape->types) != kObjectType) return false;
  for (const auto& [name, keys] : a.constants)
    if (const auto found = b.constants.find(name); found != b.constants.end() && are_disjoint(keys, found->second)) return true;
  reader_.spend(2 * kShapeCost + kEntryCost * (a.entries + b.entries));
  const auto lack_required = [](const Traits& closed, const Traits& other) {
    return std::ranges::any_of(closed.closed, [&](const auto& names) {
      return std::ranges::any_of(other.required, [&](std::string_view name) { return !names.contains(name); });
    });
  };
  return lack_required(a, b) || lack_required(b, a);
}

// Whether some required property has constants in all shapes, and none under two labels.
bool SimpleShapes::have_distinct_labels(const std::vector<Labelled>& shapes) {
  const auto is_object = [](const Labelled& one) { return one.traits->shape->types == kObjectType; };
  if (shapes.empty() || !std::ranges::all_of(shapes, is_object)) return shapes.empty();
  return std::ranges::any_of(shapes[0].traits->constants, [&](const auto& candidate) {
    std::unordered_map<std::string_view, uint32_t> owners;
    return std::ranges::all_of(shapes, [&](const Labelled& one) {
      const auto found = one.traits->constants.find(candidate.first);
      return found != one.traits->constants.end() && std::ranges::all_of(found->second, [&](const std::string& key) {
               return owners.try_emplace(key, one.label).first->second == one.label;
             });
    });
  });
}

void SimpleShapes::require_apart(std::span<const ValueId> branches) {
  std::deque<Traits> traits;
  std::vector<Labelled> labelled;
  for (uint32_t index = 0; index < branches.size(); ++index)
    for (const SimpleShape& shape : of(branches[index])) labelled.push_back({&traits.emplace_back(traits_of(shape)), index});
  if (have_distinct_labels(labelled)) return;
  require(labelled.size() <= kMaxCompared);
  for (const Labelled& a : labelled)
    for (const Labelled& b : labelled) require(a.label >= b.label || are_apart(*a.traits, *b.traits));
}

void SimpleShapes::require_apart(std::span<const SimpleShape> shapes) {
  if (std::ranges::all_of(shapes, [](const SimpleShape& shape) { return shape.branches.empty(); })) return;
  std::deque<Traits> traits;
  std::map<ValueId, std::vector<Labelled>> groups;
  for (const SimpleShape& shape : shapes) {
    if (shape.branches.empty()) continue;
    traits.push_back(traits_of(shape));
    for (const SimpleShape::Branch& branch : shape.branches) groups[branch.schema].push_back({&traits.back(), branch.index});
  }
  for (const auto& [schema, labelled] : groups) {
    if (have_distinct_labels(labelled)) continue;
    require(labelled.size() <= kMaxCompared);
    for (const Labelled& a : labelled)
      for (const Labelled& b : labelled) require(a.label >= b.label || are_apart(*a.traits, *b.traits));
  }
}

}  // namespace structgen
