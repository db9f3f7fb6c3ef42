// Labels of host names that are written as `xn--` and Punycode (RFC 3492): A-labels of RFC 5890.
//
// Whether such a label is valid shows at its end, by what it decodes to (RFC 5891 to 5893).  But whatever letters, digits
// and hyphens it begins with, it can go on to a valid one, as long as there is room: the last hyphen ends the characters
// of ASCII, so that some sharp s between or after all that was written make a valid label (`witness` in label.cpp).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace structgen {

enum class Direction : uint8_t {
  kLeftToRight,  // no right-to-left characters
  kBidi,         // the rule of RFC 5893, which all labels of a name obey if one of them has right-to-left characters
};

constexpr size_t kLongestLabel = 59;  // after `xn--`
constexpr size_t kLongestRest = 7;    // of a label that has room for so much
constexpr size_t kFreeLabel = kLongestLabel - kLongestRest;  // up to this length any text can be completed

inline bool is_label_byte(uint8_t byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') || byte == '-';
}

constexpr size_t kFreeLetters = 23;  // of a label that is written as it is: so many always fit

// Whether a label of letters may hold a character.
bool is_letter(uint32_t code);
// Whether a label of letters, in UTF-8, takes at most 63 octets as an A-label.
bool u_label_fits(std::string_view letters);
// Whether `xn--` and `text`, in small letters, are a valid label of that direction without characters that compose with
// others.  O(length^2), of at most 59 bytes.
bool is_a_label(std::string_view text, Direction direction);
// Whether something is known that completes a label, which is faster to decide than what.
bool a_label_goes_on(std::string_view text, Direction direction);
// Some text that completes a label; nothing where none is known.  None is lost on the way: where there is one, so there
// is after its first byte.
std::optional<std::string> a_label_rest(std::string_view text, Direction direction);

}  // namespace structgen
