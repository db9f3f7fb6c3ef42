// Reads the schemas of one document for the planner of simple schemas: their keywords, and where references lead.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "frontends/json_schema/json_document.h"

namespace structgen {

// What a keyword is to the planner, in the order of `_KEYWORDS` in structgen/frontends/json_schema/native.py.  Keywords
// that are not in the table are annotations.
enum class Keyword : uint8_t {
  kOther,       // not simple
  kSimple,      // of strings and numbers: part of a leaf
  kIdentifier,  // simple where no reference depends on it
  kType, kNullable, kEnum, kConst, kReference, kAnyOf, kOneOf, kAllOf, kProperties, kRequired, kAdditionalProperties, kItems,
  kMinItems, kMaxItems, kUniqueItems, kAdditionalItems, kPatternProperties, kMinProperties, kMaxProperties,
  kNot, kIf, kThen, kElse, kDependencies, kDependentRequired, kDependentSchemas,
  kDependents,  // no keyword: names that require names, of `dependencies` or `dependentRequired`
};
constexpr size_t kKeywords = 30;

// A schema; with kNegated: what is not valid against it.
using SchemaRef = ValueId;
constexpr SchemaRef kNegated = 1u << 31;
// What stands in no document: the schema `true`, and constants.
constexpr SchemaRef kAnything = kNegated - 2;
constexpr ValueId kMadeTrue = kNegated - 3, kMadeFalse = kNegated - 4;

inline SchemaRef complement(SchemaRef schema) { return schema ^ kNegated; }
inline bool is_negated(SchemaRef schema) { return schema & kNegated; }

// Types as bits, as in source/json_value.py.
inline constexpr std::array<std::string_view, 7> kTypeNames = {"null", "boolean", "integer", "number", "string", "array", "object"};
enum TypeBits : uint8_t {
  kNullType = 1, kBooleanType = 2, kIntegerType = 4, kFractionType = 8, kStringType = 16, kArrayType = 32, kObjectType = 64,
  kNumberType = kIntegerType | kFractionType,
  kAnyType = 127,
};
inline constexpr std::array<uint8_t, 7> kTypeBits = {kNullType, kBooleanType, kIntegerType, kNumberType, kStringType, kArrayType, kObjectType};

inline constexpr std::array kArrayKeywords = {Keyword::kItems, Keyword::kMinItems, Keyword::kMaxItems, Keyword::kUniqueItems};
inline constexpr std::array kObjectKeywords = {Keyword::kProperties, Keyword::kRequired, Keyword::kAdditionalProperties,
                                               Keyword::kPatternProperties, Keyword::kMinProperties, Keyword::kMaxProperties,
                                               Keyword::kDependents};
inline constexpr std::array kConditions = {Keyword::kNot, Keyword::kIf, Keyword::kDependencies, Keyword::kDependentSchemas};
inline constexpr std::array kInPlaceKeywords = {Keyword::kReference, Keyword::kAnyOf, Keyword::kOneOf, Keyword::kAllOf,
                                                Keyword::kNot, Keyword::kIf, Keyword::kDependencies, Keyword::kDependentSchemas};

// Thrown where a schema is not simple, or not well-formed.
struct NotSimple {};

inline void require(bool condition) {
  if (!condition) throw NotSimple();
}

struct SimpleLimits {
  uint64_t cost;    // of the whole schema, as NormalForm.spend counts it
  uint32_t depth;   // of arrays and objects, and of references to references
};

struct SimpleDialect {
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, Keyword, Hash, std::equal_to<>> keywords;
  std::unordered_set<std::string, Hash, std::equal_to<>> others;  // that mean nothing here and are no mistakes
  bool reference_stands_alone;
};

// The keywords of one schema.
struct SimpleSchema {
  uint32_t seen = 0;      // bits by Keyword
  uint8_t types = kAnyType;
  std::array<ValueId, kKeywords> values{};

