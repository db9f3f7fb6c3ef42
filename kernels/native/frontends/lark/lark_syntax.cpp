#include "frontends/lark/lark_syntax.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <utility>

#include "base/intern.h"

namespace structgen {

namespace {

struct Unknown {};  // a construct, or an error, that the other reader knows

enum class Token : uint8_t {
  kRegexp, kString, kRule, kTerminal, kBar, kLineBar, kLine, kNumber, kIgnore, kImport, kModifiers, kDots, kTo, kOperator,
  kDot, kLeftBracket, kLeftBrace, kLeft, kRightBracket, kRightBrace, kRight, kTilde, kColon, kComma, kEnd,
};

bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n'; }

// Cuts a text into tokens, in the order in which Lark's own lexer tries them.
class LarkScanner {
 public:
  explicit LarkScanner(std::string_view text) : text_(text) { next(); }

  Token token = Token::kEnd;
  std::string_view value;

  void next() {
    while (!scan()) {
    }
  }

 private:
  char at(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }

  bool take(Token kind, size_t end) {
    token = kind;
    value = text_.substr(position_, end - position_);
    position_ = end;
    return true;
  }

  // Takes the next token; false if it is one that is left out.
  bool scan() {
    if (position_ == text_.size()) return take(Token::kEnd, position_);
    const char c = text_[position_];
    if (c == '/' && at(position_ + 1) != '/') {
      size_t end = position_ + 1;
      while (end < text_.size() && text_[end] != '/') end += text_[end] == '\\' && (at(end + 1) == '/' || at(end + 1) == '\\') ? 2 : 1;
      if (end >= text_.size()) throw Unknown{};
      ++end;
      while (at(end) != '\0' && std::string_view("imslux").find(at(end)) != std::string_view::npos) ++end;
      return take(Token::kRegexp, end);
    }
    if (c == '"') {
      size_t end = position_ + 1;
      while (end < text_.size() && text_[end] != '"' && text_[end] != '\n') end += text_[end] == '\\' && (at(end + 1) == '"' || at(end + 1) == '\\') ? 2 : 1;
      if (at(end) != '"') throw Unknown{};
      return take(Token::kString, at(end + 1) == 'i' ? end + 2 : end + 1);
    }
    size_t solid = position_;
    while (solid < text_.size() && is_space(text_[solid])) ++solid;
    if (at(solid) == '#' || (at(solid) == '/' && at(solid + 1) == '/')) {  // with the lines before it
      position_ = std::min(text_.find('\n', solid), text_.size());
      return false;
    }
    const size_t letter = c == '_' ? position_ + 1 : position_;
    if (is_lower(at(letter)) || is_upper(at(letter))) {
      const bool is_terminal = is_upper(at(letter));
      size_t end = letter;
      const auto goes_on = [&](char next) { return is_digit(next) || next == '_' || (is_terminal ? is_upper(next) : is_lower(next)); };
      while (goes_on(at(end)) || (at(end) == '-' && at(end + 1) != '>')) ++end;
      return take(is_terminal ? Token::kTerminal : Token::kRule, end);
    }
    if (c == '\n') return at(solid) == '|' ? take(Token::kLineBar, solid + 1) : take(Token::kLine, solid);
    if (is_digit(c) || ((c == '+' || c == '-') && is_digit(at(position_ + 1)))) {
      size_t end = position_ + 1;
      while (is_digit(at(end))) ++end;
      if ((at(end) | 0x20) == 'e' || (at(end) == '.' && is_digit(at(end + 1)))) throw Unknown{};  // no integer, or nearly
      return take(Token::kNumber, end);
    }
    if (c == ' ' || c == '\t') {
      while (at(position_) == ' ' || at(position_) == '\t') ++position_;
      return false;
    }
    const std::string_view rest = text_.substr(position_);
    if (c == '%') {
      if (rest.starts_with("%ignore")) return take(Token::kIgnore, position_ + 7);
      if (rest.starts_with("%import")) return take(Token::kImport, position_ + 7);
      throw Unknown{};
    }
    if (c == '!' || c == '?') {
      const size_t end = at(position_ + 1) == (c == '!' ? '?' : '!') ? position_ + 2 : position_ + 1;
      if (is_lower(at(end)) || at(end) == '_') return take(Token::kModifiers, end);
      if (end == position_ + 2 && c == '?') throw Unknown{};
    }
    if (rest.starts_with("..")) return take(Token::kDots, position_ + 2);
    if (rest.starts_with("->")) return take(Token::kTo, position_ + 2);
    switch (c) {
      case '+':
      case '*':
      case '?': return take(Token::kOperator, position_ + 1);
      case '.': return take(Token::kDot, position_ + 1);
      case '[': return take(Token::kLeftBracket, position_ + 1);
      case '{': return take(Token::kLeftBrace, position_ + 1);
      case '(': return take(Token::kLeft, position_ + 1);
      case '|': return take(Token::kBar, position_ + 1);
      case ']': return take(Token::kRightBracket, position_ + 1);
      case '}': return take(Token::kRightBrace, position_ + 1);
      case ')': return take(Token::kRight, position_ + 1);
      case '~': return take(Token::kTilde, position_ + 1);
      case ':': return take(Token::kColon, position_ + 1);
      case ',': return take(Token::kComma, position_ + 1);
      default: throw Unknown{};
    }
  }

