#include "scopes/json_lexer.h"

#include <algorithm>

namespace structgen {

namespace {

constexpr size_t kLongestExponent = 15;  // digits; numbers with longer ones are compared by their text

void append(std::string& key, uint32_t id) { key.append(reinterpret_cast<const char*>(&id), sizeof id); }

void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
    return;
  }
  const unsigned tail = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  const unsigned lead = tail == 1 ? 0xC0 : tail == 2 ? 0xE0 : 0xF0;
  text.push_back(static_cast<char>(lead | code >> (6 * tail)));
  for (unsigned i = tail; i-- > 0;) text.push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3F)));
}

// Sign and digits from the first that is not zero on, as far as they are written.
struct Digits {
  bool negative = false;
  std::string significant;
  int64_t scale = 0;  // exponent of the last digit
  std::string exponent;
};

Digits digits_of(std::string_view text) {
  Digits found;
  size_t i = 0;
  if (i < text.size() && text[i] == '-') {
    found.negative = true;
    ++i;
  }
  bool fraction = false;
  for (; i < text.size() && text[i] != 'e' && text[i] != 'E'; ++i) {
    if (text[i] == '.') {
      fraction = true;
      continue;
    }
    if (fraction) --found.scale;
    if (text[i] != '0' || !found.significant.empty()) found.significant.push_back(text[i]);
  }
  if (i < text.size()) found.exponent = text.substr(i + 1);
  return found;
}

}  // namespace

template <class Record>
uint32_t JsonScopes::intern(std::string key, std::vector<Record>& records, Record&& record) {
  const auto [slot, is_new] = ids_.emplace(std::move(key), static_cast<uint32_t>(records.size()));
  if (is_new) {
    records.push_back(std::forward<Record>(record));
    order_.push_back(&slot->first);
  }
  return slot->second;
}

void JsonScopes::release(size_t mark) {
  for (; order_.size() > mark; order_.pop_back()) {
    const std::string& key = *order_.back();
    switch (key[0]) {
      case 'M': members_.pop_back(); break;
      case 'L': levels_.pop_back(); break;
      default: values_.pop_back(); break;
    }
    ids_.erase(ids_.find(key));
  }
}

ValueId JsonScopes::value(char kind, std::string text, std::vector<uint32_t> items, std::vector<uint32_t> names) {
  std::string key(1, kind);
  key += text;
  for (uint32_t name : names) append(key, name);
  for (uint32_t item : items) append(key, item);
  return intern(std::move(key), values_, Value{kind, std::move(text), std::move(items), std::move(names)});
}

ValueId JsonScopes::number(const std::string& text) {
  Digits found = digits_of(text);
  if (found.significant.empty()) return value('n', "0");
  while (found.significant.back() == '0') {
    found.significant.pop_back();
    ++found.scale;
  }
  std::string exponent = found.exponent;
  const bool below = !exponent.empty() && exponent[0] == '-';
  if (!exponent.empty() && (exponent[0] == '-' || exponent[0] == '+')) exponent.erase(0, 1);
  exponent.erase(0, std::min(exponent.find_first_not_of('0'), exponent.size()));
  if (exponent.size() > kLongestExponent || exponent.find_first_not_of("0123456789") != std::string::npos)
    return value('n', "?" + text);
  const int64_t size = exponent.empty() ? 0 : std::stoll(exponent);
  std::string canonical = (found.negative ? "-" : "") + found.significant;
  const int64_t scale = found.scale + (below ? -size : size);
  // The scale tells numbers with the same digits apart; it is no part of the text, which prefixes are compared with.
  std::string key = "n" + canonical + 'e' + std::to_string(scale);
  return intern(std::move(key), values_, Value{'n', std::move(canonical), {}, {}});
}

MemberId JsonScopes::member(const Member& made) {
  std::string key = "M";
  append(key, made.name);
  append(key, made.value);
  append(key, made.before);
  return intern(std::move(key), members_, Member(made));
}

LevelId JsonScopes::make_level(const Level& made) {
  std::string key = "L";
  append(key, made.below);
  key.push_back(static_cast<char>(made.is_object * 2 + made.keeps));
  append(key, made.members);
  append(key, made.name);
  for (uint32_t scope : made.scopes) append(key, scope);
  return intern(std::move(key), levels_, Level(made));
}

