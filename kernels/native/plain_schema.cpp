#include "plain_schema.h"

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

#include "automaton.h"
#include "plain_reading.h"
#include "plain_shapes.h"

namespace nb = nanobind;

namespace structgen {

namespace {

// As in planner.py: what counts against the limit of nodes.
constexpr uint64_t kShapeCost = 64, kEntryCost = 40, kItemCost = 16, kConstantCost = 3;
// As in plans.py: a choice of so many small terms is small.
constexpr size_t kFewChoices = 8;
// What a schema constrains itself, beside simple keywords, which may say nothing.
constexpr std::array kOwnKeywords = {Keyword::kEnum, Keyword::kConst, Keyword::kItems, Keyword::kMinItems, Keyword::kMaxItems,
                                     Keyword::kProperties, Keyword::kRequired, Keyword::kAdditionalProperties,
                                     Keyword::kPatternProperties, Keyword::kMinProperties, Keyword::kMaxProperties};
// As in object_terms.py: names times counts of a chain with a bounded number of members.
constexpr uint64_t kMostStates = 200'000;
constexpr size_t kUsualPlans = 64;
constexpr size_t kLongestLeaf = 512;  // bytes of a leaf that is kept
constexpr size_t kMostLeaves = 4'096;

using PlanId = uint32_t;

}  // namespace

// The planning of one document, in the passes of planner.py and plans.py: the first visits the schemas breadth first
// and notes what each needs, the second makes terms from the leaves on.
class PlainPlanning {
  using Kind = PlainTerms::Kind;
  using LeafSize = PlainPlanner::LeafSize;

 public:
  PlainPlanning(PlainPlanner& planner, const JsonDocument& document, nb::handle make_leaf, nb::handle helper)
      : of_(planner), document_(document), reader_(planner.dialect_, planner.limits_, document), shapes_(reader_, document),
        make_leaf_(make_leaf), helper_(helper), terms_(std::make_unique<PlainTerms>()), plan_of_(document.size(), kNone),
        is_read_(document.size()) {
    shared_.fill(kNone);
    plans_.reserve(std::min(document.size(), kUsualPlans));  // of a large document little may be reached
  }

  std::unique_ptr<PlainTerms> all() {
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
      leaf_of({{schema}}, kAnyType);  // which refuses what is not plain
    }
    build(root);
    require(plans_[root].term != nothing_);
    terms_->result = plans_[root].term;
    return std::move(terms_);
  }

 private:
  enum class Form : uint8_t { kUnion, kObject, kArray };
  enum class State : uint8_t { kNew, kOpen, kDone };

  struct Entry {
    std::string_view name;
    bool is_required;
  };
  struct Plan {
    std::vector<ValueId> schemas;  // none: part of another plan
    uint32_t depth = 0;
    uint32_t uses = 1;
    Form form = Form::kUnion;
    State state = State::kNew;
    bool is_in_place = false;  // its children apply to the same value
    uint32_t rule = kNone;
    PlainNode term = kNone;
    uint32_t fewest = 0, most = kNone;  // items, or members
    std::vector<PlanId> children;
    std::vector<Entry> entries;
    std::vector<PlainNode> regions;  // the keys of other names; kNone: all that are not among the entries
  };

  // First pass

  PlanId anything() {
    if (anything_ == kNone) anything_ = done(shared(PlainSyntax::kAnyValue));
    return anything_;
  }

  PlanId done(PlainNode term) {
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
    if (kind == JsonKind::kFalse) return done(nothing());
    require(kind == JsonKind::kObject);
    PlanId& known = plan_of_[id];
    if (known != kNone) {
      ++plans_[known].uses;
      return known;
    }
    const PlainSchema schema = reader_.read_relevant(id);
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
    if (!is_possible) return done(nothing());
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
    const PlainSchema schema = reader_.read_relevant(value);
    if (schema.has_any(kInPlaceKeywords)) return in_place(id, value, schema);
    if (schema.has_values()) return set_children(id, {constants(value, schema)});
    const bool has_array = schema.has_any(kArrayKeywords), has_object = schema.has_any(kObjectKeywords);
    const uint8_t others = schema.types & ~((has_array ? kArrayType : 0) | (has_object ? kObjectType : 0));
    if (others == 0 && schema.has(Keyword::kSimple)) leaf_of({{value}}, schema.types);  // which refuses what is not plain
    if (schema.types == kObjectType) return object(id, {{value}});
    std::vector<PlanId> parts;
    if (others != 0) parts.push_back(done(leaf_of({{value}}, others)));
    if (has_array) parts.push_back(array({{value}}));
    if (has_object) object(parts.emplace_back(add(Plan())), {{value}});
    set_children(id, std::move(parts));
  }

