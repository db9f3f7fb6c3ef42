#include "frontends/lark/lark_regexp.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace structgen {

namespace {

constexpr uint32_t kMaxCodePoint = 0x10FFFF, kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
constexpr size_t kSplicedItems = 8;  // as in structgen.frontends.regex
constexpr uint32_t kLargestCount = UINT32_MAX - 1;

struct NotSimple {};

bool is_surrogate(uint32_t code) { return code >= kFirstSurrogate && code <= kLastSurrogate; }
bool is_ascii_digit(uint32_t code) { return code >= '0' && code <= '9'; }
bool is_ascii_letter(uint32_t code) { return (code | 0x20) >= 'a' && (code | 0x20) <= 'z'; }

class RegexpReader {
 public:
  RegexpReader(RuleTerms& terms, bool dot_all, uint32_t max_depth, uint64_t max_parts)
      : terms_(terms), dot_all_(dot_all), max_depth_(max_depth), max_parts_(max_parts) {}

  RuleTerm all(std::string_view text) {
    while (!text.empty()) {
      codes_.push_back(take_utf8(text));
      if (codes_.back() == kNone) throw NotSimple{};
    }
    const RuleTerm term = alternatives(0);
    if (next_ != codes_.size()) throw NotSimple{};
    return term;
  }

 private:
  // A part of a branch: a term, or text that may still be joined with its neighbours.
  struct Item {
    RuleTerm term = kNone;
    std::string text;
    uint32_t last = 0;  // the last character of the text
  };

  uint32_t peek(size_t ahead = 0) const { return next_ + ahead < codes_.size() ? codes_[next_ + ahead] : kNone; }
  bool skip(uint32_t code) {
    if (peek() != code) return false;
    ++next_;
    return true;
  }

  RuleTerm alternatives(uint32_t depth) {
    if (depth > max_depth_) throw NotSimple{};
    std::vector<RuleTerm> branches;
    do branches.push_back(branch(depth));
    while (skip('|'));
    return branches.size() == 1 ? branches[0] : terms_.choice_of(branches);
  }

  RuleTerm branch(uint32_t depth) {
    std::vector<Item> items;
    for (; next_ < codes_.size() && peek() != '|' && peek() != ')';) {
      Item item = atom(depth);
      const auto [low, high] = counts();
      if (low == 1 && high == 1) {
        items.push_back(std::move(item));
      } else {
        items.push_back({loop(std::move(item), low, high), "", 0});
      }
    }
    parts_ += 1 + items.size();
    if (parts_ > max_parts_) throw NotSimple{};
    return concatenation(items);
  }

  Item atom(uint32_t depth) {
    const uint32_t code = codes_[next_++];
    switch (code) {
      case '(': {
        if (skip('?') && !skip(':')) throw NotSimple{};
        const RuleTerm inner = alternatives(depth + 1);
        if (!skip(')')) throw NotSimple{};
        return {inner, "", 0};
      }
      case '[': return of_class(bracketed());
      case '.': return of_class(dot_all_ ? complement({}) : complement({{'\n', '\n'}}));
      case '\\': return text(escaped());
      case '^':
      case '$':
      case '*':
      case '+':
      case '?':
      case '{': throw NotSimple{};
      default: return text(code);
    }
  }

  static Item text(uint32_t code) {
    Item item{kNone, "", code};
    append_utf8(item.text, code);
    return item;
  }
  Item of_class(const std::vector<CodePoints>& ranges) {
    if (ranges.empty()) throw NotSimple{};
    if (ranges.size() == 1 && ranges[0].first == ranges[0].second) return text(ranges[0].first);
    return {terms_.chars(ranges), "", 0};
  }

  // The character after a backslash, which stands for itself.
  uint32_t escaped() {
    const uint32_t code = peek();
    if (code >= 0x80 || is_ascii_letter(code) || is_ascii_digit(code) || code < ' ') throw NotSimple{};
    ++next_;
    return code;
  }

