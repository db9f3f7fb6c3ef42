// Which plans a schema needs, in what order, and the terms that are made of them.
#include "frontends/json_schema/simple_schema.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "automaton/automaton.h"
#include "frontends/json_schema/simple_planning.h"

namespace nb = nanobind;

namespace structgen {

namespace {

// What a schema constrains itself, beside simple keywords, which may say nothing.
constexpr std::array kOwnKeywords = {Keyword::kEnum, Keyword::kConst, Keyword::kItems, Keyword::kMinItems, Keyword::kMaxItems, Keyword::kUniqueItems,
                                     Keyword::kProperties, Keyword::kRequired, Keyword::kAdditionalProperties,
                                     Keyword::kPatternProperties, Keyword::kMinProperties, Keyword::kMaxProperties,
                                     Keyword::kDependents};
constexpr size_t kMaxRounds = 20;     // of planning, each with more alternatives that overlap
constexpr size_t kLongestLeaf = 512;  // bytes of a leaf that is kept
constexpr size_t kMaxLeaves = 4'096;

}  // namespace

std::unique_ptr<SimpleTerms> SimplePlanning::all() {
  require(document_.kind(document_.root()) == JsonKind::kObject);
  const PlanId root = notation_ == nullptr ? request(document_.root()) : request_arguments(document_.root());
  for (size_t next = 0; next < pending_.size(); ++next) {
    depth_ = plans_[pending_[next]].depth + 1;
    expand(pending_[next]);
    pulse_.beat(kPlanSteps);
  }
  // References may mean something by an identifier, and schemas that are written alike may differ by it.
  require(!reader_.has_inner_identifier || (!reader_.has_reference && conjunctions_.empty()));
  require_content();
  for (ValueId schema : shapes_.unread()) {
    if (is_read_[schema]) continue;
    require(!reader_.read(schema).has(Keyword::kPatternProperties));
    leaf_of({{schema}}, kAnyType);  // which refuses what is not simple
  }
  if (!are_alternatives_apart()) return nullptr;
  build(root);
  require(!emit_.is_nothing(plans_[root].term));
  emit_.terms().result = plans_[root].term;
  emit_.terms().unknown.assign(reader_.unknown.begin(), reader_.unknown.end());
  return emit_.take();
}

SimplePlanning::PlanId SimplePlanning::add_pending(std::vector<SchemaRef> schemas) {
  require(depth_ <= of_.limits_.depth);
  Plan plan;
  plan.schemas = std::move(schemas);
  plan.depth = depth_;
  pending_.push_back(add(std::move(plan)));
  return pending_.back();
}

// The plan of a schema, made if it is new.
SimplePlanning::PlanId SimplePlanning::request(ValueId id) {
  const JsonKind kind = reader_.kind(id);
  if (kind == JsonKind::kTrue) return anything();
  if (kind == JsonKind::kFalse) return done(emit_.nothing());
  require(kind == JsonKind::kObject);
  PlanId& known = plan_of_[id];
  if (known != kNone) {
    ++plans_[known].uses;
    return known;
  }
  // As the planner in Python has it, another schema that is written alike is no further use.
  const ValueId same = reader_.canonical(id), first = same == id || document_.find(id, "$ref") != nullptr ? id : same;
  if (plan_of_[first] != kNone) return known = plan_of_[first];
  const SimpleSchema schema = reader_.read_relevant(first);
  return known = plan_of_[first] = schema.is_leaf() ? done(leaf_of(first)) : add_pending({first});
}

SimplePlanning::Conjunction SimplePlanning::conjunction(std::span<const SchemaRef> schemas) {
  Conjunction all;
  std::vector<SchemaRef> relevant;
  for (SchemaRef schema : schemas) {
    const JsonKind kind = reader_.kind(schema);
    if (kind == JsonKind::kFalse) all.is_possible = false;
    require(kind == JsonKind::kTrue || kind == JsonKind::kFalse || kind == JsonKind::kObject);
    if (kind == JsonKind::kObject && (is_negated(schema) || !document_.members(schema).empty())) relevant.push_back(schema);
  }
  if (relevant.size() == 1 && !is_negated(relevant[0]) && all.is_possible) {
    all.schemas = all.keys = std::move(relevant);
    return all;
  }
  for (SchemaRef schema : relevant) {
    const SchemaRef key = reader_.key(schema);
    if (std::ranges::find(all.keys, key) != all.keys.end()) continue;
    if (std::ranges::find(all.keys, complement(key)) != all.keys.end()) all.is_possible = false;
    all.keys.push_back(key);
    all.schemas.push_back(schema);
  }
  std::ranges::sort(all.keys);
  return all;
}

// The plan of what must be valid against all of the schemas.
SimplePlanning::PlanId SimplePlanning::request_all(const std::vector<SchemaRef>& schemas) {
  if (schemas.size() == 1 && !is_negated(schemas[0])) return request(schemas[0]);
  Conjunction all = conjunction(schemas);
  if (!all.is_possible) return done(emit_.nothing());
  if (all.schemas.empty()) return anything();
  if (all.schemas.size() == 1 && !is_negated(all.schemas[0])) return request(all.schemas[0]);
  const auto [known, is_new] = conjunctions_.try_emplace(std::move(all.keys), kNone);
  if (is_new) known->second = add_pending(std::move(all.schemas));
  else ++plans_[known->second].uses;
  return known->second;
}

void SimplePlanning::expand(PlanId id) {
  if (plans_[id].form == Form::kValue) return expand_value(id);
  if (plans_[id].schemas.size() > 1 || is_negated(plans_[id].schemas[0])) return fill(id, shapes_.of_all(std::vector(plans_[id].schemas)));
  const ValueId value = plans_[id].schemas[0];
  const SimpleSchema schema = reader_.read_relevant(value);
  if (schema.has_any(kInPlaceKeywords)) return in_place(id, value, schema);
  if (schema.has_values()) return set_children(id, {constants(value, schema)});
  const bool has_array = schema.has_any(kArrayKeywords), has_object = schema.has_any(kObjectKeywords);
  const uint8_t others = schema.types & ~((has_array ? kArrayType : 0) | (has_object ? kObjectType : 0));
  if (others == 0 && schema.has(Keyword::kSimple)) leaf_of({{value}}, schema.types);  // which refuses what is not simple
  if (schema.types == kObjectType) return object(id, value);
  std::vector<PlanId> parts;
  if (others != 0) parts.push_back(done(leaf_of({{value}}, others)));
  if (has_array) parts.push_back(array({{value}}));
  if (has_object) object(parts.emplace_back(add(Plan())), value);
  set_children(id, std::move(parts));
}

// A schema that applies other schemas to the same value: nothing but one reference, `anyOf`, `oneOf`, or `allOf` of
// one schema, is the union of these; all else is multiplied out.
void SimplePlanning::in_place(PlanId id, ValueId value, const SimpleSchema& schema) {
  const std::vector<Keyword> parts = reader_.parts(value, schema);
  const bool is_free = schema.types == kAnyType && !reader_.read(value).has_any(kOwnKeywords);
  require(!schema.has(Keyword::kSimple) || reader_.has_bounds(value) || !is_free || parts.size() != 2);  // it may say nothing
  if (parts.size() == 2 && is_free && !schema.has(Keyword::kSimple)) {
    const Keyword keyword = parts[parts[0] == Keyword::kProperties ? 1 : 0];
    if (keyword == Keyword::kReference) return alternatives(id, value, {{reader_.target(schema)}}, false);
    if (std::ranges::find(kConditions, keyword) == kConditions.end()) {
      const std::span<const ValueId> branches = reader_.branches(schema, keyword);
      const auto is_constant = [&](ValueId branch) { return shapes_.is_constant(branch); };
      if (branches.size() == 1 || (keyword != Keyword::kAllOf && !std::ranges::all_of(branches, is_constant)))
        return alternatives(id, value, branches, keyword == Keyword::kOneOf);
    }
  }
  fill(id, shapes_.of(value));
}

void SimplePlanning::alternatives(PlanId id, ValueId schema, std::span<const ValueId> branches, bool is_one_of) {
  if (is_one_of) shapes_.exclude(schema, branches, overlaps_.contains(schema), exclusions_);
  std::vector<PlanId> children;
  for (uint32_t index = 0; index < branches.size(); ++index) {
    std::vector<SchemaRef> alone = {branches[index]};
    if (is_one_of)
      for (ValueId rival : shapes_.rivals(schema, branches, index)) alone.push_back(complement(rival));
    children.push_back(request_all(alone));
  }
  plans_[id].is_in_place = true;
  set_children(id, std::move(children));
}

// Notes what shapes need.
void SimplePlanning::fill(PlanId id, std::span<const SimpleShape> shapes) {
  shapes_.exclude(shapes, exclusions_);
  // Those whose multiples others contain would be left out.
  const auto is_stepped = [&](const SimpleScalar& one) { return one.schema == kNone ? one.text.find("\"multipleOf\"") != std::string::npos : document_.find(one.schema, "multipleOf") != nullptr; };
  const auto may_be_absorbed = [&](const SimpleShape& shape) { return !(shape.types & ~kNumberType) && shape.values.empty() && std::ranges::any_of(shape.scalars, is_stepped); };
  require(std::ranges::count_if(shapes, may_be_absorbed) < 2);
  if (shapes.size() == 1 && shapes[0].types == kObjectType && !shapes[0].objects.empty() && shapes[0].values.empty())
    return objects(id, shapes[0].objects);
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
    if (others != 0) parts.push_back(done(leaf_with(shape.scalars, others)));
    if (has_array) parts.push_back(array(shape.arrays));
    if (has_object) objects(parts.emplace_back(add(Plan())), shape.objects);
  }
  set_children(id, std::move(parts));
}

