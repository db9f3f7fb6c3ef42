// Whether the alternatives of a `oneOf` overlap: proofs that there are no values, as `prove` of emit/plan.py has them.  A
// proof is certain; where there is none, the alternatives count as overlapping, and each is met with the complement of
// the others.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <utility>

#include "frontends/json_schema/simple_planning.h"

namespace nb = nanobind;

namespace structgen {

namespace {

constexpr uint32_t kMaxProofDepth = 100;

}  // namespace

bool SimplePlanning::are_alternatives_apart() {
  std::vector<ValueId> overlapping;
  for (const SimpleShapes::Exclusion& one : exclusions_)
    if (std::ranges::find(overlapping, one.schema) == overlapping.end() && overlap(one.first, one.second)) overlapping.push_back(one.schema);
  for (ValueId schema : overlapping) {
    auto& pairs = found_[schema];
    std::vector<SimpleShapes::Exclusion> exclusions;
    shapes_.exclude(schema, reader_.branches(reader_.read(schema), Keyword::kOneOf), false, exclusions);
    for (const SimpleShapes::Exclusion& one : exclusions) {
      const std::pair<uint32_t, uint32_t> pair = std::minmax(one.indices.first, one.indices.second);
      if (!pairs.contains(pair) && overlap(one.first, one.second)) pairs.insert(pair);
    }
  }
  return overlapping.empty();
}

bool SimplePlanning::overlap(const SimpleShape& one, const SimpleShape& other) {
  reader_.spend(kShapeCost);
  return !is_empty(shapes_.both(one, other));
}

bool SimplePlanning::is_empty(const std::vector<SchemaRef>& schemas) {
  Conjunction all = conjunction(schemas);
  if (!all.is_possible) return true;
  if (all.schemas.empty()) return false;
  if (all.schemas.size() == 1 && !is_negated(all.schemas[0])) all.keys = {reader_.canonical(all.schemas[0])};
  const auto [known, is_new] = proofs_.try_emplace(all.keys, false);
  if (!is_new) return known->second;
  require(++proof_depth_ < kMaxProofDepth);
  const std::vector<SimpleShape> shapes = shapes_.of_all(all.schemas);
  const bool is_proved = std::ranges::all_of(shapes, [&](const SimpleShape& shape) { return is_empty(shape); });
  --proof_depth_;
  return proofs_[all.keys] = is_proved;
}

bool SimplePlanning::is_empty(const SimpleShape& shape) {
  if (shape.types == 0) return true;
  if (!shape.values.empty()) return admitted(shape).empty();
  if (!is_scalar_empty(shape)) return false;
  if (shape.types & kArrayType) {
    if (shape.arrays.empty()) return false;
    reader_.spend(kItemCost);
    const Arrays all = arrays_of(shape.arrays);
    require(!all.are_unique || all.fewest < 2);
    if (all.fewest <= all.most && (all.fewest == 0 || all.items.empty() || !is_empty(all.items))) return false;
  }
  return !(shape.types & kObjectType) || (!shape.objects.empty() && is_object_empty(shape.objects));
}

// Whether a shape has no null, truth value, number or string.
bool SimplePlanning::is_scalar_empty(const SimpleShape& shape) {
  if (shape.types & (kNullType | kBooleanType)) return false;
  const uint8_t types = shape.types & (kNumberType | kStringType);
  if (types == 0) return true;
  if (types & kStringType && std::ranges::none_of(shape.scalars, &SimpleScalar::of_strings)) return false;
  if (types & kNumberType && std::ranges::none_of(shape.scalars, &SimpleScalar::of_numbers)) return false;
  nb::object found = helper_.attr("empty")(leaf_text(shape.scalars, types));
  require(!found.is_none());
  return nb::cast<bool>(found);
}

bool SimplePlanning::is_object_empty(std::span<const SimpleObject* const> objects) {
  SimpleLayout layout = layout_of(objects, false);
  reader_.spend(kShapeCost + kEntryCost * layout.entries.size());
  if (layout.is_stateful()) {
    const SimpleChain chain(std::move(layout), shapes_, reader_);
    reader_.spend(kItemCost * chain.values().size());
    for (const std::vector<SchemaRef>& applied : chain.values()) conjunction(applied);  // which compares them
    return chain.is_empty([&](uint32_t value) { return is_empty(chain.values()[value]); }, reader_);
  }
  for (const std::vector<SchemaRef>& applied : layout.values) conjunction(applied);
  const auto is_false = [&](SchemaRef schema) { return reader_.kind(schema) == JsonKind::kFalse; };
  for (size_t at = 0; at < layout.entries.size(); ++at)
    if (layout.entries[at].is_required && std::ranges::any_of(layout.values[at], is_false)) return true;
  uint32_t required = 0;
  for (size_t at = 0; at < layout.entries.size(); ++at) {
    if (!layout.entries[at].is_required) continue;
    ++required;
    if (is_empty(layout.values[at])) return true;
  }
  if (layout.most < std::max(layout.fewest, required)) return true;
  if (layout.fewest <= required) return false;
  uint32_t need = layout.fewest - required;
  for (size_t at = layout.entries.size(); at < layout.values.size(); ++at)
    if (!is_empty(layout.values[at])) return false;
  for (size_t at = 0; at < layout.entries.size(); ++at)
    if (!layout.entries[at].is_required && !is_empty(layout.values[at]) && --need == 0) return false;
  return true;
}

}  // namespace structgen
