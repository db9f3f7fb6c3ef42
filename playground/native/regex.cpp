#include "regex.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "frontends/lark/lark_regexp.h"
#include "source_error.h"

namespace structgen {

namespace {

constexpr uint32_t kLastCharacter = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
constexpr uint32_t kMaxDepth = 100, kMaxParts = 200'000, kMaxRepeats = 2'000'000'000;

bool is_digit(uint32_t code) { return code >= '0' && code <= '9'; }
bool is_letter(uint32_t code) { return (code | 0x20) >= 'a' && (code | 0x20) <= 'z'; }

class RegexReader {
 public:
  RegexReader(RuleTerms& terms, std::string_view pattern, RegexOptions options, const RegexClasses& classes)
      : terms_(terms), options_(options), classes_(classes) {
    for (std::string_view rest = pattern; !rest.empty();) {
      places_.push_back(pattern.size() - rest.size());
      codes_.push_back(take_utf8(rest));
      if (codes_.back() == kNone) fail("the pattern is no UTF-8", codes_.size() - 1);
    }
    places_.push_back(pattern.size());
  }

  RuleTerm all() {
    open_flags();
    const std::vector<Branch> branches = alternatives(0);
    if (next_ != codes_.size()) fail("')' closes no group; remove it or write \\)", next_);
    std::vector<RuleTerm> ways;
    for (const Branch& branch : branches) {
      std::vector<RuleTerm> parts;
      if (options_.searches && !branch.starts) parts.push_back(anything());
      parts.push_back(branch.term);
      if (options_.searches && !branch.ends) parts.push_back(anything());
      ways.push_back(terms_.joined(parts));
    }
    return terms_.either(ways);
  }

 private:
  struct Branch {
    RuleTerm term;
    bool starts = false, ends = false;  // with an anchor
    size_t begin = 0;
  };
  struct Scalar {
    uint32_t code = kNone;  // kNone: a class
    std::vector<CodePoints> ranges;
  };

  [[noreturn]] void fail(const std::string& problem, size_t begin, size_t end = 0) const {
    if (!codes_.empty()) begin = std::min(begin, codes_.size() - 1);  // the last character where the pattern ends
    throw SourceError(problem, place(begin), place(std::max(end, begin + 1)));
  }
  [[noreturn]] void refuse(const std::string& what, size_t begin, size_t end = 0) const {
    throw SourceError(what + " is not read by this page", place(begin), place(std::max(end, begin + 1)), true);
  }
  size_t place(size_t index) const { return index < places_.size() ? places_[index] : places_.empty() ? 0 : places_.back(); }
  uint32_t peek(size_t ahead = 0) const { return next_ + ahead < codes_.size() ? codes_[next_ + ahead] : kNone; }
  bool skip(uint32_t code) {
    if (peek() != code) return false;
    ++next_;
    return true;
  }
  void count(size_t parts) {
    if ((parts_ += parts) > kMaxParts) fail("the pattern has more than 200,000 parts", next_);
  }
  RuleTerm anything() {
    if (anything_ == kNone) anything_ = terms_.repeat(terms_.chars(other_characters({})), 0, kNone);
    return anything_;
  }

  // (?is) at the start, in Python's dialect.
  void open_flags() {
    if (options_.is_ecma || peek() != '(' || peek(1) != '?') return;
    size_t at = 2;
    bool dot_all = false, ignores_case = false;
    for (; is_letter(peek(at)); ++at) {
      if (peek(at) == 's') dot_all = true;
      else if (peek(at) == 'i') ignores_case = true;
      else if (peek(at) != 'u') return;
    }
    if (at == 2 || peek(at) != ')') return;
    options_.dot_all |= dot_all;
    options_.ignores_case |= ignores_case;
    next_ += at + 1;
  }

