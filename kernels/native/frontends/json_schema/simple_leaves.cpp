// Constants, and the leaves of simple keywords, whose terms the Python side makes from their text.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <utility>

#include "frontends/json_schema/simple_planning.h"

namespace nb = nanobind;

namespace structgen {

namespace {

constexpr size_t kFewConstants = 12;  // below this, comparing all pairs is cheaper than a table

}  // namespace

// The constants of a schema that has no more than them and simple keywords.
std::span<const ValueId> SimplePlanning::constants_of(const SimpleSchema& schema) const {
  require(schema.has_only({Keyword::kType, Keyword::kNullable, Keyword::kEnum, Keyword::kConst, Keyword::kSimple}));
  require(schema.has(Keyword::kEnum) != schema.has(Keyword::kConst));
  return reader_.listed(schema, schema.has(Keyword::kEnum) ? Keyword::kEnum : Keyword::kConst);
}

SimplePlanning::PlanId SimplePlanning::constants(ValueId value, const SimpleSchema& schema) {
  const std::span<const ValueId> listed = constants_of(schema);
  const auto is_simple = [&](ValueId one) {
    const JsonKind kind = document_.kind(one);
    return kind != JsonKind::kFraction && kind != JsonKind::kArray && kind != JsonKind::kObject && document_.source(one) != "-0";
  };
  if (!schema.has(Keyword::kSimple) && std::ranges::all_of(listed, is_simple)) return constants(listed, schema.types, false);
  reader_.spend(kItemCost + kConstantCost * listed.size());
  return done(leaf_of({{value}}, std::nullopt));
}

SimplePlanning::PlanId SimplePlanning::constants(std::span<const ValueId> listed, uint8_t types, bool are_texts) {
  const SimpleValues values{{listed.begin(), listed.end()}, {}};  // compared with no others, which takes no keys
  SimpleShape shape;
  shape.types = types;
  shape.values = {&values};
  return constants(shape, are_texts);
}

std::vector<ValueId> SimplePlanning::admitted(const SimpleShape& shape) {
  const SimpleValues& values = *shape.values[0];
  reader_.spend(kItemCost + kConstantCost * values.members.size());
  const std::vector<bool> excluded = excluded_of(values, shape.scalars);
  std::vector<ValueId> found;
  std::string text;
  for (size_t i = 0; i < values.members.size(); ++i) {
    if (!excluded.empty() && excluded[i]) continue;
    text.clear();
    if (!(reader_.append_constant(values.members[i], text) & shape.types)) continue;
    if (std::ranges::all_of(shape.values, [&](const SimpleValues* other) { return other == &values || other->has(text); })) found.push_back(values.members[i]);
  }
  return found;
}

// The values of a shape that it admits; with `are_texts` its strings, as the notation writes them.
SimplePlanning::PlanId SimplePlanning::constants(const SimpleShape& shape, bool are_texts) {
  const std::vector<ValueId> members = admitted(shape);
  std::unordered_set<std::string> known;  // where there are many
  std::vector<SimpleNode> literals;
  const auto is_literal = [&](const std::string& text) {
    const SimpleTerms& terms = emit_.terms();
    return std::ranges::any_of(literals, [&](SimpleNode one) { return terms.text_of(terms.nodes[one]) == text; });
  };
  const bool are_few = members.size() <= kFewConstants;
  std::string text;
  for (ValueId member : members) {
    text.clear();
    const TypeBits type = reader_.append_constant(member, text);
    if (are_texts && type != kStringType) continue;
    if (are_texts) text = document_.string(member);
    if (are_few ? !is_literal(text) : known.insert(text).second) literals.push_back(emit_.literal(text));
  }
  if (literals.empty()) return done(emit_.nothing());
  if (are_texts) return done(texts(literals));
  return done(literals.size() == 1 ? literals[0] : emit_.combine(Kind::kChoice, literals));
}

// Which values the simple keywords of schemas exclude; empty: none.
std::vector<bool> SimplePlanning::excluded_of(const SimpleValues& values, std::span<const SimpleScalar> scalars) {
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
  for (const SimpleScalar& scalar : scalars) {
    std::string text = scalar.text;
    if (scalar.schema != kNone) {
      text = "{";
      append_leaf(scalar.schema, false, text);
      text.push_back('}');
      is_read_[scalar.schema] = true;
    }
    nb::object found = make_leaf_.attr("excluded")(text, listed);
    require(!found.is_none());
    for (nb::handle index : found) excluded.at(nb::cast<size_t>(index)) = true;
  }
  return excluded;
}

SimpleNode SimplePlanning::leaf_of(std::span<const ValueId> schemas, std::optional<uint8_t> types, bool is_argument) {
  if (schemas.empty()) return leaf_with({}, types, is_argument);
  require(schemas.size() == 1);
  const SimpleScalar scalar{schemas[0], {}, false, false};
  return leaf_with({&scalar, 1}, types, is_argument);
}

// The leaf of the simple keywords of schemas; with `types` instead of their `type`, which one schema alone may keep.
SimpleNode SimplePlanning::leaf_with(std::span<const SimpleScalar> scalars, std::optional<uint8_t> types, bool is_argument) {
  const std::string& text = leaf_text(scalars, types);
  const bool has_no_integers = types && (*types & kNumberType) == kFractionType;
  const bool is_written = scalars.size() == 1 && scalars[0].schema != kNone && (types || !reader_.read(scalars[0].schema).has_values());
  if (is_argument) return emit_.add_leaf(of_.leaf(text, helper_, "argument", true));
  return emit_.add_leaf((scalars.empty() || is_written) && !has_no_integers ? of_.leaf(text, make_leaf_) : of_.leaf(text, helper_, "whole"));
}

const std::string& SimplePlanning::leaf_text(std::span<const SimpleScalar> scalars, std::optional<uint8_t> types) {
  std::string& text = leaf_text_;
  text = "{";
  const bool has_no_integers = types && (*types & kNumberType) == kFractionType;
  if (types) {
    text += "\"type\":[";
    for (size_t i = 0; i < kTypeNames.size(); ++i) {
      const uint8_t bits = kTypeBits[i];
      const bool is_fraction = has_no_integers && bits == kNumberType;
      if ((!is_fraction && (*types & bits) != bits) || (bits == kIntegerType && *types & kFractionType)) continue;
      if (text.back() != '[') text.push_back(',');
      append_quoted(kTypeNames[i], text);
    }
    text.push_back(']');
  }
  const auto append = [&](const SimpleScalar& scalar) {
    if (scalar.schema == kNone) {
      text += scalar.text;
      return;
    }
    text.push_back('{');
    append_leaf(scalar.schema, false, text);
    text.push_back('}');
    is_read_[scalar.schema] = true;
  };
  if (scalars.size() == 1 && scalars[0].schema != kNone && !has_no_integers) {
    append_leaf(scalars[0].schema, !types, text);
    is_read_[scalars[0].schema] = true;
  } else if (!scalars.empty() || has_no_integers) {
    text += types ? ",\"allOf\":" : "\"allOf\":";
    char before = '[';
    for (const SimpleScalar& scalar : scalars) {
      text.push_back(std::exchange(before, ','));
      append(scalar);
    }
    if (has_no_integers) {
      text.push_back(std::exchange(before, ','));
      text += "{\"not\":{\"type\":\"integer\"}}";
    }
    text.push_back(']');
  }
  text.push_back('}');
  return text;
}

// The leaf of a schema that has nothing but simple keywords and types.
SimpleNode SimplePlanning::leaf_of(ValueId schema, bool is_argument) {
  std::string& text = leaf_text_;
  text = "{";
  append_leaf(schema, true, text);
  text.push_back('}');
  is_read_[schema] = true;
  return emit_.add_leaf(is_argument ? of_.leaf(text, helper_, "argument", true) : of_.leaf(text, make_leaf_));
}

void SimplePlanning::append_leaf(ValueId id, bool with_types_and_values, std::string& text) const {
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

}  // namespace structgen
