#include "integers.h"

#include <vector>

namespace structgen {

namespace {

constexpr size_t kDigits = 64, kMaxBoundDigits = 400;
constexpr uint32_t kNothing = kNone;

bool below(const std::string& one, const std::string& other) { return one.size() != other.size() ? one.size() < other.size() : one < other; }

class Magnitudes {
 public:
  explicit Magnitudes(ProgramBuilder& builder) : builder_(builder) {}

  // The numbers from `low` to `high` (none: with at most 64 digits, or one more than `low` where that has as many).
  uint32_t between(const std::string& low, const std::optional<std::string>& high) {
    size_t most = low.size() < kDigits ? kDigits : low.size() + 1;
    const bool is_open = !high || high->size() > most;
    if (!is_open && below(*high, low)) return kNothing;
    if (!is_open) most = high->size();
    std::vector<uint32_t> ways;
    const auto add = [&](uint32_t way) {
      if (way != kNothing) ways.push_back(way);
    };
    size_t first = low.size();
    const bool is_zero = low == "0";
    if (!is_zero) {
      add(of_length(low, !is_open && most == first ? *high : std::string(first, '9')));
      ++first;
    }
    size_t last = most;
    if (!is_open && first <= most) {
      add(of_length(is_zero && most == 1 ? "0" : smallest(most), *high));
      --last;
    }
    if (first <= last) {
      const uint32_t more = digits(std::max<size_t>(first, 1) - 1, last - 1);
      add(chain(one(first == 1 && !is_zero ? '1' : '1', '9'), more));
      if (is_zero) add(builder_.literal("0"));
    } else if (is_zero && most > 1) {
      add(builder_.literal("0"));
    }
    return ways.empty() ? kNothing : builder_.choice(ways);
  }

 private:
  static std::string smallest(size_t length) { return length == 1 ? "0" : "1" + std::string(length - 1, '0'); }
  uint32_t one(char low, char high) {
    const CodePoints range{static_cast<uint32_t>(low), static_cast<uint32_t>(high)};
    return builder_.ranges(Instruction::Kind::kBytes, {&range, 1});
  }
  uint32_t digits(size_t low, size_t high) {
    if (high == 0) return kNothing;
    return builder_.emit({.kind = Instruction::Kind::kRepeat, .low = static_cast<uint32_t>(low), .high = static_cast<uint32_t>(high)}, {one('0', '9')});
  }
  uint32_t chain(uint32_t first, uint32_t rest) { return rest == kNothing ? first : builder_.emit({.kind = Instruction::Kind::kSequence}, {first, rest}); }

  // The numbers of one length between two of that length, from the last digit on.
  uint32_t of_length(const std::string& low, const std::string& high) {
    if (low > high) return kNothing;
    const size_t length = low.size();
    // What follows a position where all before it equals both bounds, the lower, the upper; kNothing: the end.
    uint32_t both = kNothing, at_low = kNothing, at_high = kNothing;
    size_t common = 0;
    while (common < length && low[common] == high[common]) ++common;
    for (size_t i = length; i-- > 0;) {
      const uint32_t free = length - i > 1 ? digits(length - i - 1, length - i - 1) : kNothing;
      const auto choose = [&](std::initializer_list<uint32_t> ways) {
        std::vector<uint32_t> kept;
        for (uint32_t way : ways)
          if (way != kNothing) kept.push_back(way);
        return builder_.choice(kept);
      };
      const auto between = [&](int first, int last) { return first > last ? kNothing : chain(one(static_cast<char>(first), static_cast<char>(last)), free); };
      if (i < common) {
        both = chain(one(low[i], low[i]), both);
      } else {
        if (i == common) both = choose({chain(one(low[i], low[i]), at_low), between(low[i] + 1, high[i] - 1), chain(one(high[i], high[i]), at_high)});
        at_low = choose({chain(one(low[i], low[i]), at_low), between(low[i] + 1, '9')});
        at_high = choose({between('0', high[i] - 1), chain(one(high[i], high[i]), at_high)});
      }
    }
    return both;
  }

  ProgramBuilder& builder_;
};

}  // namespace

std::optional<Integer> Integer::of(std::string_view text) {
  Integer made;
  if (text.starts_with('-')) {
    made.negative = true;
    text.remove_prefix(1);
  }
  if (text.empty() || text.size() > kMaxBoundDigits || text.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  while (text.size() > 1 && text[0] == '0') text.remove_prefix(1);
  made.digits = text;
  if (made.digits == "0") made.negative = false;
  return made;
}

Integer Integer::next() const {
  std::string made = digits;
  if (!negative) {
    size_t i = made.size();
    while (i > 0 && made[i - 1] == '9') made[--i] = '0';
    if (i == 0) made.insert(made.begin(), '1');
    else ++made[i - 1];
    return {false, made};
  }
  size_t i = made.size();
  while (made[i - 1] == '0') made[--i] = '9';
  --made[i - 1];
  if (made.size() > 1 && made[0] == '0') made.erase(0, 1);
  return {made != "0", made};
}

std::optional<uint32_t> integers_between(ProgramBuilder& builder, const std::optional<Integer>& lower, const std::optional<Integer>& upper) {
  Magnitudes magnitudes(builder);
  std::vector<uint32_t> ways;
  if (!upper || !upper->negative) {
    const std::string low = lower && !lower->negative ? lower->digits : "0";
    const uint32_t way = magnitudes.between(low, upper ? std::optional(upper->digits) : std::nullopt);
    if (way != kNothing) ways.push_back(way);
  }
  if (!lower || lower->negative || lower->digits == "0") {  // also -0
    const bool is_below = upper && (upper->negative || upper->digits == "0");
    const uint32_t way = magnitudes.between(is_below ? upper->digits : "0", lower ? std::optional(lower->digits) : std::nullopt);
    if (way != kNothing) ways.push_back(builder.emit({.kind = Instruction::Kind::kSequence}, {builder.literal("-"), way}));
  }
  if (ways.empty()) return std::nullopt;
  return builder.choice(ways);
}

}  // namespace structgen
