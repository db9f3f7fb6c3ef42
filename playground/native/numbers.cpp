#include "numbers.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace structgen {

namespace {

using Kind = Instruction::Kind;

constexpr int kDigits = 64, kWholeDigits = 20, kMaxExponent = 999, kExponentDigits = 3;
constexpr uint64_t kMaxStates = 50'000;
constexpr uint32_t kNothing = kNone;  // no text, beside which a choice has its other ways

int size(const std::string& text) { return static_cast<int>(text.size()); }

// A magnitude that bounds others.
struct Bound {
  std::string whole = "0", fraction;
  bool is_open = false;

  bool is_zero() const { return whole == "0" && fraction.empty(); }
};

// The terms of numbers, from the last digit back.
class Terms {
 public:
  explicit Terms(ProgramBuilder& builder) : builder_(builder), epsilon_(builder.emit({.kind = Kind::kSequence})), point_(builder.literal(".")) {}

  // The magnitudes between two bounds, with at most so many digits before the point, and after it.
  uint32_t magnitudes(const Bound& low, const std::optional<Bound>& high, int whole, int fraction) {
    const Ends ends = ends_of(low, high.value_or(Bound{}), fraction);
    int first = size(low.whole), last = high ? size(high->whole) : whole;
    uint32_t at_low = kNothing, at_high = kNothing;
    if (low.is_zero() && !low.is_open) {
      first = 1;
    } else {
      at_low = whole_part(&low.whole, high && first == last ? &high->whole : nullptr, ends);
      ++first;
    }
    if (high && first <= last) {
      at_high = whole_part(nullptr, &high->whole, ends);
      --last;
    }
    return either({at_low, free(first, last, ends), at_high});
  }

  // Those that double precision has, with an exponent, one digit before the point.
  uint32_t scientific(const Bound& low, const std::optional<Bound>& high, int fraction) {
    static const Bound smallest_double = {"0", std::string(323, '0') + "5"}, largest_double = {"17976931348623157" + std::string(292, '0'), ""};
    const Normal smallest(is_less(low, smallest_double) ? smallest_double : low), largest(!high || is_less(largest_double, *high) ? largest_double : *high);
    if (largest.mantissa.is_zero()) return kNothing;
    std::vector<Bound> points = {{"1"}, {smallest.mantissa.whole, smallest.mantissa.fraction}, {largest.mantissa.whole, largest.mantissa.fraction}, {"10"}};
    std::ranges::sort(points, is_less);
    points.erase(std::ranges::unique(points, [](const Bound& a, const Bound& b) { return !is_less(a, b) && !is_less(b, a); }).begin(), points.end());
    std::vector<Piece> pieces;
    const auto add = [&](Bound from, Bound to, bool is_open, bool is_above, bool is_below) {
      const int first = smallest.exponent + !is_above, last = largest.exponent - !is_below;
      from.is_open = to.is_open = is_open;
      if (!pieces.empty() && pieces.back().first == first && pieces.back().last == last) {
        from = pieces.back().low;
        pieces.pop_back();
      }
      pieces.push_back({std::move(from), std::move(to), first, last});
    };
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      const Bound &start = points[i], &end = points[i + 1];
      const bool is_lowest = !is_less(start, smallest.mantissa) && !is_less(smallest.mantissa, start);
      const bool is_highest = !is_less(start, largest.mantissa) && !is_less(largest.mantissa, start);
      add(start, start, false, is_less(smallest.mantissa, start) || (is_lowest && !smallest.mantissa.is_open),
          is_less(start, largest.mantissa) || (is_highest && !largest.mantissa.is_open));
      add(start, end, true, !is_less(start, smallest.mantissa), !is_less(largest.mantissa, end));
    }
    std::vector<uint32_t> ways;
    for (const Piece& piece : pieces)
      if (piece.first <= piece.last) ways.push_back(chain({magnitudes(piece.low, piece.high, 1, fraction), any_of("Ee"), exponents(piece.first, piece.last)}));
    return either(ways);
  }

