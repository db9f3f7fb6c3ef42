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
constexpr size_t kFewNames = 12;   // below this, comparing all pairs is cheaper than a table

}  // namespace

// What the arrays of schemas that are met need.
SimplePlanning::PlanId SimplePlanning::array(std::span<const ValueId> schemas) {
  reader_.spend(kItemCost);
  Plan plan;
  plan.form = in_arguments_ ? Form::kItems : Form::kArray;
  std::vector<ValueId> items;
  for (ValueId id : schemas) {
    const SimpleSchema schema = reader_.read(id);
    bound(plan, schema, Keyword::kMinItems, Keyword::kMaxItems);
    if (!schema.has(Keyword::kItems)) continue;
    const ValueId item = schema.value(Keyword::kItems);
    if (document_.kind(item) == JsonKind::kObject || !reader_.boolean(item)) items.push_back(item);
  }
  plan.children = {in_arguments_ ? request_item(items) : items.empty() ? anything() : request_all(items)};
  return add(std::move(plan));
}

// Whether the policy forbids the members that schemas which are met do not name.
bool SimplePlanning::closes(std::span<const SimpleSchema> schemas) const {
  const auto speaks_of_others = [](const SimpleSchema& schema) { return schema.has(Keyword::kAdditionalProperties); };
  const auto names_some = [&](const SimpleSchema& schema) { return reader_.names_some(schema); };
  return of_.closes_ && std::ranges::none_of(schemas, speaks_of_others) && std::ranges::any_of(schemas, names_some);
}

void SimplePlanning::bound(Plan& plan, const SimpleSchema& schema, Keyword fewest, Keyword most) const {
  if (schema.has(fewest)) plan.fewest = std::max(plan.fewest, reader_.count(schema.value(fewest)));
  if (schema.has(most)) plan.most = std::min(plan.most, reader_.count(schema.value(most)));
}

// What the objects of schemas that are met need: a plan for the value of each name, then one for each region of others.
void SimplePlanning::object(PlanId id, std::span<const ValueId> schemas) {
  const SimpleSchema schema = reader_.read(schemas[0]);
  if (schemas.size() > 1 || schema.has(Keyword::kPatternProperties)) return met_objects(id, schemas);
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
  bound(plans_[id], schema, Keyword::kMinProperties, Keyword::kMaxProperties);
  for (const auto& [name, value] : declared) children.push_back(part(value));
  for (size_t i = declared.size(); i < entries.size(); ++i) children.push_back(request_additional());
  std::vector<SimpleNode> regions;
  const bool is_open = additional == kNone ? !closes({&schema, 1}) : document_.kind(additional) == JsonKind::kObject;
  if (is_open) {
    regions.push_back(kNone);
    children.push_back(request_additional());
  }
  set_members(id, std::move(entries), std::move(regions), std::move(children));
}

// The same of several schemas, or with patterns: of each schema the property of a name and the patterns that it
// matches apply to a value, or else what it says of other names.
void SimplePlanning::met_objects(PlanId id, std::span<const ValueId> schemas) {
  std::vector<SimpleSchema> read;
  std::vector<SimpleEntry> entries;
  std::unordered_map<std::string_view, uint32_t> entry_of, pattern_of;
  const auto declare = [&](std::string_view name) -> SimpleEntry& {
    const auto [known, is_new] = entry_of.try_emplace(name, entries.size());
    if (is_new) entries.push_back({name, false});
    return entries[known->second];
  };
  std::vector<std::string_view> patterns;
  for (ValueId schema : schemas) {
    is_read_[schema] = true;
    read.push_back(reader_.read(schema));
    bound(plans_[id], read.back(), Keyword::kMinProperties, Keyword::kMaxProperties);
    for (const auto& [name, value] : reader_.properties(read.back())) declare(name);
    for (const auto& [pattern, value] : reader_.properties(read.back(), Keyword::kPatternProperties))
      if (pattern_of.try_emplace(pattern, patterns.size()).second) patterns.push_back(pattern);
  }
  for (const SimpleSchema& schema : read)
    for (std::string_view name : reader_.required_names(schema)) declare(name).is_required = true;
  if (of_.requires_all_) {
    std::unordered_set<std::string_view> forbidden;
    const auto each = [&](const auto& visit) {
      for (const SimpleSchema& schema : read)
        for (const auto& [name, value] : reader_.properties(schema)) visit(name, document_.kind(value) == JsonKind::kFalse);
    };
    each([&](std::string_view name, bool is_false) { if (is_false) forbidden.insert(name); });
    each([&](std::string_view name, bool) { if (!forbidden.contains(name)) declare(name).is_required = true; });
  }
  const std::shared_ptr<const SimplePlanner::Names> names = patterns.empty() ? nullptr : names_of(entries, patterns);
  const size_t regions_at_most = names ? names->regions.size() : 1;
  std::vector<std::vector<ValueId>> applied(entries.size() + regions_at_most);  // what applies to the values
  std::vector<bool> is_covered;
  for (const SimpleSchema& schema : read) {
    const ValueId additional = reader_.additional(schema);
    if (additional != kNone) is_covered.assign(applied.size(), false);
    const auto cover = [&](size_t at, ValueId value) {
      if (additional != kNone) is_covered[at] = true;
      applied[at].push_back(value);
    };
    for (const auto& [name, value] : reader_.properties(schema)) cover(entry_of.at(name), value);
    for (const auto& [pattern, value] : reader_.properties(schema, Keyword::kPatternProperties))
      for (size_t at = 0; at < applied.size(); ++at) {
        const auto& matched = at < entries.size() ? names->matched[at] : names->regions[at - entries.size()].matched;
        if (std::ranges::find(matched, pattern_of.at(pattern)) != matched.end()) cover(at, value);
      }
    if (additional == kNone) continue;
    reader_.spend(applied.size() / kPairsANode);
    for (size_t at = 0; at < applied.size(); ++at)
      if (!is_covered[at]) applied[at].push_back(additional);
  }
  reader_.spend(kShapeCost + kEntryCost * entries.size());
  std::vector<PlanId> children;
  std::vector<SimpleNode> regions;
  const bool closes_rest = closes(read);
  const bool is_closed = std::ranges::any_of(read, [&](const SimpleSchema& schema) { return reader_.is_closed(schema); });
  const auto is_false = [&](ValueId schema) { return document_.kind(schema) == JsonKind::kFalse; };
  for (size_t at = 0; at < applied.size(); ++at) {
    if (at >= entries.size()) {
      const bool is_named = names && !names->regions[at - entries.size()].matched.empty();
      if (is_closed || (closes_rest && !is_named) || std::ranges::any_of(applied[at], is_false)) continue;
      regions.push_back(names ? emit_.add_leaf({names->regions[at - entries.size()].key, SimpleLeaf::Size::kAtom}) : kNone);
    }
    children.push_back(applied[at].empty() ? anything() : request_all(applied[at]));
  }
  set_members(id, std::move(entries), std::move(regions), std::move(children));
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
