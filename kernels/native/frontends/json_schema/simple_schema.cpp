#include "frontends/json_schema/simple_schema.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "automaton/automaton.h"
#include "frontends/json_schema/simple_reading.h"
#include "frontends/json_schema/simple_shapes.h"

namespace nb = nanobind;

namespace structgen {

namespace {

// As in emit/type_plan.py: what counts against the limit of nodes.
constexpr uint64_t kShapeCost = 64, kEntryCost = 40, kItemCost = 16, kConstantCost = 3;
// What a schema constrains itself, beside simple keywords, which may say nothing.
constexpr std::array kOwnKeywords = {Keyword::kEnum, Keyword::kConst, Keyword::kItems, Keyword::kMinItems, Keyword::kMaxItems,
                                     Keyword::kProperties, Keyword::kRequired, Keyword::kAdditionalProperties,
                                     Keyword::kPatternProperties, Keyword::kMinProperties, Keyword::kMaxProperties};
constexpr size_t kUsualPlans = 64;
constexpr size_t kLongestLeaf = 512;  // bytes of a leaf that is kept
constexpr size_t kMaxLeaves = 4'096;

using PlanId = uint32_t;

}  // namespace

// The planning of one document, in the passes of emit/planner.py and emit/plan.py: the first visits the schemas breadth
// first and notes what each needs, the second makes terms from the leaves on.
class SimplePlanning {
  using Kind = SimpleTerms::Kind;

 public:
  SimplePlanning(SimplePlanner& planner, const JsonDocument& document, nb::handle make_leaf, nb::handle helper)
      : of_(planner), document_(document), reader_(planner.dialect_, planner.limits_, document), shapes_(reader_, document),
        make_leaf_(make_leaf), helper_(helper), emit_(planner.syntax_), plan_of_(document.size(), kNone),
        is_read_(document.size()) {
    plans_.reserve(std::min(document.size(), kUsualPlans));  // of a large document little may be reached
  }

  std::unique_ptr<SimpleTerms> all() {
    require(document_.kind(document_.root()) == JsonKind::kObject);
    const PlanId root = request(document_.root());
    for (size_t next = 0; next < pending_.size(); ++next) {
      depth_ = plans_[pending_[next]].depth + 1;
      expand(pending_[next]);
    }
    // References may mean something by an identifier, and schemas that are written alike may differ by it.
    require(!reader_.has_inner_identifier || (!reader_.has_reference && conjunctions_.empty()));
    require_content();
    for (ValueId schema : shapes_.unread()) {
      if (is_read_[schema]) continue;
      require(!reader_.read(schema).has(Keyword::kPatternProperties));
      leaf_of({{schema}}, kAnyType);  // which refuses what is not simple
    }
    build(root);
    require(!emit_.is_nothing(plans_[root].term));
    emit_.terms().result = plans_[root].term;
    return emit_.take();
  }

 private:
  enum class Form : uint8_t { kUnion, kObject, kArray };
  enum class State : uint8_t { kNew, kOpen, kDone };

  struct Plan : SimpleContainer {
    std::vector<ValueId> schemas;  // none: part of another plan
    uint32_t depth = 0;
    uint32_t uses = 1;
    Form form = Form::kUnion;
    State state = State::kNew;
    bool is_in_place = false;  // its children apply to the same value
    uint32_t rule = kNone;
    SimpleNode term = kNone;
    std::vector<PlanId> children;
  };

  // First pass

  PlanId anything() {
    if (anything_ == kNone) anything_ = done(emit_.shared(SimpleSyntax::kAnyValue));
    return anything_;
  }

  PlanId done(SimpleNode term) {
    Plan plan;
    plan.state = State::kDone;
    plan.term = term;
    return add(std::move(plan));
  }

  PlanId add(Plan plan) {
    plans_.push_back(std::move(plan));
    return static_cast<PlanId>(plans_.size() - 1);
  }

  PlanId add_pending(std::vector<ValueId> schemas) {
    require(depth_ <= of_.limits_.depth);
    Plan plan;
    plan.schemas = std::move(schemas);
    plan.depth = depth_;
    pending_.push_back(add(std::move(plan)));
    return pending_.back();
  }

