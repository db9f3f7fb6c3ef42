#include "frontends/json_schema/json_document.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_set>

namespace structgen {

namespace {

constexpr size_t kLongestNumber = 300;   // characters; far below what Python reads
constexpr size_t kLongestExponent = 4;   // digits; likewise
constexpr size_t kFewMembers = 12;       // below this, comparing all pairs of names is cheaper than a table
constexpr size_t kBytesAValue = 12;      // of most documents, for memory that is asked for at once
constexpr size_t kUsuallyWaiting = 16;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
// What ends the plain characters of a string; a function object, so that it is inlined.
constexpr auto ends_plain = [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < 0x20; };
bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::optional<uint32_t> hexadecimal(std::string_view digits) {
  uint32_t value = 0;
  for (char c : digits) {
    value <<= 4;
    if (is_digit(c)) value |= static_cast<uint32_t>(c - '0');
    else if (c >= 'a' && c <= 'f') value |= static_cast<uint32_t>(c - 'a' + 10);
    else if (c >= 'A' && c <= 'F') value |= static_cast<uint32_t>(c - 'A' + 10);
    else return std::nullopt;
  }
  return value;
}

void append_utf8(uint32_t code, std::string& out) {
  const auto byte = [&](uint32_t value) { out.push_back(static_cast<char>(value)); };
  if (code < 0x80) return byte(code);
  if (code < 0x800) {
    byte(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      byte(0xE0 | code >> 12);
    } else {
      byte(0xF0 | code >> 18);
      byte(0x80 | (code >> 12 & 0x3F));
    }
    byte(0x80 | (code >> 6 & 0x3F));
  }
  byte(0x80 | (code & 0x3F));
}

}  // namespace

// One pass with a stack of open containers; every method is false where the text is not plain.
class JsonReader {
 public:
  JsonReader(JsonDocument& document, size_t max_depth) : document_(document), text_(document.text_), max_depth_(max_depth) {}

  bool read() {
    if (text_.size() >= std::numeric_limits<uint32_t>::max()) return false;
    document_.values_.reserve(text_.size() / kBytesAValue);
    document_.strings_.reserve(text_.size() / kBytesAValue);
    document_.members_.reserve(text_.size() / kBytesAValue);
    values_.reserve(kUsuallyWaiting);
    open_.reserve(kUsuallyWaiting);
    while (true) {
      skip_space();
      if (at_ == text_.size()) return false;
      const char c = text_[at_];
      if (c == '{' || c == '[') {
        if (open_.size() >= max_depth_) return false;
        open_.push_back({c == '{', static_cast<uint32_t>(at_++), values_.size(), {}});
        skip_space();
        if (!peek(c == '{' ? '}' : ']')) {
          if (!name()) return false;
          continue;
        }
        close();
      } else if (!scalar()) {
        return false;
      }
      while (!open_.empty()) {  // the last value belongs to the innermost container
        skip_space();
        if (peek(',')) {
          ++at_;
          if (!name()) return false;
          break;
        }
        if (!peek(open_.back().is_object ? '}' : ']')) return false;
        if (!close()) return false;
      }
      if (open_.empty()) break;
    }
    skip_space();
    document_.root_ = values_.back().value;
    return at_ == text_.size();
  }

 private:
  struct Open {
    bool is_object;
    uint32_t begin;
    size_t first;           // of the values that wait for it
    std::string_view name;  // of the value that comes next
  };

  bool peek(char c) const { return at_ < text_.size() && text_[at_] == c; }
  void skip_space() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }

  ValueId add(JsonDocument::Value value) {
    document_.values_.push_back(value);
    const auto id = static_cast<ValueId>(document_.values_.size() - 1);
    values_.push_back({open_.empty() ? std::string_view() : open_.back().name, id});
    return id;
  }

  // The name of the next value, where the innermost container is an object.
  bool name() {
    if (!open_.back().is_object) return true;
    skip_space();
    if (!peek('"')) return false;
    const std::optional<uint32_t> index = string();
    if (!index) return false;
    open_.back().name = document_.strings_[*index];
    skip_space();
    if (!peek(':')) return false;
    ++at_;
    return true;
  }

  // The innermost container ends here.
  bool close() {
    const Open container = open_.back();
    open_.pop_back();
    ++at_;
    const std::span waiting(values_.data() + container.first, values_.size() - container.first);
    JsonDocument::Value value{JsonKind::kArray, container.begin, static_cast<uint32_t>(at_)};
    value.count = static_cast<uint32_t>(waiting.size());
    if (container.is_object) {
      if (has_twice(waiting)) return false;
      value.kind = JsonKind::kObject;
      value.first = static_cast<uint32_t>(document_.members_.size());
      document_.members_.insert(document_.members_.end(), waiting.begin(), waiting.end());
    } else {
      value.first = static_cast<uint32_t>(document_.items_.size());
      for (const auto& [none, id] : waiting) document_.items_.push_back(id);
    }
    values_.resize(container.first);
    add(value);
    return true;
  }