  std::string_view text_;
  size_t position_ = 0;
};

class LarkParser {
 public:
  LarkParser(LarkFile& file, uint32_t max_depth) : file_(file), scan_(file.text), max_depth_(max_depth) {}

  void all() {
    while (scan_.token != Token::kEnd) {
      if (scan_.token == Token::kLine) {
        scan_.next();
        continue;
      }
      statement();
      if (scan_.token != Token::kLine && scan_.token != Token::kEnd) throw Unknown{};
    }
  }

 private:
  using Kind = LarkFile::Kind;
  using Node = LarkFile::Node;

  bool is(Token kind) const { return scan_.token == kind; }
  std::string_view take(Token kind) {
    if (!is(kind)) throw Unknown{};
    const std::string_view value = scan_.value;
    scan_.next();
    return value;
  }
  bool skip(Token kind) {
    if (!is(kind)) return false;
    scan_.next();
    return true;
  }
  LarkNode add(Node node, const std::vector<LarkNode>& parts = {}) {
    node.begin = static_cast<uint32_t>(file_.children.size());
    file_.children.insert(file_.children.end(), parts.begin(), parts.end());
    node.end = static_cast<uint32_t>(file_.children.size());
    file_.nodes.push_back(node);
    return static_cast<LarkNode>(file_.nodes.size() - 1);
  }

  void statement() {
    switch (scan_.token) {
      case Token::kModifiers:
      case Token::kRule:
      case Token::kTerminal: return definition();
      case Token::kIgnore: scan_.next(); file_.ignored.push_back(expansions(0, true)); return;
      case Token::kImport: return import();
      default: throw Unknown{};
    }
  }

  void definition() {
    LarkFile::Definition definition;
    if (skip(Token::kModifiers) && !is(Token::kRule)) throw Unknown{};
    definition.is_terminal = is(Token::kTerminal);
    definition.name = take(definition.is_terminal ? Token::kTerminal : Token::kRule);
    if (!definition.is_terminal && skip(Token::kLeftBrace)) {
      do {
        const std::string_view parameter = take(Token::kRule);
        if (std::ranges::find(definition.parameters, parameter) != definition.parameters.end()) throw Unknown{};
        definition.parameters.push_back(parameter);
      } while (skip(Token::kComma));
      take(Token::kRightBrace);
    }
    if (skip(Token::kDot)) take(Token::kNumber);
    take(Token::kColon);
    definition.tree = expansions(0, definition.is_terminal);
    file_.definitions.push_back(std::move(definition));
  }

  void import() {
    scan_.next();
    std::vector<std::string_view> path;
    do path.push_back(name());
    while (skip(Token::kDot));
    if (skip(Token::kLeft)) {
      if (path.size() != 1) throw Unknown{};
      do add_import(path[0], name(), std::nullopt);
      while (skip(Token::kComma));
      take(Token::kRight);
      return;
    }
    if (path.size() != 2) throw Unknown{};
    add_import(path[0], path[1], skip(Token::kTo) ? std::optional(name()) : std::nullopt);
  }
  std::string_view name() {
    if (!is(Token::kRule)) return take(Token::kTerminal);
    return take(Token::kRule);
  }
  void add_import(std::string_view path, std::string_view name, std::optional<std::string_view> alias) {
    const auto is_terminal = [](std::string_view one) { return is_upper(one[one[0] == '_' ? 1 : 0]); };
    if (!is_terminal(name) || !is_terminal(alias.value_or(name))) throw Unknown{};
    file_.imports.push_back({path, name, alias.value_or(name)});
  }