void JsonScopes::open(JsonLexer& at, bool is_object, std::vector<uint32_t> scopes) {
  Level made{at.level, is_object, false, std::move(scopes), kNone, kNone};
  made.keeps = (at.active() && levels_[at.level].keeps) || (!is_object && !made.scopes.empty());
  at.level = make_level(made);
  at.mode = LexMode::kBefore;
  at.is_name = is_object;
}

JsonScopes::Event JsonScopes::end_value(JsonLexer& at, ValueId finished) {
  at.mode = LexMode::kAfter;
  at.is_name = false;
  Level held = levels_[at.level];
  Event event = Event::kNothing;
  if (held.keeps && !held.is_object && !held.scopes.empty())
    for (MemberId id = held.members; id != kNone; id = members_[id].before)
      if (members_[id].value == finished) event = Event::kRepeatedItem;
  if (held.is_object || held.keeps) {
    const uint32_t count = held.members == kNone ? 0 : members_[held.members].count;
    held.members = member({held.name, held.keeps ? finished : kNone, held.members, count + 1});
    held.name = kNone;
    at.level = make_level(held);
  }
  return event;
}

JsonScopes::Event JsonScopes::end_number(JsonLexer& at) {
  const ValueId finished = levels_[at.level].keeps ? number(at.scalar) : kNone;
  at.scalar.clear();
  return end_value(at, finished);
}

JsonScopes::Event JsonScopes::end_string(JsonLexer& at) {
  if (at.high) append_utf8(at.scalar, at.high);
  at.high = 0;
  std::string text = std::move(at.scalar);
  at.scalar.clear();
  if (!at.is_name) return end_value(at, levels_[at.level].keeps ? value('s', std::move(text)) : kNone);
  Level held = levels_[at.level];
  held.name = value('s', std::move(text));
  at.mode = LexMode::kAfter;
  at.level = make_level(held);
  for (MemberId id = held.members; id != kNone; id = members_[id].before)
    if (members_[id].name == held.name) return Event::kRepeatedName;
  return Event::kNothing;
}

JsonScopes::Event JsonScopes::close(JsonLexer& at) {
  const Level closed = levels_[at.level];
  at.level = closed.below;
  if (!at.active()) {
    at = {};
    return Event::kNothing;
  }
  if (!levels_[at.level].keeps) return end_value(at, kNone);
  std::vector<std::pair<uint32_t, uint32_t>> found;  // name, value
  for (MemberId id = closed.members; id != kNone; id = members_[id].before)
    found.emplace_back(members_[id].name, members_[id].value);
  std::reverse(found.begin(), found.end());
  std::vector<uint32_t> names, items;
  if (closed.is_object) std::sort(found.begin(), found.end());
  for (const auto& [name, item] : found) {
    if (closed.is_object) names.push_back(name);
    items.push_back(item);
  }
  return end_value(at, value(closed.is_object ? '{' : '[', {}, std::move(items), std::move(names)));
}

void JsonScopes::escaped(JsonLexer& at, uint8_t byte) {
  at.escape.push_back(static_cast<char>(byte));
  if (at.escape.size() == 2 && byte != 'u') {
    if (at.high) append_utf8(at.scalar, std::exchange(at.high, 0));
    static constexpr std::pair<char, char> simple[] = {{'b', '\b'}, {'f', '\f'}, {'n', '\n'}, {'r', '\r'}, {'t', '\t'}};
    char meant = static_cast<char>(byte);
    for (const auto& [letter, control] : simple)
      if (letter == meant) {
        meant = control;
        break;
      }
    at.scalar.push_back(meant);
    at.escape.clear();
  } else if (at.escape.size() == 6) {
    uint32_t code = 0;
    for (char digit : std::string_view(at.escape).substr(2))
      code = code * 16 + static_cast<uint32_t>(digit <= '9' ? digit - '0' : (digit | 0x20) - 'a' + 10);
    at.escape.clear();
    const bool is_low = code >= 0xDC00 && code <= 0xDFFF;
    if (at.high && is_low) {
      append_utf8(at.scalar, 0x10000 + ((uint32_t{at.high} - 0xD800) << 10) + (code - 0xDC00));
      at.high = 0;
      return;
    }
    if (at.high) append_utf8(at.scalar, std::exchange(at.high, 0));
    if (code >= 0xD800 && code < 0xDC00) at.high = static_cast<uint16_t>(code);
    else append_utf8(at.scalar, code);
  }
}