  std::vector<Branch> alternatives(uint32_t depth) {
    if (depth > kMaxDepth) fail("more than 100 groups are around each other", next_ - 1);
    std::vector<Branch> branches;
    do branch(depth, branches);
    while (skip('|'));
    return branches;
  }

  void branch(uint32_t depth, std::vector<Branch>& out) {
    const size_t begin = next_;
    std::vector<RuleTerm> items;
    std::vector<Branch> alone;  // of the group, if there is nothing else
    bool starts = false, ends = false, may_repeat = false, is_repeat = false;
    while (peek() != kNone && peek() != '|' && peek() != ')') {
      const size_t here = next_;
      const uint32_t code = codes_[next_];
      const bool is_quantifier = code == '*' || code == '+' || code == '?' || (code == '{' && counted());
      if (is_quantifier) {
        if (is_repeat) fail("a quantifier follows a quantifier; group what is repeated: (?:...)", here);
        if (!may_repeat) fail("there is nothing to repeat; escape the quantifier to mean the character", here);
        if (!alone.empty()) items.push_back(inner(std::exchange(alone, {})));
        const auto [low, high] = counts();
        if (peek() == '+') refuse("a possessive quantifier", here, next_ + 1);
        if (skip('?') && !options_.allows_lazy) refuse("lazy repetition in a terminal", here, next_);
        items.back() = high == 0 ? RuleTerms::kEpsilon : terms_.repeat(items.back(), low, high);
        is_repeat = true;
        continue;
      }
      const bool is_start = code == '^' || (code == '\\' && peek(1) == 'A' && !options_.is_ecma);
      const bool is_end = code == '$' || (code == '\\' && (peek(1) == 'Z' || peek(1) == 'z') && !options_.is_ecma);
      if (is_start || is_end) {
        next_ += code == '\\' ? 2 : 1;
        if (is_start && (!items.empty() || !alone.empty() || ends)) refuse("an anchor ^ after the start of its alternative", here);
        (is_start ? starts : ends) = true;
        may_repeat = false;
        continue;
      }
      if (ends) refuse("an anchor $ before the end of its alternative", here - 1);
      if (!alone.empty()) items.push_back(inner(std::exchange(alone, {})));
      is_repeat = false;
      may_repeat = true;
      if (code == '(') {
        std::vector<Branch> group = grouped(depth);
        if (items.empty()) alone = std::move(group);
        else items.push_back(inner(group));
      } else {
        items.push_back(atom());
      }
    }
    count(1 + items.size());
    if (!alone.empty()) {  // anchors in it are those of the branch
      for (Branch& one : alone) out.push_back({one.term, one.starts || starts, one.ends || ends, one.begin});
    } else {
      out.push_back({terms_.joined(items), starts, ends, begin});
    }
  }

  // The term of a group beside other items.
  RuleTerm inner(const std::vector<Branch>& branches) {
    std::vector<RuleTerm> ways;
    for (const Branch& one : branches) {
      if (one.starts || one.ends) refuse("an anchor inside a group", one.begin);
      ways.push_back(one.term);
    }
    return terms_.either(ways);
  }

  std::vector<Branch> grouped(uint32_t depth) {
    const size_t begin = next_++;
    if (skip('?')) {
      if (peek() == '=' || peek() == '!' || (peek() == '<' && (peek(1) == '=' || peek(1) == '!'))) refuse("look-around", begin, next_ + 1);
      const bool is_named = options_.is_ecma ? skip('<') : peek() == 'P' && peek(1) == '<' && (next_ += 2);
      if (is_named) {
        while (peek() != '>' && peek() != kNone) ++next_;
        if (!skip('>')) fail("the name of a group is not closed", begin);
      } else if (!skip(':')) {
        refuse("this kind of group", begin, next_ + 1);
      }
    }
    std::vector<Branch> branches = alternatives(depth + 1);
    if (!skip(')')) fail("unclosed group; add ')' or write \\(", begin);
    return branches;
  }

