// Exact decimal numbers, and sets of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace structgen {

// An exact decimal number.
struct Decimal {
  bool negative = false;
  std::string whole = "0", fraction;  // without leading and trailing zeros; zero has no sign
  bool has_point = false;             // or an exponent, as it was written

  // Of a number as JSON writes it; nothing where it has more than 400 digits before the point or after it.
  static std::optional<Decimal> of(std::string_view text);
  bool is_zero() const { return whole == "0" && fraction.empty(); }
  Decimal minus() const { return {!negative && !is_zero(), whole, fraction, has_point}; }
};

// Less than 0, 0, or more, as one number is less than another, equal, or more.
int compare(const Decimal& one, const Decimal& other);

// The multiples of a step in an interval.
struct Interval {
  std::optional<Decimal> lower, upper, step;
  bool is_lower_open = false, is_upper_open = false;

  bool is_free() const { return !lower && !upper && !step; }
  void raise_lower(const Decimal& bound, bool is_open);
  void drop_upper(const Decimal& bound, bool is_open);
  // Whether an integer is in it; the step has at most 15 digits.
  bool admits(const Decimal& integer) const;
};

// Whether a number has few enough digits for a step.
bool may_be_step(const Decimal& number);

// The least integer above a bound, or equal to it unless it is open.
Decimal ceiling(const Decimal& bound, bool is_open);

}  // namespace structgen