  // How often what was read stands; (1, 1) without a quantifier.
  std::pair<uint32_t, uint32_t> counts() {
    std::pair<uint32_t, uint32_t> counts{1, 1};
    if (skip('*')) {
      counts = {0, kNone};
    } else if (skip('+')) {
      counts = {1, kNone};
    } else if (skip('?')) {
      counts = {0, 1};
    } else if (skip('{')) {
      const uint32_t low = number(kNone);
      counts = {low, low};
      if (skip(',')) counts.second = number(kNone);
      if (low == kNone || !skip('}') || counts.second < low) throw NotSimple{};
    } else {
      return counts;
    }
    // Another quantifier would be lazy, possessive or an error.
    if (const uint32_t code = peek(); code == '*' || code == '+' || code == '?' || code == '{') throw NotSimple{};
    return counts;
  }
  uint32_t number(uint32_t missing) {
    if (!is_ascii_digit(peek())) return missing;
    uint64_t value = 0;
    while (is_ascii_digit(peek())) {
      value = value * 10 + (codes_[next_++] - '0');
      if (value > kLargestCount) throw NotSimple{};
    }
    return static_cast<uint32_t>(value);
  }

  RuleTerm term_of(const Item& item) { return item.term != kNone ? item.term : item.text.empty() ? RuleTerms::kEpsilon : terms_.literal(item.text); }

  RuleTerm loop(const Item& item, uint32_t low, uint32_t high) {
    const RuleTerm term = term_of(item);
    if (high == 0 || term == RuleTerms::kEpsilon) return RuleTerms::kEpsilon;
    const RuleTerms::Node& node = terms_.at(term);
    if (high == kNone && low <= 1 && node.kind == RuleTerms::Kind::kRepeat && node.low <= 1 && (node.high == kNone || node.high == 1))
      return terms_.repeat(terms_.parts(term)[0], low * node.low, kNone);
    return terms_.repeat(term, low, high);
  }

  RuleTerm concatenation(const std::vector<Item>& items) {
    if (items.size() == 1) return term_of(items[0]);
    std::vector<RuleTerm> run;
    std::string text;
    const auto end_text = [&] {
      if (!text.empty()) run.push_back(terms_.literal(text));
      text.clear();
    };
    const auto add_one = [&](RuleTerm term) {
      if (terms_.at(term).kind == RuleTerms::Kind::kLiteral) {
        text += terms_.text(term);
      } else {
        end_text();
        run.push_back(term);
      }
    };
    for (const Item& item : items) {
      if (item.term == kNone) {
        text += item.text;
      } else if (terms_.at(item.term).kind == RuleTerms::Kind::kSequence && terms_.parts(item.term).size() <= kSplicedItems) {
        for (size_t i = 0; i < terms_.parts(item.term).size(); ++i) add_one(terms_.parts(item.term)[i]);
      } else {
        add_one(item.term);
      }
    }
    end_text();
    if (run.empty()) return RuleTerms::kEpsilon;
    return run.size() == 1 ? run[0] : terms_.sequence_of(run);
  }

  std::vector<CodePoints> bracketed() {
    const bool is_negated = skip('^');
    std::vector<CodePoints> ranges;
    bool is_first = true;
    for (;; is_first = false) {
      if (peek() == kNone) throw NotSimple{};
      if (peek() == ']' && !is_first) break;
      const uint32_t low = member();
      uint32_t high = low;
      if (peek() == '-' && peek(1) != ']') {
        ++next_;
        high = member();
        if (high < low) throw NotSimple{};
      }
      ranges.emplace_back(low, high);
    }
    ++next_;
    return is_negated ? complement(std::move(ranges)) : normalised(std::move(ranges));
  }
  uint32_t member() {
    const uint32_t code = peek();
    if (code == kNone) throw NotSimple{};
    ++next_;
    if (code == '\\') return escaped();
    if (code == '[' || (code == peek() && (code == '-' || code == '&' || code == '~' || code == '|'))) throw NotSimple{};
    return code;
  }

  static std::vector<CodePoints> normalised(std::vector<CodePoints> ranges) {
    std::ranges::sort(ranges);
    std::vector<CodePoints> merged;
    for (const auto& [low, high] : ranges) {
      if (!merged.empty() && low <= merged.back().second + 1) {
        merged.back().second = std::max(merged.back().second, high);
      } else {
        merged.emplace_back(low, high);
      }
    }
    std::vector<CodePoints> valid;
    for (const auto& [low, high] : merged) {
      if (low < kFirstSurrogate) valid.emplace_back(low, std::min(high, kFirstSurrogate - 1));
      if (high > kLastSurrogate) valid.emplace_back(std::max(low, kLastSurrogate + 1), high);
    }
    return valid;
  }
  static std::vector<CodePoints> complement(std::vector<CodePoints> ranges) {
    std::vector<CodePoints> others;
    uint32_t next = 0;
    std::ranges::sort(ranges);
    for (const auto& [low, high] : ranges) {
      if (low > next) others.emplace_back(next, low - 1);
      next = std::max(next, high + 1);
    }
    if (next <= kMaxCodePoint) others.emplace_back(next, kMaxCodePoint);
    return normalised(std::move(others));
  }

