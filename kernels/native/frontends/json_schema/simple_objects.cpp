#include "frontends/json_schema/simple_objects.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace structgen {

namespace {

bool are_disjoint(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  return std::ranges::none_of(a, [&](const std::string& key) { return std::ranges::binary_search(b, key); });
}

void retain(std::vector<std::string>& keys, const std::vector<std::string>& others, bool are_kept) {
  std::erase_if(keys, [&](const std::string& key) { return std::ranges::binary_search(others, key) != are_kept; });
}

// The words of a pattern such as ^(one|two)$, as _WORDS in normal/exclusion.py reads it.
std::vector<std::string_view> words_of(std::string_view pattern) {
  const auto is_word = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == ' ' || c == '-'; };
  if (!pattern.starts_with('^') || !pattern.ends_with('$') || pattern.size() < 3) return {};
  std::string_view inside = pattern.substr(1, pattern.size() - 2);
  const bool are_several = inside.starts_with('(') && inside.ends_with(')');
  if (are_several) inside = inside.substr(1, inside.size() - 2);
  if (are_several && inside.starts_with("?:")) inside.remove_prefix(2);
  std::vector<std::string_view> words;
  for (;;) {
    const std::string_view word = inside.substr(0, inside.find('|'));
    require(std::ranges::none_of(word, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }));  // words of other alphabets
    if (word.empty() || !std::ranges::all_of(word, is_word)) return {};
    words.push_back(word);
    if (word.size() == inside.size()) break;
    inside.remove_prefix(word.size() + 1);
  }
  if (!are_several && words.size() > 1) return {};
  return words;
}

}  // namespace

const SimpleObject* SimpleObjects::of(ValueId id, const SimpleSchema& schema) {
  const auto [known, is_new] = of_schema_.try_emplace(id, nullptr);
  if (!is_new) return known->second;
  SimpleObject object{.schema = id};
  const auto declared = reader_.properties(schema);
  object.properties.assign(declared.begin(), declared.end());
  object.patterns = reader_.properties(schema, Keyword::kPatternProperties);
  object.additional = reader_.additional(schema);
  if (object.additional != kNone && reader_.kind(object.additional) == JsonKind::kFalse) object.additional = structgen::complement(kAnything);
  object.required = reader_.required_names(schema);
  if (schema.has(Keyword::kDependents)) object.dependents = reader_.dependents(id);
  if (schema.has(Keyword::kMinProperties)) object.fewest = reader_.count(schema.value(Keyword::kMinProperties));
  if (schema.has(Keyword::kMaxProperties)) object.most = reader_.count(schema.value(Keyword::kMaxProperties));
  object.covers_rest = schema.has(Keyword::kAdditionalProperties);
  object.names_some = reader_.names_some(schema);
  return known->second = add(std::move(object));
}

const JsonDocument::Member* SimpleObject::find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(order, name, {}, [&](uint32_t index) { return properties[index].name; });
  return found == order.end() || properties[*found].name != name ? nullptr : &properties[*found];
}

SimpleObject* SimpleObjects::add(SimpleObject object) {
  object.order.resize(object.properties.size());
  std::iota(object.order.begin(), object.order.end(), 0);
  std::ranges::sort(object.order, {}, [&](uint32_t index) { return object.properties[index].name; });
  return &objects_.emplace_back(std::move(object));
}

const SimpleObject* SimpleObjects::complement(const SimpleObject* object) {
  auto* const own = const_cast<SimpleObject*>(object);
  if (own->complement != nullptr) return own->complement;
  SimpleObject* const other = add(*object);
  own->complement = other;
  other->dependents.clear();
  other->is_negated = !object->is_negated;
  other->annotates = other->is_written = false;
  other->silent = nullptr;
  other->complement = silent(object);
  return other;
}

const SimpleObject* SimpleObjects::silent(const SimpleObject* object) {
  if (!object->annotates) return object;
  auto* const own = const_cast<SimpleObject*>(object);
  if (own->silent == nullptr) {
    SimpleObject* const other = add(*object);
    own->silent = other;
    other->annotates = other->is_written = false;
  }
  return own->silent;
}

SimpleObject SimpleObjects::made(ValueId schema, std::string_view name, SchemaRef value) const {
  SimpleObject object{.schema = schema};
  object.properties = {{name, value}};
  object.annotates = object.is_written = false;
  return object;
}

