#include "schema.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "build_program.h"
#include "frontends/json_schema/json_document.h"
#include "frontends/json_schema/simple_schema.h"
#include "integers.h"
#include "source_error.h"

namespace nb = nanobind;

namespace structgen {

namespace {

constexpr size_t kMaxSourceBytes = 1 << 20, kMaxDepth = 200;
constexpr uint64_t kMaxCost = 1'000'000;

// Why a leaf was refused, in the words of its schema.
struct Refusal {
  std::string keyword, problem;
};

// What the simple keywords of one schema, or of several together, say.
struct Leaf {
  bool null = true, boolean = true, integer = true, fraction = true, string = true, array = true, object = true;
  uint32_t fewest = 0, most = kNone;  // characters
  std::vector<std::string> patterns;
  std::vector<std::string> formats;
  std::optional<Integer> lower, upper;
  std::string lower_text, upper_text;  // as written, with the sign of an open bound: "(0"
  bool has_bounds = false;
};

class Leaves {
 public:
  // `draft`: as the library names it.
  Leaves(const Library& library, std::string draft) : library_(library), draft_(std::move(draft)) {}

  // The term of a schema of simple keywords, as SimplePlanner wants it; None where it is refused.
  nb::object term(const std::string& text) {
    const std::unique_ptr<const JsonDocument> document = JsonDocument::parse(text, kMaxDepth);
    if (document == nullptr) return nb::object::none();
    Leaf leaf;
    if (!read(*document, document->root(), leaf)) return nb::object::none();
    std::optional<Program> program = made(leaf);
    if (!program) return nb::object::none();
    return nb::List{nb::object(std::make_shared<const Program>(*std::move(program))), nb::object(true), nb::object(false)};
  }

  std::optional<Refusal> refusal;

 private:
  bool refuse(std::string_view keyword, std::string problem) {
    if (!refusal) refusal = {std::string(keyword), std::move(problem)};
    return false;
  }

  bool read(const JsonDocument& document, ValueId id, Leaf& leaf) {
    for (const auto& [name, value] : document.members(id)) {
      const JsonKind kind = document.kind(value);
      if (name == "type") {
        if (!types(document, id, value, leaf)) return false;
      } else if (name == "nullable") {
        continue;
      } else if (name == "allOf") {
        for (ValueId one : document.items(value))
          if (!read(document, one, leaf)) return false;
      } else if (name == "minLength" || name == "maxLength") {
        const std::optional<Integer> count = kind == JsonKind::kInteger ? Integer::of(document.source(value)) : std::nullopt;
        if (!count || count->negative || count->digits.size() > 9) return refuse(name, "its value is no count that this page reads");
        const auto number = static_cast<uint32_t>(std::stoul(count->digits));
        if (name == "minLength") leaf.fewest = std::max(leaf.fewest, number);
        else leaf.most = std::min(leaf.most, number);
      } else if (name == "pattern") {
        if (kind != JsonKind::kString) return refuse(name, "its value is no string");
        leaf.patterns.emplace_back(document.string(value));
      } else if (name == "format") {
        if (kind != JsonKind::kString) return refuse(name, "its value is no string");
        // Formats that nobody knows say nothing.
        if (library_.find(format(document.string(value))) != nullptr) leaf.formats.emplace_back(document.string(value));
      } else if (name == "minimum" || name == "maximum" || name == "exclusiveMinimum" || name == "exclusiveMaximum") {
        if (!bound(document, name, value, leaf)) return false;
      } else {
        return refuse(name, "the page does not read it here");
      }
    }
    return true;
  }

