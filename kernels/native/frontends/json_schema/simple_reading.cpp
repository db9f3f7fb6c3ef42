#include "frontends/json_schema/simple_reading.h"

#include <algorithm>
#include <charconv>

#include "automaton/automaton.h"

namespace structgen {

namespace {

constexpr size_t kExactDigits = 15;  // of a fraction that is a double
constexpr uint32_t kDeepest = 100;    // of what is compared

// One step of a JSON Pointer as source/location.py writes it.
void append_step(std::string_view step, std::string& out) {
  constexpr char kHex[] = "0123456789ABCDEF";
  out.push_back('/');
  for (char c : step) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          std::string_view("!$&'()*+,;=:@?-._").find(c) != std::string_view::npos;
    if (is_plain) {
      out.push_back(c);
    } else if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out.push_back('%');
      out.push_back(kHex[static_cast<unsigned char>(c) >> 4]);
      out.push_back(kHex[static_cast<unsigned char>(c) & 0xF]);
    }
  }
}

}  // namespace

SimpleSchema SimpleReader::read(ValueId id) {
  SimpleSchema schema;
  for (const auto& [name, value] : document_.members(id)) {
    const auto found = dialect_.keywords.find(name);
    if (found == dialect_.keywords.end()) {
      if (!dialect_.others.contains(name)) note_unknown(name);
      continue;
    }
    const Keyword keyword = found->second;
    require(keyword != Keyword::kOther);
    if (keyword == Keyword::kIdentifier && id != document_.root()) has_inner_identifier |= is_resource(id, value);
    schema.seen |= SimpleSchema::bit(keyword);
    schema.values[static_cast<size_t>(keyword)] = value;
  }
  if (schema.has(Keyword::kReference)) {
    has_reference = true;
    if (dialect_.reference_stands_alone) {
      schema.seen = SimpleSchema::bit(Keyword::kReference);
      return schema;
    }
  }
  if (schema.has(Keyword::kType)) {
    schema.types = types(schema.value(Keyword::kType));
    if (schema.has(Keyword::kNullable) && document_.kind(schema.value(Keyword::kNullable)) == JsonKind::kTrue) schema.types |= kNullType;
  }
  if (schema.has(Keyword::kNullable)) boolean(schema.value(Keyword::kNullable));
  if (schema.has(Keyword::kUniqueItems) && !boolean(schema.value(Keyword::kUniqueItems))) schema.drop({{Keyword::kUniqueItems}});
  if (schema.has(Keyword::kAdditionalItems)) {  // means nothing without an array under `items`
    require_schema(schema.value(Keyword::kAdditionalItems));
    schema.drop({{Keyword::kAdditionalItems}});
  }
  if (!schema.has_conditions()) return schema;
  for (Keyword keyword : {Keyword::kNot, Keyword::kIf, Keyword::kThen, Keyword::kElse})
    if (schema.has(keyword)) require_schema(schema.value(keyword));
  if (!schema.has(Keyword::kIf)) schema.drop({{Keyword::kThen, Keyword::kElse}});
  if (schema.has(Keyword::kDependencies) || schema.has(Keyword::kDependentRequired)) {
    if (!dependents(id).empty()) schema.seen |= SimpleSchema::bit(Keyword::kDependents);
    schema.drop({{Keyword::kDependentRequired}});
  }
  for (Keyword keyword : {Keyword::kDependencies, Keyword::kDependentSchemas})
    if (schema.has(keyword) && dependent_schemas(schema, keyword).empty()) schema.drop({{keyword}});
  return schema;
}

void SimpleReader::note_unknown(std::string_view name) {
  if (unknown.size() == kMaxUnknown || name.size() > kLongestUnknown) return;
  if (std::find(unknown.begin(), unknown.end(), name) == unknown.end()) unknown.push_back(name);
}

SimpleSchema SimpleReader::read_relevant(ValueId id) {
  SimpleSchema schema = read(id);
  if (!(schema.types & kArrayType)) {
    check_arrays(schema);
    schema.drop(kArrayKeywords);
  }
  if (!(schema.types & kObjectType)) {
    require(!schema.has(Keyword::kPatternProperties));  // which would have to be read
    check_objects(schema);
    schema.drop(kObjectKeywords);
  }
  return schema;
}