const SimpleObject* SimpleObjects::complement_of_name(const SimpleObject& object) {
  if (!object.patterns.empty() || object.additional != kNone || !object.dependents.empty() || object.fewest || object.most != kNone || object.is_negated) return nullptr;
  std::vector<std::string_view> names = object.required;
  for (const auto& [name, value] : object.properties)
    if (object.is_outside || reader_.kind(value) != JsonKind::kTrue) names.push_back(name);
  if (names.empty() || std::ranges::any_of(names, [&](std::string_view name) { return name != names[0]; })) return nullptr;
  const JsonDocument::Member* property = object.find(names[0]);
  SimpleObject other = made(object.schema, names[0], structgen::complement(property == nullptr ? kAnything : property->value));
  other.is_outside = !object.is_outside;
  if (object.required.empty()) other.required = {names[0]};
  return add(std::move(other));
}

const SimpleObject* SimpleObjects::requiring(ValueId schema, std::string_view name) {
  SimpleObject object = made(schema, name, kAnything);
  object.required = {name};
  return add(std::move(object));
}

const SimpleObject* SimpleObjects::lacking(ValueId schema, std::string_view name) { return add(made(schema, name, structgen::complement(kAnything))); }

const SimpleObject* SimpleObjects::mentioning(ValueId schema, std::span<const std::string_view> names) {
  SimpleObject object = made(schema, names[0], kAnything);
  for (std::string_view name : names.subspan(1)) object.properties.push_back({name, kAnything});
  return add(std::move(object));
}

bool SimpleObjects::constants_of(SchemaRef ref, std::vector<std::string>& keys, bool& is_all) {
  constexpr std::array<std::string_view, 9> kSaysNoMore = {"const", "enum", "pattern", "title", "description", "default", "examples", "$comment", "markdownDescription"};
  const JsonKind kind = reader_.kind(ref);
  is_all = true;
  if (kind == JsonKind::kTrue || kind == JsonKind::kFalse) return kind == JsonKind::kFalse;
  const ValueId id = ref & ~kNegated;
  require(kind == JsonKind::kObject && document_.find(id, "$schema") == nullptr);
  const SimpleSchema schema = reader_.read(id);
  if (schema.has_only({Keyword::kReference})) return false;
  bool has_type = false, says_more = false;
  for (const auto& [name, value] : document_.members(id)) {
    if (name == "type") has_type = true;
    else if (std::ranges::find(kSaysNoMore, name) == kSaysNoMore.end()) says_more = true;
  }
  const JsonDocument::Member *type = document_.find(id, "type"), *pattern = document_.find(id, "pattern");
  const bool is_string = type != nullptr && document_.kind(type->value) == JsonKind::kString && document_.string(type->value) == "string";
  const auto add_keys = [&](Keyword keyword) {
    bool are_strings = true;
    for (ValueId value : reader_.listed(schema, keyword)) {
      std::string key;
      are_strings &= reader_.append_constant(value, key) == kStringType;
      keys.push_back(std::move(key));
    }
    return are_strings;
  };
  if (schema.has(Keyword::kConst)) {
    add_keys(Keyword::kConst);
    is_all = !says_more && !has_type && !schema.has(Keyword::kEnum);
  } else if (schema.has(Keyword::kEnum)) {
    const bool are_strings = add_keys(Keyword::kEnum);
    is_all = !says_more && (!has_type || (is_string && are_strings)) && pattern == nullptr;
  } else {
    if (!is_string || pattern == nullptr || document_.kind(pattern->value) != JsonKind::kString) return false;
    for (std::string_view word : words_of(document_.string(pattern->value))) append_quoted(word, keys.emplace_back());
    if (keys.empty()) return false;
    is_all = !says_more;
  }
  std::ranges::sort(keys);
  keys.erase(std::ranges::unique(keys).begin(), keys.end());
  return true;
}

const std::vector<SimpleObjects::Label>& SimpleObjects::labels_of(const SimpleObject& object) {
  const auto [known, is_new] = labels_.try_emplace(&object);
  if (!is_new) return known->second;
  for (const auto& [name, value] : object.properties) {
    Label label{name, {}, false};
    if (constants_of(object.is_outside ? structgen::complement(value) : value, label.keys, label.is_all)) known->second.push_back(std::move(label));
  }
  return known->second;
}