  bool has(Keyword keyword) const { return seen >> static_cast<size_t>(keyword) & 1; }
  ValueId value(Keyword keyword) const { return values[static_cast<size_t>(keyword)]; }
  void drop(std::span<const Keyword> keywords) {
    for (Keyword keyword : keywords) seen &= ~bit(keyword);
  }
  bool has_conditions() const { return seen >> static_cast<size_t>(Keyword::kNot) != 0; }
  bool has_any(std::span<const Keyword> keywords) const {
    for (Keyword keyword : keywords)
      if (has(keyword)) return true;
    return false;
  }
  bool has_values() const { return has(Keyword::kEnum) || has(Keyword::kConst); }
  bool is_leaf() const { return has_only({Keyword::kType, Keyword::kNullable, Keyword::kSimple}); }
  // Whether none but the given keywords, and an identifier, occur.
  bool has_only(std::initializer_list<Keyword> keywords) const {
    uint32_t allowed = bit(Keyword::kIdentifier);
    for (Keyword keyword : keywords) allowed |= bit(keyword);
    return (seen & ~allowed) == 0;
  }
  static uint32_t bit(Keyword keyword) { return 1u << static_cast<size_t>(keyword); }
};

// Which schemas of a document are written alike, as far as that was asked.
struct SimpleKeys {
  std::unordered_map<std::string, ValueId> written;  // the first of all that are written alike
  std::unordered_map<ValueId, ValueId> of;
};

// All of it throws NotSimple where the value is not what the keyword requires.
class SimpleReader {
 public:
  SimpleReader(const SimpleDialect& dialect, SimpleLimits limits, const JsonDocument& document, SimpleKeys& keys)
      : dialect_(dialect), limits_(limits), document_(document), keys_(keys) {}

  const SimpleLimits& limits() const { return limits_; }

  SimpleSchema read(ValueId id);
  // The same without what constrains arrays or objects where these are excluded.
  SimpleSchema read_relevant(ValueId id);
  // Makes sure that what constrains arrays and objects is well-formed.
  void check_arrays(const SimpleSchema& schema) const;
  void check_objects(const SimpleSchema& schema) const;

  // kTrue and kFalse for what says as much, negated or not.
  JsonKind kind(SchemaRef schema) const;
  bool boolean(ValueId id) const;
  uint32_t count(ValueId id) const;
  // The schemas under `properties` or `patternProperties`.
  std::span<const JsonDocument::Member> properties(const SimpleSchema& schema, Keyword keyword = Keyword::kProperties) const;
  std::vector<std::string_view> required_names(const SimpleSchema& schema) const;
  // The names that require others, each with these.
  using Dependents = std::vector<std::pair<std::string_view, std::vector<std::string_view>>>;
  Dependents dependents(ValueId id) const;
  // The schemas that hold where names occur.
  std::vector<JsonDocument::Member> dependent_schemas(const SimpleSchema& schema, Keyword keyword) const;
  // The schema of the names that are not declared; kNone: they may hold anything.
  ValueId additional(const SimpleSchema& schema) const;
  bool names_some(const SimpleSchema& schema) const;
  // Whether all names are declared.
  bool is_closed(const SimpleSchema& schema) const;
  // Whether simple keywords surely constrain something.
  bool has_bounds(ValueId id) const;
  // The schemas under `anyOf`, `oneOf` or `allOf`.
  std::span<const ValueId> branches(const SimpleSchema& schema, Keyword keyword) const;
  // The values that `enum` or `const` lists.
  std::span<const ValueId> listed(const SimpleSchema& schema, Keyword keyword) const;
  // Writes a scalar in its canonical form; returns its type.
  TypeBits append_constant(ValueId id, std::string& out) const;
  // The parts of a schema that apply in place, in the order of the text, conditions last; kProperties for its own constraints.
  std::vector<Keyword> parts(ValueId id, const SimpleSchema& schema) const;

  // The schema that a reference within the document names.
  ValueId target(const SimpleSchema& schema) const;
  // The JSON Pointer of a value, as a URI fragment.  O(depth * log(size)).
  std::string pointer(ValueId id) const;
  // The same number for schemas that are written alike.
  SchemaRef key(SchemaRef schema);
  // One of all schemas that are written alike, where `key` was asked for it; else the schema itself.
  SchemaRef canonical(SchemaRef schema) const {
    if (keys_.of.empty()) return schema;
    const auto known = keys_.of.find(schema & ~kNegated);
    return known == keys_.of.end() ? schema : known->second | (schema & kNegated);
  }

  // Counts nodes of the grammar.
  void spend(uint64_t cost) {
    spent_ += cost;
    require(spent_ <= limits_.cost);
  }

  bool has_reference = false, has_inner_identifier = false;
  // Short names in the place of keywords that nobody knows, the first of them: some may be misspelt.
  std::vector<std::string_view> unknown;
  static constexpr size_t kMaxUnknown = 16, kLongestUnknown = 40;

 private:
  uint8_t types(ValueId id) const;
  uint8_t type(ValueId id) const;
  void require_schema(ValueId id) const;
  bool is_resource(ValueId id, ValueId identifier) const;
  bool is_identified(ValueId id) const;
  void note_unknown(std::string_view name);
  void append_alike(ValueId id, uint32_t depth, std::string& out) const;

  const SimpleDialect& dialect_;
  SimpleLimits limits_;
  const JsonDocument& document_;
  uint64_t spent_ = 0;
  SimpleKeys& keys_;
};

}  // namespace structgen
