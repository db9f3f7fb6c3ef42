#include "frontends/lark/lark_reader.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "frontends/lark/lark_regexp.h"
#include "frontends/lark/left_recursion.h"
#include "frontends/lark/rule_terms.h"

namespace nb = nanobind;

namespace structgen {

namespace {

constexpr uint64_t kInstanceCost = 100;  // as in structgen.frontends.lark.rule
constexpr uint32_t kDeepestInstance = 64;
constexpr size_t kMaxLeaves = 4096;

struct NotSimple {};

}  // namespace

// The reading of one grammar.
class LarkReading {
 public:
  LarkReading(LarkReader& reader, const LarkFile& file, LarkLimits limits) : reader_(reader), main_(file), limits_(limits) {}

  Program all(std::string_view start) {
    bind();
    after_ = ignored();
    const auto found = names_.find(start);
    if (found == names_.end() || found->second->definition->is_terminal || !found->second->definition->parameters.empty()) throw NotSimple{};
    const RuleTerm body = reference(*found->second, {}, 0).term;
    for (const LarkFile::Definition& definition : main_.definitions)  // errors in unused definitions are errors too
      if (definition.parameters.empty()) reference(*names_.at(definition.name), {}, 0);
    while (!waiting_.empty()) {
      const Use use = std::move(waiting_.front());
      waiting_.pop_front();
      terms_.rules[use.rule].body = use.meaning->definition->is_terminal ? terminal(*use.meaning) : rule_term(use, use.meaning->definition->tree).term;
    }
    const RuleTerm whole = terms_.joined({after_, body});
    if (!remove_left_recursion(terms_, whole, limits_.max_nodes)) throw NotSimple{};
    return terms_.program(whole);
  }

 private:
  using Kind = LarkFile::Kind;

  // A definition in its file, under the name that it has in the whole grammar.
  struct Meaning {
    const LarkFile::Definition* definition;
    const LarkFile* file;
    const LarkReader::Files* library;  // that it belongs to; null for the main file
    std::string name;
    RuleTerm term = kNone;  // of a terminal
    bool is_open = false;   // its term is being made
  };
  // A term, and what it is called as the argument of a template.
  struct Value {
    RuleTerm term;
    std::string_view name;
  };
  using Arguments = std::vector<Value>;
  struct Use {
    Meaning* meaning;
    Arguments arguments;
    uint32_t depth, rule;
  };

  void charge(uint64_t count) {
    spent_ += count;
    if (spent_ > limits_.max_nodes) throw NotSimple{};
  }

  // Names

  Meaning* add(const LarkFile::Definition& definition, const LarkFile& file, const LarkReader::Files* library, std::string name) {
    return &meanings_.emplace_back(Meaning{&definition, &file, library, std::move(name)});
  }

  void bind() {
    for (const LarkFile::Definition& definition : main_.definitions)
      if (!names_.try_emplace(definition.name, add(definition, main_, nullptr, std::string(definition.name))).second) throw NotSimple{};
    std::map<const LarkFile::Definition*, Meaning*> imported;
    for (const LarkFile::Import& one : main_.imports) {
      const LarkReader::Files* files = reader_.files(one.path);
      if (files == nullptr) throw NotSimple{};
      const auto [definition, file] = find(*files, one.name);
      if (definition == nullptr || !definition->is_terminal) throw NotSimple{};
      Meaning*& meaning = imported[definition];  // keeps the first name that it gets
      if (meaning == nullptr) meaning = add(*definition, *file, files, std::string(one.alias));
      const auto [slot, is_new] = names_.try_emplace(one.alias, meaning);
      if (!is_new && slot->second != meaning) throw NotSimple{};
    }
  }

  static std::pair<const LarkFile::Definition*, const LarkFile*> find(const LarkReader::Files& files, std::string_view name) {
    for (auto file = files.rbegin(); file != files.rend(); ++file)
      for (const LarkFile::Definition& definition : (*file)->definitions)
        if (definition.name == name) return {&definition, file->get()};
    return {nullptr, nullptr};
  }

  Meaning& meaning_in(const Meaning& user, std::string_view name) {
    if (user.library == nullptr) {
      const auto found = names_.find(name);
      if (found == names_.end()) throw NotSimple{};
      return *found->second;
    }
    const auto [definition, file] = find(*user.library, name);
    if (definition == nullptr) throw NotSimple{};
    Meaning*& meaning = inner_[definition];
    if (meaning == nullptr) meaning = add(*definition, *file, user.library, "");
    return *meaning;
  }

  // Terminals

  RuleTerm ignored() {
    if (main_.ignored.empty()) return RuleTerms::kEpsilon;
    Meaning user{nullptr, &main_, nullptr, ""};
    std::vector<RuleTerm> ways;
    for (LarkNode tree : main_.ignored) ways.push_back(terminal_term(user, tree, 0));
    RuleTerm term = terms_.either(ways);
    const RuleTerms::Node& node = terms_.at(term);
    if (node.kind == RuleTerms::Kind::kRepeat && node.low <= 1 && node.high == kNone) term = terms_.parts(term)[0];  // (x+)* is x*
    return terms_.repeat(term, 0, kNone);
  }