void SimpleReader::check_arrays(const SimpleSchema& schema) const {
  if (schema.has(Keyword::kItems)) require_schema(schema.value(Keyword::kItems));
  if (schema.has(Keyword::kMinItems)) count(schema.value(Keyword::kMinItems));
  if (schema.has(Keyword::kMaxItems)) count(schema.value(Keyword::kMaxItems));
}

void SimpleReader::check_objects(const SimpleSchema& schema) const {
  if (schema.has(Keyword::kProperties))
    for (const auto& [name, value] : properties(schema)) require_schema(value);
  if (schema.has(Keyword::kPatternProperties))
    for (const auto& [pattern, value] : properties(schema, Keyword::kPatternProperties)) require_schema(value);
  if (schema.has(Keyword::kRequired)) required_names(schema);
  if (schema.has(Keyword::kAdditionalProperties)) require_schema(schema.value(Keyword::kAdditionalProperties));
  if (schema.has(Keyword::kMinProperties)) count(schema.value(Keyword::kMinProperties));
  if (schema.has(Keyword::kMaxProperties)) count(schema.value(Keyword::kMaxProperties));
}

void SimpleReader::require_schema(ValueId id) const {
  if (document_.kind(id) != JsonKind::kObject) boolean(id);
}

// Whether an inner schema is a resource of its own, with a URI that is simple; it may not have another dialect.
bool SimpleReader::is_resource(ValueId id, ValueId identifier) const {
  if (document_.kind(identifier) != JsonKind::kString || document_.string(identifier).starts_with('#')) return false;
  require(document_.find(id, "$schema") == nullptr);
  return true;
}

std::span<const JsonDocument::Member> SimpleReader::properties(const SimpleSchema& schema, Keyword keyword) const {
  if (!schema.has(keyword)) return {};
  require(document_.kind(schema.value(keyword)) == JsonKind::kObject);
  return document_.members(schema.value(keyword));
}

ValueId SimpleReader::additional(const SimpleSchema& schema) const {
  if (!schema.has(Keyword::kAdditionalProperties)) return kNone;
  const ValueId value = schema.value(Keyword::kAdditionalProperties);
  return document_.kind(value) != JsonKind::kObject && boolean(value) ? kNone : value;
}

// Whether a schema names the members that an object may have, if only to say that there are none.
bool SimpleReader::names_some(const SimpleSchema& schema) const {
  if (schema.has(Keyword::kDependents)) return true;
  if (schema.has(Keyword::kProperties) && properties(schema).empty()) return true;
  const auto may_occur = [&](const auto& member) { return document_.kind(member.value) != JsonKind::kFalse; };
  return std::ranges::any_of(properties(schema), may_occur) || !required_names(schema).empty() ||
         std::ranges::any_of(properties(schema, Keyword::kPatternProperties), may_occur);
}

bool SimpleReader::is_closed(const SimpleSchema& schema) const {
  const ValueId value = additional(schema);
  return value != kNone && document_.kind(value) == JsonKind::kFalse && properties(schema, Keyword::kPatternProperties).empty();
}

bool SimpleReader::has_bounds(ValueId id) const {
  constexpr std::array<std::string_view, 6> kBounds = {"minimum", "maximum", "multipleOf", "minLength", "maxLength", "pattern"};
  return std::ranges::any_of(document_.members(id), [&](const auto& member) { return std::ranges::find(kBounds, member.name) != kBounds.end(); });
}

std::vector<std::string_view> SimpleReader::required_names(const SimpleSchema& schema) const {
  std::vector<std::string_view> names;
  if (!schema.has(Keyword::kRequired)) return names;
  require(document_.kind(schema.value(Keyword::kRequired)) == JsonKind::kArray);
  for (ValueId name : document_.items(schema.value(Keyword::kRequired))) {
    require(document_.kind(name) == JsonKind::kString);
    names.push_back(document_.string(name));
  }
  return names;
}