  RuleTerms& terms_;
  bool dot_all_;
  uint32_t max_depth_;
  uint64_t max_parts_, parts_ = 0;
  std::vector<uint32_t> codes_;
  size_t next_ = 0;
};

// The value of a hexadecimal number of `count` digits at the front; kNone where there is none.
uint32_t hexadecimal(std::string_view text, size_t count) {
  if (text.size() < count) return kNone;
  uint32_t value = 0;
  for (char c : text.substr(0, count)) {
    const auto lower = static_cast<char>(c | 0x20);
    if (c >= '0' && c <= '9') {
      value = value * 16 + static_cast<uint32_t>(c - '0');
    } else if (lower >= 'a' && lower <= 'f') {
      value = value * 16 + static_cast<uint32_t>(lower - 'a' + 10);
    } else {
      return kNone;
    }
  }
  return value;
}

}  // namespace

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr std::array<uint32_t, 4> kLead{0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kLead[static_cast<size_t>(more)] | code >> (6 * more));
  for (int i = more - 1; i >= 0; --i) out += static_cast<char>(0x80 | (code >> (6 * i) & 0x3F));
}

uint32_t take_utf8(std::string_view& text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t size = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  if (text.size() < size) return kNone;
  uint32_t code = size == 1 ? lead : lead & (0x7Fu >> size);
  for (char c : text.substr(1, size - 1)) code = code << 6 | (static_cast<unsigned char>(c) & 0x3F);
  text.remove_prefix(size);
  return code;
}

std::optional<std::string> lark_unescaped(std::string_view body) {
  if (body.find('\\') == std::string_view::npos) return std::string(body);
  // Lark doubles the backslashes that stand for themselves, drops those before quotes, and has Python read the rest.
  std::string doubled;
  for (size_t i = 0; i < body.size(); ++i) {
    doubled += body[i];
    if (body[i] != '\\') continue;
    if (++i == body.size()) return std::nullopt;
    if (body[i] == '\\') {
      doubled += "\\\\";
    } else if (std::string_view("Uuxnftr").find(body[i]) == std::string_view::npos) {
      doubled += '\\';
    }
    doubled += body[i];
  }
  std::string quoted;
  for (size_t i = 0; i < doubled.size(); ++i) {
    if (doubled[i] == '\\' && i + 1 < doubled.size() && doubled[i + 1] == '"') continue;
    if (doubled[i] == '\'') quoted += '\\';
    quoted += doubled[i];
  }
  std::string read;
  for (size_t i = 0; i < quoted.size(); ++i) {
    if (quoted[i] != '\\') {
      read += quoted[i];
      continue;
    }
    if (++i == quoted.size()) return std::nullopt;
    switch (quoted[i]) {
      case '\\':
      case '\'':
      case '"': read += quoted[i]; break;
      case 'n': read += '\n'; break;
      case 't': read += '\t'; break;
      case 'r': read += '\r'; break;
      case 'f': read += '\f'; break;
      case 'x':
      case 'u':
      case 'U': {
        const size_t digits = quoted[i] == 'x' ? 2 : quoted[i] == 'u' ? 4 : 8;
        const uint32_t code = hexadecimal(std::string_view(quoted).substr(i + 1), digits);
        if (code > kMaxCodePoint || is_surrogate(code)) return std::nullopt;
        append_utf8(read, code);
        i += digits;
        break;
      }
      default: return std::nullopt;
    }
  }
  return read;
}

RuleTerm simple_regexp(RuleTerms& terms, std::string_view text, bool dot_all, uint32_t max_depth, uint64_t max_parts) {
  try {
    return RegexpReader(terms, dot_all, max_depth, max_parts).all(text);
  } catch (const NotSimple&) {
    return kNone;
  }
}

}  // namespace structgen
