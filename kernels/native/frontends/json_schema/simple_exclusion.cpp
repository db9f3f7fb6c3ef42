// Whether shapes exclude each other, as normal/exclusion.py tells: types, or a property that both require with different
// constants, decide most pairs; the others are left to a proof.
#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>

#include "automaton/automaton.h"
#include "frontends/json_schema/simple_shapes.h"

namespace structgen {

namespace {

constexpr uint64_t kPairCost = 16;    // of two shapes that are kept
constexpr size_t kPairsANode = 16;    // of shapes that are compared
constexpr size_t kMaxCompared = 200;  // alternatives that are compared in pairs

bool have_none_in_common(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::ranges::none_of(a, [&](const std::string& key) { return std::ranges::binary_search(b, key); });
}

}  // namespace

SimpleShapes::Relation SimpleShapes::compare(std::span<const SchemaRef> schemas, SchemaRef other) {
  std::vector<SchemaRef> keys;
  for (SchemaRef schema : schemas) keys.push_back(reader_.key(schema));
  keys.push_back(reader_.key(other));
  const auto [known, is_new] = relations_.try_emplace(keys, Relation::kInside);
  if (is_new && std::ranges::count(keys, keys.back()) == 1) known->second = compared(schemas, other);
  return known->second;
}

SimpleShapes::Relation SimpleShapes::compared(std::span<const SchemaRef> schemas, SchemaRef other) {
  const Shapes inside = schemas.empty() ? Shapes(1) : of_all(schemas);
  const Shapes& outside = of(other);
  reader_.spend(inside.size() * outside.size() / kPairsANode);
  const auto each = [](const Shapes& shapes, const auto& holds) { return std::ranges::all_of(shapes, holds); };
  if (each(inside, [&](const SimpleShape& a) { return each(outside, [&](const SimpleShape& b) { return a.excludes(b); }); })) return Relation::kOutside;
  const auto is_admitted = [&](const SimpleShape& a) { return std::ranges::any_of(outside, [&](const SimpleShape& b) { return b.admits_all_of(a); }); };
  return each(inside, is_admitted) ? Relation::kInside : Relation::kUnknown;
}

SimpleShapes::Traits SimpleShapes::traits_of(const SimpleShape& shape) {
  Traits traits{&shape};
  std::set<std::string_view> required;
  for (const SimpleObject* object : shape.objects)
    if (!object->is_negated) required.insert(object->required.begin(), object->required.end());
  for (const SimpleObject* object : shape.objects) {
    if (object->is_negated || object->is_outside) continue;
    for (const auto& [name, value] : object->properties) {
      std::vector<std::string> keys;
      bool is_all = false;
      if (!required.contains(name) || !objects_.constants_of(value, keys, is_all)) continue;
      const auto [known, is_new] = traits.constants.try_emplace(name, std::move(keys));
      if (!is_new) std::erase_if(known->second, [&](const std::string& key) { return !std::ranges::binary_search(keys, key); });
    }
  }
  return traits;
}

bool SimpleShapes::are_apart(const Traits& a, const Traits& b) {
  if (a.shape->excludes(*b.shape)) return true;
  if ((a.shape->types & b.shape->types) != kObjectType) return false;
  return std::ranges::any_of(a.constants, [&](const auto& one) {
    const auto found = b.constants.find(one.first);
    return found != b.constants.end() && have_none_in_common(one.second, found->second);
  });
}

bool SimpleShapes::are_disjoint(const Shapes& left, const Shapes& right) {
  std::deque<Traits> traits;
  for (const SimpleShape& shape : right) traits.push_back(traits_of(shape));
  return std::ranges::all_of(left, [&](const SimpleShape& shape) {
    const Traits one = traits_of(shape);
    return std::ranges::all_of(traits, [&](const Traits& other) { return are_apart(one, other); });
  });
}

// Whether some required property has constants in all shapes, and none under two labels.
bool SimpleShapes::have_distinct_labels(const std::vector<Labelled>& shapes) {
  const auto is_object = [](const Labelled& one) { return one.traits->shape->types == kObjectType; };
  if (shapes.empty() || !std::ranges::all_of(shapes, is_object)) return false;
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

void SimpleShapes::exclude(ValueId schema, std::span<const ValueId> branches, bool is_settled, std::vector<Exclusion>& out) {
  std::deque<Traits> traits;
  std::vector<Labelled> labelled;
  for (uint32_t index = 0; index < branches.size(); ++index)
    for (const SimpleShape& shape : of(branches[index])) labelled.push_back({&traits.emplace_back(traits_of(shape)), index});
  if (is_settled || have_distinct_labels(labelled)) return;
  require(labelled.size() <= kMaxCompared);
  for (size_t j = 0; j < labelled.size(); ++j)
    for (size_t i = 0; i < j; ++i) {
      if (labelled[i].label == labelled[j].label || are_apart(*labelled[i].traits, *labelled[j].traits)) continue;
      reader_.spend(kPairCost);
      out.push_back({*labelled[i].traits->shape, *labelled[j].traits->shape, schema, {labelled[i].label, labelled[j].label}});
    }
}

void SimpleShapes::exclude(std::span<const SimpleShape> shapes, std::vector<Exclusion>& out) {
  if (std::ranges::all_of(shapes, [](const SimpleShape& shape) { return shape.branches.empty(); })) return;
  std::vector<Traits> traits;
  for (const SimpleShape& shape : shapes) traits.push_back(traits_of(shape));
  std::map<ValueId, std::vector<Labelled>> groups;
  for (const Traits& one : traits)
    for (const SimpleShape::Branch& branch : one.shape->branches) groups[branch.schema].push_back({&one, branch.index});
  if (std::ranges::all_of(groups, [](const auto& group) { return have_distinct_labels(group.second); })) return;
  require(traits.size() <= kMaxCompared);
  for (size_t j = 0; j < traits.size(); ++j)
    for (size_t i = 0; i < j; ++i) {
      if (are_apart(traits[i], traits[j])) continue;
      const SimpleShape &a = *traits[i].shape, &b = *traits[j].shape;
      const SimpleShape::Branch *one = nullptr, *other = nullptr;
      bool is_settled = false;
      for (const SimpleShape::Branch& mine : a.branches)
        for (const SimpleShape::Branch& theirs : b.branches) {
          if (mine.schema != theirs.schema || mine.index == theirs.index) continue;
          is_settled |= overlaps_.contains(mine.schema);
          if (one == nullptr) one = &mine, other = &theirs;
        }
      if (one == nullptr || is_settled) continue;
      reader_.spend(kPairCost);
      out.push_back({a, b, one->schema, {one->index, other->index}});
    }
}

}  // namespace structgen
