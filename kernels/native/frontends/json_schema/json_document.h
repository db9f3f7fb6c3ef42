// A JSON text, read strictly into one flat tree.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace structgen {

using ValueId = uint32_t;

enum class JsonKind : uint8_t { kNull, kFalse, kTrue, kInteger, kFraction, kString, kArray, kObject };

class JsonDocument {
 public:
  struct Member {
    std::string_view name;
    ValueId value;
  };

  // Null for whatever is not plain JSON after RFC 8259: what json.loads would not read, a name that occurs twice, a
  // lone surrogate, nesting beyond `max_depth`, numbers of unusual size.  The reader in Python distinguishes such texts.
  // O(size of the text).
  static std::unique_ptr<const JsonDocument> parse(std::string text, size_t max_depth);

  ValueId root() const { return root_; }
  size_t size() const { return values_.size(); }
  JsonKind kind(ValueId id) const { return values_[id].kind; }
  // The value as it is written.
  std::string_view source(ValueId id) const {
    return std::string_view(text_).substr(values_[id].begin, values_[id].end - values_[id].begin);
  }
  std::string_view string(ValueId id) const { return strings_[values_[id].first]; }
  std::span<const ValueId> items(ValueId id) const { return {items_.data() + values_[id].first, values_[id].count}; }
  std::span<const Member> members(ValueId id) const { return {members_.data() + values_[id].first, values_[id].count}; }
  // The member of an object with a name, or null.
  const Member* find(ValueId id, std::string_view name) const;

  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

 private:
  friend class JsonReader;
  explicit JsonDocument(std::string text) : text_(std::move(text)) {}

  struct Value {
    JsonKind kind;
    uint32_t begin, end;  // in the text
    uint32_t first = 0;   // of strings_, items_ or members_
    uint32_t count = 0;
  };

  const std::string text_;
  std::vector<Value> values_;
  std::vector<ValueId> items_;
  std::vector<Member> members_;
  std::vector<std::string_view> strings_;  // decoded
  std::list<std::string> decoded_;         // those that had escapes
  ValueId root_ = 0;
};

// Appends a JSON string as json.dumps(text, ensure_ascii=False) writes it, quotes included.
void append_quoted(std::string_view text, std::string& out);

}  // namespace structgen
