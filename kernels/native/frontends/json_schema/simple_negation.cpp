// The values that are not valid against a schema, as a union of shapes: the negation of normal/expansion.py, and the
// complements of normal/disjunct.py.
#include <algorithm>
#include <string>
#include <string_view>

#include "automaton/automaton.h"
#include "frontends/json_schema/simple_shapes.h"

namespace structgen {

namespace {

template <typename T>
void append(std::vector<T>& into, const std::vector<T>& more) {
  into.insert(into.end(), more.begin(), more.end());
}

}  // namespace

SimpleShape SimpleShapes::object_shape(std::vector<const SimpleObject*> objects) {
  SimpleShape shape;
  shape.types = kObjectType;
  shape.objects = std::move(objects);
  return renewed(shape);
}

SimpleShapes::Shapes SimpleShapes::negation(ValueId id, const SimpleSchema& schema, uint32_t depth) {
  Shapes result;
  const auto of_both = [&](SchemaRef one, SchemaRef other) { append(result, product(of(one, depth + 1), of(other, depth + 1))); };
  for (Keyword part : reader_.parts(id, schema)) {
    switch (part) {
      case Keyword::kProperties:
        if (const SimpleShape shape = own(id, schema); !shape.is_free()) append(result, outside(shape));
        break;
      case Keyword::kReference: append(result, of(complement(reader_.target(schema)), depth + 1)); break;
      case Keyword::kNot: append(result, of(schema.value(part), depth + 1)); break;
      case Keyword::kIf: {
        const ValueId condition = schema.value(part);
        of_both(condition, complement(branch_of_if(schema, Keyword::kThen)));
        of_both(complement(condition), complement(branch_of_if(schema, Keyword::kElse)));
        break;
      }
      case Keyword::kDependencies:
      case Keyword::kDependentSchemas:
        for (const auto& [name, value] : reader_.dependent_schemas(schema, part)) {
          const Shapes with_name = {object_shape({objects_.requiring(id, name)})};
          append(result, product(with_name, of(complement(value), depth + 1)));
        }
        break;
      case Keyword::kAllOf:
        for (ValueId branch : reader_.branches(schema, part)) append(result, of(complement(branch), depth + 1));
        break;
      default: append(result, outside_union(id, schema, part, depth));
    }
  }
  return result;
}

// The values in none of the alternatives; for `oneOf` also those in two of them.
SimpleShapes::Shapes SimpleShapes::outside_union(ValueId, const SimpleSchema& schema, Keyword keyword, uint32_t depth) {
  const std::span<const ValueId> branches = reader_.branches(schema, keyword);
  Shapes result = of(complement(branches[0]), depth + 1);
  for (ValueId branch : branches.subspan(1)) result = product(result, of(complement(branch), depth + 1));
  if (keyword != Keyword::kOneOf) return result;
  for (size_t j = 0; j < branches.size(); ++j)
    for (size_t i = 0; i < j; ++i) {
      const Shapes &left = of(branches[i], depth + 1), &right = of(branches[j], depth + 1);
      if (!are_disjoint(left, right)) append(result, product(left, right));
    }
  return result;
}

SimpleShapes::Shapes SimpleShapes::outside(const SimpleShape& shape) {
  if (!shape.values.empty()) return outside_values(shape);
  Shapes result;
  if (shape.types != kAnyType) renewed(result.emplace_back()).types = kAnyType & ~shape.types;
  if (shape.types == 0) return result;
  for (const SimpleScalar& scalar : shape.scalars) outside_scalar(scalar, shape.types, result);
  require(!(shape.types & kArrayType) || shape.arrays.empty());
  if (shape.types & kObjectType)
    for (const SimpleObject* object : shape.objects) outside_object(*object, result);
  return result;
}

// What differs from all constants.
SimpleShapes::Shapes SimpleShapes::outside_values(const SimpleShape& shape) {
  require(shape.values.size() == 1);
  SimpleShape rest;
  SimpleScalar scalar{kNone, "{\"not\":{\"enum\":[", false, false};
  bool has_true = false, has_false = false;
  for (ValueId value : shape.values[0]->members) {
    std::string text;
    const TypeBits type = reader_.append_constant(value, text);
    if (!(type & shape.types)) continue;
    if (type == kNullType) rest.types &= ~kNullType;
    else if (type == kBooleanType) (text == "true" ? has_true : has_false) = true;
    else {
      if (scalar.of_strings || scalar.of_numbers) scalar.text.push_back(',');
      scalar.text += text;
      (type == kStringType ? scalar.of_strings : scalar.of_numbers) = true;
    }
  }
  scalar.text += "]}}";
  if (scalar.of_strings || scalar.of_numbers) rest.scalars.push_back(std::move(scalar));
  renewed(rest);
  if (!has_true && !has_false) return {rest};
  rest.types &= ~kBooleanType;
  if (has_true && has_false) return {rest};
  SimpleShape other;
  other.types = kBooleanType;
  other.values.push_back(add_values({has_true ? kMadeFalse : kMadeTrue}));
  return {rest, renewed(other)};
}

// Each keyword gives the values that violate it, patterns and formats together.
void SimpleShapes::outside_scalar(const SimpleScalar& scalar, uint8_t types, Shapes& out) {
  require(scalar.schema != kNone);
  const auto find = [&](std::string_view name) -> const JsonDocument::Member* { return document_.find(scalar.schema, name); };
  const auto add = [&](uint8_t kept, std::string text) {
    SimpleShape& shape = renewed(out.emplace_back());
    shape.types = kept;
    shape.scalars.push_back({kNone, std::move(text), (kept & kStringType) != 0, (kept & kNumberType) != 0});
  };
  const auto source = [&](const JsonDocument::Member* member) { return std::string(document_.source(member->value)); };
  if (scalar.of_strings && types & kStringType) {
    const JsonDocument::Member *fewest = find("minLength"), *most = find("maxLength"), *pattern = find("pattern"), *format = find("format");
    const uint32_t shortest = fewest == nullptr ? 0 : reader_.count(fewest->value);
    require(most == nullptr || shortest <= reader_.count(most->value));
    if (shortest > 0) add(kStringType, "{\"maxLength\":" + std::to_string(shortest - 1) + "}");
    if (most != nullptr) add(kStringType, "{\"minLength\":" + std::to_string(reader_.count(most->value) + 1) + "}");
    std::string text;
    if (pattern != nullptr) text = "\"pattern\":" + source(pattern);
    if (format != nullptr) text += (text.empty() ? "\"format\":" : ",\"format\":") + source(format);
    if (!text.empty()) add(kStringType, "{\"not\":{" + text + "}}");
  }
  if (!scalar.of_numbers || !(types & kNumberType)) return;
  const auto bound = [&](const char* inclusive, const char* exclusive, const char* outside_inclusive, const char* outside_exclusive) {
    const JsonDocument::Member *closed = find(inclusive), *open = find(exclusive);
    bool is_open = false;
    if (open != nullptr) {
      const JsonKind kind = document_.kind(open->value);
      const bool is_flag = kind == JsonKind::kTrue || kind == JsonKind::kFalse;  // of draft 4
      require(is_flag || closed == nullptr);
      is_open = kind != JsonKind::kFalse;
      if (!is_flag) closed = open;
    }
    if (closed != nullptr) add(types & kNumberType, std::string("{\"") + (is_open ? outside_inclusive : outside_exclusive) + "\":" + source(closed) + "}");
  };
  bound("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum");
  bound("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum");
  if (const JsonDocument::Member* step = find("multipleOf")) add(types & kNumberType, "{\"not\":{\"multipleOf\":" + source(step) + "}}");
}

void SimpleShapes::outside_object(const SimpleObject& object, Shapes& out) {
  const bool only_depends = object.properties.empty() && object.patterns.empty() && object.additional == kNone && object.required.empty() && object.fewest == 0 && object.most == kNone;
  if (!only_depends) {
    const SimpleObject* outside = objects_.complement_of_name(object);
    out.push_back(object_shape({outside == nullptr ? objects_.complement(&object) : outside}));
  }
  for (const auto& [name, others] : object.dependents) {
    std::vector<std::string_view> distinct;
    for (std::string_view other : others)
      if (std::ranges::find(distinct, other) == distinct.end()) distinct.push_back(other);
    for (std::string_view other : distinct) out.push_back(object_shape({objects_.requiring(object.schema, name), objects_.lacking(object.schema, other)}));
  }
}

}  // namespace structgen
