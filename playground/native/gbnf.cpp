#include "gbnf.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontends/lark/lark_regexp.h"
#include "frontends/lark/left_recursion.h"
#include "frontends/lark/rule_terms.h"
#include "regex.h"
#include "source_error.h"

namespace structgen {

namespace {

constexpr uint32_t kMaxDepth = 100, kMaxCount = 1'000'000;
constexpr size_t kMaxTerms = 200'000, kMaxNodes = 1'000'000;

bool is_name(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }

class GbnfReader {
 public:
  explicit GbnfReader(std::string_view text) : text_(text) {}

  Program all(std::string_view root) {
    skip_blank(true);
    while (at_ < text_.size()) {
      const size_t begin = at_;
      const std::string_view name = take_name();
      if (name.empty()) fail(peek() == '|' ? "a line begins with |, but the rule ended with the line before; put | at the end of that line" : "a rule is expected here; write: name ::= expression", begin);
      skip_blank(true);
      if (!text_.substr(at_).starts_with("::=")) fail("a rule is expected here; write: name ::= expression", begin, begin + name.size());
      at_ += 3;
      Rule& rule = rule_of(name, begin);
      if (rule.defined) fail("'" + std::string(name) + "' is defined more than once", begin, begin + name.size());
      rule.defined = true;
      const uint32_t index = rule.index;
      skip_blank(true);
      if (starts_rule()) fail("an expression is expected before the next rule", at_);
      terms_.rules[index].body = expression(0);
      if (peek() == ')') fail("no parenthesis is open here; remove it", at_);
      skip_blank(true);
    }
    for (const auto& [name, rule] : rules_)
      if (!rule.defined) fail("no rule is called '" + name + "'; define it: " + name + " ::= ...", rule.place, rule.place + name.size());
    const auto found = rules_.find(root);
    if (found == rules_.end()) fail("there is no rule called '" + std::string(root) + "'", 0);
    const RuleTerm body = terms_.call(found->second.index);
    if (!remove_left_recursion(terms_, body, kMaxNodes)) throw SourceError("the left recursion of this grammar needs too many rules", 0, 1, true);
    return terms_.program(body);
  }

 private:
  struct Rule {
    uint32_t index;
    size_t place;  // of its first use or definition
    bool defined = false;
  };