  // The plan of a schema, made if it is new.
  PlanId request(ValueId id) {
    const JsonKind kind = document_.kind(id);
    if (kind == JsonKind::kTrue) return anything();
    if (kind == JsonKind::kFalse) return done(emit_.nothing());
    require(kind == JsonKind::kObject);
    PlanId& known = plan_of_[id];
    if (known != kNone) {
      ++plans_[known].uses;
      return known;
    }
    const SimpleSchema schema = reader_.read_relevant(id);
    if (!schema.is_leaf()) return known = add_pending({id});
    return known = done(leaf_of({{id}}, std::nullopt));
  }

  // The plan of what must be valid against all of the schemas.
  PlanId request_all(const std::vector<ValueId>& ids) {
    if (ids.size() == 1) return request(ids[0]);
    std::vector<ValueId> distinct, keys;
    bool is_possible = true;
    for (ValueId id : ids) {
      const JsonKind kind = document_.kind(id);
      if (kind == JsonKind::kFalse) is_possible = false;
      if (kind != JsonKind::kObject ? kind == JsonKind::kTrue : document_.members(id).empty()) continue;
      const ValueId key = reader_.key(id);
      if (std::ranges::find(keys, key) != keys.end()) continue;
      keys.push_back(key);
      distinct.push_back(id);
    }
    if (!is_possible) return done(emit_.nothing());
    if (distinct.size() <= 1) return distinct.empty() ? anything() : request(distinct[0]);
    std::ranges::sort(keys);
    const auto [known, is_new] = conjunctions_.try_emplace(std::move(keys), kNone);
    if (is_new) known->second = add_pending(std::move(distinct));
    else ++plans_[known->second].uses;
    return known->second;
  }

  void expand(PlanId id) {
    if (plans_[id].schemas.size() > 1) return fill(id, shapes_.of_all(std::vector(plans_[id].schemas)));
    const ValueId value = plans_[id].schemas[0];
    const SimpleSchema schema = reader_.read_relevant(value);
    if (schema.has_any(kInPlaceKeywords)) return in_place(id, value, schema);
    if (schema.has_values()) return set_children(id, {constants(value, schema)});
    const bool has_array = schema.has_any(kArrayKeywords), has_object = schema.has_any(kObjectKeywords);
    const uint8_t others = schema.types & ~((has_array ? kArrayType : 0) | (has_object ? kObjectType : 0));
    if (others == 0 && schema.has(Keyword::kSimple)) leaf_of({{value}}, schema.types);  // which refuses what is not simple
    if (schema.types == kObjectType) return object(id, {{value}});
    std::vector<PlanId> parts;
    if (others != 0) parts.push_back(done(leaf_of({{value}}, others)));
    if (has_array) parts.push_back(array({{value}}));
    if (has_object) object(parts.emplace_back(add(Plan())), {{value}});
    set_children(id, std::move(parts));
  }

  void set_children(PlanId id, std::vector<PlanId> children) { plans_[id].children = std::move(children); }

  // A schema that applies other schemas to the same value: nothing but one reference, `anyOf`, `oneOf`, or `allOf` of
  // one schema, is the union of these; all else is multiplied out.
  void in_place(PlanId id, ValueId value, const SimpleSchema& schema) {
    const std::vector<Keyword> parts = reader_.parts(value, schema);
    const bool is_free = schema.types == kAnyType && !reader_.read(value).has_any(kOwnKeywords);
    require(!schema.has(Keyword::kSimple) || reader_.has_bounds(value) || !is_free || parts.size() != 2);  // it may say nothing
    if (parts.size() == 2 && is_free && !schema.has(Keyword::kSimple)) {
      const Keyword keyword = parts[parts[0] == Keyword::kProperties ? 1 : 0];
      if (keyword == Keyword::kReference) return alternatives(id, {{reader_.target(schema)}});
      const std::span<const ValueId> branches = reader_.branches(schema, keyword);
      const auto is_constant = [&](ValueId branch) { return shapes_.is_constant(branch); };
      if (branches.size() == 1 || (keyword != Keyword::kAllOf && !std::ranges::all_of(branches, is_constant))) {
        if (keyword == Keyword::kOneOf) shapes_.require_apart(branches);
        return alternatives(id, branches);
      }
    }
    fill(id, shapes_.of(value));
  }

  void alternatives(PlanId id, std::span<const ValueId> branches) {
    std::vector<PlanId> children;
    for (ValueId branch : branches) children.push_back(request(branch));
    plans_[id].is_in_place = true;
    set_children(id, std::move(children));
  }

