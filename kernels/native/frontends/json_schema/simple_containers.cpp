// What arrays and objects need: a plan for the items, for the value of each name, and for each region of other names.
#include <algorithm>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "frontends/json_schema/simple_planning.h"

namespace structgen {

namespace {

constexpr size_t kPairsANode = 8;  // schemas and names that are looked at together
constexpr size_t kMaxValues = 5'000;  // that are enumerated, as _MAX_VALUES in emit/unique_items.py
constexpr size_t kFewNames = 12;   // below this, comparing all pairs is cheaper than a table

}  // namespace

SimplePlanning::Arrays SimplePlanning::arrays_of(std::span<const ValueId> schemas) {
  Arrays all;
  for (ValueId id : schemas) {
    const SimpleSchema schema = reader_.read(id);
    bound(schema, Keyword::kMinItems, Keyword::kMaxItems, all.fewest, all.most);
    all.are_unique |= schema.has(Keyword::kUniqueItems);
    if (!schema.has(Keyword::kItems)) continue;
    const ValueId item = schema.value(Keyword::kItems);
    if (document_.kind(item) == JsonKind::kObject || !reader_.boolean(item)) all.items.push_back(item);
  }
  all.are_unique &= all.most > 1;
  return all;
}

// What the arrays of schemas that are met need.
SimplePlanning::PlanId SimplePlanning::array(std::span<const ValueId> schemas) {
  reader_.spend(kItemCost);
  const Arrays all = arrays_of(schemas);
  Plan plan;
  plan.form = in_arguments_ ? Form::kItems : all.are_unique ? Form::kDistinct : Form::kArray;
  plan.fewest = all.fewest;
  plan.most = all.most;
  if (all.are_unique) {
    require(!in_arguments_);
    std::vector<std::string> texts;
    const std::vector<SimpleShape> shapes = all.items.empty() ? std::vector<SimpleShape>() : shapes_.of_all(all.items);
    if (!all.items.empty() && enumerate(shapes, texts)) {
      shapes_.exclude(shapes, exclusions_);
      reader_.spend(kItemCost * texts.size());
      return done(emit_.array_of_values(plan, texts));
    }
    require(all.fewest < 2);  // they might run out
  }
  plan.children = {in_arguments_ ? request_item(all.items) : all.items.empty() ? anything() : request_all(all.items)};
  return add(std::move(plan));
}

// As UniqueItems in emit/unique_items.py, but for integers between two bounds.
bool SimplePlanning::enumerate(std::span<const SimpleShape> shapes, std::vector<std::string>& texts) {
  std::unordered_set<std::string> known;
  const auto add_text = [&](std::string text) {
    if (known.insert(text).second) texts.push_back(std::move(text));
  };
  for (const SimpleShape& shape : shapes) {
    if (!shape.values.empty()) {
      for (ValueId value : admitted(shape)) {
        std::string text;
        reader_.append_constant(value, text);
        add_text(std::move(text));
      }
    } else {
      if (shape.types & ~(kBooleanType | kNullType | kIntegerType)) return false;
      if (shape.types & kIntegerType) {
        require(std::ranges::none_of(shape.scalars, &SimpleScalar::of_numbers));
        return false;
      }
      if (shape.types & kBooleanType) add_text("true"), add_text("false");
      if (shape.types & kNullType) add_text("null");
    }
    if (texts.size() > kMaxValues) return false;
  }
  return true;
}

void SimplePlanning::bound(const SimpleSchema& schema, Keyword fewest, Keyword most, uint32_t& low, uint32_t& high) const {
  if (schema.has(fewest)) low = std::max(low, reader_.count(schema.value(fewest)));
  if (schema.has(most)) high = std::min(high, reader_.count(schema.value(most)));
}

// What the objects of one schema need: a plan for the value of each name, then one for each region of others.
void SimplePlanning::object(PlanId id, ValueId value_id) {
  const SimpleSchema schema = reader_.read(value_id);
  if (schema.has(Keyword::kDependents) || !reader_.properties(schema, Keyword::kPatternProperties).empty()) return objects(id, {{shapes_.object_of(value_id)}});
  std::vector<SimpleEntry> entries;
  std::vector<PlanId> children;
  const std::vector<std::string_view> names = reader_.required_names(schema);
  std::unordered_set<std::string_view> required;  // where there are many
  std::vector<std::string_view> few;
  const bool are_few = names.size() <= kFewNames;
  if (!are_few) required.insert(names.begin(), names.end());
  else
    for (std::string_view name : names)
      if (std::ranges::find(few, name) == few.end()) few.push_back(name);
  const auto take = [&](std::string_view name) { return are_few ? std::erase(few, name) > 0 : required.erase(name) > 0; };
  const ValueId additional = reader_.additional(schema);
  const auto request_additional = [&] { return additional == kNone ? any_part() : part(additional); };
  const std::span<const JsonDocument::Member> declared = reader_.properties(schema);
  entries.reserve(declared.size());
  children.reserve(declared.size() + 1);
  for (const auto& [name, value] : declared)
    entries.push_back({name, take(name) || (of_.requires_all_ && document_.kind(value) != JsonKind::kFalse)});
  for (std::string_view name : names)
    if (take(name)) entries.push_back({name, true});
  reader_.spend(kShapeCost + kEntryCost * entries.size());
  bound(schema, Keyword::kMinProperties, Keyword::kMaxProperties, plans_[id].fewest, plans_[id].most);
  for (const auto& [name, value] : declared) {
    children.push_back(part(value));
    pulse_.beat(kMemberSteps);
  }
  for (size_t i = declared.size(); i < entries.size(); ++i) children.push_back(request_additional());
  std::vector<SimpleNode> regions;
  const bool is_open = additional == kNone ? !of_.closes_ || schema.has(Keyword::kAdditionalProperties) || !reader_.names_some(schema) : document_.kind(additional) == JsonKind::kObject;
  if (is_open) {
    regions.push_back(kNone);
    children.push_back(request_additional());
  }
  set_members(id, std::move(entries), std::move(regions), std::move(children));
}

// The same of what several schemas say of objects, or one with patterns or more.
void SimplePlanning::objects(PlanId id, std::span<const SimpleObject* const> objects) {
  if (objects.size() == 1 && objects[0]->is_plain()) return object(id, objects[0]->schema);
  SimpleLayout layout = layout_of(objects, true);
  reader_.spend(kShapeCost + kEntryCost * layout.entries.size());
  std::vector<SimpleNode> keys = keys_of(layout);
  std::vector<PlanId> children;
  if (!layout.is_stateful()) {
    for (const std::vector<SchemaRef>& applied : layout.values) children.push_back(applied.empty() ? anything() : request_all(applied));
    plans_[id].fewest = layout.fewest;
    plans_[id].most = layout.most;
    return set_members(id, std::move(layout.entries), std::move(keys), std::move(children));
  }
  require(!in_arguments_);
  auto chain = std::make_shared<const SimpleChain>(std::move(layout), shapes_, reader_);
  reader_.spend(kItemCost * chain->values().size());
  for (const std::vector<SchemaRef>& applied : chain->values()) children.push_back(applied.empty() ? anything() : request_all(applied));
  set_members(id, {}, std::move(keys), std::move(children));
  plans_[id].form = Form::kChain;
  plans_[id].chain = std::move(chain);
}

// Of each object the property of a name and the patterns that it matches apply to a value, or else what it says of other
// names.
SimpleLayout SimplePlanning::layout_of(std::span<const SimpleObject* const> objects, bool restricts) {
  SimpleLayout layout;
  std::vector<const SimpleObject*> positive, holding;  // the latter name members
  std::vector<std::string_view> patterns;
  std::unordered_map<std::string_view, uint32_t> entry_of;
  std::vector<SimpleEntry>& entries = layout.entries;
  const auto declare = [&](std::string_view name) -> size_t {
    const auto [known, is_new] = entry_of.try_emplace(name, entries.size());
    if (is_new) entries.push_back({name, false});
    return known->second;
  };
  for (const SimpleObject* object : objects) {
    is_read_[object->schema] = true;
    (object->is_negated ? layout.negated : positive).push_back(object);
    if (object->annotates) holding.push_back(object);
    for (const auto& [name, value] : object->properties) declare(name);
    for (const auto& [pattern, value] : object->patterns)
      if (layout.pattern_of.try_emplace(pattern, patterns.size()).second) patterns.push_back(pattern);
  }
  const bool closes = restricts && of_.closes_ && std::ranges::none_of(holding, &SimpleObject::covers_rest) && std::ranges::any_of(holding, &SimpleObject::names_some);
  const std::unordered_set<std::string_view> declared = restricts && of_.requires_all_ ? declared_names(holding) : std::unordered_set<std::string_view>();
  if (closes || !declared.empty())  // as if one more object had their names as properties
    for (const SimpleObject* object : holding) {
      for (std::string_view name : object->required) declare(name);
      for (const auto& [name, others] : object->dependents) {
        declare(name);
        for (std::string_view other : others) declare(other);
      }
    }
  for (const SimpleObject* object : objects)
    for (std::string_view name : object->required) declare(name);
  for (const SimpleObject* object : positive) {
    layout.fewest = std::max(layout.fewest, object->fewest);
    layout.most = std::min(layout.most, object->most);
    for (std::string_view name : object->required) entries[entry_of.at(name)].is_required = true;
    for (const auto& [name, others] : object->dependents) {
      std::vector<size_t> required;
      for (std::string_view other : others)
        if (const size_t entry = declare(other); other != name) required.push_back(entry);
      layout.dependents.emplace_back(declare(name), std::move(required));
    }
  }
  for (SimpleEntry& entry : entries) entry.is_required |= declared.contains(entry.name);
  if (!patterns.empty()) layout.names = names_of(entries, patterns);
  if (!layout.names) layout.regions.emplace_back();
  else
    for (uint32_t index = 0; index < layout.names->regions.size(); ++index) layout.regions.push_back({layout.names->regions[index].matched, index});
  std::vector<std::vector<SchemaRef>>& applied = layout.values;
  applied.resize(entries.size() + layout.regions.size());
  std::vector<bool> is_covered;
  for (const SimpleObject* object : positive) {
    const SchemaRef additional = object->additional;
    if (additional != kNone) is_covered.assign(applied.size(), false);
    const auto cover = [&](size_t at, SchemaRef value) {
      if (additional != kNone) is_covered[at] = true;
      applied[at].push_back(value);
    };
    for (const auto& [name, value] : object->properties) cover(entry_of.at(name), value);
    for (const auto& [pattern, value] : object->patterns)
      for (size_t at = 0; at < applied.size(); ++at)
        if (layout.matches(at, pattern)) cover(at, value);
    if (additional == kNone) continue;
    reader_.spend(applied.size() / kPairsANode);
    for (size_t at = 0; at < applied.size(); ++at)
      if (!is_covered[at]) applied[at].push_back(additional);
  }
  if (closes) {  // what none of them names does not occur
    std::vector<bool> is_named(applied.size());
    for (const SimpleObject* object : holding) {
      for (const auto& [name, value] : object->properties)
        if (reader_.kind(value) != JsonKind::kFalse) is_named[entry_of.at(name)] = true;
      for (std::string_view name : object->required) is_named[entry_of.at(name)] = true;
      for (const auto& [name, others] : object->dependents) {
        is_named[entry_of.at(name)] = true;
        for (std::string_view other : others) is_named[entry_of.at(other)] = true;
      }
      for (const auto& [pattern, value] : object->patterns)
        for (size_t at = 0; at < applied.size(); ++at)
          if (layout.matches(at, pattern)) is_named[at] = true;
    }
    for (size_t at = 0; at < applied.size(); ++at)
      if (!is_named[at]) applied[at].push_back(complement(kAnything));
  }
  const auto is_false = [&](SchemaRef schema) { return reader_.kind(schema) == JsonKind::kFalse; };
  const bool is_closed = std::ranges::any_of(positive, &SimpleObject::is_closed);
  for (size_t region = layout.regions.size(); region-- > 0;) {
    const auto at = static_cast<std::ptrdiff_t>(entries.size() + region);
    if (!is_closed && std::ranges::none_of(applied[static_cast<size_t>(at)], is_false)) continue;
    layout.regions.erase(layout.regions.begin() + static_cast<std::ptrdiff_t>(region));
    applied.erase(applied.begin() + at);
  }
  return layout;
}

// The names of members that objects declare, and that may occur.
std::unordered_set<std::string_view> SimplePlanning::declared_names(std::span<const SimpleObject* const> objects) const {
  std::unordered_set<std::string_view> declared;
  for (const SimpleObject* object : objects)
    for (const auto& [name, value] : object->properties) declared.insert(name);
  for (const SimpleObject* object : objects)
    for (const auto& [name, value] : object->properties)
      if (document_.kind(value) == JsonKind::kFalse) declared.erase(name);
  return declared;
}

// The keys of the regions.
std::vector<SimpleNode> SimplePlanning::keys_of(const SimpleLayout& layout) {
  std::vector<SimpleNode> keys;
  for (const SimpleLayout::Region& region : layout.regions) {
    if (region.index != kNone) keys.push_back(emit_.add_leaf({layout.names->regions[region.index].key, SimpleLeaf::Size::kAtom}));
    else keys.push_back(layout.is_stateful() ? emit_.other_names(layout.entries) : kNone);
  }
  return keys;
}

std::shared_ptr<const SimplePlanner::Names> SimplePlanning::names_of(const std::vector<SimpleEntry>& entries,
                                                                       const std::vector<std::string_view>& patterns) {
  std::string text = "{\"properties\":{";
  const auto append_free = [&](std::string_view name) {
    if (text.back() != '{') text.push_back(',');
    append_quoted(name, text);
    text += ":true";
  };
  for (const SimpleEntry& entry : entries) append_free(entry.name);
  text += "},\"patternProperties\":{";
  for (std::string_view pattern : patterns) append_free(pattern);
  text += "}}";
  std::shared_ptr<const SimplePlanner::Names> names = of_.names(text, helper_.attr("names"));
  require(names != nullptr);
  return names;
}

void SimplePlanning::set_members(PlanId id, std::vector<SimpleEntry> entries, std::vector<SimpleNode> regions,
                                 std::vector<PlanId> children) {
  Plan& plan = plans_[id];
  plan.form = Form::kObject;
  plan.entries = std::move(entries);
  plan.regions = std::move(regions);
  plan.children = std::move(children);
}

}  // namespace structgen
