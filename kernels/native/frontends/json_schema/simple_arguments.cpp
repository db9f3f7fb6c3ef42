// Arguments that are not JSON: the outermost object and its strings are written in a notation, and what it nests; all other
// values from their JSON, as structgen.frontends.json_schema.emit.arguments has it.
#include <algorithm>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "frontends/json_schema/simple_planning.h"

namespace structgen {

SimplePlanning::PlanId SimplePlanning::request_arguments(ValueId root) {
  const SimpleSchema schema = reader_.read_relevant(root);
  require((schema.types & kObjectType) && !schema.has_any(kInPlaceKeywords) && !schema.has_values());
  require(!schema.has(Keyword::kSimple) && !schema.has(Keyword::kPatternProperties));
  reader_.check_arrays(schema);
  const PlanId id = add(Plan());
  depth_ = 1;
  in_arguments_ = true;
  object(id, root);
  in_arguments_ = false;
  plans_[id].form = Form::kArguments;
  return id;
}

// The plan of an item that must be valid against all of the schemas, which are one or none.
SimplePlanning::PlanId SimplePlanning::request_item(const std::vector<SchemaRef>& ids) {
  require(ids.size() < 2);
  return ids.empty() ? any_argument() : request_value(ids[0]);
}

SimplePlanning::PlanId SimplePlanning::any_argument() {
  if (any_argument_ == kNone) any_argument_ = done(leaf_of({}, std::nullopt, true));
  return any_argument_;
}

// The plan of the value of an argument.
SimplePlanning::PlanId SimplePlanning::request_value(ValueId id) {
  const JsonKind kind = document_.kind(id);
  if (kind == JsonKind::kTrue) return any_argument();
  if (kind == JsonKind::kFalse) return done(emit_.nothing());
  require(kind == JsonKind::kObject);
  const SimpleSchema schema = reader_.read_relevant(id);
  if (schema.is_leaf()) return done(leaf_of(id, true));
  const auto [known, is_new] = value_of_.try_emplace(id, kNone);
  if (is_new) {
    known->second = add_pending({id});
    plans_[known->second].form = Form::kValue;
  } else {
    ++plans_[known->second].uses;
  }
  return known->second;
}

// Its strings, and for each way of writing JSON the values of those types.
void SimplePlanning::expand_value(PlanId id) {
  const ValueId value = plans_[id].schemas[0];
  const SimpleSchema schema = reader_.read_relevant(value);
  if (!schema.has_any(kInPlaceKeywords)) {  // most schemas have one shape, of one type
    if (schema.has_values()) {
      const std::span<const ValueId> listed = constants_of(schema);
      const auto is_text = [&](ValueId one) { return document_.kind(one) == JsonKind::kString; };
      if ((schema.types & kStringType) && !schema.has(Keyword::kSimple) && std::ranges::all_of(listed, is_text))
        return set_children(id, {constants(listed, schema.types, true)});
    } else if (!(schema.types & kStringType)) {
      for (const SimpleNotation::Written& written : notation_->written)
        if (!(schema.types & ~written.types)) return set_children(id, {add_written(written, request(value))});
    }
  }
  const std::vector<SimpleShape> shapes = shapes_.of(value);
  shapes_.exclude(shapes, exclusions_);
  uint8_t types = 0;
  for (const SimpleShape& shape : shapes) types |= shape.types;
  std::vector<PlanId> children;
  if (types & kStringType) children.push_back(text(shapes));
  for (const SimpleNotation::Written& written : notation_->written) {
    if (!(types & written.types)) continue;
    PlanId json = kNone;
    if (types & ~written.types) {
      std::vector<SimpleShape> restricted = shapes;
      for (SimpleShape& shape : restricted) shape.types &= written.types;
      std::erase_if(restricted, [](const SimpleShape& shape) { return shape.types == 0; });
      json = add(Plan());
      fill(json, restricted);
    } else {
      json = request(value);
    }
    children.push_back(add_written(written, json));
  }
  if (notation_->array) add_containers(shapes, children);
  set_children(id, std::move(children));
}

// The arrays and objects of shapes, as the notation writes them.
void SimplePlanning::add_containers(std::span<const SimpleShape> shapes, std::vector<PlanId>& children) {
  in_arguments_ = true;
  for (const SimpleShape& shape : shapes) {
    for (const SimpleValues* values : shape.values)
      for (const ValueId one : values->members) require(reader_.kind(one) != JsonKind::kArray && reader_.kind(one) != JsonKind::kObject);
    if (!shape.values.empty()) continue;
    if (shape.types & kArrayType)
      children.push_back(shape.arrays.empty() ? done(leaf_of({}, kArrayType, true)) : add_written(*notation_->array, array(shape.arrays)));
    if (!(shape.types & kObjectType)) continue;
    if (shape.objects.empty()) {
      children.push_back(done(leaf_of({}, kObjectType, true)));
      continue;
    }
    require(shape.objects.size() == 1 && shape.objects[0]->is_plain());
    const PlanId inner = add(Plan());
    objects(inner, shape.objects);
    plans_[inner].form = Form::kArguments;
    children.push_back(add_written(*notation_->object, inner));
  }
  in_arguments_ = false;
}

SimplePlanning::PlanId SimplePlanning::add_written(const SimpleNotation::Written& written, PlanId json) {
  Plan plan;
  plan.form = Form::kWritten;
  plan.written = &written;
  plan.children = {json};
  return add(std::move(plan));
}

// The strings of shapes: constants, or what simple keywords admit.
SimplePlanning::PlanId SimplePlanning::text(std::span<const SimpleShape> shapes) {
  std::vector<const SimpleShape*> with_strings;
  for (const SimpleShape& shape : shapes)
    if (shape.types & kStringType) with_strings.push_back(&shape);
  const auto is_free = [](const SimpleShape* shape) { return shape->values.empty() && shape->scalars.empty(); };
  if (std::ranges::any_of(with_strings, is_free)) return done(leaf_of({}, kStringType, true));
  require(with_strings.size() == 1);
  const SimpleShape& shape = *with_strings[0];
  if (!shape.values.empty()) return constants(shape, true);
  require(shape.scalars.size() == 1 && shape.scalars[0].schema != kNone);
  return done(leaf_with(shape.scalars, kStringType, true));
}

// The constants among strings, where they have no marks of the notation.
SimpleNode SimplePlanning::texts(std::span<const SimpleNode> literals) {
  for (SimpleNode literal : literals) {
    const std::string_view text = emit_.terms().text_of(emit_.terms().nodes[literal]);
    require(text.find(notation_->text_end) == std::string_view::npos);
    require(!notation_->strips || (!text.starts_with('\n') && !text.ends_with('\n')));
  }
  const SimpleNode any = literals.size() == 1 ? literals[0] : emit_.combine(Kind::kChoice, literals);
  return emit_.written(notation_->terms[SimpleNotation::kBeforeText], any, notation_->terms[SimpleNotation::kAfterText]);
}

}  // namespace structgen