  static bool has_twice(std::span<const JsonDocument::Member> members) {
    if (members.size() <= kFewMembers) {
      for (size_t i = 1; i < members.size(); ++i)
        for (size_t j = 0; j < i; ++j)
          if (members[i].name == members[j].name) return true;
      return false;
    }
    std::unordered_set<std::string_view> names;
    names.reserve(members.size());
    return !std::ranges::all_of(members, [&](const auto& member) { return names.insert(member.name).second; });
  }

  bool scalar() {
    const auto begin = static_cast<uint32_t>(at_);
    JsonDocument::Value value{JsonKind::kNull, begin, begin};
    if (text_[at_] == '"') {
      const std::optional<uint32_t> index = string();
      if (!index) return false;
      value.kind = JsonKind::kString;
      value.first = *index;
    } else if (is_digit(text_[at_]) || text_[at_] == '-') {
      const std::optional<JsonKind> kind = number();
      if (!kind) return false;
      value.kind = *kind;
    } else if (word("true")) {
      value.kind = JsonKind::kTrue;
    } else if (word("false")) {
      value.kind = JsonKind::kFalse;
    } else if (!word("null")) {
      return false;
    }
    value.end = static_cast<uint32_t>(at_);
    add(value);
    return true;
  }

  bool word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    return true;
  }

  size_t digits() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    return at_ - begin;
  }

  std::optional<JsonKind> number() {
    const size_t begin = at_;
    JsonKind kind = JsonKind::kInteger;
    if (peek('-')) ++at_;
    const bool is_zero = peek('0');
    const size_t whole = digits();
    if (whole == 0 || (is_zero && whole > 1)) return std::nullopt;
    if (peek('.')) {
      ++at_;
      kind = JsonKind::kFraction;
      if (digits() == 0) return std::nullopt;
    }
    if (peek('e') || peek('E')) {
      ++at_;
      kind = JsonKind::kFraction;
      if (peek('-') || peek('+')) ++at_;
      const size_t count = digits();
      if (count == 0 || count > kLongestExponent) return std::nullopt;
    }
    if (at_ - begin > kLongestNumber) return std::nullopt;
    return kind;
  }

  // The index of a decoded string.
  std::optional<uint32_t> string() {
    const size_t begin = ++at_;
    at_ = static_cast<size_t>(std::find_if(text_.begin() + begin, text_.end(), ends_plain) - text_.begin());
    if (at_ == text_.size() || (text_[at_] != '"' && text_[at_] != '\\')) return std::nullopt;
    std::string_view plain = text_.substr(begin, at_ - begin);
    if (text_[at_] == '\\') {
      std::string& decoded = document_.decoded_.emplace_back(plain);
      if (!rest_of_string(decoded)) return std::nullopt;
      plain = decoded;
    }
    ++at_;
    document_.strings_.push_back(plain);
    return static_cast<uint32_t>(document_.strings_.size() - 1);
  }

  bool rest_of_string(std::string& decoded) {
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) return false;
      if (text_[at_] != '\\') {
        decoded.push_back(text_[at_]);
      } else if (!escape(decoded)) {
        return false;
      }
    }
    return at_ < text_.size();
  }

  // Stops at the last character of the escape.
  bool escape(std::string& decoded) {
    if (++at_ >= text_.size()) return false;
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const size_t index = kNames.find(text_[at_]);
    if (index != std::string_view::npos) {
      decoded.push_back(kMeanings[index]);
      return true;
    }
    std::optional<uint32_t> code = unit();
    if (!code) return false;
    if (*code >= 0xD800 && *code <= 0xDFFF) {
      ++at_;
      if (*code >= 0xDC00 || !peek('\\')) return false;
      ++at_;
      const std::optional<uint32_t> trail = unit();
      if (!trail || *trail < 0xDC00 || *trail > 0xDFFF) return false;
      code = 0x10000 + ((*code - 0xD800) << 10) + (*trail - 0xDC00);
    }
    append_utf8(*code, decoded);
    return true;
  }

  // `uXXXX`, with the last digit left to be passed.
  std::optional<uint32_t> unit() {
    if (!peek('u') || at_ + 4 >= text_.size()) return std::nullopt;
    const std::optional<uint32_t> code = hexadecimal(text_.substr(at_ + 1, 4));
    at_ += 4;
    return code;
  }

  JsonDocument& document_;
  const std::string_view text_;
  const size_t max_depth_;
  size_t at_ = 0;
  std::vector<Open> open_;
  std::vector<JsonDocument::Member> values_;  // finished, waiting for their container
};

std::unique_ptr<const JsonDocument> JsonDocument::parse(std::string text, size_t max_depth) {
  std::unique_ptr<JsonDocument> document(new JsonDocument(std::move(text)));
  if (!JsonReader(*document, max_depth).read()) return nullptr;
  return document;
}

const JsonDocument::Member* JsonDocument::find(ValueId id, std::string_view name) const {
  for (const Member& member : members(id))
    if (member.name == name) return &member;
  return nullptr;
}

void append_quoted(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out.push_back('"');
  const auto plain = static_cast<size_t>(std::ranges::find_if(text, ends_plain) - text.begin());
  out += text.substr(0, plain);
  text.remove_prefix(plain);
  for (char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out.push_back(kHex[c >> 4]);
          out.push_back(kHex[c & 0xF]);
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
}

}  // namespace structgen