// In the order of the text; a name that requires only itself requires nothing.
SimpleReader::Dependents SimpleReader::dependents(ValueId id) const {
  Dependents found;
  for (const auto& [keyword, value] : document_.members(id)) {
    const auto known = dialect_.keywords.find(keyword);
    if (known == dialect_.keywords.end()) continue;
    const bool is_dependencies = known->second == Keyword::kDependencies;
    if (!is_dependencies && known->second != Keyword::kDependentRequired) continue;
    require(document_.kind(value) == JsonKind::kObject);
    for (const auto& [name, names] : document_.members(value)) {
      const JsonKind kind = document_.kind(names);
      if (is_dependencies && (kind == JsonKind::kObject || kind == JsonKind::kTrue || kind == JsonKind::kFalse)) continue;
      require(kind == JsonKind::kArray);
      std::vector<std::string_view> others;
      for (ValueId other : document_.items(names)) {
        require(document_.kind(other) == JsonKind::kString);
        others.push_back(document_.string(other));
      }
      if (std::ranges::all_of(others, [&, own = name](std::string_view other) { return other == own; })) continue;
      const auto same = std::ranges::find(found, name, &Dependents::value_type::first);
      if (same == found.end()) found.emplace_back(name, std::move(others));
      else same->second.insert(same->second.end(), others.begin(), others.end());
    }
  }
  return found;
}

std::vector<JsonDocument::Member> SimpleReader::dependent_schemas(const SimpleSchema& schema, Keyword keyword) const {
  std::vector<JsonDocument::Member> found;
  require(document_.kind(schema.value(keyword)) == JsonKind::kObject);
  for (const JsonDocument::Member& one : document_.members(schema.value(keyword))) {
    if (keyword == Keyword::kDependencies && document_.kind(one.value) == JsonKind::kArray) continue;
    require_schema(one.value);
    found.push_back(one);
  }
  return found;
}

std::span<const ValueId> SimpleReader::branches(const SimpleSchema& schema, Keyword keyword) const {
  const ValueId list = schema.value(keyword);
  require(document_.kind(list) == JsonKind::kArray && !document_.items(list).empty());
  for (ValueId branch : document_.items(list)) require_schema(branch);
  return document_.items(list);
}

std::span<const ValueId> SimpleReader::listed(const SimpleSchema& schema, Keyword keyword) const {
  if (keyword == Keyword::kConst) return {&schema.values[static_cast<size_t>(keyword)], 1};
  require(document_.kind(schema.value(keyword)) == JsonKind::kArray);
  return document_.items(schema.value(keyword));
}

TypeBits SimpleReader::append_constant(ValueId id, std::string& out) const {
  if (id == kMadeTrue || id == kMadeFalse) {
    out += id == kMadeTrue ? "true" : "false";
    return kBooleanType;
  }
  switch (document_.kind(id)) {
    case JsonKind::kString: append_quoted(document_.string(id), out); return kStringType;
    case JsonKind::kInteger: require(document_.source(id) != "-0"); out += document_.source(id); return kIntegerType;
    case JsonKind::kNull: out += "null"; return kNullType;
    case JsonKind::kTrue: out += "true"; return kBooleanType;
    case JsonKind::kFalse: out += "false"; return kBooleanType;
    default: throw NotSimple();
  }
}

std::vector<Keyword> SimpleReader::parts(ValueId id, const SimpleSchema& schema) const {
  std::vector<Keyword> found, conditions;
  bool has_own = false;
  for (const auto& [name, value] : document_.members(id)) {
    const auto keyword = dialect_.keywords.find(name);
    if (keyword == dialect_.keywords.end() || !schema.has(keyword->second)) continue;
    const bool is_own = keyword->second == Keyword::kProperties;
    has_own |= is_own;
    if (std::ranges::find(kConditions, keyword->second) != kConditions.end()) conditions.push_back(keyword->second);
    else if (is_own || std::ranges::find(kInPlaceKeywords, keyword->second) != kInPlaceKeywords.end()) found.push_back(keyword->second);
  }
  if (!has_own) found.insert(found.begin(), Keyword::kProperties);
  found.insert(found.end(), conditions.begin(), conditions.end());
  return found;
}

JsonKind SimpleReader::kind(SchemaRef schema) const {
  const SchemaRef id = schema & ~kNegated;
  const JsonKind kind = id == kAnything || id == kMadeTrue ? JsonKind::kTrue : id == kMadeFalse ? JsonKind::kFalse : document_.kind(id);
  if (!is_negated(schema)) return kind;
  return kind == JsonKind::kTrue ? JsonKind::kFalse : kind == JsonKind::kFalse ? JsonKind::kTrue : kind;
}

bool SimpleReader::boolean(ValueId id) const {
  const JsonKind kind = document_.kind(id);
  require(kind == JsonKind::kTrue || kind == JsonKind::kFalse);
  return kind == JsonKind::kTrue;
}

