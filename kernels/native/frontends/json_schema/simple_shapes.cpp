#include "frontends/json_schema/simple_shapes.h"

#include <algorithm>
#include <map>

#include "automaton/automaton.h"

namespace structgen {

namespace {

// As in normal/expansion.py and emit/type_plan.py: what counts against the limit of nodes.
constexpr uint64_t kMeetCost = 16, kExcludeCost = 4;
constexpr size_t kObjectsANode = 10;  // that are looked at again
constexpr uint32_t kMaxSteps = 64;    // from schema to schema in place
constexpr size_t kMaxShapes = 1'000;
constexpr size_t kManyDependents = 4;  // as _MANY_DEPENDENTS in normal/expansion.py

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

bool SimpleShape::admits_all_of(const SimpleShape& other) const {
  if (other.types & ~types || !branches.empty()) return false;
  if (!values.empty()) {
    const auto has_all = [](const SimpleValues* all, const SimpleValues* some) { return std::includes(all->keys.begin(), all->keys.end(), some->keys.begin(), some->keys.end()); };
    return scalars.empty() && arrays.empty() && objects.empty() && std::ranges::any_of(other.values, [&](const SimpleValues* some) {
             return std::ranges::all_of(values, [&](const SimpleValues* all) { return has_all(all, some); });
           });
  }
  const auto constrains = [&](const SimpleScalar& scalar) { return (scalar.of_strings && other.types & kStringType) || (scalar.of_numbers && other.types & kNumberType); };
  return std::ranges::none_of(scalars, constrains) && (arrays.empty() || !(other.types & kArrayType)) && (objects.empty() || !(other.types & kObjectType));
}

std::vector<SimpleShape> SimpleShapes::of_all(std::span<const SchemaRef> schemas) {
  Shapes result;
  bool is_first = true;
  for (SchemaRef schema : schemas) {
    Shapes shapes = of(schema);
    if (is_negated(schema) && restricts_) shapes = silenced(std::move(shapes));
    result = std::exchange(is_first, false) ? std::move(shapes) : product(result, shapes);
  }
  return result;
}

const SimpleShapes::Shapes& SimpleShapes::of(SchemaRef schema, uint32_t depth) {
  require(depth < std::min(kMaxSteps, reader_.limits().depth));
  if (const SchemaRef first = reader_.canonical(schema); first != schema && !known_.contains(schema)) {
    auto same = std::make_unique<Shapes>(of(first, depth));
    return *(known_[schema] = std::move(same));
  }
  const auto [found, is_new] = known_.try_emplace(schema);
  if (!is_new) {
    require(found->second != nullptr);  // it refers back to itself
    return *found->second;
  }
  Shapes shapes;
  const JsonKind kind = reader_.kind(schema);
  if (kind == JsonKind::kTrue) {
    renewed(shapes.emplace_back());
  } else if (kind != JsonKind::kFalse) {
    const ValueId id = schema & ~kNegated;
    require(kind == JsonKind::kObject);
    shapes = is_negated(schema) ? negation(id, reader_.read(id), depth) : conjunction(id, reader_.read(id), depth);
  }
  require(shapes.size() <= kMaxShapes);
  return *(known_[schema] = std::make_unique<Shapes>(std::move(shapes)));
}

SimpleShapes::Shapes SimpleShapes::conjunction(ValueId id, const SimpleSchema& schema, uint32_t depth) {
  Shapes result;
  bool is_first = true;
  const auto take = [&](const Shapes& shapes) {
    result = is_first ? shapes : product(result, shapes);
    is_first = false;
  };
  for (Keyword part : reader_.parts(id, schema)) {
    switch (part) {
      case Keyword::kProperties: take({own(id, schema)}); break;
      case Keyword::kReference: take(of(reader_.target(schema), depth + 1)); break;
      case Keyword::kAllOf:
        for (ValueId branch : reader_.branches(schema, part)) take(of(branch, depth + 1));
        break;
      case Keyword::kNot: {
        const Shapes& outside = of(complement(schema.value(part)), depth + 1);
        take(restricts_ ? silenced(outside) : outside);
        break;
      }
      case Keyword::kIf:
        if (schema.has(Keyword::kThen) || schema.has(Keyword::kElse)) take(condition(schema, depth));
        else of(schema.value(part), depth + 1);  // which refuses what is not well-formed
        break;
      case Keyword::kDependencies:
      case Keyword::kDependentSchemas:
        for (const Shapes& shapes : dependents(id, schema, part, depth)) take(shapes);
        break;
      default: take(alternatives(id, schema, part, depth));
    }
  }
  return result;
}

SimpleShapes::Shapes SimpleShapes::condition(const SimpleSchema& schema, uint32_t depth) {
  const ValueId condition = schema.value(Keyword::kIf), then = branch_of_if(schema, Keyword::kThen), otherwise = branch_of_if(schema, Keyword::kElse);
  Shapes left = product(of(condition, depth + 1), of(then, depth + 1));
  const Shapes& outside = of(complement(condition), depth + 1);
  append(left, product(restricts_ ? silenced(outside) : outside, of(otherwise, depth + 1)));
  return left;
}

std::vector<SimpleShapes::Shapes> SimpleShapes::dependents(ValueId id, const SimpleSchema& schema, Keyword keyword, uint32_t depth) {
  std::vector<std::pair<ValueId, std::vector<std::string_view>>> waiting;  // by schemas that are written alike
  const std::vector<JsonDocument::Member> named = reader_.dependent_schemas(schema, keyword);
  for (const auto& [name, value] : named) {
    const auto same = std::ranges::find_if(waiting, [&, own = value](const auto& one) { return reader_.key(one.first) == reader_.key(own); });
    if (same == waiting.end()) waiting.push_back({value, {name}});
    else same->second.push_back(name);
  }
  const auto shape_of = [&](const SimpleObject* object, uint8_t types) {
    SimpleShape shape;
    shape.types = types;
    shape.objects = {object};
    return Shapes{renewed(shape)};
  };
  std::vector<Shapes> result;
  for (const auto& [value, names] : waiting) {
    const Shapes shapes = of(value, depth + 1);
    if (named.size() >= kManyDependents) {
      Shapes outside = of(complement(value), depth + 1);
      if (outside.size() == 1 && outside[0].types == kObjectType && std::ranges::any_of(outside[0].objects, &SimpleObject::is_outside)) {
        Shapes free = product(shapes, shape_of(objects_.mentioning(id, names), kAnyType));
        for (std::string_view name : names) outside = product(outside, shape_of(objects_.lacking(id, name), kAnyType));
        append(free, outside);
        result.push_back(std::move(free));
        continue;
      }
    }
    for (std::string_view name : names) {
      Shapes either = shape_of(objects_.lacking(id, name), kAnyType);
      append(either, product(shapes, shape_of(objects_.requiring(id, name), kObjectType)));
      result.push_back(std::move(either));
    }
  }
  return result;
}

std::vector<ValueId> SimpleShapes::rivals(ValueId schema, std::span<const ValueId> branches, uint32_t index) const {
  std::vector<ValueId> found;
  const auto pairs = overlaps_.find(schema);
  if (pairs == overlaps_.end()) return found;
  for (uint32_t other = 0; other < branches.size(); ++other)
    if (pairs->second.contains(std::minmax(index, other))) found.push_back(branches[other]);
  return found;
}

SimpleShapes::Shapes SimpleShapes::alternatives(ValueId id, const SimpleSchema& schema, Keyword keyword, uint32_t depth) {
  const std::span<const ValueId> branches = reader_.branches(schema, keyword);
  const bool is_one_of = keyword == Keyword::kOneOf && branches.size() > 1;
  const bool joins = !is_one_of || may_join(id, branches);
  Shapes found;
  std::vector<const SimpleShape*> constants;
  for (uint32_t index = 0; index < branches.size(); ++index) {
    const Shapes& shapes = of(branches[index], depth + 1);
    if (joins && (is_one_of ? is_constant(branches[index]) : shapes.size() == 1 && shapes[0].is_constant())) {
      constants.push_back(&shapes[0]);
      continue;
    }
    if (!is_one_of) {
      append(found, shapes);
      continue;
    }
    Shapes alone = shapes;
    for (ValueId rival : rivals(id, branches, index)) {
      const Shapes& outside = of(complement(rival), depth + 1);
      alone = product(alone, restricts_ ? silenced(outside) : outside);
    }
    for (SimpleShape& shape : alone) {
      renewed(shape).branches.push_back({id, index});
      found.push_back(std::move(shape));
    }
  }
  if (!constants.empty()) {
    const bool has_others = !found.empty();
    found.push_back(joined(constants, is_one_of));
    if (is_one_of && has_others) renewed(found.back()).branches.push_back({id, kNone});
  }
  return found;
}

SimpleShapes::Shapes SimpleShapes::silenced(Shapes shapes) {
  for (SimpleShape& shape : shapes) {
    if (std::ranges::none_of(shape.objects, &SimpleObject::annotates)) continue;
    for (const SimpleObject*& object : shape.objects) object = objects_.silent(object);
    renewed(shape);
  }
  return shapes;
}

SimpleShape SimpleShapes::own(ValueId id, const SimpleSchema& schema) {
  SimpleShape shape;
  shape.types = schema.types;
  const bool has_patterns = schema.has(Keyword::kPatternProperties);
  require(!has_patterns || (schema.types & kObjectType && !schema.has(Keyword::kSimple)));
  if (schema.has(Keyword::kSimple)) {
    SimpleScalar scalar{id, {}, false, false};
    for (const auto& [name, value] : document_.members(id)) {
      scalar.of_strings |= name == "minLength" || name == "maxLength" || name == "pattern" || name == "format";
      scalar.of_numbers |= name == "minimum" || name == "maximum" || name == "exclusiveMinimum" || name == "exclusiveMaximum" || name == "multipleOf";
    }
    shape.scalars.push_back(std::move(scalar));
  }
  if (schema.has(Keyword::kSimple) || has_patterns) unread_.push_back(id);
  if (schema.has_any(kArrayKeywords)) shape.arrays.push_back(id);
  reader_.check_arrays(schema);
  reader_.check_objects(schema);
  if (schema.has_any(kObjectKeywords)) shape.objects.push_back(objects_.of(id, schema));
  for (Keyword keyword : {Keyword::kEnum, Keyword::kConst}) {
    if (!schema.has(keyword)) continue;
    const std::span<const ValueId> listed = reader_.listed(schema, keyword);
    shape.values.push_back(add_values({listed.begin(), listed.end()}));
  }
  renewed(shape);
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
bool SimpleShapes::may_join(ValueId schema, std::span<const ValueId> branches) {
  if (overlaps_.contains(schema)) return false;
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
  return renewed(shape);
}

SimpleShapes::Shapes SimpleShapes::product(const Shapes& left, const Shapes& right) {
  if (left.size() > 1 && right.size() > 1) return met(each_once(left), each_once(right));
  return met(left, right);
}

// Without those that are the same.
SimpleShapes::Shapes SimpleShapes::each_once(const Shapes& shapes) {
  Shapes kept;
  std::set<uint32_t> known;
  for (const SimpleShape& shape : shapes)
    if (known.insert(shape.identity).second) kept.push_back(shape);
  const auto only_strings = [](const SimpleShape& shape) {  // which would be joined
    return std::ranges::any_of(shape.scalars, &SimpleScalar::of_strings) && shape.values.empty() && shape.arrays.empty() && shape.objects.empty() && shape.branches.empty();
  };
  require(std::ranges::count_if(kept, only_strings) < 2);
  return kept;
}

SimpleShapes::Shapes SimpleShapes::met(const Shapes& left, const Shapes& right) {
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

SimpleShape SimpleShapes::both(const SimpleShape& a, const SimpleShape& b) {
  SimpleShape out = a;
  out.types &= b.types;
  append(out.scalars, b.scalars);
  unite(out.arrays, b.arrays);
  unite(out.objects, b.objects);
  append(out.values, b.values);
  append(out.branches, b.branches);
  return renewed(out);
}

// The values of both; false where there are obviously none.
bool SimpleShapes::meet(const SimpleShape& a, const SimpleShape& b, SimpleShape& out) {
  if (a.is_free() || b.is_free()) {
    out = a.is_free() ? b : a;
    return true;
  }
  out = both(a, b);
  const auto excludes = [](const SimpleObject* object) { return object->is_negated || object->is_outside; };
  reader_.spend(std::ranges::any_of(out.objects, excludes) ? kExcludeCost * out.objects.size() : out.objects.size() / kObjectsANode);
  if (a.objects.empty() || b.objects.empty() || !(out.types & kObjectType) || out.objects.size() < 2 || objects_.settle(out.objects)) return true;
  if (out.types == kObjectType) return false;
  out.types &= ~kObjectType;
  out.objects.clear();
  return true;
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

}  // namespace structgen