SimpleObjects::Constraints SimpleObjects::constraints_of(std::span<const SimpleObject* const> objects) {
  Constraints all;
  const auto allow = [&](std::string_view name, const Keys& keys) {
    const auto [known, is_new] = all.listed.try_emplace(name, keys);
    if (!is_new) retain(known->second, keys, true);
  };
  for (const SimpleObject* object : objects) {
    if (object->is_negated) continue;
    all.holding.push_back(object);
    for (std::string_view name : object->required) ++all.required[name];
    if (object->is_outside) {
      for (const auto& [name, value] : object->properties)
        if (reader_.kind(value) == JsonKind::kFalse) allow(name, {});
    } else {
      for (const Label& label : labels_of(*object)) allow(label.name, label.keys);
    }
    if (object->is_closed()) all.closed.push_back(object);
  }
  all.allowed = all.listed;
  for (const SimpleObject* object : all.holding)
    if (object->is_outside)
      for (const Label& label : labels_of(*object))
        if (const auto known = all.allowed.find(label.name); label.is_all && known != all.allowed.end()) retain(known->second, label.keys, false);
  all.is_possible = std::ranges::none_of(all.required, [&](const auto& one) { return is_absent(all, one.first); });
  return all;
}

bool SimpleObjects::is_absent(const Constraints& all, std::string_view name) const {
  if (const auto known = all.allowed.find(name); known != all.allowed.end() && known->second.empty()) return true;
  return std::ranges::any_of(all.closed, [&](const SimpleObject* object) { return object->find(name) == nullptr; });
}

// Whether an object that excludes something is redundant; if so, its required names are no longer counted.
bool SimpleObjects::is_idle(Constraints& all, const SimpleObject& object) {
  if (object.is_negated) {
    if (std::ranges::any_of(object.required, [&](std::string_view name) { return is_absent(all, name); })) return true;
    if (object.is_outside) return false;
    return std::ranges::any_of(labels_of(object), [&](const Label& label) {
      const auto required = all.required.find(label.name);
      const auto allowed = all.allowed.find(label.name);
      if (required == all.required.end() || required->second == 0) return false;
      return label.keys.empty() || (allowed != all.allowed.end() && are_disjoint(label.keys, allowed->second));
    });
  }
  if (!object.is_outside || object.annotates || object.properties.size() > 1) return false;
  for (const Label& label : labels_of(object)) {
    if (!label.is_all) continue;
    const auto listed = all.listed.find(label.name);
    if (listed == all.listed.end() || !are_disjoint(listed->second, label.keys)) return false;
    if (std::ranges::any_of(object.required, [&](std::string_view name) { return all.required[name] < 2; })) return false;
    for (std::string_view name : object.required) --all.required[name];
    return true;
  }
  return false;
}

// Whether no object violates what is negated.
bool SimpleObjects::holds(const Constraints& all, const SimpleObject& object) {
  if (std::ranges::any_of(all.holding, [&](const SimpleObject* other) { return other->complement == &object; })) return true;
  if (!object.patterns.empty() || object.additional != kNone || object.is_outside || object.fewest || object.most != kNone) return false;
  for (std::string_view name : object.required) {
    const auto required = all.required.find(name);
    if (required == all.required.end() || required->second == 0) return false;
  }
  const std::vector<Label>& labels = labels_of(object);
  return std::ranges::all_of(object.properties, [&](const JsonDocument::Member& one) {
    if (reader_.kind(one.value) == JsonKind::kTrue || is_absent(all, one.name)) return true;
    const auto label = std::ranges::find(labels, one.name, &Label::name);
    const auto allowed = all.allowed.find(one.name);
    if (label == labels.end() || !label->is_all || allowed == all.allowed.end()) return false;
    return std::ranges::all_of(allowed->second, [&](const std::string& key) { return std::ranges::binary_search(label->keys, key); });
  });
}

bool SimpleObjects::settle(std::vector<const SimpleObject*>& objects) {
  Constraints all = constraints_of(objects);
  std::erase_if(objects, [&](const SimpleObject* object) { return (object->is_negated || object->is_outside) && is_idle(all, *object); });
  return all.is_possible && std::ranges::none_of(objects, [&](const SimpleObject* object) { return object->is_negated && holds(all, *object); });
}

}  // namespace structgen