  [[noreturn]] void fail(const std::string& problem, size_t begin, size_t end = 0) const { throw SourceError(problem, begin, std::max(end, begin + 1)); }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // Skips white space and comments; `lines`: line ends too.
  void skip_blank(bool lines) {
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r') ++at_;
        --at_;
      } else if (c != ' ' && c != '\t' && !(lines && (c == '\n' || c == '\r'))) {
        return;
      }
    }
  }
  std::string_view take_name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }
  bool starts_rule() {
    const size_t begin = at_;
    const bool has_name = !take_name().empty();
    skip_blank(true);
    const bool found = has_name && text_.substr(at_).starts_with("::=");
    at_ = begin;
    return found;
  }
  Rule& rule_of(std::string_view name, size_t place) {
    const auto found = rules_.find(name);
    if (found != rules_.end()) return found->second;
    const uint32_t index = terms_.add_rule(std::string(name));
    terms_.rules[index].body = RuleTerms::kEmpty;
    return rules_.emplace(std::string(name), Rule{index, place}).first->second;
  }
  void count(size_t place) {
    if (++count_ > kMaxTerms) fail("the grammar has more than 200,000 parts", place);
  }

  RuleTerm expression(uint32_t depth) {
    if (depth > kMaxDepth) fail("more than 100 parentheses are around each other", at_);
    std::vector<RuleTerm> alternatives, items;
    bool may_go_on = depth > 0;  // to the next line
    bool can_repeat = false;
    const auto close = [&] {
      alternatives.push_back(items.empty() ? RuleTerms::kEpsilon : items.size() == 1 ? items[0] : terms_.sequence_of(items));
      items.clear();
      can_repeat = false;
    };
    for (;;) {
      skip_blank(may_go_on);
      const size_t begin = at_;
      const char c = peek();
      if (at_ >= text_.size() || c == ')' || ((c == '\n' || c == '\r') && !may_go_on)) break;
      if (is_name(c) && starts_rule()) {
        if (depth > 0) break;  // the parenthesis is not closed
        fail("a rule begins within a line, or an expression is missing; begin a new line before its name", begin);
      }
      may_go_on = depth > 0;
      if (c == '|') {
        ++at_;
        close();
        may_go_on = true;
        continue;
      }
      if (c == '*' || c == '+' || c == '?' || c == '{') {
        if (!can_repeat) fail(std::string("'") + c + "' repeats nothing; put it after an item", begin);
        const auto [low, high] = counts();
        items.back() = terms_.repeat(items.back(), low, high);
        count(begin);
        continue;
      }
      items.push_back(element(depth));
      can_repeat = true;
      count(begin);
    }
    close();
    return alternatives.size() == 1 ? alternatives[0] : terms_.choice_of(alternatives);
  }

  RuleTerm element(uint32_t depth) {
    const size_t begin = at_;
    const char c = peek();
    if (c == '(') {
      ++at_;
      const RuleTerm inner = expression(depth + 1);
      if (peek() != ')') fail("the parenthesis is not closed; close it with ) before the next rule", begin);
      ++at_;
      return inner;
    }
    if (c == '"') return string();
    if (c == '[') return characters();
    if (c == '.') {
      ++at_;
      return terms_.chars(other_characters({}));
    }
    if (is_name(c)) {
      const std::string_view name = take_name();
      return terms_.call(rule_of(name, begin).index);
    }
    if (c == '<' || c == '!') throw SourceError("a token, such as <think>, is not read by this page", begin, begin + 1, true);
    fail("this character has no meaning here; expected a string, a class, a name or ( ... )", begin);
  }

  std::pair<uint32_t, uint32_t> counts() {
    const size_t begin = at_;
    const char c = text_[at_++];
    if (c == '*') return {0, kNone};
    if (c == '+') return {1, kNone};
    if (c == '?') return {0, 1};
    const size_t end = text_.find('}', at_);
    if (end == std::string_view::npos) fail("the count is not terminated; write it as {2}, {2,} or {2,5}", begin);
    const auto blank = [&] { while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_; };
    const auto number = [&]() -> std::optional<uint32_t> {
      const size_t first = at_;
      uint64_t value = 0;
      for (; peek() >= '0' && peek() <= '9'; ++at_) value = std::min<uint64_t>(value * 10 + static_cast<uint64_t>(peek() - '0'), kMaxCount + 1);
      if (at_ == first) return std::nullopt;
      if (at_ - first > 7 || value > kMaxCount) fail("the count is above 1,000,000; lower it, or leave it open", begin, end + 1);
      return static_cast<uint32_t>(value);
    };
    blank();
    const std::optional<uint32_t> low = number();
    blank();
    std::optional<uint32_t> high = low;
    bool is_open = false;
    if (peek() == ',') {
      ++at_;
      blank();
      if (text_.substr(at_).starts_with("-1")) {
        at_ += 2;
        high = kNone;
      } else {
        high = number();
      }
      is_open = !high;
      blank();
    }
    if (peek() != '}' || (!low && !high)) fail("the count is malformed; write it as {2}, {2,} or {2,5}", begin, end + 1);
    ++at_;
    const uint32_t least = low.value_or(0), most = is_open ? kNone : *high;
    if (most < least) fail("the count is reversed; swap its bounds", begin, at_);
    return {least, most};
  }

  uint32_t take_character() {
    std::string_view rest = text_.substr(at_);
    const uint32_t code = take_utf8(rest);
    if (code == kNone) fail("the text is no UTF-8", at_);
    at_ = text_.size() - rest.size();
    return code;
  }
  uint32_t escaped() {
    const size_t begin = at_++;
    if (at_ >= text_.size()) fail("the text ends in a backslash", begin);
    const char letter = text_[at_++];
    size_t digits = 0;
    switch (letter) {
      case 'n': return '\n';
      case 'r': return '\r';
      case 't': return '\t';
      case '\\':
      case '"':
      case '[':
      case ']':
      case '-': return static_cast<uint32_t>(letter);
      case 'x': digits = 2; break;
      case 'u': digits = 4; break;
      case 'U': digits = 8; break;
      default: fail("this escape is not known; known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\x41 \\u0041 \\U00000041", begin, at_);
    }
    uint64_t code = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const char c = peek(), lower = static_cast<char>(c | 0x20);
      if (c >= '0' && c <= '9') code = code * 16 + static_cast<uint64_t>(c - '0');
      else if (lower >= 'a' && lower <= 'f') code = code * 16 + static_cast<uint64_t>(lower - 'a' + 10);
      else fail("too few hexadecimal digits follow the escape", begin, at_);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) fail("the code is no character; write a Unicode scalar value", begin, at_);
    return static_cast<uint32_t>(code);
  }

  RuleTerm string() {
    const size_t begin = at_++;
    std::string text;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\') append_utf8(text, escaped());
      else text += text_[at_++];
    }
    if (at_ >= text_.size()) fail("the string is not terminated; close it with \"", begin);
    ++at_;
    return terms_.literal(text);
  }

  RuleTerm characters() {
    const size_t begin = at_++;
    const bool is_negated = peek() == '^' && ++at_;
    std::vector<CodePoints> ranges;
    const auto one = [&] { return peek() == '\\' ? escaped() : take_character(); };
    while (at_ < text_.size() && peek() != ']') {
      const size_t first = at_;
      const uint32_t low = one();
      uint32_t high = low;
      if (peek() == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        high = one();
      }
      if (high < low) fail("the range is reversed; swap its ends", first, at_);
      ranges.emplace_back(low, high);
    }
    if (at_ >= text_.size()) fail("the class of characters is not terminated; close it with ]", begin);
    ++at_;
    if (ranges.empty()) fail("the class of characters is empty; name its characters", begin, at_);
    ranges = is_negated ? other_characters(std::move(ranges)) : normal_ranges(std::move(ranges));
    return ranges.empty() ? RuleTerms::kEmpty : terms_.chars(ranges);
  }

  std::string_view text_;
  size_t at_ = 0, count_ = 0;
  RuleTerms terms_;
  std::map<std::string, Rule, std::less<>> rules_;
};

}  // namespace

Program read_gbnf(std::string_view text, std::string_view root) { return GbnfReader(text).all(root); }

}  // namespace structgen
