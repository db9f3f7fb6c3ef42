#include "library.h"

#include <stdexcept>

#include "frontends/json_schema/json_document.h"

namespace structgen {

std::string from_base64(std::string_view text) {
  std::string made;
  uint32_t held = 0, bits = 0;
  for (char c : text) {
    const uint32_t value = c >= 'A' && c <= 'Z'   ? static_cast<uint32_t>(c - 'A')
                           : c >= 'a' && c <= 'z' ? static_cast<uint32_t>(c - 'a' + 26)
                           : c >= '0' && c <= '9' ? static_cast<uint32_t>(c - '0' + 52)
                           : c == '+'             ? 62u
                           : c == '/'             ? 63u
                                                  : 64u;
    if (value == 64) break;
    held = held << 6 | value;
    bits += 6;
    if (bits >= 8) {
      bits -= 8;
      made.push_back(static_cast<char>(held >> bits & 0xFF));
    }
  }
  return made;
}

Library Library::parse(std::string text) {
  const std::unique_ptr<const JsonDocument> document = JsonDocument::parse(std::move(text), 16);
  if (document == nullptr) throw std::invalid_argument("the library is damaged");
  const JsonDocument& all = *document;
  const auto member = [&](ValueId object, const char* name) {
    const JsonDocument::Member* found = all.find(object, name);
    if (found == nullptr) throw std::invalid_argument("the library is damaged");
    return found->value;
  };
  const auto number = [&](ValueId id) { return static_cast<uint32_t>(std::stoul(std::string(all.source(id)))); };
  Library library;
  for (const auto& [name, value] : all.members(member(all.root(), "programs"))) {
    const std::string_view text = all.string(value);
    if (text.starts_with('=')) library.programs.emplace(std::string(name), library.programs.at(std::string(text.substr(1))));
    else library.programs.emplace(std::string(name), std::make_shared<const Program>(unpack(from_base64(text))));
  }
  for (const auto& [name, texts] : all.members(member(all.root(), "lark")))
    for (ValueId one : all.items(texts)) library.lark_files[std::string(name)].emplace_back(all.string(one));
  const auto ranges = [&](ValueId list) {
    std::vector<CodePoints> made;
    const auto items = all.items(list);
    for (size_t i = 0; i + 1 < items.size(); i += 2) made.emplace_back(number(items[i]), number(items[i + 1]));
    return made;
  };
  const auto classes = [&](const char* name) {
    const ValueId one = member(member(all.root(), "classes"), name);
    return RegexClasses{ranges(member(one, "d")), ranges(member(one, "w")), ranges(member(one, "s"))};
  };
  library.python = classes("python");
  library.ecma = classes("ecma");
  for (const auto& [name, value] : all.members(member(all.root(), "dialects"))) {
    Dialect dialect{{}, all.kind(member(value, "alone")) == JsonKind::kTrue};
    for (const auto& [keyword, code] : all.members(member(value, "keywords"))) dialect.keywords.emplace_back(std::string(keyword), number(code));
    library.dialects.emplace(std::string(name), std::move(dialect));
  }
  return library;
}

}  // namespace structgen