  void set_children(PlanId id, std::vector<PlanId> children) { plans_[id].children = std::move(children); }

  // A schema that says something by other schemas for the same value: nothing but one reference, `anyOf`, `oneOf`, or
  // `allOf` of one schema, is the union of what stands there; all else is multiplied out.
  void in_place(PlanId id, ValueId value, const PlainSchema& schema) {
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
  void fill(PlanId id, std::span<const PlainShape> shapes) {
    shapes_.require_apart(shapes);
    if (shapes.size() == 1 && shapes[0].types == kObjectType && !shapes[0].objects.empty() && shapes[0].values.empty())
      return object(id, shapes[0].objects);
    std::vector<PlanId> parts;
    for (const PlainShape& shape : shapes) {
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

  PlanId constants(ValueId value, const PlainSchema& schema) {
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
  PlanId constants(const PlainShape& shape) {
    const PlainValues& values = *shape.values[0];
    reader_.spend(kItemCost + kConstantCost * values.members.size());
    const std::vector<bool> excluded = excluded_of(values, shape.scalars);
    std::unordered_set<std::string> known;
    std::vector<PlainNode> literals;
    for (size_t i = 0; i < values.members.size(); ++i) {
      if (!excluded.empty() && excluded[i]) continue;
      const ValueId value = values.members[i];
      std::string text;
      if (!(reader_.append_constant(value, text) & shape.types)) continue;
      const bool is_common = std::ranges::all_of(shape.values, [&](const PlainValues* other) { return other == &values || other->has(text); });
      if (is_common && known.insert(text).second) literals.push_back(literal(text));
    }
    if (literals.empty()) return done(nothing());
    return done(literals.size() == 1 ? literals[0] : combine(Kind::kChoice, literals));
  }

  // Which values the simple keywords of schemas exclude; empty: none.
  std::vector<bool> excluded_of(const PlainValues& values, std::span<const ValueId> scalars) {
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
      const PlainSchema schema = reader_.read(id);
      bound(plan, schema, Keyword::kMinItems, Keyword::kMaxItems);
      if (!schema.has(Keyword::kItems)) continue;
      const ValueId item = schema.value(Keyword::kItems);
      if (document_.kind(item) == JsonKind::kObject || !reader_.boolean(item)) items.push_back(item);
    }
    plan.children = {items.empty() ? anything() : request_all(items)};
    return add(std::move(plan));
  }

  void bound(Plan& plan, const PlainSchema& schema, Keyword fewest, Keyword most) const {
    if (schema.has(fewest)) plan.fewest = std::max(plan.fewest, reader_.count(schema.value(fewest)));
    if (schema.has(most)) plan.most = std::min(plan.most, reader_.count(schema.value(most)));
  }

  // What the objects of schemas that are met need: a plan for the value of each name, then one for each region of others.
  void object(PlanId id, std::span<const ValueId> schemas) {
    const PlainSchema schema = reader_.read(schemas[0]);
    if (schemas.size() > 1 || schema.has(Keyword::kPatternProperties)) return met_objects(id, schemas);
    std::vector<Entry> entries;
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
    std::vector<PlainNode> regions;
    if (additional == kNone || document_.kind(additional) == JsonKind::kObject) {
      regions.push_back(kNone);
      children.push_back(request_additional());
    }
    set_members(id, std::move(entries), std::move(regions), std::move(children));
  }

  // The same of several schemas, or with patterns: of each schema the property of a name and the patterns that it
  // matches apply to a value, or else what it says of other names.
  void met_objects(PlanId id, std::span<const ValueId> schemas) {
    std::vector<PlainSchema> read;
    std::vector<Entry> entries;
    std::unordered_map<std::string_view, uint32_t> entry_of, pattern_of;
    const auto declare = [&](std::string_view name) -> Entry& {
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
    for (const PlainSchema& schema : read)
      for (std::string_view name : reader_.required_names(schema)) declare(name).is_required = true;
    const std::shared_ptr<const PlainPlanner::Names> names = patterns.empty() ? nullptr : names_of(entries, patterns);
    const size_t regions_at_most = names ? names->regions.size() : 1;
    std::vector<std::vector<ValueId>> places(entries.size() + regions_at_most);  // what applies to the values
    std::vector<bool> is_told;
    for (const PlainSchema& schema : read) {
      is_told.assign(places.size(), false);
      const auto tell = [&](size_t at, ValueId value) {
        is_told[at] = true;
        places[at].push_back(value);
      };
      for (const auto& [name, value] : reader_.properties(schema)) tell(entry_of.at(name), value);
      for (const auto& [pattern, value] : reader_.properties(schema, Keyword::kPatternProperties))
        for (size_t at = 0; at < places.size(); ++at) {
          const auto& matched = at < entries.size() ? names->matched[at] : names->regions[at - entries.size()].matched;
          if (std::ranges::find(matched, pattern_of.at(pattern)) != matched.end()) tell(at, value);
        }
      const ValueId additional = reader_.additional(schema);
      for (size_t at = 0; at < places.size(); ++at)
        if (!is_told[at] && additional != kNone) places[at].push_back(additional);
    }
    reader_.spend(kShapeCost + kEntryCost * entries.size());
    std::vector<PlanId> children;
    std::vector<PlainNode> regions;
    const bool is_closed = std::ranges::any_of(read, [&](const PlainSchema& schema) { return reader_.is_closed(schema); });
    const auto is_false = [&](ValueId schema) { return document_.kind(schema) == JsonKind::kFalse; };
    for (size_t at = 0; at < places.size(); ++at) {
      if (at >= entries.size()) {
        if (is_closed || std::ranges::any_of(places[at], is_false)) continue;
        regions.push_back(names ? add_leaf({names->regions[at - entries.size()].key, LeafSize::kAtom}) : kNone);
      }
      children.push_back(places[at].empty() ? anything() : request_all(places[at]));
    }
    set_members(id, std::move(entries), std::move(regions), std::move(children));
  }

  std::shared_ptr<const PlainPlanner::Names> names_of(const std::vector<Entry>& entries, const std::vector<std::string_view>& patterns) {
    std::string text = "{\"properties\":{";
    const auto append_free = [&](std::string_view name) {
      if (text.back() != '{') text.push_back(',');
      append_quoted(name, text);
      text += ":true";
    };
    for (const Entry& entry : entries) append_free(entry.name);
    text += "},\"patternProperties\":{";
    for (std::string_view pattern : patterns) append_free(pattern);
    text += "}}";
    std::shared_ptr<const PlainPlanner::Names> names = of_.names(text, helper_.attr("names"));
    require(names != nullptr);
    return names;
  }

  void set_members(PlanId id, std::vector<Entry> entries, std::vector<PlainNode> regions, std::vector<PlanId> children) {
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
    std::vector<PlainNode> terms;
    for (PlanId child : plans_[id].children) {
      if (plans_[child].term == kNone) plans_[child].rule = rule_of(child);  // above us on the way down
      terms.push_back(plans_[child].term == kNone ? call(plans_[child].rule) : plans_[child].term);
    }
    Plan& plan = plans_[id];
    PlainNode term = kNone;
    switch (plan.form) {
      case Form::kUnion: term = either(terms); break;
      case Form::kObject: term = object_term(plan, terms); break;
      case Form::kArray: term = array_term(plan, terms[0]); break;
    }
    plan.state = State::kDone;
    if (plan.rule != kNone || (plan.uses > 1 && !plan.schemas.empty() && !is_small(term))) {
      plan.rule = rule_of(id);
      terms_->rules[plan.rule].body = term;
      if (term != nothing_) term = call(plan.rule);
    }
    plan.term = term;
  }

  uint32_t rule_of(PlanId id) {
    if (plans_[id].rule != kNone) return plans_[id].rule;
    terms_->rules.push_back({label(id), kNone});
    return static_cast<uint32_t>(terms_->rules.size() - 1);
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

  bool is_small(PlainNode node) const {
    const auto is_atom = [&](PlainNode one) {
      const PlainTerms::Node& made = terms_->nodes[one];
      return made.kind == Kind::kLiteral || made.kind == Kind::kCall || (made.kind == Kind::kLeaf && leaf_sizes_[made.low] == LeafSize::kAtom);
    };
    const PlainTerms::Node& made = terms_->nodes[node];
    if (made.kind == Kind::kLeaf) return leaf_sizes_[made.low] != LeafSize::kLarge;
    if (made.kind != Kind::kChoice) return is_atom(node);
    const std::span<const PlainNode> parts = terms_->parts_of(made);
    return parts.size() <= kFewChoices && std::ranges::all_of(parts, is_atom);
  }

  // Terms: the same as in terms.py, object_terms.py and arrays.py.

  PlainNode emit(PlainTerms::Node node) {
    terms_->nodes.push_back(node);
    return static_cast<PlainNode>(terms_->nodes.size() - 1);
  }
  PlainNode combine(Kind kind, std::span<const PlainNode> parts, uint32_t low = 0, uint32_t high = 0) {
    const auto begin = static_cast<uint32_t>(terms_->parts.size());
    terms_->parts.insert(terms_->parts.end(), parts.begin(), parts.end());
    return emit({kind, begin, static_cast<uint32_t>(terms_->parts.size()), low, high});
  }
  PlainNode sequence(std::initializer_list<PlainNode> parts) { return combine(Kind::kSequence, {parts.begin(), parts.size()}); }
  PlainNode choice(std::initializer_list<PlainNode> parts) { return combine(Kind::kChoice, {parts.begin(), parts.size()}); }
  PlainNode empty_string() {
    if (empty_string_ == kNone) empty_string_ = literal("");
    return empty_string_;
  }
  PlainNode nothing() {
    if (nothing_ == kNone) nothing_ = choice({});
    return nothing_;
  }
  PlainNode call(uint32_t rule) { return emit({Kind::kCall, 0, 0, rule, 0}); }
  PlainNode literal(std::string_view text, Kind kind = Kind::kLiteral) {
    const auto begin = static_cast<uint32_t>(terms_->text.size());
    terms_->text += text;
    return emit({kind, begin, static_cast<uint32_t>(terms_->text.size())});
  }

  PlainNode either(std::span<const PlainNode> terms) {
    std::vector<PlainNode> kept;
    for (PlainNode term : terms)
      if (term != nothing_ && std::ranges::find(kept, term) == kept.end()) kept.push_back(term);
    if (kept.empty()) return nothing();
    return kept.size() == 1 ? kept[0] : combine(Kind::kChoice, kept);
  }

  PlainNode array_term(const Plan& plan, PlainNode item) {
    const uint32_t most = item == nothing_ ? 0 : plan.most;
    if (plan.fewest > most) return nothing();
    if (most == 0) return sequence({shared(PlainSyntax::kOpenArray), shared(PlainSyntax::kEndArray)});
    const PlainNode further[] = {sequence({shared(PlainSyntax::kComma), item})};
    const PlainNode tail = combine(Kind::kRepeat, further, plan.fewest > 1 ? plan.fewest - 1 : 0, most == kNone ? kNone : most - 1);
    const PlainNode some = sequence({item, tail, shared(PlainSyntax::kCloseArray)});
    return sequence({shared(PlainSyntax::kOpenArray), plan.fewest > 0 ? some : choice({shared(PlainSyntax::kEndArray), some})});
  }

  PlainNode object_term(const Plan& plan, std::span<const PlainNode> values) {
    std::vector<Entry> entries;
    std::vector<PlainNode> possible;  // values of those
    for (size_t i = 0; i < plan.entries.size(); ++i) {
      if (values[i] != nothing_) {
        entries.push_back(plan.entries[i]);
        possible.push_back(values[i]);
      } else if (plan.entries[i].is_required) {
        return nothing();
      }
    }
    std::vector<PlainNode> others;
    for (size_t i = 0; i < plan.regions.size(); ++i) {
      const PlainNode value = values[plan.entries.size() + i];
      if (value == nothing_) continue;
      const PlainNode key = plan.regions[i] == kNone ? other_names(plan.entries) : plan.regions[i];
      others.push_back(sequence({key, shared(PlainSyntax::kColon), value}));
    }
    const PlainNode other = either(others);
    const auto required = static_cast<uint32_t>(std::ranges::count_if(entries, &Entry::is_required));
    const auto optional = static_cast<uint32_t>(entries.size()) - required;
    const uint32_t need = plan.fewest - std::min(plan.fewest, required);  // beyond the required ones
    if (plan.most < required + need) return nothing();
    if (other == nothing_ && need > optional) return nothing();
    require(other == nothing_ || need < 2);  // names that repeat would have to be compared
    std::optional<uint32_t> room;
    if (plan.most != kNone && (other != nothing_ || plan.most - required < optional)) room = plan.most - required;
    const uint32_t steps = room.value_or(need);
    require((entries.size() + 1) * (uint64_t{steps} + 1) <= kMostStates);
    Chain chain;  // for one member more
    for (uint32_t extra = steps + 1; extra-- > 0;)
      chain = member_chain(entries, possible, other, extra < steps ? &chain : nullptr, room == extra, extra >= need);
    if (chain.first == kNone) return sequence({shared(PlainSyntax::kOpenObject), shared(PlainSyntax::kEndObject)});
    const PlainNode some = sequence({chain.first, shared(PlainSyntax::kCloseObject)});
    return sequence({shared(PlainSyntax::kOpenObject), required + need == 0 ? choice({shared(PlainSyntax::kEndObject), some}) : some});
  }

  // The chain of members for one number of them beyond the required ones.
  struct Chain {
    struct Tail {
      bool is_possible = false;  // to end from there
      PlainNode more = kNone;    // what follows other members; kNone: nothing
    };
    PlainNode first = kNone;  // what an object can hold, if it holds anything
    PlainNode loop = kNone;   // (comma other)*; kNone: others are counted, or there are none
    std::vector<Tail> tails;  // what may follow a member, by the number of names that are decided
  };

  // The chain, made from the right.
  //   after: the chain after an optional or any other member; null: they leave the number as it is.
  //   is_capped: only required members may follow.
  //   may_end: enough members were written.
  Chain member_chain(std::span<const Entry> entries, std::span<const PlainNode> values, PlainNode other, const Chain* after,
                     bool is_capped, bool may_end) {
    Chain made;
    made.tails.resize(entries.size() + 1);
    const Chain& next = after ? *after : made;
    const auto append_tail = [&](std::vector<PlainNode>& parts, const Chain& chain, size_t index) {
      if (chain.loop != kNone) parts.push_back(chain.loop);
      if (chain.tails[index].more != kNone) parts.push_back(chain.tails[index].more);
    };
    const bool is_open = other != nothing_ && !is_capped;
    if (is_open && !after) {
      const PlainNode more[] = {sequence({shared(PlainSyntax::kComma), other})};
      made.loop = combine(Kind::kRepeat, more, 0, kNone);
    }
    PlainNode following = kNone;  // a member from `index` on
    bool can_end = may_end;
    for (size_t index = entries.size() + 1; index-- > 0;) {
      if (index < entries.size()) {
        const bool is_required = entries[index].is_required;
        const Chain& rest = is_required ? made : next;
        PlainNode whole = kNone;
        if (rest.tails[index + 1].is_possible && (is_required || !is_capped)) {
          std::string key;
          append_quoted(entries[index].name, key);
          std::vector<PlainNode> member = {literal(key), shared(PlainSyntax::kColon), values[index]};
          append_tail(member, rest, index + 1);
          whole = combine(Kind::kSequence, member);
        }
        can_end &= !is_required;
        if (is_required || following == kNone) following = is_required || whole != kNone ? whole : following;
        else if (whole != kNone) following = choice({whole, following});
      }
      PlainNode more = following;
      if (after && is_open && next.tails[index].is_possible) {
        std::vector<PlainNode> begun = {other};
        append_tail(begun, next, index);
        const PlainNode whole = combine(Kind::kSequence, begun);
        more = more == kNone ? whole : choice({whole, more});
      }
      Chain::Tail& tail = made.tails[index];
      tail.is_possible = more != kNone || can_end;
      if (more == kNone) continue;
      tail.more = sequence({shared(PlainSyntax::kComma), more});
      if (can_end) tail.more = choice({empty_string(), tail.more});
    }
    made.first = following;
    if (is_open && next.tails[0].is_possible) {
      std::vector<PlainNode> begun = {other};
      append_tail(begun, next, 0);
      const PlainNode first = begun.size() == 1 ? other : combine(Kind::kSequence, begun);
      made.first = following == kNone ? first : choice({first, following});
    }
    return made;
  }

  // The names of an object that are not declared, as JSON strings.
  PlainNode other_names(const std::vector<Entry>& entries) {
    if (entries.empty()) return shared(PlainSyntax::kAnyString);
    std::vector<PlainNode> names;
    for (const Entry& entry : entries) names.push_back(literal(entry.name, Kind::kName));
    return combine(Kind::kOtherNames, names);
  }

  // Leaves

  // The leaf of the simple keywords of schemas; with `types` in place of their `type`, which one schema alone may keep.
  PlainNode leaf_of(std::span<const ValueId> schemas, std::optional<uint8_t> types) {
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
    if (is_simple) return add_leaf(of_.leaf(text, make_leaf_));
    return add_leaf(of_.leaf(text, helper_.attr("whole")));
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

  PlainNode shared(PlainSyntax::Term term) {
    if (shared_[term] == kNone) shared_[term] = add_leaf({of_.syntax_.terms[term], LeafSize::kAtom});
    return shared_[term];
  }

  PlainNode add_leaf(const PlainPlanner::Leaf& leaf) {
    require(leaf.term.is_valid());
    for (PlainNode node : leaf_nodes_)
      if (terms_->leaves[terms_->nodes[node].low].is(leaf.term)) return node;
    terms_->leaves.push_back(leaf.term);
    leaf_sizes_.push_back(leaf.size);
    leaf_nodes_.push_back(emit({Kind::kLeaf, 0, 0, static_cast<uint32_t>(terms_->leaves.size() - 1), 0}));
    return leaf_nodes_.back();
  }

  PlainPlanner& of_;
  const JsonDocument& document_;
  PlainReader reader_;
  PlainShapes shapes_;
  nb::handle make_leaf_, helper_;
  std::unique_ptr<PlainTerms> terms_;
  std::vector<PlanId> plan_of_;  // by schema
  std::map<std::vector<ValueId>, PlanId> conjunctions_;
  std::vector<bool> is_read_;    // likewise: by the planner in Python
  std::unordered_map<const PlainValues*, nb::object> listed_;  // the values for the planner in Python
  std::vector<Plan> plans_;
  std::vector<PlanId> pending_;
  std::vector<PlainNode> leaf_nodes_;
  std::array<PlainNode, PlainSyntax::kTerms> shared_;
  std::vector<LeafSize> leaf_sizes_;
  PlanId anything_ = kNone;
  PlainNode empty_string_ = kNone;
  PlainNode nothing_ = kNone;  // of no text
  uint32_t depth_ = 0;
};

PlainPlanner::PlainPlanner(nb::dict keywords, bool reference_stands_alone, PlainSyntax syntax, PlainLimits limits)
    : dialect_{{}, reference_stands_alone}, syntax_(std::move(syntax)), limits_(limits) {
  for (auto [name, number] : keywords) {
    const auto keyword = nb::cast<size_t>(number);
    if (keyword >= kKeywords) throw nb::value_error("plain planner: no such keyword");
    dialect_.keywords.emplace(nb::cast<std::string>(name), static_cast<Keyword>(keyword));
  }
}

std::unique_ptr<PlainTerms> PlainPlanner::plan(const JsonDocument& document, nb::handle make_leaf, nb::handle helper) {
  try {
    return PlainPlanning(*this, document, make_leaf, helper).all();
  } catch (const NotPlain&) {
    return nullptr;
  }
}

PlainPlanner::Leaf PlainPlanner::leaf(const std::string& text, nb::handle make_leaf) {
  if (const auto found = leaves_.find(text); found != leaves_.end()) return found->second;
  nb::object made = make_leaf(text);
  if (made.is_none()) return {};
  const bool is_small = nb::cast<bool>(made[1]), is_choice = nb::cast<bool>(made[2]);
  Leaf leaf{made[0], !is_small ? LeafSize::kLarge : is_choice ? LeafSize::kSmall : LeafSize::kAtom};
  if (text.size() <= kLongestLeaf) {
    if (leaves_.size() >= kMostLeaves) leaves_.clear();
    leaves_.insert_or_assign(text, leaf);
  }
  return leaf;
}

std::shared_ptr<const PlainPlanner::Names> PlainPlanner::names(const std::string& text, nb::handle make_names) {
  if (const auto found = names_.find(text); found != names_.end()) return found->second;
  nb::object made = make_names(text);
  if (made.is_none()) return nullptr;
  auto names = std::make_shared<Names>();
  names->matched = nb::cast<std::vector<std::vector<uint32_t>>>(made[0]);
  for (nb::handle region : made[1]) names->regions.push_back({nb::cast<std::vector<uint32_t>>(region[0]), region[1]});
  if (text.size() <= kLongestLeaf) {
    if (names_.size() >= kMostLeaves) names_.clear();
    names_.insert_or_assign(text, names);
  }
  return names;
}

}  // namespace structgen