// Makes sure that applying schemas to one value comes to an end.
void SimplePlanning::require_content() {
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

void SimplePlanning::build(PlanId root) {
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
    pulse_.beat(kPlanSteps);
  }
}

void SimplePlanning::finish(PlanId id) {
  std::vector<SimpleNode> terms;
  for (PlanId child : plans_[id].children) {
    if (plans_[child].term == kNone) plans_[child].rule = rule_of(child);  // above us on the way down
    terms.push_back(plans_[child].term == kNone ? emit_.call(plans_[child].rule) : plans_[child].term);
  }
  Plan& plan = plans_[id];
  SimpleNode term = kNone;
  switch (plan.form) {
    case Form::kUnion:
    case Form::kValue: term = emit_.either(terms); break;
    case Form::kArguments: term = emit_.arguments_term(plan, terms); break;
    case Form::kWritten: term = emit_.written(plan.written->before, terms[0], plan.written->after); break;
    case Form::kObject: term = emit_.object_term(plan, terms); break;
    case Form::kArray: term = emit_.array_term(plan, terms[0]); break;
    case Form::kDistinct: term = emit_.distinct(emit_.array_term(plan, terms[0])); break;
    case Form::kItems: term = emit_.items_term(plan, terms[0]); break;
    case Form::kChain: term = plan.chain->term(emit_, terms, plan.regions, reader_); break;
  }
  plan.state = State::kDone;
  if (plan.rule != kNone || (plan.uses > 1 && !plan.schemas.empty() && !emit_.is_small(term))) {
    plan.rule = rule_of(id);
    emit_.terms().rules[plan.rule].body = term;
    if (!emit_.is_nothing(term)) term = emit_.call(plan.rule);
  }
  plan.term = term;
}