JsonScopes::Event JsonScopes::read(JsonLexer& at, uint8_t byte) {
  switch (at.mode) {
    case LexMode::kString:
      if (!at.escape.empty()) {
        escaped(at, byte);
      } else if (byte == '\\') {
        at.escape.push_back('\\');
      } else if (byte == '"') {
        return end_string(at);
      } else if (wants_text(at)) {
        if (at.high) append_utf8(at.scalar, std::exchange(at.high, 0));
        at.scalar.push_back(static_cast<char>(byte));
      }
      return Event::kNothing;
    case LexMode::kNumber:
      if (at.scalar == "0e") return Event::kNothing;  // zero, whatever the exponent: all such positions are one
      at.scalar.push_back(static_cast<char>(byte));
      if ((byte == 'e' || byte == 'E') && digits_of(at.scalar).significant.empty()) at.scalar = "0e";
      return Event::kNothing;
    case LexMode::kLiteral:
      at.scalar.push_back(static_cast<char>(byte));
      if (at.scalar == "true" || at.scalar == "false" || at.scalar == "null") {
        const ValueId finished = levels_[at.level].keeps ? value('l', at.scalar) : kNone;
        at.scalar.clear();
        return end_value(at, finished);
      }
      return Event::kNothing;
    default: break;
  }
  switch (byte) {
    case ' ': case '\t': case '\n': case '\r': break;
    case '"': at.mode = LexMode::kString; break;
    case ']': case '}': return close(at);
    case ',':
      at.mode = LexMode::kBefore;
      at.is_name = levels_[at.level].is_object;
      break;
    case ':':
      at.mode = LexMode::kBefore;
      at.is_name = false;
      break;
    default:
      at.mode = is_number_byte(byte) ? LexMode::kNumber : LexMode::kLiteral;
      at.scalar.assign(1, static_cast<char>(byte));
      break;
  }
  return Event::kNothing;
}

struct JsonScopes::Open {
  explicit Open(const JsonLexer& at) : mode(at.mode), text(at.scalar) {
    if (mode == LexMode::kNumber) number = digits_of(text);
  }
  bool is_scalar() const { return mode == LexMode::kString || mode == LexMode::kNumber || mode == LexMode::kLiteral; }
  LexMode mode;
  std::string_view text;
  Digits number;
};

bool JsonScopes::scalar_may_become(const Open& open, ValueId id) const {
  const Value& wanted = values_[id];
  if (open.mode == LexMode::kString) return wanted.kind == 's' && wanted.text.starts_with(open.text);
  if (open.mode == LexMode::kLiteral) return wanted.kind == 'l' && wanted.text.starts_with(open.text);
  if (wanted.kind != 'n') return false;
  const std::string& written = open.number.significant;
  if (wanted.text[0] == '?') return true;
  if (wanted.text == "0") return written.empty();
  std::string_view text = wanted.text;
  if ((text[0] == '-') != open.number.negative) return false;
  if (text[0] == '-') text.remove_prefix(1);
  for (size_t i = 0; i < written.size(); ++i)
    if (written[i] != (i < text.size() ? text[i] : '0')) return false;
  return true;
}

ValueId JsonScopes::member_of(const Value& object, ValueId name) const {
  const auto found = std::lower_bound(object.names.begin(), object.names.end(), name);
  return found == object.names.end() || *found != name ? kNone : object.items[static_cast<size_t>(found - object.names.begin())];
}