  RuleTerm terminal(Meaning& meaning, uint32_t depth = 0) {
    if (meaning.term != kNone) return meaning.term;
    if (meaning.is_open || depth > limits_.max_depth || !meaning.definition->is_terminal) throw NotSimple{};
    meaning.is_open = true;
    const RuleTerm term = terminal_term(meaning, meaning.definition->tree, depth);
    meaning.is_open = false;
    return meaning.term = term;
  }

  RuleTerm terminal_term(const Meaning& user, LarkNode tree, uint32_t depth) {
    const LarkFile::Node& node = user.file->nodes[tree];
    const auto part = [&](size_t i) { return terminal_term(user, user.file->parts(node)[i], depth); };
    switch (node.kind) {
      case Kind::kTerminal: charge(2); return terminal(meaning_in(user, node.text), depth + 1);
      case Kind::kString:
      case Kind::kRegexp: charge(2); return spelled(node.text);
      case Kind::kRange: return range(node);
      case Kind::kMaybe: charge(2); return terms_.either(std::vector{part(0), RuleTerms::kEpsilon});
      case Kind::kRepeat: {
        const RuleTerm item = part(0);
        if (node.low == 0 && node.high == 1) return terms_.either(std::vector{item, RuleTerms::kEpsilon});
        return terms_.repeat(item, node.low, node.high);
      }
      case Kind::kExpansion:
      case Kind::kExpansions: {
        charge(2);
        std::vector<RuleTerm> parts;
        for (size_t i = 0; i < user.file->parts(node).size(); ++i) parts.push_back(part(i));
        if (node.kind == Kind::kExpansion) return terms_.joined(parts);
        return parts.size() == 1 ? parts[0] : terms_.either(parts);
      }
      default: throw NotSimple{};
    }
  }

  RuleTerm spelled(std::string_view token) {
    const size_t end = token.rfind(token[0]);
    const std::string_view body = token.substr(1, end - 1), flags = token.substr(end + 1);
    const bool is_string = token[0] == '"';
    std::optional<std::string> text = lark_unescaped(body);
    if (!text || text->empty()) throw NotSimple{};
    if (is_string && flags.empty()) {
      return terms_.literal(unbacked(*text));
    }
    if (!is_string && flags.find_first_not_of("su") == std::string_view::npos && body.find('\n') == std::string_view::npos) {
      const RuleTerm term = simple_regexp(terms_, *text, flags.find('s') != std::string_view::npos, limits_.max_depth, limits_.max_nodes);
      if (term != kNone) return term;
    }
    const LarkReader::Leaf& leaf = reader_.leaf(token);
    if (leaf.program == nullptr) throw NotSimple{};
    held_.push_back(leaf.held);
    charge(leaf.program->instructions.size());
    return terms_.leaf(leaf.program, leaf.is_nullable);
  }