uint32_t SimplePlanning::rule_of(PlanId id) {
  if (plans_[id].rule != kNone) return plans_[id].rule;
  emit_.terms().rules.push_back({label(id), kNone});
  return static_cast<uint32_t>(emit_.terms().rules.size() - 1);
}

// The pointers of the schemas of a plan.
std::string SimplePlanning::label(PlanId id) const {
  std::string text;
  for (SchemaRef schema : plans_[id].schemas) {
    if (!text.empty()) text += " & ";
    if (is_negated(schema)) text += "~";
    text += reader_.pointer(schema & ~kNegated);
  }
  return text;
}

SimplePlanner::SimplePlanner(nb::dict keywords, bool reference_stands_alone, SimpleSyntax syntax, SimpleLimits limits,
                             bool closes, bool requires_all, std::unique_ptr<const SimpleNotation> notation, nb::handle others)
    : dialect_{{}, {}, reference_stands_alone}, syntax_(std::move(syntax)), notation_(std::move(notation)), limits_(limits), closes_(closes),
      requires_all_(requires_all) {
  for (auto [name, number] : keywords) {
    const auto keyword = nb::cast<size_t>(number);
    if (keyword >= kKeywords) throw nb::value_error("simple planner: no such keyword");
    dialect_.keywords.emplace(nb::cast<std::string>(name), static_cast<Keyword>(keyword));
  }
  if (others.is_valid())
    for (nb::handle name : others) dialect_.others.insert(nb::cast<std::string>(name));
}

std::unique_ptr<SimpleTerms> SimplePlanner::plan(const JsonDocument& document, nb::handle make_leaf, nb::handle helper) {
  try {
    SimpleOverlaps overlaps;
    SimpleKeys keys;
    for (size_t round = 0; round < kMaxRounds; ++round) {
      SimplePlanning planning(*this, document, make_leaf, helper, overlaps, keys);
      if (std::unique_ptr<SimpleTerms> terms = planning.all()) return terms;
      SimpleOverlaps more = planning.found();
      overlaps.merge(more);
    }
  } catch (const NotSimple&) {
  }
  return nullptr;
}

SimpleLeaf SimplePlanner::leaf(const std::string& text, nb::handle maker, const char* method, bool is_argument) {
  auto& leaves = is_argument ? argument_leaves_ : leaves_;
  if (const auto found = leaves.find(text); found != leaves.end()) return found->second;
  nb::object made = method == nullptr ? maker(text) : maker.attr(method)(text);
  if (made.is_none()) return {};
  const bool is_small = nb::cast<bool>(made[1]), is_choice = nb::cast<bool>(made[2]);
  using Size = SimpleLeaf::Size;
  SimpleLeaf leaf{made[0], !is_small ? Size::kLarge : is_choice ? Size::kSmall : Size::kAtom};
  if (text.size() <= kLongestLeaf) {
    if (leaves.size() >= kMaxLeaves) leaves.clear();
    leaves.insert_or_assign(text, leaf);
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