  // The magnitudes that are multiples of a step; `fraction` 0: integers alone.
  uint32_t multiples(const Decimal& step, int whole, int fraction) {
    auto [modulus, zeros] = reduced(step, fraction == 0);
    const int count = fraction == 0 ? 0 : size(step.fraction);
    std::vector<uint32_t> ends(modulus, kNothing);
    if (fraction == 0) {
      ends[0] = zeros == 0 ? epsilon_ : builder_.literal(std::string(static_cast<size_t>(zeros), '0'));
      if (modulus == 1) return either({builder_.literal("0"), chain({nonzero(), digits(0, whole - 1 - zeros), ends[0]})});
      return either({builder_.literal("0"), whole_multiples(modulus, ends, whole)});
    }
    std::vector<uint32_t> after(modulus, kNothing);
    after[0] = run(builder_.literal("0"), count == 0 ? 1 : 0, std::max(fraction, count) - count);
    const auto is_multiple = [&, modulus = modulus](uint64_t remainder, int places) {
      for (; places > 0; --places) remainder = remainder * 10 % modulus;
      return remainder % modulus == 0;
    };
    for (int done = count - 1; done >= 0; --done) {
      std::vector<uint32_t> stops(modulus, kNothing);
      for (uint32_t r = 0; done > 0 && r < modulus; ++r)
        if (is_multiple(r, count - done)) stops[r] = epsilon_;
      after = layer(modulus, after, stops);
    }
    for (uint32_t r = 0; r < modulus; ++r) ends[r] = either({is_multiple(r, count) ? epsilon_ : kNothing, chain({point_, after[r]})});
    return either({chain({builder_.literal("0"), ends[0]}), whole_multiples(modulus, ends, whole)});
  }

  // How many remainders decide whether a number is a multiple, and how many zeros such an integer ends with besides.
  static std::pair<uint32_t, int> reduced(const Decimal& step, bool integral) {
    uint64_t number = std::stoull(step.whole + step.fraction);
    int zeros = 0;
    if (integral) {
      for (size_t i = 0; i < step.fraction.size(); ++i)  // by what it has in common with a power of ten
        for (uint64_t prime : {2, 5})
          if (number % prime == 0) number /= prime;
      for (; number % 10 == 0; number /= 10) ++zeros;
    }
    if (number > kMaxStates) throw std::length_error("its multiples need too many states");
    return {static_cast<uint32_t>(number), zeros};
  }

  uint32_t chain(std::initializer_list<uint32_t> parts) {
    std::vector<uint32_t> kept;
    for (uint32_t part : parts) {
      if (part == kNothing) return kNothing;
      if (part != epsilon_) kept.push_back(part);
    }
    return kept.empty() ? epsilon_ : kept.size() == 1 ? kept[0] : builder_.emit({.kind = Kind::kSequence}, kept);
  }
  uint32_t either(std::vector<uint32_t> ways) {
    std::erase(ways, kNothing);
    std::ranges::sort(ways);
    ways.erase(std::ranges::unique(ways).begin(), ways.end());
    return ways.empty() ? kNothing : builder_.choice(ways);
  }
  uint32_t minus(uint32_t magnitudes) { return chain({builder_.literal("-"), magnitudes}); }

 private:
  // What may follow the digits before the point: where they decide the comparison, equal the lower bound, the upper, both.
  struct Ends {
    uint32_t free, low, high, both;
  };
  // A bound as a number with one digit before the point, and an exponent.
  struct Normal {
    explicit Normal(const Bound& bound) {
      std::string digits = bound.whole + bound.fraction;
      const size_t first = digits.find_first_not_of('0');
      mantissa.is_open = bound.is_open;
      if (first == std::string::npos) return;
      exponent = size(bound.whole) - 1 - static_cast<int>(first);
      mantissa.whole = digits.substr(first, 1);
      mantissa.fraction = digits.substr(first + 1);
      while (mantissa.fraction.ends_with('0')) mantissa.fraction.pop_back();
    }
    Bound mantissa;
    int exponent = 0;
  };
  struct Piece {
    Bound low, high;
    int first, last;  // exponents
  };