  // Notes what shapes need.
  void fill(PlanId id, std::span<const SimpleShape> shapes) {
    shapes_.require_apart(shapes);
    if (shapes.size() == 1 && shapes[0].types == kObjectType && !shapes[0].objects.empty() && shapes[0].values.empty())
      return object(id, shapes[0].objects);
    std::vector<PlanId> parts;
    for (const SimpleShape& shape : shapes) {
      if (shape.types == 0) continue;
      if (!shape.values.empty()) {
        parts.push_back(constants(shape));
        continue;
      }
      const bool has_array = shape.types & kArrayType && !shape.arrays.empty();
      const bool has_object = shape.types & kObjectType && !shape.objects.empty();
      const uint8_t others = shape.types & ~((has_array ? kArrayType : 0) | (has_object ? kObjectType : 0));
      if (others != 0) parts.push_back(done(leaf_of(shape.scalars, others)));
      if (has_array) parts.push_back(array(shape.arrays));
      if (has_object) object(parts.emplace_back(add(Plan())), shape.objects);
    }
    set_children(id, std::move(parts));
  }

  PlanId constants(ValueId value, const SimpleSchema& schema) {
    require(schema.has_only({Keyword::kType, Keyword::kNullable, Keyword::kEnum, Keyword::kConst, Keyword::kSimple}));
    require(schema.has(Keyword::kEnum) != schema.has(Keyword::kConst));
    const auto listed = reader_.listed(schema, schema.has(Keyword::kEnum) ? Keyword::kEnum : Keyword::kConst);
    const auto is_simple = [&](ValueId one) {
      const JsonKind kind = document_.kind(one);
      return kind != JsonKind::kFraction && kind != JsonKind::kArray && kind != JsonKind::kObject && document_.source(one) != "-0";
    };
    if (!schema.has(Keyword::kSimple) && std::ranges::all_of(listed, is_simple)) return constants(shapes_.own(value, schema));
    reader_.spend(kItemCost + kConstantCost * listed.size());
    return done(leaf_of({{value}}, std::nullopt));
  }

  // The values of a shape that it admits.
  PlanId constants(const SimpleShape& shape) {
    const SimpleValues& values = *shape.values[0];
    reader_.spend(kItemCost + kConstantCost * values.members.size());
    const std::vector<bool> excluded = excluded_of(values, shape.scalars);
    std::unordered_set<std::string> known;
    std::vector<SimpleNode> literals;
    for (size_t i = 0; i < values.members.size(); ++i) {
      if (!excluded.empty() && excluded[i]) continue;
      const ValueId value = values.members[i];
      std::string text;
      if (!(reader_.append_constant(value, text) & shape.types)) continue;
      const bool is_common = std::ranges::all_of(shape.values, [&](const SimpleValues* other) { return other == &values || other->has(text); });
      if (is_common && known.insert(text).second) literals.push_back(emit_.literal(text));
    }
    if (literals.empty()) return done(emit_.nothing());
    return done(literals.size() == 1 ? literals[0] : emit_.combine(Kind::kChoice, literals));
  }

  // Which values the simple keywords of schemas exclude; empty: none.
  std::vector<bool> excluded_of(const SimpleValues& values, std::span<const ValueId> scalars) {
    std::vector<bool> excluded;
    if (scalars.empty()) return excluded;
    excluded.resize(values.members.size());
    nb::object& listed = listed_[&values];
    if (!listed.is_valid()) {
      std::string text = "[";
      for (ValueId value : values.members) {
        if (text.size() > 1) text.push_back(',');
        reader_.append_constant(value, text);
      }
      listed = make_leaf_.attr("values")(text + "]");
    }
    for (ValueId schema : scalars) {
      std::string text = "{";
      append_leaf(schema, false, text);
      nb::object found = make_leaf_.attr("excluded")(text + "}", listed);
      require(!found.is_none());
      is_read_[schema] = true;
      for (nb::handle index : found) excluded.at(nb::cast<size_t>(index)) = true;
    }
    return excluded;
  }

  // What the arrays of schemas that are met need.
  PlanId array(std::span<const ValueId> schemas) {
    reader_.spend(kItemCost);
    Plan plan;
    plan.form = Form::kArray;
    std::vector<ValueId> items;
    for (ValueId id : schemas) {
      const SimpleSchema schema = reader_.read(id);
      bound(plan, schema, Keyword::kMinItems, Keyword::kMaxItems);
      if (!schema.has(Keyword::kItems)) continue;
      const ValueId item = schema.value(Keyword::kItems);
      if (document_.kind(item) == JsonKind::kObject || !reader_.boolean(item)) items.push_back(item);
    }
    plan.children = {items.empty() ? anything() : request_all(items)};
    return add(std::move(plan));
  }