// Whether the open value, whose outermost container is path[from] (none: a scalar), may become `id`.
bool JsonScopes::open_may_become(const JsonLexer& at, const Open& scalar, const std::vector<LevelId>& path, size_t from,
                                 ValueId id, std::vector<ValueId>& targets) const {
  const bool in_scalar = scalar.is_scalar();
  for (size_t i = from; i < path.size(); ++i) {
    const Level& open = levels_[path[i]];
    const Value& wanted = values_[id];
    if (wanted.kind != (open.is_object ? '{' : '[')) return false;
    const uint32_t count = open.members == kNone ? 0 : members_[open.members].count;
    const bool is_top = i + 1 == path.size();
    const bool goes_on = !is_top || in_scalar || (at.mode == LexMode::kBefore && count > 0) || open.name != kNone;
    if (wanted.items.size() < count + goes_on) return false;
    uint32_t index = count;
    for (MemberId held = open.members; held != kNone; held = members_[held].before) {
      --index;
      const ValueId expected = open.is_object ? member_of(wanted, members_[held].name) : wanted.items[index];
      if (expected != members_[held].value) return false;
    }
    if (open.is_object) {
      if (is_top && at.is_name && open.name == kNone) {
        if (!in_scalar) return true;
        const size_t before = targets.size();
        for (ValueId name : wanted.names)
          if (scalar_may_become(scalar, name)) targets.push_back(name);
        return targets.size() > before;
      }
      if (open.name == kNone) return true;
      id = member_of(wanted, open.name);
      if (id == kNone) return false;
    } else if (goes_on) {
      id = wanted.items[count];
    }
  }
  if (!in_scalar) return true;
  if (!scalar_may_become(scalar, id)) return false;
  targets.push_back(id);
  return true;
}

bool JsonScopes::may_repeat(const JsonLexer& at, std::vector<ValueId>& targets) const {
  targets.clear();
  if (!at.active()) return false;
  bool found = false;
  const Level& top = levels_[at.level];
  const Open scalar(at);
  const bool in_scalar = scalar.is_scalar();
  if (top.is_object && at.is_name && top.name == kNone && top.members != kNone) {
    if (!in_scalar) found = true;
    for (MemberId id = top.members; in_scalar && id != kNone; id = members_[id].before)
      if (scalar_may_become(scalar, members_[id].name)) {
        targets.push_back(members_[id].name);
        found = true;
      }
  }
  if (!top.keeps) return found;
  std::vector<LevelId> path;
  for (LevelId id = at.level; id != kNone; id = levels_[id].below) path.push_back(id);
  std::reverse(path.begin(), path.end());
  for (size_t i = 0; i < path.size(); ++i) {
    const Level& open = levels_[path[i]];
    if (open.is_object || open.scopes.empty() || open.members == kNone) continue;
    const bool is_top = i + 1 == path.size();
    if (is_top && at.mode == LexMode::kAfter) continue;
    if (is_top && !in_scalar) {
      found = true;
      continue;
    }
    for (MemberId id = open.members; id != kNone; id = members_[id].before)
      found |= open_may_become(at, scalar, path, i + 1, members_[id].value, targets);
  }
  return found;
}

ByteSet JsonScopes::towards(const JsonLexer& at, const std::vector<ValueId>& targets) const {
  const bool is_number = at.mode == LexMode::kNumber;
  const bool is_string = at.mode == LexMode::kString && at.escape.empty() && !at.high;
  if (!is_string && (!is_number || at.scalar.find_first_of("eE") != std::string::npos)) return ByteSet::all();
  ByteSet set;
  if (is_number) {
    set = ~ByteSet::range('0', '9');
    set.insert('0');
    const size_t written = digits_of(at.scalar).significant.size();
    for (ValueId id : targets) {
      const std::string& text = values_[id].text;
      if (text[0] == '?') return ByteSet::all();
      const size_t next = written + (text[0] == '-');
      if (next < text.size()) set.insert(static_cast<uint8_t>(text[next]));
    }
    return set;
  }
  set.insert('"');
  set.insert('\\');
  for (ValueId id : targets)
    if (values_[id].text.size() > at.scalar.size()) set.insert(static_cast<uint8_t>(values_[id].text[at.scalar.size()]));
  return set;
}

std::string JsonScopes::key(const JsonLexer& at) const {
  std::string key;
  append(key, at.level);
  key.push_back(static_cast<char>(static_cast<unsigned>(at.mode) * 2 + at.is_name));
  append(key, at.high);
  append(key, static_cast<uint32_t>(at.scalar.size()));
  key += at.scalar;
  key += at.escape;
  return key;
}

}  // namespace structgen