  bool types(const JsonDocument& document, ValueId schema, ValueId value, Leaf& leaf) {
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

  bool bound(const JsonDocument& document, std::string_view name, ValueId value, Leaf& leaf) {
    const JsonKind kind = document.kind(value);
    const bool is_exclusive = name.starts_with("exclusive"), is_lower = name.ends_with("inimum");
    if (kind == JsonKind::kTrue || kind == JsonKind::kFalse) return refuse(name, "its form of draft 4 is not read by this page");
    std::string_view digits = document.source(value);
    if (kind == JsonKind::kFraction && digits.ends_with(".0")) digits.remove_suffix(2);
    const std::optional<Integer> number = Integer::of(digits);
    std::string& text = is_lower ? leaf.lower_text : leaf.upper_text;
    if (leaf.has_bounds && !text.empty()) return refuse(name, "two bounds on the same side are not read by this page");
    leaf.has_bounds = true;
    text = (is_exclusive ? "(" : "[") + std::string(digits);
    if (number) {
      std::optional<Integer>& own = is_lower ? leaf.lower : leaf.upper;
      own = !is_exclusive ? *number : is_lower ? number->next() : number->previous();
    } else if (leaf.integer && !leaf.fraction) {
      return refuse(name, "a bound of integers that is no integer is not read by this page");
    }
    return true;
  }

  std::optional<Program> made(const Leaf& leaf) {
    ProgramBuilder builder;
    std::vector<uint32_t> ways;
    const auto named = [&](std::string_view name) {
      const std::shared_ptr<const Program>* found = library_.find(name);
      if (found == nullptr) throw std::invalid_argument("the library lacks " + std::string(name));
      ways.push_back(builder.splice(**found));
    };
    const bool is_free = leaf.fewest == 0 && leaf.most == kNone && leaf.patterns.empty() && leaf.formats.empty() && !leaf.has_bounds;
    if (leaf.null && leaf.boolean && leaf.integer && leaf.fraction && leaf.string && leaf.array && leaf.object && is_free) {
      named("any value");
      return builder.take(ways[0]);
    }
    if (leaf.string && !string(builder, leaf, ways)) return std::nullopt;
    if ((leaf.integer || leaf.fraction) && !number(builder, leaf, ways)) return std::nullopt;
    if (leaf.boolean) named("type boolean");
    if (leaf.null) named("type null");
    if (leaf.array) named("type array");
    if (leaf.object) named("type object");
    if (ways.empty()) {
      refuse("type", "no value is left by this combination");
      return std::nullopt;
    }
    return builder.take(builder.choice(ways));
  }

  bool string(ProgramBuilder& builder, const Leaf& leaf, std::vector<uint32_t>& ways) {
    using Kind = Instruction::Kind;
    if (leaf.fewest > leaf.most) return refuse("minLength", "it exceeds 'maxLength'");
    const bool is_bounded = leaf.fewest > 0 || leaf.most != kNone;
    const std::set<std::string> formats(leaf.formats.begin(), leaf.formats.end());
    if (formats.size() == 1 && leaf.patterns.empty() && !is_bounded) {
      ways.push_back(builder.splice(**library_.find(format(*formats.begin()))));
      return true;
    }
    if (!formats.empty()) return refuse("format", "with lengths, patterns or other formats it is not read by this page");
    std::vector<uint32_t> parts;
    for (const std::string& pattern : leaf.patterns) {
      RuleTerms terms;
      RuleTerm term = kNone;
      try {
        term = read_regex(terms, pattern, {.is_ecma = true, .searches = true}, library_.ecma);
      } catch (const SourceError& error) {
        return refuse("pattern", std::string(error.what()) + ": " + pattern.substr(error.begin, error.end - error.begin));
      }
      parts.push_back(builder.splice(terms.program(term), true));
    }
    if (is_bounded || parts.empty()) {
      const uint32_t any = builder.any_character(true);
      parts.push_back(builder.emit({.kind = Kind::kRepeat, .low = leaf.fewest, .high = leaf.most}, {any}));
    }
    ways.push_back(builder.json_string(parts.size() == 1 ? parts[0] : builder.emit({.kind = Kind::kAnd, .decoded = true}, parts)));
    return true;
  }

  bool number(ProgramBuilder& builder, const Leaf& leaf, std::vector<uint32_t>& ways) {
    if (!leaf.has_bounds) {
      ways.push_back(builder.splice(**library_.find(leaf.fraction ? "type number" : "type integer")));
      return true;
    }
    if (leaf.fraction) {
      const std::shared_ptr<const Program>* found = library_.find("number " + leaf.lower_text + " " + leaf.upper_text);
      if (found == nullptr)
        return refuse(leaf.lower_text.empty() ? "maximum" : "minimum", "these bounds of a number are not on the page, which has common ones only; those of integers are free");
      ways.push_back(builder.splice(**found));
      return true;
    }
    const std::optional<uint32_t> term = integers_between(builder, leaf.lower, leaf.upper);
    if (!term) return refuse("minimum", "no integer is between the bounds");
    ways.push_back(*term);
    return true;
  }

  std::string format(std::string_view name) const { return "format " + draft_ + " " + std::string(name); }

  const Library& library_;
  const std::string draft_;
};

// Where a keyword stands in a schema: first of those that may be what was refused.
std::pair<size_t, size_t> place_of(const JsonDocument& document, std::string_view keyword, std::string_view text) {
  for (size_t id = 0; id < document.size(); ++id) {
    const auto value = static_cast<ValueId>(id);
    if (document.kind(value) != JsonKind::kObject) continue;
    if (const JsonDocument::Member* member = document.find(value, keyword)) {
      const std::string_view source = document.source(member->value);
      const auto end = static_cast<size_t>(source.data() - text.data()) + source.size();
      const size_t begin = text.rfind('"' + std::string(keyword) + '"', static_cast<size_t>(source.data() - text.data()));
      return {begin == std::string_view::npos ? end - source.size() : begin, end};
    }
  }
  return {0, 1};
}

}  // namespace

Program read_schema(const std::string& source, const Library& library) {
  if (source.size() > kMaxSourceBytes) throw SourceError("the schema has more than a million bytes", 0, 1);
  const std::unique_ptr<const JsonDocument> document = JsonDocument::parse(source, kMaxDepth);
  if (document == nullptr) throw SourceError("this is no plain JSON, or it is nested more than 200 deep", 0, 1);
  const ValueId root = document->root();
  if (document->kind(root) == JsonKind::kTrue) return **library.find("any value");
  if (document->kind(root) != JsonKind::kObject) throw SourceError("a schema is an object; true allows any value", 0, source.size());
  const std::string_view text = document->source(root);
  const size_t shift = source.find(text);  // of the document, which holds its own copy
  const auto fail = [&](const std::string& problem, std::string_view keyword) {
    auto [begin, end] = place_of(*document, keyword, text);
    return SourceError(problem, begin + shift, end + shift, true);
  };
  std::string declared;
  if (const JsonDocument::Member* member = document->find(root, "$schema"); member != nullptr && document->kind(member->value) == JsonKind::kString) declared = document->string(member->value);
  while (declared.ends_with('#')) declared.pop_back();
  constexpr std::string_view kSite = "://json-schema.org/";
  if (const size_t site = declared.find(kSite); site != std::string::npos) declared.erase(0, site + kSite.size());
  else if (!declared.empty()) declared = "?";
  const auto dialect = library.dialects.find(declared);
  if (dialect == library.dialects.end()) throw fail("'$schema' names no draft that this page knows", "$schema");
  nb::dict keywords;
  for (const auto& one : dialect->second.keywords) keywords.emplace_back(one.first, one.second);
  SimpleSyntax syntax;
  const char* const names[] = {"open_object", "end_object", "close_object", "open_array", "end_array", "close_array", "comma", "colon", "any value", "any string"};
  for (size_t i = 0; i < SimpleSyntax::kTerms; ++i) syntax.terms[i] = nb::object(*library.find(names[i]));
  SimplePlanner planner(keywords, dialect->second.reference_stands_alone, syntax, {kMaxCost, kMaxDepth}, true, false, nullptr);
  Leaves leaves(library, declared);
  const nb::object make = nb::Function([&](const nb::List& arguments) { return leaves.term(arguments[0].get<std::string>()); });
  const nb::object refused_values = nb::Function([&](const nb::List&) {
    if (!leaves.refusal) leaves.refusal = {"enum", "constants beside other keywords are not read by this page"};
    return nb::object::none();
  });
  const nb::object refused_names = nb::Function([&](const nb::List&) {
    if (!leaves.refusal) leaves.refusal = {"patternProperties", "it is not read by this page"};
    return nb::object::none();
  });
  // One object stands for both sides: a function, and the methods of its helper.
  const nb::object helper = std::map<std::string, nb::object>{{"whole", make}, {"names", refused_names}, {"argument", make}};
  const std::unique_ptr<SimpleTerms> terms = planner.plan(*document, make.with({{"values", nb::object(nb::Function([](const nb::List& arguments) { return arguments[0]; }))}, {"excluded", refused_values}}), helper);
  if (terms) return simple_program(*terms);
  if (leaves.refusal) throw fail("'" + leaves.refusal->keyword + "': " + leaves.refusal->problem, leaves.refusal->keyword);
  for (size_t id = 0; id < document->size(); ++id) {
    const auto value = static_cast<ValueId>(id);
    if (document->kind(value) != JsonKind::kObject) continue;
    for (const auto& member : document->members(value)) {
      const std::string_view name = member.name;
      const auto known = std::ranges::find_if(dialect->second.keywords, [&](const auto& one) { return one.first == member.name && one.second == 0; });
      if (known != dialect->second.keywords.end()) throw fail("'" + std::string(name) + "' is not read by this page", name);
    }
  }
  for (const char* name : {"oneOf", "allOf", "anyOf", "uniqueItems", "patternProperties", "$ref"})
    if (text.find('"' + std::string(name) + '"') != std::string_view::npos)
      throw fail(std::string("this page does not read the schema; '") + name + "' is likely why: branches that may overlap, references to other documents, and unique items are left to the command", name);
  throw SourceError("this page does not read the schema; it may be invalid", shift, shift + 1, true);
}

}  // namespace structgen
