#include "schema.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>
#include <vector>

#include "build_program.h"
#include "frontends/json_schema/json_document.h"
#include "frontends/json_schema/simple_schema.h"
#include "leaves.h"
#include "source_error.h"

namespace nb = nanobind;

namespace structgen {

namespace {

constexpr size_t kMaxSourceBytes = 1 << 20, kMaxDepth = 200;
constexpr uint64_t kMaxCost = 1'000'000;

// The schemas of a document: what stands where a schema may, so that names of properties and constants are none.
std::vector<ValueId> schemas_of(const JsonDocument& document) {
  static constexpr std::array kOne = {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"};
  static constexpr std::array kLists = {"allOf", "anyOf", "items", "oneOf", "prefixItems"};
  static constexpr std::array kMaps = {"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"};
  const auto is_in = [](const auto& names, std::string_view name) { return std::ranges::any_of(names, [&](const char* one) { return name == one; }); };
  std::vector<ValueId> found = {document.root()};
  for (size_t next = 0; next < found.size(); ++next) {
    if (document.kind(found[next]) != JsonKind::kObject) continue;
    for (const auto& [name, value] : document.members(found[next])) {
      const JsonKind kind = document.kind(value);
      if (kind == JsonKind::kObject && is_in(kOne, name)) found.push_back(value);
      if (kind == JsonKind::kArray && is_in(kLists, name)) found.insert(found.end(), document.items(value).begin(), document.items(value).end());
      if (kind == JsonKind::kObject && is_in(kMaps, name))
        for (const auto& [key, one] : document.members(value)) found.push_back(one);
    }
  }
  std::erase_if(found, [&](ValueId id) { return document.kind(id) != JsonKind::kObject; });
  return found;
}

// The place of a member: its name and its value.
std::pair<size_t, size_t> place_of(const JsonDocument& document, const JsonDocument::Member& member, std::string_view text) {
  const std::string_view source = document.source(member.value);
  const auto value = static_cast<size_t>(source.data() - text.data());
  std::string name;
  append_quoted(member.name, name);
  const size_t begin = text.rfind(name, value);
  return {begin == std::string_view::npos ? value : begin, value + source.size()};
}

// The member that a refusal is about: of all with its name, that of the object which has most in common with the schema.
const JsonDocument::Member* member_of(const JsonDocument& document, const Leaves::Refusal& refusal) {
  const JsonDocument::Member* best = nullptr;
  size_t most = 0;
  for (size_t id = 0; id < document.size(); ++id) {
    const auto object = static_cast<ValueId>(id);
    if (document.kind(object) != JsonKind::kObject) continue;
    const JsonDocument::Member* member = document.find(object, refusal.member);
    if (member == nullptr) continue;
    const auto is_own = [&](const auto& one) {
      const JsonDocument::Member* own = document.find(object, one.first);
      return own != nullptr && document.source(own->value) == one.second;
    };
    const auto common = static_cast<size_t>(std::ranges::count_if(refusal.members, is_own));
    if (best != nullptr && common <= most) continue;
    best = member;
    most = common;
  }
  return best;
}

}  // namespace

Program read_schema(const std::string& source, const Library& library) {
  if (source.size() > kMaxSourceBytes) throw SourceError("the schema has more than a million bytes", 0, 1);
  const std::unique_ptr<const JsonDocument> document = JsonDocument::parse(source, kMaxDepth);
  if (document == nullptr) throw SourceError("this is no plain JSON: it is malformed, or has a name twice, a lone surrogate, a number of unusual size, or more than 200 values around each other", 0, 1);
  const ValueId root = document->root();
  if (document->kind(root) == JsonKind::kTrue) return **library.find("any value");
  if (document->kind(root) != JsonKind::kObject) throw SourceError("a schema is an object; true allows any value", 0, source.size());
  const std::string_view text = document->source(root);
  const size_t shift = source.find(text);  // of the document, which holds its own copy
  const auto fail = [&](const std::string& problem, const JsonDocument::Member* member) {
    if (member == nullptr) return SourceError(problem, shift, shift + 1, true);
    const auto [begin, end] = place_of(*document, *member, text);
    return SourceError(problem, begin + shift, end + shift, true);
  };
  std::string declared;
  if (const JsonDocument::Member* member = document->find(root, "$schema"); member != nullptr && document->kind(member->value) == JsonKind::kString) declared = document->string(member->value);
  while (declared.ends_with('#')) declared.pop_back();
  constexpr std::string_view kSite = "://json-schema.org/";
  if (const size_t site = declared.find(kSite); site != std::string::npos) declared.erase(0, site + kSite.size());
  else if (!declared.empty()) declared = "?";
  const auto dialect = library.dialects.find(declared);
  if (dialect == library.dialects.end()) throw fail("'$schema' names no draft that this page knows", document->find(root, "$schema"));
  nb::dict keywords;
  for (const auto& one : dialect->second.keywords) keywords.emplace_back(one.first, one.second);
  SimpleSyntax syntax;
  const char* const names[] = {"open_object", "end_object", "close_object", "open_array", "end_array", "close_array", "comma", "colon", "any value", "any string"};
  for (size_t i = 0; i < SimpleSyntax::kTerms; ++i) syntax.terms[i] = nb::object(*library.find(names[i]));
  SimplePlanner planner(keywords, dialect->second.reference_stands_alone, syntax, {kMaxCost, kMaxDepth}, true, false, nullptr);
  Leaves leaves(library, declared);
  const nb::object make = nb::Function([&](const nb::List& arguments) { return leaves.term(arguments[0].get<std::string>()); });
  const nb::object names_of = nb::Function([&](const nb::List& arguments) { return leaves.names(arguments[0].get<std::string>()); });
  const nb::object empty = nb::Function([&](const nb::List& arguments) { return leaves.empty(arguments[0].get<std::string>()); });
  const nb::object values = nb::Function([](const nb::List& arguments) { return arguments[0]; });
  const nb::object excluded = nb::Function([&](const nb::List& arguments) { return leaves.excluded(arguments[0].get<std::string>(), arguments[1].get<std::string>()); });
  // One object stands for both sides: a function, and the methods of its helper.
  const nb::object helper = std::map<std::string, nb::object>{{"whole", make}, {"names", names_of}, {"empty", empty}, {"argument", make}};
  const std::unique_ptr<SimpleTerms> terms = planner.plan(*document, make.with({{"values", values}, {"excluded", excluded}}), helper);
  if (terms) return simple_program(*terms);
  if (leaves.refusal) throw fail("'" + leaves.refusal->keyword + "': " + leaves.refusal->problem, member_of(*document, *leaves.refusal));
  const std::vector<ValueId> schemas = schemas_of(*document);
  for (ValueId schema : schemas)
    for (const auto& member : document->members(schema)) {
      const auto known = std::ranges::find_if(dialect->second.keywords, [&](const auto& one) { return one.first == member.name && one.second == 0; });
      if (known != dialect->second.keywords.end()) throw fail("'" + std::string(member.name) + "' is not read by this page", &member);
    }
  const auto each = [&](std::initializer_list<const char*> names, const auto& is_why, const auto& problem) {
    for (const char* name : names)
      for (ValueId schema : schemas)
        if (const JsonDocument::Member* member = document->find(schema, name); member != nullptr && is_why(member->value)) throw fail("'" + std::string(name) + "' " + problem, member);
  };
  const auto is_compound = [&](ValueId value) { return document->kind(value) == JsonKind::kArray || document->kind(value) == JsonKind::kObject || document->kind(value) == JsonKind::kFraction; };
  const auto has_compound = [&](ValueId value) { return document->kind(value) == JsonKind::kArray && std::ranges::any_of(document->items(value), is_compound); };
  for (ValueId schema : schemas) {  // what the planner leaves of it
    const JsonDocument::Member *unique = document->find(schema, "uniqueItems"), *fewest = document->find(schema, "minItems"), *items = document->find(schema, "items");
    if (unique == nullptr || document->kind(unique->value) != JsonKind::kTrue) continue;
    const bool has_many = fewest != nullptr && document->source(fewest->value) != "0" && document->source(fewest->value) != "1";
    const bool has_numbers = items != nullptr && document->kind(items->value) == JsonKind::kObject && document->find(items->value, "maximum") != nullptr;
    if (has_many || has_numbers) throw fail("'uniqueItems' with two required items, or with integers that have bounds, is not read by this page", unique);
  }
  each({"items"}, [&](ValueId value) { return document->kind(value) == JsonKind::kArray; }, "with an array of schemas is not read by this page");
  each({"enum"}, has_compound, "with arrays, objects or fractions is not read by this page beside other schemas for the same value");
  each({"const"}, is_compound, "with an array, an object or a fraction is not read by this page beside other schemas for the same value");
  if (leaves.contradiction) throw fail("'" + leaves.contradiction->keyword + "': " + leaves.contradiction->problem, member_of(*document, *leaves.contradiction));
  each({"not", "if", "dependencies", "dependentSchemas", "oneOf", "allOf", "anyOf", "$ref"}, [&](ValueId value) { return document->kind(value) != JsonKind::kFalse; },
       "is likely why this page does not read the schema: arrays that it excludes, two formats or steps, too many alternatives, or another document");
  throw SourceError("this page does not read the schema; it may be invalid", shift, shift + 1, true);
}

}  // namespace structgen