  RuleTerm atom() {
    const uint32_t code = codes_[next_];
    if (code == '[') return of_ranges(bracketed());
    if (code == '.') {
      ++next_;
      if (options_.dot_all) return of_ranges(other_characters({}));
      return of_ranges(options_.is_ecma ? other_characters({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}) : other_characters({{'\n', '\n'}}));
    }
    if (code != '\\') {
      ++next_;
      return character(code, next_ - 1);
    }
    const size_t begin = next_;
    Scalar scalar = escape(false);
    return scalar.code == kNone ? of_ranges(std::move(scalar.ranges)) : character(scalar.code, begin);
  }

  RuleTerm character(uint32_t code, size_t at) {
    if (options_.ignores_case && (is_letter(code) || code >= 0x80)) return of_ranges(normal_ranges(with_other_case({{code, code}}, at)));
    std::string text;
    append_utf8(text, code);
    return terms_.literal(text);
  }

  RuleTerm of_ranges(const std::vector<CodePoints>& ranges) {
    count(ranges.size() / 8);
    if (ranges.empty()) return RuleTerms::kEmpty;
    if (ranges.size() == 1 && ranges[0].first == ranges[0].second) {
      std::string text;
      append_utf8(text, ranges[0].first);
      return terms_.literal(text);
    }
    return terms_.chars(ranges);
  }

  // The same with the other case of ASCII letters, and with the letters that Python takes for the same.
  std::vector<CodePoints> with_other_case(std::vector<CodePoints> ranges, size_t at) const {
    std::vector<CodePoints> others;
    for (const auto& [low, high] : ranges) {
      if (high >= 0x80 && !(low == 0 && high == kLastCharacter)) refuse("ignoring the case of characters beyond ASCII", at);
      for (uint32_t code = std::max<uint32_t>(low, 'A'); code <= std::min<uint32_t>(high, 'z'); ++code) {
        if (!is_letter(code)) continue;
        others.emplace_back(code ^ 0x20, code ^ 0x20);
        if ((code | 0x20) == 'i') others.insert(others.end(), {{0x130, 0x131}});
        if ((code | 0x20) == 's') others.insert(others.end(), {{0x17F, 0x17F}});
        if ((code | 0x20) == 'k') others.insert(others.end(), {{0x212A, 0x212A}});
      }
    }
    ranges.insert(ranges.end(), others.begin(), others.end());
    return ranges;
  }

  // Whether a count begins here.
  bool counted() const {
    size_t at = 1;
    const bool has_low = is_digit(peek(at));
    while (is_digit(peek(at))) ++at;
    bool has_high = false, has_comma = false;
    if (peek(at) == ',') {
      has_comma = true;
      ++at;
      has_high = is_digit(peek(at));
      while (is_digit(peek(at))) ++at;
    }
    if (peek(at) != '}') return false;
    if (!has_low && has_high && options_.is_ecma) fail("a count without a minimum is not part of the ECMA-262 dialect; write {0,n}", next_, next_ + at + 1);
    return has_low || (has_comma && !options_.is_ecma);
  }
  std::pair<uint32_t, uint32_t> counts() {
    if (skip('*')) return {0, kNone};
    if (skip('+')) return {1, kNone};
    if (skip('?')) return {0, 1};
    const size_t begin = next_++;
    const uint32_t low = number(0);
    const uint32_t high = skip(',') ? number(kNone) : low;
    ++next_;  // the brace, which counted() has seen
    if (high != kNone && high < low) fail("the minimum count is above the maximum; swap them", begin, next_);
    return {low, high};
  }
  uint32_t number(uint32_t missing) {
    if (!is_digit(peek())) return missing;
    uint64_t value = 0;
    while (is_digit(peek())) {
      value = std::min<uint64_t>(value * 10 + (codes_[next_++] - '0'), kMaxRepeats + 1ull);
      if (value > kMaxRepeats) fail("a count is above 2,000,000,000", next_ - 1);
    }
    return static_cast<uint32_t>(value);
  }