  // Alternatives, up to what cannot belong to them.
  LarkNode expansions(uint32_t depth, bool is_terminal) {
    if (depth > max_depth_) throw Unknown{};
    std::vector<LarkNode> ways;
    do {
      const LarkNode one = expansion(depth, is_terminal);
      if (!skip(Token::kTo)) {
        ways.push_back(one);
        continue;
      }
      if (is_terminal) throw Unknown{};
      take(Token::kRule);
      ways.push_back(add({.kind = Kind::kAlias}, {one}));
    } while (skip(Token::kBar) || skip(Token::kLineBar));
    return add({.kind = Kind::kExpansions}, ways);
  }

  LarkNode expansion(uint32_t depth, bool is_terminal) {
    std::vector<LarkNode> items;
    for (;;) {
      switch (scan_.token) {
        case Token::kRule:
        case Token::kTerminal:
        case Token::kString:
        case Token::kRegexp:
        case Token::kLeft:
        case Token::kLeftBracket: items.push_back(repeated(depth, is_terminal)); break;
        default: return add({.kind = Kind::kExpansion}, items);
      }
    }
  }

  LarkNode repeated(uint32_t depth, bool is_terminal) {
    const LarkNode item = atom(depth, is_terminal);
    if (is(Token::kOperator)) {
      const char mark = take(Token::kOperator)[0];
      return add({.kind = Kind::kRepeat, .low = mark == '+' ? 1u : 0u, .high = mark == '?' ? 1u : kNone}, {item});
    }
    if (!skip(Token::kTilde)) return item;
    const uint32_t low = number();
    const uint32_t high = skip(Token::kDots) ? number() : low;
    if (high < low) throw Unknown{};
    return add({.kind = Kind::kRepeat, .low = low, .high = high}, {item});
  }
  uint32_t number() {
    const std::string_view digits = take(Token::kNumber);
    uint32_t value = 0;
    if (digits.size() > 9) throw Unknown{};
    for (char digit : digits) {
      if (!is_digit(digit)) throw Unknown{};
      value = value * 10 + static_cast<uint32_t>(digit - '0');
    }
    return value;
  }

  LarkNode atom(uint32_t depth, bool is_terminal) {
    if (skip(Token::kLeft)) {
      const LarkNode inner = expansions(depth + 1, is_terminal);
      take(Token::kRight);
      return inner;
    }
    if (skip(Token::kLeftBracket)) {
      const LarkNode inner = expansions(depth + 1, is_terminal);
      take(Token::kRightBracket);
      return add({.kind = Kind::kMaybe}, {inner});
    }
    return value(depth);
  }

  LarkNode value(uint32_t depth) {
    if (depth > max_depth_) throw Unknown{};
    switch (scan_.token) {
      case Token::kTerminal: return add({.kind = Kind::kTerminal, .text = take(Token::kTerminal)});
      case Token::kRegexp: return add({.kind = Kind::kRegexp, .text = take(Token::kRegexp)});
      case Token::kString: {
        const std::string_view first = take(Token::kString);
        if (!skip(Token::kDots)) return add({.kind = Kind::kString, .text = first});
        const std::string_view last = take(Token::kString);
        return add({.kind = Kind::kRange, .text = first, .last = last});
      }
      default: break;
    }
    const std::string_view rule = take(Token::kRule);
    if (!skip(Token::kLeftBrace)) return add({.kind = Kind::kRule, .text = rule});
    std::vector<LarkNode> arguments;
    do arguments.push_back(value(depth + 1));
    while (skip(Token::kComma));
    take(Token::kRightBrace);
    return add({.kind = Kind::kTemplate, .text = rule}, arguments);
  }

  LarkFile& file_;
  LarkScanner scan_;
  uint32_t max_depth_;
};

}  // namespace

std::unique_ptr<const LarkFile> LarkFile::parse(std::string text, uint32_t max_depth) {
  // Control characters are free space to some readers, or end lines.
  for (const char c : text)
    if (static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t') return nullptr;
  auto file = std::make_unique<LarkFile>();
  file->text = std::move(text);
  try {
    LarkParser(*file, max_depth).all();
  } catch (const Unknown&) {
    return nullptr;
  }
  return file;
}

}  // namespace structgen