  static bool is_less(const Bound& one, const Bound& other) {
    return compare({false, one.whole, one.fraction}, {false, other.whole, other.fraction}) < 0;
  }

  uint32_t digit(int low, int high) {
    uint32_t& known = digits_[static_cast<size_t>(low)][static_cast<size_t>(high)];
    if (known == 0) known = builder_.ranges(Kind::kBytes, std::array{CodePoints{'0' + low, '0' + high}}) + 1;
    return known - 1;
  }
  uint32_t nonzero() { return digit(1, 9); }
  uint32_t any_of(std::string_view characters) {
    std::vector<CodePoints> ranges;
    for (char c : characters) ranges.emplace_back(c, c);
    return builder_.ranges(Kind::kBytes, ranges);
  }
  uint32_t run(uint32_t item, int low, int high) {
    if (high <= 0 && low == 0) return epsilon_;
    return builder_.emit({.kind = Kind::kRepeat, .low = static_cast<uint32_t>(low), .high = static_cast<uint32_t>(std::max(low, high))}, {item});
  }
  uint32_t digits(int low, int high) { return run(digit(0, 9), low, high); }
  uint32_t free_fraction(int done, int places) { return digits(done == 0 ? 1 : 0, places - done); }

  // A digit and what follows it: ways of a first digit, a last digit, and a rest.
  struct Way {
    int low, high;
    uint32_t rest;
  };
  uint32_t step(std::initializer_list<Way> ways) {
    std::vector<uint32_t> made;
    for (const Way& way : ways)
      if (way.low <= way.high && way.rest != kNothing) made.push_back(chain({digit(way.low, way.high), way.rest}));
    return either(made);
  }

  Ends ends_of(const Bound& low, const Bound& high, int places) {
    if (places == 0) return {epsilon_, epsilon_, epsilon_, epsilon_};
    const bool may_end_low = low.fraction.empty() && !low.is_open, may_end_high = !high.fraction.empty() || !high.is_open;
    const int length = std::max(size(low.fraction), size(high.fraction));
    uint32_t below = low.is_open ? above_zero(std::max(places - length, 1)) : free_fraction(length, places);
    uint32_t above = high.is_open ? kNothing : run(builder_.literal("0"), length == 0 ? 1 : 0, places - length);
    uint32_t both = low.is_open ? kNothing : above;
    for (int done = length - 1; done >= 0; --done) {
      const uint32_t rest = free_fraction(done + 1, places);
      const bool is_low_done = done >= size(low.fraction), is_high_done = done >= size(high.fraction);
      const int a = is_low_done ? 0 : low.fraction[static_cast<size_t>(done)] - '0', c = is_high_done ? 0 : high.fraction[static_cast<size_t>(done)] - '0';
      const bool is_free = is_low_done && !low.is_open;
      const uint32_t next_below = is_free ? free_fraction(done, places) : step({{a, a, below}, {a + 1, 9, rest}});
      const uint32_t next_above = is_high_done ? (high.is_open ? kNothing : run(builder_.literal("0"), done == 0 ? 1 : 0, places - done))
                                               : either({done > 0 ? epsilon_ : kNothing, step({{0, c - 1, rest}, {c, c, above}})});
      both = is_free  ? next_above
             : a == c ? step({{a, a, both}})
             : a > c  ? kNothing
                      : step({{a, a, below}, {a + 1, c - 1, rest}, {c, c, above}});
      below = next_below;
      above = next_above;
    }
    const uint32_t free = either({epsilon_, chain({point_, free_fraction(0, places)})});
    return {free, may_end_low ? free : chain({point_, below}), either({may_end_high ? epsilon_ : kNothing, chain({point_, above})}),
            either({may_end_low && may_end_high ? epsilon_ : kNothing, chain({point_, may_end_low ? above : both})})};
  }

  // At most so many digits, one of them not zero.
  uint32_t above_zero(int most) {
    uint32_t term = kNothing;
    for (int left = 1; left <= most; ++left) term = either({chain({nonzero(), digits(0, left - 1)}), chain({builder_.literal("0"), term})});
    return term;
  }

