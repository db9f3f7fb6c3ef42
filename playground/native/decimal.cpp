#include "decimal.h"

#include <algorithm>
#include <cstdint>

namespace structgen {

namespace {

constexpr int kMaxBoundDigits = 400;
constexpr size_t kMaxStepDigits = 15;

int size(const std::string& text) { return static_cast<int>(text.size()); }

// The next magnitude that is an integer.
std::string after(std::string digits) {
  size_t i = digits.size();
  while (i > 0 && digits[i - 1] == '9') digits[--i] = '0';
  if (i == 0) return "1" + digits;
  ++digits[i - 1];
  return digits;
}
std::string before(std::string digits) {
  size_t i = digits.size();
  while (digits[i - 1] == '0') digits[--i] = '9';
  --digits[i - 1];
  if (digits.size() > 1 && digits[0] == '0') digits.erase(0, 1);
  return digits;
}

}  // namespace

std::optional<Decimal> Decimal::of(std::string_view text) {
  Decimal made;
  if (text.starts_with('-')) {
    made.negative = true;
    text.remove_prefix(1);
  }
  const bool has_point = text.find_first_of(".eE") != std::string_view::npos;
  int exponent = 0;
  if (const size_t mark = text.find_first_of("eE"); mark != std::string_view::npos) {
    std::string_view digits = text.substr(mark + 1);
    const bool is_negative = digits.starts_with('-');
    if (is_negative || digits.starts_with('+')) digits.remove_prefix(1);
    while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
    if (digits.empty() || digits.size() > 4) return std::nullopt;
    exponent = std::stoi(std::string(digits)) * (is_negative ? -1 : 1);
    text = text.substr(0, mark);
  }
  const size_t point = std::min(text.find('.'), text.size());
  std::string digits(text.substr(0, point));
  int places = static_cast<int>(point) + exponent;  // before the point
  if (point < text.size()) digits += text.substr(point + 1);
  if (digits.empty() || digits.size() > 2 * kMaxBoundDigits || digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
  const size_t first = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, first);
  places -= static_cast<int>(first);
  while (digits.ends_with('0')) digits.pop_back();
  made.has_point = has_point;
  if (digits.empty()) return Decimal{.has_point = has_point};
  if (places > kMaxBoundDigits || size(digits) - places > kMaxBoundDigits) return std::nullopt;
  if (places > size(digits)) digits.append(static_cast<size_t>(places) - digits.size(), '0');
  if (places < 0) digits.insert(0, static_cast<size_t>(-places), '0');
  const auto split = static_cast<size_t>(std::max(places, 0));
  if (split > 0) made.whole = digits.substr(0, split);
  made.fraction = digits.substr(split);
  return made;
}

int compare(const Decimal& one, const Decimal& other) {
  if (one.negative != other.negative) return one.negative ? -1 : 1;
  const int sign = one.negative ? -1 : 1;
  if (one.whole.size() != other.whole.size()) return one.whole.size() < other.whole.size() ? -sign : sign;
  const int whole = one.whole.compare(other.whole);
  return sign * (whole != 0 ? whole : one.fraction.compare(other.fraction));
}

void Interval::raise_lower(const Decimal& bound, bool is_open) {
  const int order = lower ? compare(bound, *lower) : 1;
  if (order < 0) return;
  is_lower_open = is_open || (order == 0 && is_lower_open);
  lower = bound;
}

void Interval::drop_upper(const Decimal& bound, bool is_open) {
  const int order = upper ? compare(bound, *upper) : -1;
  if (order > 0) return;
  is_upper_open = is_open || (order == 0 && is_upper_open);
  upper = bound;
}

bool Interval::admits(const Decimal& integer) const {
  if (lower && (compare(integer, *lower) < 0 || (is_lower_open && compare(integer, *lower) == 0))) return false;
  if (upper && (compare(integer, *upper) > 0 || (is_upper_open && compare(integer, *upper) == 0))) return false;
  if (!step) return true;
  const uint64_t number = std::stoull(step->whole + step->fraction);
  uint64_t remainder = 0;
  for (char digit : integer.whole + std::string(step->fraction.size(), '0')) remainder = (remainder * 10 + static_cast<uint64_t>(digit - '0')) % number;
  return remainder == 0;
}

bool may_be_step(const Decimal& number) { return !number.negative && !number.is_zero() && number.whole.size() + number.fraction.size() <= kMaxStepDigits; }

Decimal ceiling(const Decimal& bound, bool is_open) {
  if (!bound.fraction.empty()) {
    if (!bound.negative) return {false, after(bound.whole)};
    return {bound.whole != "0", bound.whole};
  }
  if (!is_open) return bound;
  if (!bound.negative) return {false, after(bound.whole)};
  const std::string whole = before(bound.whole);
  return {whole != "0", whole};
}

}  // namespace structgen