uint8_t SimpleReader::types(ValueId id) const {
  if (document_.kind(id) == JsonKind::kString) return type(id);
  require(document_.kind(id) == JsonKind::kArray && !document_.items(id).empty());
  uint8_t bits = 0;
  for (ValueId item : document_.items(id)) bits |= type(item);
  return bits;
}

uint8_t SimpleReader::type(ValueId id) const {
  require(document_.kind(id) == JsonKind::kString);
  const auto found = std::ranges::find(kTypeNames, document_.string(id));
  require(found != kTypeNames.end());
  return kTypeBits[static_cast<size_t>(found - kTypeNames.begin())];
}

uint32_t SimpleReader::count(ValueId id) const {
  const std::string_view digits = document_.source(id);
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  require(document_.kind(id) == JsonKind::kInteger && error == std::errc() && end == digits.data() + digits.size() && value < 1u << 31);
  return value;
}

ValueId SimpleReader::target(const SimpleSchema& schema) const {
  const ValueId reference = schema.value(Keyword::kReference);
  require(document_.kind(reference) == JsonKind::kString);
  std::string_view text = document_.string(reference);
  require(text.starts_with('#') && text.find_first_of("%~") == std::string_view::npos);
  text.remove_prefix(1);
  require(text.empty() || text.starts_with('/'));
  ValueId here = document_.root();
  while (!text.empty()) {
    text.remove_prefix(1);
    const std::string_view step = text.substr(0, text.find('/'));
    text.remove_prefix(step.size());
    require(document_.kind(here) == JsonKind::kObject);
    const JsonDocument::Member* member = document_.find(here, step);
    require(member != nullptr);
    here = member->value;
    require(here == document_.root() || !is_identified(here));
  }
  require_schema(here);
  return here;
}

// Whether a schema may have a URI of its own.
bool SimpleReader::is_identified(ValueId id) const {
  if (document_.kind(id) != JsonKind::kObject) return false;
  return std::ranges::any_of(document_.members(id), [&](const auto& member) {
    const auto found = dialect_.keywords.find(member.name);
    return found != dialect_.keywords.end() && found->second == Keyword::kIdentifier && is_resource(id, member.value);
  });
}

std::string SimpleReader::pointer(ValueId id) const {
  const char* const start = document_.source(id).data();
  const auto begins_before = [&](ValueId value) { return document_.source(value).data() <= start; };
  std::string text = "#";
  for (ValueId here = document_.root(); here != id;) {
    if (document_.kind(here) == JsonKind::kObject) {
      const auto members = document_.members(here);
      const auto next = std::ranges::partition_point(members, begins_before, &JsonDocument::Member::value);
      append_step(next[-1].name, text);
      here = next[-1].value;
    } else {
      const auto items = document_.items(here);
      const auto next = std::ranges::partition_point(items, begins_before);
      append_step(std::to_string(next - items.begin() - 1), text);
      here = next[-1];
    }
  }
  return text;
}

SchemaRef SimpleReader::key(SchemaRef schema) {
  if (const JsonKind says = kind(schema); says == JsonKind::kTrue || says == JsonKind::kFalse)
    return says == JsonKind::kTrue ? kAnything : complement(kAnything);
  const ValueId id = schema & ~kNegated;
  const auto [known, is_new] = keys_.of.try_emplace(id, id);
  if (is_new) {
    std::string text;
    append_alike(id, 0, text);
    known->second = keys_.written.try_emplace(std::move(text), id).first->second;
  }
  return known->second | (schema & kNegated);
}

// Writes a value so that equal texts mean equal values with members in the same order.
void SimpleReader::append_alike(ValueId id, uint32_t depth, std::string& out) const {
  require(depth < kDeepest);
  switch (document_.kind(id)) {
    case JsonKind::kArray:
      out.push_back('[');
      for (ValueId item : document_.items(id)) {
        append_alike(item, depth + 1, out);
        out.push_back(',');
      }
      out.push_back(']');
      break;
    case JsonKind::kObject:
      out.push_back('{');
      for (const auto& [name, value] : document_.members(id)) {
        append_quoted(name, out);
        append_alike(value, depth + 1, out);
        out.push_back(',');
      }
      out.push_back('}');
      break;
    case JsonKind::kFraction: {
      const std::string_view text = document_.source(id);
      require(text.size() <= kExactDigits && text.back() != '0' && text.find_first_of("eE") == std::string_view::npos);
      out += text;
      break;
    }
    default: append_constant(id, out);
  }
}

}  // namespace structgen