  // All numbers with so many digits before the point.
  uint32_t free(int first, int last, const Ends& ends) {
    if (first > last) return kNothing;
    const uint32_t longer = chain({nonzero(), digits(std::max(first, 1) - 1, last - 1)});
    if (first > 1) return chain({longer, ends.free});
    return chain({last == 1 ? digit(0, 9) : either({builder_.literal("0"), longer}), ends.free});
  }

  // Those between two bounds with as many digits before the point.
  uint32_t whole_part(const std::string* low, const std::string* high, const Ends& ends) {
    const int length = size(low ? *low : *high);
    uint32_t both = ends.both, below = ends.low, above = ends.high, rest = ends.free;
    for (int i = length - 1; i >= 0; --i) {
      const int least = i == 0 && length > 1 ? 1 : 0;
      const int a = low ? (*low)[static_cast<size_t>(i)] - '0' : least, c = high ? (*high)[static_cast<size_t>(i)] - '0' : 9;
      if (low && high) both = a == c ? step({{a, a, both}}) : a > c ? kNothing : step({{a, a, below}, {a + 1, c - 1, rest}, {c, c, above}});
      below = step({{a, a, below}, {a + 1, 9, rest}});
      above = step({{least, c - 1, rest}, {c, c, above}});
      rest = chain({digits(length - i, length - i), ends.free});
    }
    return low && high ? both : low ? below : above;
  }

  uint32_t exponents(int first, int last) {
    first = std::max(first, -kMaxExponent);
    last = std::min(last, kMaxExponent);
    const uint32_t positive = chain({either({epsilon_, builder_.literal("+")}), padded(std::max(first, 0), last)});
    return either({positive, minus(padded(std::max(-last, 0), -first))});
  }
  // With leading zeros, up to three digits.
  uint32_t padded(int first, int last) {
    std::vector<uint32_t> ways;
    for (int width = 1, end = 10; width <= kExponentDigits; ++width, end *= 10) ways.push_back(of_width(first, std::min(last, end - 1), width));
    return either(ways);
  }
  uint32_t of_width(int first, int last, int width) {
    if (first > last) return kNothing;
    const auto written = [&](int number) {
      const std::string text = std::to_string(number);
      return std::string(static_cast<size_t>(width) - text.size(), '0') + text;
    };
    const std::string low = written(first), high = written(last);
    uint32_t both = epsilon_, below = epsilon_, above = epsilon_, rest = epsilon_;
    for (size_t i = low.size(); i-- > 0;) {
      const int a = low[i] - '0', c = high[i] - '0';
      both = a == c ? step({{a, a, both}}) : step({{a, a, below}, {a + 1, c - 1, rest}, {c, c, above}});
      below = step({{a, a, below}, {a + 1, 9, rest}});
      above = step({{0, c - 1, rest}, {c, c, above}});
      rest = chain({digit(0, 9), rest});
    }
    return both;
  }

  // Digits before the point, the first not zero; `ends`: what may follow, by remainder.
  uint32_t whole_multiples(uint32_t modulus, const std::vector<uint32_t>& ends, int places) {
    std::vector<uint32_t> after = ends;
    for (int i = 1; i < places; ++i) after = layer(modulus, after, ends);
    std::array<uint32_t, 10> rests;
    rests[0] = kNothing;
    for (uint32_t d = 1; d < 10; ++d) rests[d] = after[d % modulus];
    return edges(rests);
  }
  // What may come one digit earlier, by remainder.
  std::vector<uint32_t> layer(uint32_t modulus, const std::vector<uint32_t>& after, const std::vector<uint32_t>& ends) {
    std::vector<uint32_t> made(modulus);
    std::array<uint32_t, 10> rests;
    for (uint32_t r = 0; r < modulus; ++r) {
      for (uint32_t d = 0; d < 10; ++d) rests[d] = after[(10 * r + d) % modulus];
      made[r] = either({ends[r], edges(rests)});
    }
    return made;
  }
  uint32_t edges(const std::array<uint32_t, 10>& rests) {
    std::vector<uint32_t> ways;
    for (size_t d = 0; d < rests.size(); ++d) {
      if (rests[d] == kNothing || std::ranges::find(rests, rests[d]) != rests.begin() + static_cast<ptrdiff_t>(d)) continue;
      std::string same;
      for (size_t other = d; other < rests.size(); ++other)
        if (rests[other] == rests[d]) same += static_cast<char>('0' + other);
      ways.push_back(chain({any_of(same), rests[d]}));
    }
    return either(ways);
  }