  void bound(Plan& plan, const SimpleSchema& schema, Keyword fewest, Keyword most) const {
    if (schema.has(fewest)) plan.fewest = std::max(plan.fewest, reader_.count(schema.value(fewest)));
    if (schema.has(most)) plan.most = std::min(plan.most, reader_.count(schema.value(most)));
  }

  // What the objects of schemas that are met need: a plan for the value of each name, then one for each region of others.
  void object(PlanId id, std::span<const ValueId> schemas) {
    const SimpleSchema schema = reader_.read(schemas[0]);
    if (schemas.size() > 1 || schema.has(Keyword::kPatternProperties)) return met_objects(id, schemas);
    std::vector<SimpleEntry> entries;
    std::vector<PlanId> children;
    const std::vector<std::string_view> names = reader_.required_names(schema);
    std::unordered_set<std::string_view> required(names.begin(), names.end());
    const ValueId additional = reader_.additional(schema);
    const auto request_additional = [&] { return additional == kNone ? anything() : request(additional); };
    const std::span<const JsonDocument::Member> declared = reader_.properties(schema);
    for (const auto& [name, value] : declared) entries.push_back({name, required.erase(name) > 0});
    for (std::string_view name : names)
      if (required.erase(name) > 0) entries.push_back({name, true});
    reader_.spend(kShapeCost + kEntryCost * entries.size());
    bound(plans_[id], schema, Keyword::kMinProperties, Keyword::kMaxProperties);
    for (const auto& [name, value] : declared) children.push_back(request(value));
    for (size_t i = declared.size(); i < entries.size(); ++i) children.push_back(request_additional());
    std::vector<SimpleNode> regions;
    if (additional == kNone || document_.kind(additional) == JsonKind::kObject) {
      regions.push_back(kNone);
      children.push_back(request_additional());
    }
    set_members(id, std::move(entries), std::move(regions), std::move(children));
  }

  // The same of several schemas, or with patterns: of each schema the property of a name and the patterns that it
  // matches apply to a value, or else what it says of other names.
  void met_objects(PlanId id, std::span<const ValueId> schemas) {
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
    const std::shared_ptr<const SimplePlanner::Names> names = patterns.empty() ? nullptr : names_of(entries, patterns);
    const size_t regions_at_most = names ? names->regions.size() : 1;
    std::vector<std::vector<ValueId>> applied(entries.size() + regions_at_most);  // what applies to the values
    std::vector<bool> is_covered;
    for (const SimpleSchema& schema : read) {
      is_covered.assign(applied.size(), false);
      const auto cover = [&](size_t at, ValueId value) {
        is_covered[at] = true;
        applied[at].push_back(value);
      };
      for (const auto& [name, value] : reader_.properties(schema)) cover(entry_of.at(name), value);
      for (const auto& [pattern, value] : reader_.properties(schema, Keyword::kPatternProperties))
        for (size_t at = 0; at < applied.size(); ++at) {
          const auto& matched = at < entries.size() ? names->matched[at] : names->regions[at - entries.size()].matched;
          if (std::ranges::find(matched, pattern_of.at(pattern)) != matched.end()) cover(at, value);
        }
      const ValueId additional = reader_.additional(schema);
      for (size_t at = 0; at < applied.size(); ++at)
        if (!is_covered[at] && additional != kNone) applied[at].push_back(additional);
    }
    reader_.spend(kShapeCost + kEntryCost * entries.size());
    std::vector<PlanId> children;
    std::vector<SimpleNode> regions;
    const bool is_closed = std::ranges::any_of(read, [&](const SimpleSchema& schema) { return reader_.is_closed(schema); });
    const auto is_false = [&](ValueId schema) { return document_.kind(schema) == JsonKind::kFalse; };
    for (size_t at = 0; at < applied.size(); ++at) {
      if (at >= entries.size()) {
        if (is_closed || std::ranges::any_of(applied[at], is_false)) continue;
        regions.push_back(names ? emit_.add_leaf({names->regions[at - entries.size()].key, SimpleLeaf::Size::kAtom}) : kNone);
      }
      children.push_back(applied[at].empty() ? anything() : request_all(applied[at]));
    }
    set_members(id, std::move(entries), std::move(regions), std::move(children));
  }