  // The text of a string, in which every two backslashes stand for one.
  static std::string unbacked(std::string_view text) {
    std::string made;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '\\') ++i;
      made += text[i];
    }
    return made;
  }

  RuleTerm range(const LarkFile::Node& node) {
    const CodePoints ends{end_of(node.text), end_of(node.last)};
    if (ends.first > ends.second || (ends.first < 0xD800 && ends.second > 0xDFFF)) throw NotSimple{};
    return terms_.chars({&ends, 1});
  }
  static uint32_t end_of(std::string_view token) {
    if (token.back() != '"') throw NotSimple{};
    const std::optional<std::string> text = lark_unescaped(token.substr(1, token.size() - 2));
    if (!text) throw NotSimple{};
    const std::string character = unbacked(*text);
    std::string_view rest = character;
    if (rest.empty()) throw NotSimple{};
    const uint32_t code = take_utf8(rest);
    if (!rest.empty()) throw NotSimple{};
    return code;
  }

  // Rules

  // A use of a rule or terminal; of a template under the name of the instance.
  Value reference(Meaning& meaning, Arguments arguments, uint32_t depth) {
    std::string name = meaning.name;
    if (!arguments.empty()) {
      name += '{';
      for (const Value& argument : arguments) name.append(name.back() == '{' && &argument == arguments.data() ? "" : ",").append(argument.name);
      name += '}';
    }
    const auto found = known_.find(name);
    if (found != known_.end()) return {found->second, found->first};
    if (!arguments.empty()) charge(kInstanceCost + name.size());
    const uint32_t rule = terms_.add_rule(name);
    waiting_.push_back({&meaning, std::move(arguments), depth, rule});
    const RuleTerm call = terms_.call(rule);
    const auto slot = known_.emplace(std::move(name), meaning.definition->is_terminal ? terms_.joined({call, after_}) : call).first;
    return {slot->second, slot->first};
  }

  Value rule_term(const Use& use, LarkNode tree) {
    const LarkFile::Node& node = main_.nodes[tree];
    const std::span<const LarkNode> parts = main_.parts(node);
    switch (node.kind) {
      case Kind::kRule:
      case Kind::kTerminal: {
        charge(2);
        const std::vector<std::string_view>& parameters = use.meaning->definition->parameters;
        const auto parameter = std::ranges::find(parameters, node.text);
        if (parameter != parameters.end()) return use.arguments[static_cast<size_t>(parameter - parameters.begin())];
        Meaning& meaning = meaning_in(*use.meaning, node.text);
        if (!meaning.definition->parameters.empty()) throw NotSimple{};
        return reference(meaning, {}, 0);
      }
      case Kind::kString:
      case Kind::kRegexp: {
        charge(2);
        const auto [slot, is_new] = spelled_.try_emplace(node.text, kNone);
        if (is_new) slot->second = terms_.joined({spelled(node.text), after_});
        return {slot->second, node.text};
      }
      case Kind::kRange: {
        charge(1);
        const std::string_view whole(node.text.data(), static_cast<size_t>(node.last.data() + node.last.size() - node.text.data()));
        return {terms_.joined({range(node), after_}), whole};
      }
      case Kind::kTemplate: return instance(use, node);
      default: break;
    }
    charge(1 + parts.size());
    if (parts.size() == 1) {
      const Value value = rule_term(use, parts[0]);
      if (node.kind == Kind::kMaybe) return {terms_.repeat(value.term, 0, 1), ""};
      return node.kind == Kind::kRepeat ? Value{terms_.repeat(value.term, node.low, node.high), ""} : value;
    }
    std::vector<RuleTerm> made;
    for (LarkNode part : parts) made.push_back(rule_term(use, part).term);
    return {node.kind == Kind::kExpansion ? terms_.joined(made) : terms_.either(made), ""};
  }

  Value instance(const Use& use, const LarkFile::Node& node) {
    charge(1 + main_.parts(node).size());
    Arguments arguments;
    for (LarkNode part : main_.parts(node)) arguments.push_back(rule_term(use, part));
    if (std::ranges::find(use.meaning->definition->parameters, node.text) != use.meaning->definition->parameters.end()) throw NotSimple{};
    Meaning& meaning = meaning_in(*use.meaning, node.text);
    if (meaning.definition->parameters.size() != arguments.size() || use.depth >= std::min(limits_.max_depth, kDeepestInstance)) throw NotSimple{};
    return reference(meaning, std::move(arguments), use.depth + 1);
  }

  LarkReader& reader_;
  const LarkFile& main_;
  LarkLimits limits_;
  RuleTerms terms_;
  RuleTerm after_ = RuleTerms::kEpsilon;  // what may stand after a terminal
  uint64_t spent_ = 0;
  std::deque<Meaning> meanings_;
  std::unordered_map<std::string_view, Meaning*> names_;               // of the main file
  std::map<const LarkFile::Definition*, Meaning*> inner_;              // of the library
  std::map<std::string, RuleTerm, std::less<>> known_;                 // rules and instances
  std::unordered_map<std::string_view, RuleTerm> spelled_;             // strings and regexps
  std::deque<Use> waiting_;
  std::vector<nb::object> held_;  // what the terms have programs of
};

std::unique_ptr<FlatGrammar> LarkReader::read(std::string text, std::string_view start, LarkLimits limits) {
  constexpr uint32_t kDeepest = 64;  // of what recurses
  limits.max_depth = std::min(limits.max_depth, kDeepest);
  const std::unique_ptr<const LarkFile> file = LarkFile::parse(std::move(text), limits.max_depth);
  if (file == nullptr) return nullptr;
  try {
    auto flat = std::make_unique<FlatGrammar>();
    flat->program = LarkReading(*this, *file, limits).all(start);
    return flat;
  } catch (const NotSimple&) {
    return nullptr;
  }
}

const LarkReader::Files* LarkReader::files(std::string_view name) {
  const auto [slot, is_new] = files_.try_emplace(std::string(name));
  Files& files = slot->second;
  if (is_new) {
    const nb::object texts = library_(slot->first);
    if (!texts.is_none()) {
      for (nb::handle text : texts) {
        std::unique_ptr<const LarkFile> file = LarkFile::parse(nb::cast<std::string>(text), 64);
        if (file == nullptr || !file->imports.empty()) {
          files.clear();
          break;
        }
        files.push_back(std::move(file));
      }
    }
  }
  return files.empty() ? nullptr : &files;
}

const LarkReader::Leaf& LarkReader::leaf(std::string_view spelled) {
  std::string key(spelled);
  const auto found = leaves_.find(key);
  if (found != leaves_.end()) return found->second;
  if (leaves_.size() >= kMaxLeaves) leaves_.clear();
  const nb::object made = leaf_(key);
  Leaf leaf;
  if (!made.is_none()) {
    leaf.held = nb::borrow(made[0]);
    leaf.program = &nb::cast<const FlatGrammar&>(leaf.held).program;
    leaf.is_nullable = nb::cast<bool>(nb::handle(nb::object(made[1])));
  }
  return leaves_.insert_or_assign(std::move(key), std::move(leaf)).first->second;
}

}  // namespace structgen