  ProgramBuilder& builder_;
  const uint32_t epsilon_, point_;
  std::array<std::array<uint32_t, 10>, 10> digits_{};  // one more than the instruction
};

Bound magnitude(const Decimal& number, bool is_open) { return {number.whole, number.fraction, is_open}; }

// Of both signs.
uint32_t between(Terms& terms, const Interval& interval, int digits, bool integral, bool has_exponents) {
  const auto side = [&](const Bound& low, const std::optional<Bound>& high) {
    if (high && high->is_zero() && high->is_open) return kNothing;
    const int whole = size(low.whole) < digits ? digits : size(low.whole) + 1;
    const uint32_t plain = terms.magnitudes(low, high && size(high->whole) > whole ? std::nullopt : high, whole, integral ? 0 : digits);
    return has_exponents ? terms.either({plain, terms.scientific(low, high, digits)}) : plain;
  };
  const auto& [lower, upper, step, is_lower_open, is_upper_open] = interval;
  uint32_t positive = kNothing, negative = kNothing;
  if (!upper || !upper->negative) {
    const Bound low = lower && !lower->negative ? magnitude(*lower, is_lower_open) : Bound{};
    positive = side(low, upper ? std::optional(magnitude(*upper, is_upper_open)) : std::nullopt);
  }
  if (!lower || lower->negative || lower->is_zero()) {
    const Bound low = upper && (upper->negative || upper->is_zero()) ? magnitude(*upper, is_upper_open) : Bound{};
    negative = terms.minus(side(low, lower ? std::optional(magnitude(*lower, is_lower_open)) : std::nullopt));
  }
  return terms.either({positive, negative});
}

// Digits before the point of numbers farther from zero than a bound.
int least_digits(const std::optional<Decimal>& bound, bool is_lower) {
  if (!bound || bound->is_zero() || bound->negative == is_lower) return 0;
  return size(bound->whole) + (bound->has_point ? 1 : 2);
}

}  // namespace

std::optional<uint32_t> numbers_in(ProgramBuilder& builder, const Interval& given, bool integral) {
  Interval interval = given;
  int digits = kDigits;
  if (interval.step) {
    const bool is_counted = Terms::reduced(*interval.step, integral).first > 1;
    if (is_counted) digits = kWholeDigits;
    digits = std::max({digits, least_digits(interval.lower, true), least_digits(interval.upper, false)});
    if (Terms::reduced(*interval.step, integral).first * static_cast<uint64_t>(digits) > kMaxStates && is_counted) throw std::length_error("its multiples need too many states");
  }
  if (integral) {
    if (interval.lower) interval.lower = ceiling(*interval.lower, interval.is_lower_open);
    if (interval.upper) interval.upper = ceiling(interval.upper->minus(), interval.is_upper_open).minus();
    interval.is_lower_open = interval.is_upper_open = false;
  }
  if (interval.lower && interval.upper) {
    const int order = compare(*interval.lower, *interval.upper);
    if (order > 0 || (order == 0 && (interval.is_lower_open || interval.is_upper_open))) return std::nullopt;
  }
  Terms terms(builder);
  uint32_t term = kNothing;
  if (interval.lower || interval.upper || !interval.step) term = between(terms, interval, digits, integral, !integral && !interval.step);
  if (interval.step) {
    const uint32_t magnitudes = terms.multiples(*interval.step, digits, integral ? 0 : digits);
    const uint32_t multiples = terms.either({magnitudes, terms.minus(magnitudes)});
    if (!interval.lower && !interval.upper) term = multiples;
    else if (term != kNothing) term = builder.emit({.kind = ProgramBuilder::Kind::kAnd}, {term, multiples});
  }
  return term == kNothing ? std::nullopt : std::optional(term);
}

}  // namespace structgen