  // The escape whose backslash is next.
  Scalar escape(bool in_class) {
    const size_t begin = next_++;
    const uint32_t letter = peek();
    if (letter == kNone) fail("the pattern ends in a backslash; double it to mean the character", begin);
    ++next_;
    switch (letter) {
      case 'd': return {kNone, classes_.digits};
      case 'w': return {kNone, classes_.words};
      case 's': return {kNone, classes_.spaces};
      case 'D': return {kNone, other_characters(classes_.digits)};
      case 'W': return {kNone, other_characters(classes_.words)};
      case 'S': return {kNone, other_characters(classes_.spaces)};
      case 'f': return {'\f', {}};
      case 'n': return {'\n', {}};
      case 'r': return {'\r', {}};
      case 't': return {'\t', {}};
      case 'v': return {'\v', {}};
      case 'x': return {hexadecimal(2, begin), {}};
      case 'u': return {unicode(begin), {}};
      default: break;
    }
    if (letter == 'a' && !options_.is_ecma) return {'\a', {}};
    if (letter == 'U' && !options_.is_ecma) return {hexadecimal(8, begin), {}};
    if (letter == 'b' && in_class) return {'\b', {}};
    if (letter == '0' && !is_digit(peek())) return {0, {}};
    if (letter == 'b' || letter == 'B') refuse("a word boundary", begin, next_);
    if (letter == 'p' || letter == 'P') refuse("a Unicode property", begin, next_);
    if (is_digit(letter)) refuse(letter == '0' ? "an octal escape" : "a back-reference or octal escape", begin, next_);
    if (is_letter(letter)) {
      std::string shown;
      append_utf8(shown, letter);
      throw SourceError("\\" + shown + " is no escape that this page reads", place(begin), place(next_), true);
    }
    return {letter, {}};
  }
  uint32_t unicode(size_t begin) {
    if (!options_.is_ecma || peek() != '{') {
      const uint32_t code = hexadecimal(4, begin, true);
      if (code < kFirstSurrogate || code > kLastSurrogate) return code;
      if (!options_.is_ecma || code > 0xDBFF || peek() != '\\' || peek(1) != 'u') refuse("a lone surrogate", begin, next_);
      next_ += 2;
      const uint32_t low = hexadecimal(4, begin, true);
      if (low < 0xDC00 || low > kLastSurrogate) refuse("a lone surrogate", begin, next_);
      return 0x10000 + ((code - kFirstSurrogate) << 10) + (low - 0xDC00);
    }
    ++next_;
    uint64_t value = 0;
    const size_t digits = next_;
    for (std::optional<uint32_t> one; (one = hex_digit(peek())) && value <= kLastCharacter; ++next_) value = value * 16 + *one;
    if (next_ == digits || !skip('}')) fail("\\u{ lacks hexadecimal digits or the closing brace", begin, next_);
    return scalar_value(static_cast<uint32_t>(std::min<uint64_t>(value, kLastCharacter + 1)), begin);
  }
  static std::optional<uint32_t> hex_digit(uint32_t code) {
    if (is_digit(code)) return code - '0';
    const uint32_t lower = code | 0x20;
    if (code != kNone && lower >= 'a' && lower <= 'f') return lower - 'a' + 10;
    return std::nullopt;
  }
  uint32_t hexadecimal(size_t width, size_t begin, bool may_be_surrogate = false) {
    uint64_t value = 0;
    for (size_t i = 0; i < width; ++i, ++next_) {
      const std::optional<uint32_t> digit = hex_digit(peek());
      if (!digit) fail("the escape takes exactly " + std::to_string(width) + " hexadecimal digits", begin, next_);
      value = value * 16 + *digit;
    }
    if (may_be_surrogate) return static_cast<uint32_t>(value);
    return scalar_value(static_cast<uint32_t>(std::min<uint64_t>(value, kLastCharacter + 1)), begin);
  }
  uint32_t scalar_value(uint32_t code, size_t begin) const {
    if (code > kLastCharacter) fail("the escape is above U+10FFFF, the last character of Unicode", begin, next_);
    if (code >= kFirstSurrogate && code <= kLastSurrogate) refuse("a lone surrogate", begin, next_);
    return code;
  }

