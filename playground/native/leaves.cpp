#include "leaves.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "numbers.h"
#include "regex.h"
#include "source_error.h"

namespace nb = nanobind;

namespace structgen {

namespace {

constexpr size_t kMaxDepth = 200;

nb::object no_text() { return nb::List{nb::object::none(), nb::object(false), nb::object(false)}; }

nb::object leaf_object(Program program) { return nb::object(std::make_shared<const Program>(std::move(program))); }

nb::object index_list(const std::vector<size_t>& indices) {
  nb::List list;
  for (size_t index : indices) list.emplace_back(index);
  return nb::object(list);
}

uint32_t characters(std::string_view text) {
  return static_cast<uint32_t>(std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

}  // namespace

nb::object Leaves::term(const std::string& text) {
  const std::unique_ptr<const JsonDocument> document = JsonDocument::parse(text, kMaxDepth);
  if (document == nullptr) return nb::object::none();
  Leaf leaf;
  members_.clear();
  if (!read(*document, document->root(), leaf)) return nb::object::none();
  bool is_empty = false;
  std::optional<Program> program = leaf.constants ? constants(leaf, is_empty) : made(leaf, is_empty);
  if (is_empty) return no_text();
  if (!program) return nb::object::none();
  return nb::List{leaf_object(*std::move(program)), nb::object(true), nb::object(false)};
}

nb::object Leaves::excluded(const std::string& text, const std::string& constants) {
  const std::unique_ptr<const JsonDocument> document = JsonDocument::parse(text, kMaxDepth), listed = JsonDocument::parse(constants, kMaxDepth);
  if (document == nullptr || listed == nullptr) return nb::object::none();
  Leaf leaf;
  members_.clear();
  if (!read(*document, document->root(), leaf) || !read_constants(*listed, "enum", listed->root(), leaf)) return nb::object::none();
  const std::optional<std::vector<bool>> admitted = admits(leaf);
  if (!admitted) return nb::object::none();
  std::vector<size_t> indices;
  for (size_t i = 0; i < admitted->size(); ++i)
    if (!(*admitted)[i]) indices.push_back(i);
  return index_list(indices);
}

nb::object Leaves::empty(const std::string& text) {
  const std::unique_ptr<const JsonDocument> document = JsonDocument::parse(text, kMaxDepth);
  if (document == nullptr) return nb::object::none();
  Leaf leaf;
  members_.clear();
  if (!read(*document, document->root(), leaf)) return nb::object::none();
  if (leaf.string && leaf.fewest <= leaf.most) {
    const std::optional<std::vector<Program>> parts = languages_of(leaf);
    if (!parts) return nb::object::none();
    std::vector<TermId> terms;
    for (const Program& part : *parts) terms.push_back(languages().term(part));
    bool are_apart = false;
    for (size_t i = 0; i < terms.size(); ++i)
      for (size_t j = 0; j < i; ++j) are_apart |= !languages().meet(terms[i], terms[j]);
    if (!are_apart) return nb::object(false);
  }
  if (!leaf.integer && !leaf.fraction) return nb::object(true);
  ProgramBuilder builder;
  std::vector<uint32_t> ways;
  if (!numbers(builder, leaf, ways)) return nb::object::none();
  return nb::object(ways.empty());
}

nb::object Leaves::names(const std::string& text) {
  const std::unique_ptr<const JsonDocument> document = JsonDocument::parse(text, kMaxDepth);
  if (document == nullptr) return nb::object::none();
  const JsonDocument::Member *declared = document->find(document->root(), "properties"), *wanted = document->find(document->root(), "patternProperties");
  if (declared == nullptr || wanted == nullptr) return nb::object::none();
  members_.clear();
  std::vector<Program> programs;
  std::vector<TermId> terms;
  for (const JsonDocument::Member& one : document->members(wanted->value)) {
    std::optional<Program> program = pattern(std::string(one.name), "patternProperties", one.name);
    if (!program) return nb::object::none();
    terms.push_back(languages().term(*program));
    programs.push_back(*std::move(program));
  }
  nb::List matched, regions;
  std::vector<std::string_view> declared_names;
  std::vector<std::vector<bool>> matches;  // by name and pattern
  for (const JsonDocument::Member& one : document->members(declared->value)) {
    std::vector<bool>& row = matches.emplace_back();
    std::vector<size_t> indices;
    const TermId name = languages().text(one.name);
    for (size_t i = 0; i < terms.size(); ++i) {
      row.push_back(languages().meet(name, terms[i]));
      if (row.back()) indices.push_back(i);
    }
    declared_names.push_back(one.name);
    matched.push_back(index_list(indices));
  }
  std::vector<std::vector<bool>> meets;
  std::vector<std::vector<size_t>> sets;
  try {
    sets = meeting_sets(languages(), terms, meets);
  } catch (const std::length_error& error) {
    refuse("patternProperties", error.what());
    return nb::object::none();
  }
  for (const std::vector<size_t>& set : sets) {
    ProgramBuilder builder;
    std::vector<uint32_t> inside, outside;
    const auto has = [&](size_t index) { return std::ranges::find(set, index) != set.end(); };
    for (size_t i : set) inside.push_back(builder.splice(programs[i], true));
    for (size_t n = 0; n < declared_names.size(); ++n)
      if (std::ranges::all_of(set, [&](size_t i) { return matches[n][i]; })) outside.push_back(builder.literal(declared_names[n], true));
    for (size_t i = 0; i < programs.size(); ++i)
      if (!has(i) && (set.empty() || meets[set[0]][i])) outside.push_back(builder.splice(programs[i], true));
    if (!outside.empty()) inside.push_back(builder.emit({.kind = ProgramBuilder::Kind::kNot, .decoded = true}, {builder.choice(outside)}));
    const uint32_t key = inside.size() == 1 ? inside[0] : builder.emit({.kind = ProgramBuilder::Kind::kAnd, .decoded = true}, inside);
    regions.push_back(nb::List{index_list(set), leaf_object(builder.take(builder.json_string(key)))});
  }
  return nb::List{nb::object(matched), nb::object(regions)};
}

bool Leaves::refuse(std::string_view keyword, std::string problem, std::string_view member) {
  if (!refusal) refusal = {std::string(keyword), std::move(problem), std::string(member.empty() ? keyword : member), members_};
  return false;
}

void Leaves::contradict(std::string_view keyword, std::string problem, std::string_view member) {
  if (!contradiction) contradiction = {std::string(keyword), std::move(problem), std::string(member), members_};
}

// The text of a string; nothing where the value is none.
std::optional<std::string> Leaves::text_of(const JsonDocument& document, std::string_view name, ValueId value) {
  if (document.kind(value) == JsonKind::kString) return std::string(document.string(value));
  refuse(name, "its value is no string");
  return std::nullopt;
}

bool Leaves::read(const JsonDocument& document, ValueId id, Leaf& leaf) {
  for (const auto& [name, value] : document.members(id))
    if (name != "type" && name != "allOf") members_.emplace_back(name, document.source(value));
  for (const auto& [name, value] : document.members(id)) {
    if (name == "type") {
      if (!read_types(document, id, value, leaf)) return false;
    } else if (name == "nullable") {
      continue;
    } else if (name == "allOf") {
      for (ValueId one : document.items(value))
        if (!read(document, one, leaf)) return false;
    } else if (name == "minLength" || name == "maxLength") {
      const std::optional<Decimal> count = Decimal::of(document.source(value));
      const bool is_number = document.kind(value) == JsonKind::kInteger || document.kind(value) == JsonKind::kFraction;
      if (!is_number || !count || count->negative || !count->fraction.empty() || count->whole.size() > 9) return refuse(name, "its value is no count below a billion");
      const auto number = static_cast<uint32_t>(std::stoul(count->whole));
      if (name == "minLength") leaf.fewest = std::max(leaf.fewest, number);
      else leaf.most = std::min(leaf.most, number);
    } else if (name == "pattern" || name == "format") {
      const std::optional<std::string> text = text_of(document, name, value);
      if (!text) return false;
      if (name == "pattern") leaf.patterns.push_back(*text);
      // Formats that nobody knows, and those that the draft does not assert, say nothing.
      else if (library_program(in_draft("value", *text)) && std::ranges::find(leaf.formats, *text) == leaf.formats.end()) leaf.formats.push_back(*text);
    } else if (name == "minimum" || name == "maximum" || name == "exclusiveMinimum" || name == "exclusiveMaximum" || name == "multipleOf") {
      if (!read_bound(document, id, name, value, leaf)) return false;
    } else if (name == "enum" || name == "const") {
      if (!read_constants(document, name, value, leaf)) return false;
    } else if (name == "not") {
      if (!read_negation(document, value, leaf)) return false;
    } else {
      return refuse(name, "the page does not read it here");
    }
  }
  return true;
}

// What the planner writes for values that violate simple keywords, or equal no constant.
bool Leaves::read_negation(const JsonDocument& document, ValueId value, Leaf& leaf) {
  std::pair<std::vector<std::string>, std::vector<std::string>> outside;
  for (const auto& [name, inner] : document.members(value)) {
    if (name == "pattern" || name == "format") {
      const std::optional<std::string> text = text_of(document, name, inner);
      if (!text) return false;
      if (name == "format" && !library_program(in_draft("value", *text))) return refuse("not", "a format that says nothing is not read by this page there");
      (name == "pattern" ? outside.first : outside.second).push_back(*text);
    } else if (name == "enum") {
      for (ValueId one : document.items(inner))
        if (!read_constant(document, name, one, leaf.others)) return false;
    } else {
      return refuse("not", "numbers that are no integers, or no multiples, are not read by this page");
    }
  }
  if (!outside.first.empty() || !outside.second.empty()) leaf.outside.push_back(std::move(outside));
  return true;
}

bool Leaves::read_types(const JsonDocument& document, ValueId schema, ValueId value, Leaf& leaf) {
  std::set<std::string_view> names;
  if (document.kind(value) == JsonKind::kString) names.insert(document.string(value));
  else
    for (ValueId one : document.items(value)) names.insert(document.string(one));
  const JsonDocument::Member* nullable = document.find(schema, "nullable");
  if (nullable != nullptr && document.kind(nullable->value) == JsonKind::kTrue) names.insert("null");
  const auto has = [&](const char* name) { return names.contains(name); };
  leaf.null &= has("null");
  leaf.boolean &= has("boolean");
  leaf.integer &= has("integer") || has("number");
  leaf.fraction &= has("number");
  leaf.string &= has("string");
  leaf.array &= has("array");
  leaf.object &= has("object");
  return true;
}

bool Leaves::read_bound(const JsonDocument& document, ValueId schema, std::string_view name, ValueId value, Leaf& leaf) {
  const bool is_open = name.starts_with("exclusive"), is_lower = name.ends_with("inimum");
  if (is_open && document.kind(value) == JsonKind::kFalse) return true;
  if (is_open && document.kind(value) == JsonKind::kTrue) {  // of draft 4: what the other keyword names is excluded
    const JsonDocument::Member* bound = document.find(schema, is_lower ? "minimum" : "maximum");
    if (bound == nullptr) return true;
    value = bound->value;
  }
  if (document.kind(value) != JsonKind::kInteger && document.kind(value) != JsonKind::kFraction) return refuse(name, "its value is no number");
  const std::optional<Decimal> number = Decimal::of(document.source(value));
  if (!number) return refuse(name, "numbers with more than 400 digits are not read by this page");
  if (name == "multipleOf") {
    if (number->negative || number->is_zero()) return refuse(name, "it is not greater than 0");
    if (!may_be_step(*number)) return refuse(name, "steps with more than 15 digits are not read by this page");
    if (leaf.numbers.step && compare(*leaf.numbers.step, *number) != 0) return refuse(name, "two different steps are not read by this page");
    leaf.numbers.step = number;
  } else if (is_lower) {
    leaf.numbers.raise_lower(*number, is_open);
  } else {
    leaf.numbers.drop_upper(*number, is_open);
  }
  return true;
}

bool Leaves::read_constants(const JsonDocument& document, std::string_view name, ValueId value, Leaf& leaf) {
  if (leaf.constants) return refuse(name, "two lists of constants are not read by this page");
  leaf.constants.emplace();
  if (name == "const") return read_constant(document, name, value, *leaf.constants);
  if (document.kind(value) != JsonKind::kArray) return refuse(name, "its value is no array");
  return std::ranges::all_of(document.items(value), [&](ValueId one) { return read_constant(document, name, one, *leaf.constants); });
}

bool Leaves::read_constant(const JsonDocument& document, std::string_view name, ValueId value, std::vector<Constant>& out) {
  Constant one{document.kind(value), std::string(document.source(value)), {}, {}};
  switch (one.kind) {
    case JsonKind::kNull:
    case JsonKind::kFalse:
    case JsonKind::kTrue: break;
    case JsonKind::kInteger:
      one.number = Decimal::of(one.written);
      if (!one.number || one.written == "-0") return refuse(name, "this number is not read by this page as a constant");
      break;
    case JsonKind::kString:
      one.text = document.string(value);
      one.written.clear();
      append_quoted(one.text, one.written);
      break;
    default: return refuse(name, "constants that are arrays, objects or fractions are not read by this page");
  }
  out.push_back(std::move(one));
  return true;
}

// Which constants of a leaf its other keywords admit; nothing where that is refused.
std::optional<std::vector<bool>> Leaves::admits(const Leaf& leaf) {
  if (!leaf.formats.empty() || std::ranges::any_of(leaf.outside, [](const auto& one) { return !one.second.empty(); })) {
    refuse("format", "beside constants it is not read by this page");
    return std::nullopt;
  }
  const std::optional<std::vector<Program>> parts = languages_of(leaf);
  if (!parts) return std::nullopt;
  std::vector<TermId> terms;
  for (const Program& part : *parts) terms.push_back(languages().term(part));
  std::vector<bool> admitted;
  for (const Constant& one : *leaf.constants) {
    switch (one.kind) {
      case JsonKind::kNull: admitted.push_back(leaf.null); break;
      case JsonKind::kFalse:
      case JsonKind::kTrue: admitted.push_back(leaf.boolean); break;
      case JsonKind::kInteger: {
        const auto is_other = [&](const Constant& other) { return other.number && compare(*other.number, *one.number) == 0; };
        admitted.push_back(leaf.integer && leaf.numbers.admits(*one.number) && std::ranges::none_of(leaf.others, is_other));
        break;
      }
      default: {
        const uint32_t length = characters(one.text);
        const bool has_length = leaf.string && length >= leaf.fewest && length <= leaf.most;
        admitted.push_back(has_length && std::ranges::all_of(terms, [&](TermId term) { return languages().meet(languages().text(one.text), term); }));
      }
    }
  }
  return admitted;
}

std::optional<Program> Leaves::constants(const Leaf& leaf, bool& is_empty) {
  const std::optional<std::vector<bool>> admitted = admits(leaf);
  if (!admitted) return std::nullopt;
  ProgramBuilder builder;
  std::set<std::string_view> written;
  std::vector<uint32_t> ways;
  for (size_t i = 0; i < admitted->size(); ++i) {
    const std::string& text = (*leaf.constants)[i].written;
    if ((*admitted)[i] && written.insert(text).second) ways.push_back(builder.literal(text));
  }
  is_empty = ways.empty();
  if (is_empty) {
    contradict("enum", "the other keywords exclude all of its values", "enum");
    return std::nullopt;
  }
  return builder.take(builder.choice(ways));
}

std::optional<Program> Leaves::made(const Leaf& leaf, bool& is_empty) {
  ProgramBuilder builder;
  std::vector<uint32_t> ways;
  const auto named = [&](const std::string& name) { ways.push_back(builder.splice(*library_program(name))); };
  const bool is_any = leaf.null && leaf.boolean && leaf.integer && leaf.fraction && leaf.string && leaf.array && leaf.object;
  if (is_any && !leaf.has_strings() && !leaf.has_numbers()) {
    named("any value");
    return builder.take(ways[0]);
  }
  if (leaf.string && !strings(builder, leaf, ways)) return std::nullopt;
  if ((leaf.integer || leaf.fraction) && !numbers(builder, leaf, ways)) return std::nullopt;
  if (leaf.boolean) named("type boolean");
  if (leaf.null) named("type null");
  if (leaf.array) named("type array");
  if (leaf.object) named("type object");
  is_empty = ways.empty();
  if (is_empty) {
    const bool is_number = (leaf.integer || leaf.fraction) && leaf.has_numbers();
    contradict(is_number ? "minimum" : leaf.string ? "minLength" : "type", "no value is left by this combination", members_.empty() ? "type" : std::string_view(members_[0].first));
    return std::nullopt;
  }
  return builder.take(builder.choice(ways));
}

std::optional<std::vector<Program>> Leaves::languages_of(const Leaf& leaf) {
  std::vector<Program> parts;
  const auto add = [&](const std::vector<std::string>& patterns, const std::vector<std::string>& formats) {
    for (const std::string& text : patterns) {
      std::optional<Program> program = pattern(text, "pattern");
      if (!program) return false;
      parts.push_back(*std::move(program));
    }
    for (const std::string& name : formats) parts.push_back(*library_program(in_draft("value", name)));
    return true;
  };
  for (const auto& [patterns, formats] : leaf.outside) {
    const size_t first = parts.size();
    if (!add(patterns, formats)) return std::nullopt;
    ProgramBuilder builder;
    std::vector<uint32_t> inside;
    for (size_t i = first; i < parts.size(); ++i) inside.push_back(builder.splice(parts[i], true));
    const uint32_t all = inside.size() == 1 ? inside[0] : builder.emit({.kind = ProgramBuilder::Kind::kAnd, .decoded = true}, inside);
    parts.resize(first);
    parts.push_back(builder.take(builder.emit({.kind = ProgramBuilder::Kind::kNot, .decoded = true}, {all})));
  }
  ProgramBuilder builder;
  std::vector<uint32_t> others;
  for (const Constant& one : leaf.others)
    if (one.kind == JsonKind::kString) others.push_back(builder.literal(one.text, true));
  if (!others.empty()) parts.push_back(builder.take(builder.emit({.kind = ProgramBuilder::Kind::kNot, .decoded = true}, {builder.choice(others)})));
  if (!add(leaf.patterns, leaf.formats)) return std::nullopt;
  return parts;
}

bool Leaves::strings(ProgramBuilder& builder, const Leaf& leaf, std::vector<uint32_t>& ways) {
  if (leaf.fewest > leaf.most) return true;  // there are none
  const bool is_bounded = leaf.fewest > 0 || leaf.most != kNone;
  if (leaf.formats.size() == 1 && leaf.patterns.empty() && !is_bounded && leaf.outside.empty() && leaf.others.empty()) {
    ways.push_back(builder.splice(*library_program(in_draft("format", leaf.formats[0]))));
    return true;
  }
  const std::optional<std::vector<Program>> languages = languages_of(leaf);
  if (!languages) return false;
  std::vector<uint32_t> parts;
  for (const Program& one : *languages) parts.push_back(builder.splice(one, true));
  if (is_bounded || parts.empty()) parts.push_back(builder.emit({.kind = ProgramBuilder::Kind::kRepeat, .low = leaf.fewest, .high = leaf.most}, {builder.any_character(true)}));
  ways.push_back(builder.json_string(parts.size() == 1 ? parts[0] : builder.emit({.kind = ProgramBuilder::Kind::kAnd, .decoded = true}, parts)));
  return true;
}

bool Leaves::numbers(ProgramBuilder& builder, const Leaf& leaf, std::vector<uint32_t>& ways) {
  std::vector<Decimal> marks;  // between which the numbers are
  for (const Constant& one : leaf.others)
    if (one.number) marks.push_back(*one.number);
  std::ranges::sort(marks, [](const Decimal& a, const Decimal& b) { return compare(a, b) < 0; });
  if (leaf.numbers.is_free() && marks.empty()) {
    ways.push_back(builder.splice(*library_program(leaf.fraction ? "type number" : "type integer")));
    return true;
  }
  try {
    for (size_t i = 0; i <= marks.size(); ++i) {
      Interval piece = leaf.numbers;
      if (i > 0) piece.raise_lower(marks[i - 1], true);
      if (i < marks.size()) piece.drop_upper(marks[i], true);
      if (const std::optional<uint32_t> term = numbers_in(builder, piece, !leaf.fraction)) ways.push_back(*term);
    }
    return true;
  } catch (const std::length_error& error) {
    return refuse("multipleOf", error.what());
  }
}

// The texts in which a pattern of ECMA-262 matches.
std::optional<Program> Leaves::pattern(const std::string& pattern, std::string_view keyword, std::string_view member) {
  RuleTerms terms;
  try {
    const RuleTerm term = read_regex(terms, pattern, {.is_ecma = true, .searches = true}, library_.ecma);
    return terms.program(term);
  } catch (const SourceError& error) {
    refuse(keyword, std::string(error.what()) + ": " + pattern.substr(error.begin, error.end - error.begin), member);
    return std::nullopt;
  }
}

const Program* Leaves::library_program(const std::string& name) const {
  const std::shared_ptr<const Program>* found = library_.find(name);
  return found == nullptr ? nullptr : found->get();
}

// How the library names what a format is in the draft.
std::string Leaves::in_draft(std::string_view kind, std::string_view name) const { return std::string(kind) + " " + draft_ + " " + std::string(name); }

Languages& Leaves::languages() {
  if (!languages_) languages_ = std::make_unique<Languages>();
  return *languages_;
}

}  // namespace structgen
