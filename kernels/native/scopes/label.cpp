#include "scopes/label.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <vector>

#include "scopes/label_characters.h"

namespace structgen {

namespace {

constexpr uint32_t kMaxCode = 0x10FFFF, kFirstCode = 0x80, kSharpS = 0xDF;
constexpr uint32_t kBase = 36, kMinThreshold = 1, kMaxThreshold = 26, kSkew = 38, kDamp = 700, kFirstBias = 72;
constexpr uint8_t kVirama = 9;
constexpr size_t kShortestRest = 4;  // of a witness: a hyphen and three digits
constexpr size_t kMaxDigits = 2;  // that are tried to complete what is written

struct Properties {
  Bidi bidi;
  uint8_t bits, combining;
};

std::optional<Properties> properties_of(uint32_t code) {
  if (code < kFirstCode) {
    const Bidi bidi = code == '-' ? Bidi::kES : code <= '9' ? Bidi::kEN : Bidi::kL;
    return Properties{bidi, 0, 0};
  }
  const auto found = std::upper_bound(std::begin(kLabelCharacters), std::end(kLabelCharacters), code,
                                      [](uint32_t wanted, const LabelCharacters& row) { return wanted <= row.last; });
  if (found == std::end(kLabelCharacters) || code < found->first) return std::nullopt;
  return Properties{found->bidi, found->properties, found->combining};
}

uint32_t threshold(uint32_t k, uint32_t bias) {
  return k <= bias + kMinThreshold ? kMinThreshold : std::min(k - bias, kMaxThreshold);
}

uint32_t adapted(uint64_t delta, uint32_t length, bool is_first) {
  delta = is_first ? delta / kDamp : delta / 2;
  delta += delta / length;
  uint32_t k = 0;
  for (; delta > (kBase - kMinThreshold) * kMaxThreshold / 2; k += kBase) delta /= kBase - kMinThreshold;
  return k + static_cast<uint32_t>((kBase - kMinThreshold + 1) * delta / (delta + kSkew));
}

// The decoder of RFC 3492 section 6.2, digit by digit.
class Reading {
 public:
  // Reads all of a text.  The last hyphen ends the characters of ASCII, and is not written where there are none.
  explicit Reading(std::string_view text) {
    const size_t hyphen = text.rfind('-');
    is_alive_ = hyphen != 0 && text.size() <= kLongestLabel;
    if (!is_alive_) return;
    if (hyphen != std::string_view::npos) {
      std::copy_n(text.begin(), hyphen, codes_.begin());
      length_ = static_cast<uint32_t>(hyphen);
      text.remove_prefix(hyphen + 1);
    }
    for (char digit : text)
      if (!read(digit)) return;
  }

  bool is_alive() const { return is_alive_; }
  std::span<const uint32_t> codes() const { return {codes_.data(), length_}; }
  // Whether the last number is complete, and there is one.
  bool is_complete() const { return is_alive_ && weight_ == 1 && !is_first_; }

  // False where no valid character comes of it.
  bool read(char digit) {
    const uint32_t value = static_cast<uint32_t>(digit >= 'a' ? digit - 'a' : digit - '0' + 26);
    index_ += value * weight_;
    const uint32_t least = threshold(k_, bias_);
    if (value >= least) {
      weight_ *= kBase - least;
      k_ += kBase;
      return is_alive_ = index_ <= uint64_t{kMaxCode} * (length_ + 1);
    }
    const uint32_t length = length_ + 1;
    bias_ = adapted(index_ - before_, length, is_first_);
    const uint64_t code = code_ + index_ / length;
    is_alive_ = code <= kMaxCode && properties_of(static_cast<uint32_t>(code));
    if (!is_alive_) return false;
    code_ = static_cast<uint32_t>(code);
    index_ %= length;
    std::copy_backward(codes_.begin() + index_, codes_.begin() + length_, codes_.begin() + length);
    codes_[index_] = code_;
    length_ = length;
    before_ = ++index_;
    weight_ = 1;
    k_ = kBase;
    is_first_ = false;
    return true;
  }