  std::vector<CodePoints> bracketed() {
    const size_t begin = next_++;
    const bool is_negated = skip('^');
    std::vector<CodePoints> members, sets;
    bool may_close = options_.is_ecma;
    for (;; may_close = true) {
      if (peek() == kNone) fail("unclosed class; add ']' or write \\[", begin);
      if (peek() == ']' && may_close) break;
      if (peek() == '[' && (peek(1) == ':' || peek(1) == '.' || peek(1) == '=')) refuse("a bracket inside a class", next_);
      const size_t first_at = next_;
      const Scalar first = member();
      const auto add = [&](const Scalar& one) {
        if (one.code != kNone) members.emplace_back(one.code, one.code);
        else sets.insert(sets.end(), one.ranges.begin(), one.ranges.end());
      };
      if (peek() != '-' || peek(1) == ']') {
        add(first);
        continue;
      }
      ++next_;
      if (peek() == kNone) fail("unclosed class; add ']' or write \\[", begin);
      const Scalar last = member();
      if (first.code != kNone && last.code != kNone) {
        if (first.code > last.code) fail("the range runs backwards; swap its ends", first_at, next_);
        members.emplace_back(first.code, last.code);
      } else if (options_.is_ecma) {
        add(first);
        add({'-', {}});
        add(last);
      } else {
        fail("a range runs from one character to another; escape the hyphen: \\-", first_at, next_);
      }
    }
    ++next_;
    if (options_.ignores_case) {
      if (options_.is_ecma && !sets.empty()) refuse("a class such as \\w where case is ignored", begin, next_);
      members = with_other_case(std::move(members), begin);
    }
    members.insert(members.end(), sets.begin(), sets.end());
    return is_negated ? other_characters(std::move(members)) : normal_ranges(std::move(members));
  }
  Scalar member() {
    if (peek() == '\\') return escape(true);
    return {codes_[next_++], {}};
  }

  RuleTerms& terms_;
  RegexOptions options_;
  const RegexClasses& classes_;
  std::vector<uint32_t> codes_;
  std::vector<size_t> places_;  // offsets of the codes in the pattern, and its end
  size_t next_ = 0, parts_ = 0;
  RuleTerm anything_ = kNone;
};

}  // namespace

std::vector<CodePoints> normal_ranges(std::vector<CodePoints> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<CodePoints> merged, valid;
  for (const auto& [low, high] : ranges) {
    if (!merged.empty() && low <= merged.back().second + 1) merged.back().second = std::max(merged.back().second, high);
    else merged.emplace_back(low, high);
  }
  for (const auto& [low, high] : merged) {
    if (low < kFirstSurrogate) valid.emplace_back(low, std::min(high, kFirstSurrogate - 1));
    if (high > kLastSurrogate) valid.emplace_back(std::max(low, kLastSurrogate + 1), high);
  }
  return valid;
}

std::vector<CodePoints> other_characters(std::vector<CodePoints> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::vector<CodePoints> others;
  uint32_t next = 0;
  for (const auto& [low, high] : ranges) {
    if (low > next) others.emplace_back(next, low - 1);
    next = std::max(next, high + 1);
  }
  if (next <= kLastCharacter) others.emplace_back(next, kLastCharacter);
  return normal_ranges(std::move(others));
}

RuleTerm read_regex(RuleTerms& terms, std::string_view pattern, RegexOptions options, const RegexClasses& classes) {
  return RegexReader(terms, pattern, options, classes).all();
}

}  // namespace structgen
