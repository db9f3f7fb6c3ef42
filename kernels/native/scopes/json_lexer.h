// What a reader of JSON knows inside arrays and objects whose members must differ.
//
// The automaton decides which texts are JSON; this reader only follows along.  It keeps the values of finished items
// and the names of finished members, and reports when one of them ends.  Positions are persistent: values, members and
// levels are hash-consed, so that equal contents have equal ids and a copy of a position is a few words.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/byte_set.h"
#include "base/intern.h"

namespace structgen {

using ValueId = uint32_t;
using LevelId = uint32_t;
using MemberId = uint32_t;

// A finished JSON value.  Equal values have equal ids: numbers by decimal value, strings decoded, objects without
// regard to order.
struct Value {
  char kind;                   // 's'tring, 'n'umber, 'l'iteral, '[' or '{'
  std::string text;            // decoded string; literal; sign and significant digits of a number
  std::vector<uint32_t> items; // values of an array or object
  std::vector<uint32_t> names; // of the members of an object, as string values, in the order of `items`
};

struct Member {  // a finished item or member, newest first
  ValueId name, value;
  MemberId before;
  uint32_t count;
};

struct Level {  // an open container
  LevelId below;
  bool is_object;
  bool keeps;                    // the values of its members matter
  std::vector<uint32_t> scopes;  // frames of the marked rules whose container this is
  MemberId members;
  ValueId name;                  // of the member that is open
};

enum class LexMode : uint8_t { kIdle, kBefore, kAfter, kString, kNumber, kLiteral };

struct JsonLexer {
  LexMode mode = LexMode::kIdle;
  bool is_name = false;  // the string that is open or comes next is a name
  uint16_t high = 0;     // a high surrogate that waits for its other half
  std::string scalar;    // decoded text of the open string, or the text of the open number or literal
  std::string escape;    // an escape that is not finished
  LevelId level = kNone;

  bool active() const { return level != kNone; }
  bool operator==(const JsonLexer&) const = default;
};

inline bool is_number_byte(uint8_t byte) {
  return (byte >= '0' && byte <= '9') || byte == '-' || byte == '+' || byte == '.' || byte == 'e' || byte == 'E';
}

class JsonScopes {
 public:
  // What became complete with a byte.
  enum class Event : uint8_t { kNothing, kRepeatedItem, kRepeatedName };

  const Level& level(LevelId id) const { return levels_[id]; }

  // Opens a container; `scopes` are the marked frames that begin with it.
  void open(JsonLexer& at, bool is_object, std::vector<uint32_t> scopes);
  // Ends an open number, before the byte that is no part of it.
  Event end_number(JsonLexer& at);
  // Reads any byte but an opening bracket in place of a value.
  Event read(JsonLexer& at, uint8_t byte);

  // Whether what is open may still become equal to something before it, or something new must come that may.
  // `targets`: the strings, numbers or literals that the open one would have to become.
  bool may_repeat(const JsonLexer& at, std::vector<ValueId>& targets) const;
  // The bytes with which the open string or number may go on towards one of `targets`, or end, or begin an escape.
  ByteSet towards(const JsonLexer& at, const std::vector<ValueId>& targets) const;

  std::string key(const JsonLexer& at) const;  // equal keys: equal positions

  // What is made after mark() is dropped by release(): trials leave nothing.
  size_t mark() const { return order_.size(); }
  void release(size_t mark);
  void clear() { release(0); }
  size_t size() const { return order_.size(); }
  size_t bytes_used() const { return order_.size() * 160; }

 private:
  template <class Record>
  uint32_t intern(std::string key, std::vector<Record>& records, Record&& record);
  ValueId value(char kind, std::string text, std::vector<uint32_t> items = {}, std::vector<uint32_t> names = {});
  ValueId number(const std::string& text);
  MemberId member(const Member& member);
  LevelId make_level(const Level& level);
  Event end_value(JsonLexer& at, ValueId value);
  Event end_string(JsonLexer& at);
  Event close(JsonLexer& at);
  void escaped(JsonLexer& at, uint8_t byte);
  bool wants_text(const JsonLexer& at) const { return at.is_name || levels_[at.level].keeps; }
  struct Open;  // the scalar that is open, as it is compared
  bool scalar_may_become(const Open& open, ValueId value) const;
  bool open_may_become(const JsonLexer& at, const Open& scalar, const std::vector<LevelId>& path, size_t from, ValueId value,
                       std::vector<ValueId>& targets) const;
  ValueId member_of(const Value& object, ValueId name) const;

  std::vector<Value> values_;
  std::vector<Member> members_;
  std::vector<Level> levels_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<const std::string*> order_;  // keys of ids_, as they were made
};

}  // namespace structgen