 private:
  std::array<uint32_t, 64> codes_{};
  uint32_t length_ = 0, code_ = kFirstCode, bias_ = kFirstBias, k_ = kBase;
  uint64_t index_ = 0, before_ = 0, weight_ = 1;
  bool is_first_ = true, is_alive_ = true;
};

// The encoder of RFC 3492 section 6.3, of a label with characters of ASCII and others.
std::string encoded(std::span<const uint32_t> codes) {
  std::string text;
  for (uint32_t code : codes)
    if (code < kFirstCode) text.push_back(static_cast<char>(code));
  auto done = static_cast<uint32_t>(text.size());
  bool is_first = true;
  if (done > 0) text.push_back('-');
  uint32_t least = kFirstCode, bias = kFirstBias;
  uint64_t delta = 0;
  while (done < codes.size()) {
    uint32_t next = kMaxCode;
    for (uint32_t code : codes)
      if (code >= least) next = std::min(next, code);
    delta += uint64_t{next - least} * (done + 1);
    for (uint32_t code : codes) {
      delta += code < next;
      if (code != next) continue;
      uint64_t rest = delta;
      for (uint32_t k = kBase;; k += kBase) {
        const uint32_t lowest = threshold(k, bias);
        const bool is_last = rest < lowest;
        const uint64_t digit = is_last ? rest : lowest + (rest - lowest) % (kBase - lowest);
        text.push_back(static_cast<char>(digit < 26 ? 'a' + digit : '0' + digit - 26));
        if (is_last) break;
        rest = (rest - lowest) / (kBase - lowest);
      }
      bias = adapted(delta, ++done, is_first);
      is_first = false;
      delta = 0;
    }
    ++delta;
    least = next + 1;
  }
  return text;
}

using Name = std::span<const uint32_t>;

bool has(Name name, size_t index, uint8_t property) { return index < name.size() && (properties_of(name[index])->bits & property); }

// Whether letters around a zero width non-joiner would join without it.
bool joins(Name name, size_t index) {
  size_t left = index, right = index + 1;
  while (left > 0 && has(name, left - 1, kTransparent)) --left;
  while (right < name.size() && has(name, right, kTransparent)) ++right;
  return left > 0 && has(name, left - 1, kJoinsLeft) && has(name, right, kJoinsRight);
}

// The rules of RFC 5892, appendix A.
bool stands_well(Name name, size_t index) {
  const uint32_t code = name[index];
  const auto any_of = [&](uint32_t low, uint32_t high) {
    return std::any_of(name.begin(), name.end(), [&](uint32_t other) { return other >= low && other <= high; });
  };
  switch (code) {
    case 0xB7: return index > 0 && index + 1 < name.size() && name[index - 1] == 'l' && name[index + 1] == 'l';
    case 0x375: return has(name, index + 1, kGreek);
    case 0x5F3: case 0x5F4: return index > 0 && has(name, index - 1, kHebrew);
    case 0x200C: case 0x200D: {
      const bool is_after_virama = index > 0 && properties_of(name[index - 1])->combining == kVirama;
      return is_after_virama || (code == 0x200C && joins(name, index));
    }
    case 0x30FB:
      for (size_t i = 0; i < name.size(); ++i)
        if (has(name, i, kJapanese)) return true;
      return false;
    default: break;
  }
  if (code >= 0x660 && code <= 0x669) return !any_of(0x6F0, 0x6F9);
  if (code >= 0x6F0 && code <= 0x6F9) return !any_of(0x660, 0x669);
  return true;
}

bool has_direction(Name name, Direction direction) {
  std::vector<Bidi> kinds;
  for (uint32_t code : name) kinds.push_back(properties_of(code)->bidi);
  const auto holds = [&](std::initializer_list<Bidi> wanted) {
    return std::any_of(kinds.begin(), kinds.end(), [&](Bidi kind) { return std::find(wanted.begin(), wanted.end(), kind) != wanted.end(); });
  };
  if (direction == Direction::kLeftToRight) return !holds({Bidi::kR, Bidi::kAL, Bidi::kAN});
  while (!kinds.empty() && kinds.back() == Bidi::kNSM) kinds.pop_back();
  if (kinds.empty()) return false;
  const Bidi first = kinds.front(), last = kinds.back();
  if (first == Bidi::kL) return !holds({Bidi::kR, Bidi::kAL, Bidi::kAN}) && (last == Bidi::kL || last == Bidi::kEN);
  if (first != Bidi::kR && first != Bidi::kAL) return false;
  const bool ends_well = last == Bidi::kR || last == Bidi::kAL || last == Bidi::kEN || last == Bidi::kAN;
  return ends_well && !holds({Bidi::kL}) && !(holds({Bidi::kEN}) && holds({Bidi::kAN}));
}

bool is_label(Name name, Direction direction) {
  if (name.front() == '-' || name.back() == '-' || has(name, 0, kMark)) return false;
  if (name.size() >= 4 && name[2] == '-' && name[3] == '-') return false;
  uint8_t before = 0;  // marks in another order are not in normal form C
  for (uint32_t code : name) {
    const uint8_t combining = properties_of(code)->combining;
    if (combining != 0 && before > combining) return false;
    before = combining;
  }
  for (size_t index = 0; index < name.size(); ++index)
    if (!stands_well(name, index)) return false;
  return has_direction(name, direction);
}

bool is_valid(const Reading& reading, Direction direction) {
  return reading.is_complete() && is_label(reading.codes(), direction);
}

// A label, of either direction, whose characters of ASCII are `text`: with a sharp s at the front, after the first
// character, at the end, or at several of these, it neither begins with a hyphen or digit nor ends with a hyphen, nor has
// it hyphens in both the third and the fourth position.  All three do in any case, and take 7 bytes.
std::string witness(std::string_view text) {
  constexpr unsigned kFront = 1, kSecond = 2, kEnd = 4;
  for (unsigned positions : {kFront, kSecond, kEnd, kFront | kSecond, kFront | kEnd, kSecond | kEnd}) {
    std::vector<uint32_t> name;
    for (size_t i = 0; i < text.size(); ++i) {
      if ((i == 0 && positions & kFront) || (i == 1 && positions & kSecond)) name.push_back(kSharpS);
      name.push_back(static_cast<uint8_t>(text[i]));
    }
    if (positions & kEnd || text.empty()) name.push_back(kSharpS);
    const bool is_encoded = std::find(name.begin(), name.end(), kSharpS) != name.end();
    if (is_encoded && is_label(name, Direction::kBidi)) return encoded(name);
  }
  std::vector<uint32_t> name{kSharpS, static_cast<uint8_t>(text[0]), kSharpS};
  name.insert(name.end(), text.begin() + 1, text.end());
  name.push_back(kSharpS);
  return encoded(name);
}

// Adds the fewest digits, at most `max`, that complete a label.
bool add_digits(const Reading& reading, Direction direction, size_t max, std::string& digits) {
  if (max == 0) return is_valid(reading, direction);
  for (char digit : std::string_view("abcdefghijklmnopqrstuvwxyz0123456789")) {
    Reading next = reading;
    if (!next.read(digit)) continue;
    digits.push_back(digit);
    if (add_digits(next, direction, max - 1, digits)) return true;
    digits.pop_back();
  }
  return false;
}

}  // namespace

bool is_letter(uint32_t code) {
  const auto found = properties_of(code);
  return found && found->bidi == Bidi::kL && found->combining == 0 && !(found->bits & kMark);
}

bool u_label_fits(std::string_view letters) {
  std::vector<uint32_t> name;
  for (size_t i = 0; i + 1 < letters.size(); i += 2)
    name.push_back((static_cast<uint8_t>(letters[i]) & 0x1Fu) << 6 | (static_cast<uint8_t>(letters[i + 1]) & 0x3Fu));
  return encoded(name).size() <= kLongestLabel;
}

bool is_a_label(std::string_view text, Direction direction) { return is_valid(Reading(text), direction); }

bool a_label_goes_on(std::string_view text, Direction direction) {
  const bool has_room = text.size() + kShortestRest <= kLongestLabel && witness(text).size() <= kLongestLabel;
  return has_room || a_label_rest(text, direction);
}

std::optional<std::string> a_label_rest(std::string_view text, Direction direction) {
  if (text.size() > kLongestLabel) return std::nullopt;
  if (const Reading reading(text); reading.is_alive()) {
    std::string digits;
    for (size_t count = 0; count <= std::min(kMaxDigits, kLongestLabel - text.size()); ++count)
      if (add_digits(reading, direction, count, digits)) return digits;
  }
  // A witness may be what is being written, after the last hyphen, or may begin.
  const size_t hyphen = text.rfind('-');
  for (size_t end : {hyphen, text.size()}) {
    if (end == std::string_view::npos || text.size() > end + kLongestRest || end + kShortestRest > kLongestLabel) continue;
    const std::string whole = witness(text.substr(0, end));
    if (whole.size() <= kLongestLabel && whole.starts_with(text)) return whole.substr(text.size());
  }
  return std::nullopt;
}

}  // namespace structgen