  std::shared_ptr<const SimplePlanner::Names> names_of(const std::vector<SimpleEntry>& entries, const std::vector<std::string_view>& patterns) {
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

  void set_members(PlanId id, std::vector<SimpleEntry> entries, std::vector<SimpleNode> regions, std::vector<PlanId> children) {
    Plan& plan = plans_[id];
    plan.form = Form::kObject;
    plan.entries = std::move(entries);
    plan.regions = std::move(regions);
    plan.children = std::move(children);
  }

  // Makes sure that applying schemas to one value comes to an end.
  void require_content() {
    enum class Colour : uint8_t { kWhite, kGrey, kBlack };
    std::vector<Colour> colours(plans_.size(), Colour::kWhite);
    std::vector<std::pair<PlanId, size_t>> trail;
    for (PlanId start : pending_) {
      if (!plans_[start].is_in_place || colours[start] != Colour::kWhite) continue;
      trail.emplace_back(start, 0);
      while (!trail.empty()) {
        auto& [id, next] = trail.back();
        colours[id] = Colour::kGrey;
        if (next == plans_[id].children.size()) {
          colours[id] = Colour::kBlack;
          trail.pop_back();
          continue;
        }
        const PlanId child = plans_[id].children[next++];
        require(colours[child] != Colour::kGrey && trail.size() < of_.limits_.depth);
        if (plans_[child].is_in_place && colours[child] == Colour::kWhite) trail.emplace_back(child, 0);
      }
    }
  }

  // Second pass

  void build(PlanId root) {
    std::vector<PlanId> stack = {root};
    while (!stack.empty()) {
      const PlanId id = stack.back();
      Plan& plan = plans_[id];
      if (plan.state == State::kNew) {
        plan.state = State::kOpen;
        for (size_t i = plan.children.size(); i-- > 0;)
          if (plans_[plan.children[i]].state == State::kNew) stack.push_back(plan.children[i]);
        continue;
      }
      stack.pop_back();
      if (plan.state == State::kOpen) finish(id);
    }
  }

  void finish(PlanId id) {
    std::vector<SimpleNode> terms;
    for (PlanId child : plans_[id].children) {
      if (plans_[child].term == kNone) plans_[child].rule = rule_of(child);  // above us on the way down
      terms.push_back(plans_[child].term == kNone ? emit_.call(plans_[child].rule) : plans_[child].term);
    }
    Plan& plan = plans_[id];
    SimpleNode term = kNone;
    switch (plan.form) {
      case Form::kUnion: term = emit_.either(terms); break;
      case Form::kObject: term = emit_.object_term(plan, terms); break;
      case Form::kArray: term = emit_.array_term(plan, terms[0]); break;
    }
    plan.state = State::kDone;
    if (plan.rule != kNone || (plan.uses > 1 && !plan.schemas.empty() && !emit_.is_small(term))) {
      plan.rule = rule_of(id);
      emit_.terms().rules[plan.rule].body = term;
      if (!emit_.is_nothing(term)) term = emit_.call(plan.rule);
    }
    plan.term = term;
  }

  uint32_t rule_of(PlanId id) {
    if (plans_[id].rule != kNone) return plans_[id].rule;
    emit_.terms().rules.push_back({label(id), kNone});
    return static_cast<uint32_t>(emit_.terms().rules.size() - 1);
  }

  // The pointers of the schemas of a plan.
  std::string label(PlanId id) const {
    std::string text;
    for (ValueId schema : plans_[id].schemas) {
      if (!text.empty()) text += " & ";
      text += reader_.pointer(schema);
    }
    return text;
  }

  // The leaf of the simple keywords of schemas; with `types` instead of their `type`, which one schema alone may keep.
  SimpleNode leaf_of(std::span<const ValueId> schemas, std::optional<uint8_t> types) {
    const bool is_simple = schemas.empty() || (schemas.size() == 1 && (types || !reader_.read(schemas[0]).has_values()));
    std::string text = "{";
    if (types) {
      text += "\"type\":[";
      for (size_t i = 0; i < kTypeNames.size(); ++i) {
        const uint8_t bits = kTypeBits[i];
        if ((*types & bits) != bits || (bits == kIntegerType && *types & kFractionType)) continue;
        if (text.back() != '[') text.push_back(',');
        append_quoted(kTypeNames[i], text);
      }
      text.push_back(']');
    }
    if (schemas.size() == 1) append_leaf(schemas[0], !types, text);
    if (schemas.size() > 1) {
      text += ",\"allOf\":";
      char before = '[';
      for (ValueId schema : schemas) {
        text.push_back(std::exchange(before, ','));
        text.push_back('{');
        append_leaf(schema, false, text);
        text.push_back('}');
      }
      text.push_back(']');
    }
    text.push_back('}');
    for (ValueId schema : schemas) is_read_[schema] = true;
    if (is_simple) return emit_.add_leaf(of_.leaf(text, make_leaf_));
    return emit_.add_leaf(of_.leaf(text, helper_.attr("whole")));
  }

  void append_leaf(ValueId id, bool with_types_and_values, std::string& text) const {
    for (const auto& [name, value] : document_.members(id)) {
      const auto found = of_.dialect_.keywords.find(name);
      if (found == of_.dialect_.keywords.end()) continue;
      const Keyword keyword = found->second;
      const bool is_other = keyword == Keyword::kType || keyword == Keyword::kNullable || keyword == Keyword::kEnum || keyword == Keyword::kConst;
      if (keyword != Keyword::kSimple && !(with_types_and_values && is_other)) continue;
      if (text.back() != '{') text.push_back(',');
      append_quoted(name, text);
      text.push_back(':');
      text += document_.source(value);
    }
  }

  SimplePlanner& of_;
  const JsonDocument& document_;
  SimpleReader reader_;
  SimpleShapes shapes_;
  nb::handle make_leaf_, helper_;
  SimpleEmitter emit_;
  std::vector<PlanId> plan_of_;  // by schema
  std::map<std::vector<ValueId>, PlanId> conjunctions_;
  std::vector<bool> is_read_;    // likewise: by the planner in Python
  std::unordered_map<const SimpleValues*, nb::object> listed_;  // the values for the planner in Python
  std::vector<Plan> plans_;
  std::vector<PlanId> pending_;
  PlanId anything_ = kNone;
  uint32_t depth_ = 0;
};

SimplePlanner::SimplePlanner(nb::dict keywords, bool reference_stands_alone, SimpleSyntax syntax, SimpleLimits limits)
    : dialect_{{}, reference_stands_alone}, syntax_(std::move(syntax)), limits_(limits) {
  for (auto [name, number] : keywords) {
    const auto keyword = nb::cast<size_t>(number);
    if (keyword >= kKeywords) throw nb::value_error("simple planner: no such keyword");
    dialect_.keywords.emplace(nb::cast<std::string>(name), static_cast<Keyword>(keyword));
  }
}

std::unique_ptr<SimpleTerms> SimplePlanner::plan(const JsonDocument& document, nb::handle make_leaf, nb::handle helper) {
  try {
    return SimplePlanning(*this, document, make_leaf, helper).all();
  } catch (const NotSimple&) {
    return nullptr;
  }
}

SimpleLeaf SimplePlanner::leaf(const std::string& text, nb::handle make_leaf) {
  if (const auto found = leaves_.find(text); found != leaves_.end()) return found->second;
  nb::object made = make_leaf(text);
  if (made.is_none()) return {};
  const bool is_small = nb::cast<bool>(made[1]), is_choice = nb::cast<bool>(made[2]);
  using Size = SimpleLeaf::Size;
  SimpleLeaf leaf{made[0], !is_small ? Size::kLarge : is_choice ? Size::kSmall : Size::kAtom};
  if (text.size() <= kLongestLeaf) {
    if (leaves_.size() >= kMaxLeaves) leaves_.clear();
    leaves_.insert_or_assign(text, leaf);
  }
  return leaf;
}

std::shared_ptr<const SimplePlanner::Names> SimplePlanner::names(const std::string& text, nb::handle make_names) {
  if (const auto found = names_.find(text); found != names_.end()) return found->second;
  nb::object made = make_names(text);
  if (made.is_none()) return nullptr;
  auto names = std::make_shared<Names>();
  names->matched = nb::cast<std::vector<std::vector<uint32_t>>>(made[0]);
  for (nb::handle region : made[1]) names->regions.push_back({nb::cast<std::vector<uint32_t>>(region[0]), region[1]});
  if (text.size() <= kLongestLeaf) {
    if (names_.size() >= kMaxLeaves) names_.clear();
    names_.insert_or_assign(text, names);
  }
  return names;
}

}  // namespace structgen
