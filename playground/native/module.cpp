// The engine for a page: C functions over one vocabulary, one grammar and one text, whose results are JSON.
//
// One thread calls them, and each returns the length of its answer, which `answer` points to until the next call.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "build_program.h"
#include "frontends/flatten.h"
#include "frontends/json_schema/json_document.h"
#include "frontends/lark/lark_reader.h"
#include "frontends/lark/lark_regexp.h"
#include "gbnf.h"
#include "library.h"
#include "masks/engine.h"
#include "matcher/matcher.h"
#include "regex.h"
#include "schema.h"
#include "source_error.h"

namespace nb = nanobind;

namespace structgen {

namespace {

constexpr uint32_t kMaxInstructions = 2'000'000;
constexpr size_t kMaxEngineBytes = size_t{32} << 20;  // of terms and states that grammars left
constexpr size_t kMaxSourceBytes = 1 << 20;
constexpr uint64_t kMaxNodes = 1'000'000;
constexpr uint32_t kMaxDepth = 200;

enum class Source : int { kProgram, kSchema, kRegex, kLark, kGbnf };

struct Session {
  std::string input, answer;
  std::shared_ptr<TokenTrie> tokens;
  uint32_t vocabulary_size = 0;
  std::vector<uint32_t> eos;
  Library library;
  std::shared_ptr<Engine> engine;
  bool is_engine_spent = true;
  std::shared_ptr<Constraint> constraint;
  std::unique_ptr<Matcher> matcher;
  std::vector<uint32_t> mask;
  Limits limits;
};

Session& session() {
  static Session one;
  return one;
}

void add_text(std::string& out, std::string_view text) { append_quoted(text, out); }

void add_numbers(std::string& out, const auto& numbers) {
  out.push_back('[');
  for (const auto& one : numbers) {
    if (out.back() != '[') out.push_back(',');
    out += std::to_string(one);
  }
  out.push_back(']');
}

void add_bytes(std::string& out, std::string_view bytes) {
  std::vector<unsigned> numbers;
  for (char c : bytes) numbers.push_back(static_cast<unsigned char>(c));
  add_numbers(out, numbers);
}

// Runs `work`, which writes the answer; errors become answers.
template <class Work>
int answered(Work&& work) {
  std::string& out = session().answer;
  const auto failed = [&](std::string_view kind, std::string_view text, size_t begin = 0, size_t end = 0) {
    out = "{\"error\":";
    add_text(out, text);
    out += ",\"kind\":";
    add_text(out, kind);
    out += ",\"begin\":" + std::to_string(begin) + ",\"end\":" + std::to_string(end) + "}";
  };
  out.clear();
  try {
    work(out);
  } catch (const SourceError& error) {
    failed(error.is_unread ? "unread" : "source", error.what(), error.begin, error.end);
  } catch (const LimitError& error) {
    failed("limit", "the limit on " + error.limit + " was reached: " + std::to_string(error.maximum) + (error.evidence.empty() ? "" : " (" + error.evidence + ")"));
  } catch (const std::bad_alloc&) {
    failed("limit", "there is no memory left for this grammar");
  } catch (const std::exception& error) {
    failed("source", error.what());
  }
  return static_cast<int>(out.size());
}

// What the Lark reader leaves to the other side: strings whose case is ignored, and regexps that are not simple.
struct LarkLeaves {
  std::optional<std::string> refused;  // as it is written
  std::string problem;

  nb::object leaf(const std::string& spelled) {
    const size_t end = spelled.rfind(spelled[0]);
    const std::string_view body = std::string_view(spelled).substr(1, end - 1), flags = std::string_view(spelled).substr(end + 1);
    std::optional<std::string> text = lark_unescaped(body);
    if (!text) return refuse(spelled, "the escapes are malformed");
    if (flags.find_first_not_of("isu") != std::string_view::npos) return refuse(spelled, "these flags are not read by this page");
    RegexOptions options{.dot_all = flags.find('s') != std::string_view::npos, .ignores_case = flags.find('i') != std::string_view::npos, .allows_lazy = false};
    std::string pattern = *text;
    if (spelled[0] == '"') {
      pattern.clear();
      for (size_t i = 0; i < text->size(); ++i) {
        if ((*text)[i] == '\\' && i + 1 < text->size() && (*text)[i + 1] == '\\') ++i;
        const char c = (*text)[i];
        if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) pattern += '\\';
        pattern += c;
      }
    }
    auto made = std::make_shared<FlatGrammar>();
    bool is_nullable = false;
    try {
      RuleTerms terms;
      const RuleTerm term = read_regex(terms, pattern, options, session().library.python);
      is_nullable = terms.is_nullable(term);
      made->program = terms.program(term);
    } catch (const SourceError& error) {
      return refuse(spelled, error.what());
    }
    return nb::List{nb::object(std::shared_ptr<const FlatGrammar>(made)), nb::object(is_nullable)};
  }
  nb::object refuse(const std::string& spelled, const std::string& why) {
    if (!refused) {
      refused = spelled;
      problem = why;
    }
    return nb::object::none();
  }
};

// Where a Lark grammar that is not read has its first statement that is none.
size_t unread_statement(std::string_view text) {
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = begin;
    do {  // lines that begin with white space or | go on
      end = text.find('\n', end);
      end = end == std::string_view::npos ? text.size() : end + 1;
    } while (end < text.size() && (text[end] == ' ' || text[end] == '\t' || text[end] == '|' || text[end] == '\n' || text[end] == '\r'));
    if (LarkFile::parse(std::string(text.substr(begin, end - begin)), 64) == nullptr) return begin;
    begin = end;
  }
  return text.size();
}

Program read_lark(const std::string& text) {
  if (text.size() > kMaxSourceBytes) throw SourceError("the grammar has more than a million bytes", 0, 1);
  LarkLeaves leaves;
  const nb::object library = nb::Function([](const nb::List& arguments) {
    const auto found = session().library.lark_files.find(arguments[0].get<std::string>());
    if (found == session().library.lark_files.end()) return nb::object::none();
    nb::List texts;
    for (const std::string& one : found->second) texts.emplace_back(one);
    return nb::object(texts);
  });
  const nb::object leaf = nb::Function([&](const nb::List& arguments) { return leaves.leaf(arguments[0].get<std::string>()); });
  LarkReader reader(library, leaf);
  const std::unique_ptr<FlatGrammar> flat = reader.read(text, "start", {kMaxNodes, kMaxDepth});
  if (flat) return std::move(flat->program);
  if (leaves.refused) {
    const size_t begin = text.find(*leaves.refused);
    const size_t at = begin == std::string::npos ? 0 : begin;
    throw SourceError(leaves.problem, at, at + leaves.refused->size(), true);
  }
  const size_t begin = unread_statement(text);
  if (begin < text.size()) throw SourceError("this page does not read this statement: it is malformed, or uses more than rules, terminals, templates, %import of Lark's files and %ignore", begin, std::min(text.find('\n', begin), text.size()), true);
  throw SourceError("this page does not read the grammar: a name is not defined, 'start' is missing, or a terminal uses itself", 0, 1, true);
}

Program read_pattern(const std::string& text) {
  if (text.size() > kMaxSourceBytes) throw SourceError("the pattern has more than a million bytes", 0, 1);
  RuleTerms terms;
  const RuleTerm term = read_regex(terms, text, {}, session().library.python);
  return terms.program(term);
}

Program read(Source source, const std::string& text) {
  switch (source) {
    case Source::kProgram:
      try {
        return unpack(text, kMaxInstructions);
      } catch (const std::invalid_argument&) {
        throw SourceError("the program in this link is damaged; make the link again", 0, 0);
      }
    case Source::kSchema: return read_schema(text, session().library);
    case Source::kRegex: return read_pattern(text);
    case Source::kLark: return read_lark(text);
    case Source::kGbnf:
      if (text.size() > kMaxSourceBytes) throw SourceError("the grammar has more than a million bytes", 0, 1);
      return read_gbnf(text, "root");
  }
  throw SourceError("there is no such notation", 0, 0);
}

// Makes the terms of a program and a constraint of them, as bindings/constraint.cpp does.  One engine serves one grammar
// after the other, so that what they share is made once, until it has grown, or a grammar failed.
void couple(const Program& program) {
  Session& all = session();
  all.matcher.reset();
  all.constraint.reset();
  if (all.is_engine_spent || all.engine->machine().automaton().bytes_used() > kMaxEngineBytes)
    all.engine = std::make_shared<Engine>(all.tokens, all.vocabulary_size);
  all.is_engine_spent = true;
  Automaton& automaton = all.engine->machine().automaton();
  {
    const Turn turn(all.engine->mutex(), automaton.meter().pulse, Turn::kTurns);
    automaton.meter().begin(0, all.limits);
    automaton.set_regular_limit(all.limits.regular_states);
    const auto first = static_cast<RuleId>(automaton.terms().rule_count());
    const TermId term = run(program, automaton, all.engine->shared_rules())[program.result];
    TermStore& terms = automaton.terms();
    terms.solve_rules(automaton.meter().pulse);
    if (!has_expected_distances(program, terms, first) || terms.left_recursive(first, automaton.meter().pulse))
      throw SourceError("the program is left-recursive", 0, 0);
    if (terms.distance(term) >= kInfinite) throw SourceError("no text belongs to this grammar", 0, 0);
    all.constraint = std::make_shared<Constraint>(all.engine, term, all.eos, all.limits);
    all.constraint->begin();
  }
  all.matcher = std::make_unique<Matcher>(all.constraint);
  all.is_engine_spent = false;
}

Matcher& matcher() {
  if (!session().matcher) throw SourceError("there is no grammar", 0, 0);
  return *session().matcher;
}

// The steps of a call, which is 0 where all was known.
template <class Call>
uint64_t steps_of(Call&& call) {
  Meter& meter = session().engine->machine().automaton().meter();
  meter.steps = 0;
  call();
  return meter.steps;
}

uint32_t count_of(const std::vector<uint32_t>& mask) {
  uint32_t count = 0;
  for (uint32_t word : mask) count += static_cast<uint32_t>(__builtin_popcount(word));
  return count;
}

}  // namespace

}  // namespace structgen

using namespace structgen;

extern "C" {

// Memory of `size` bytes for the argument of the next call.
char* argument(int size) {
  session().input.assign(static_cast<size_t>(size), '\0');
  return session().input.data();
}
const char* answer() { return session().answer.data(); }
const uint32_t* mask_words() { return session().mask.data(); }

// The argument: the number of tokens that end the text, in a byte, and their ids, in four each; then for each token its
// length, in one or three bytes, and its bytes; those without bytes are no text.
int load_vocabulary() {
  return answered([&](std::string& out) {
    Session& all = session();
    std::vector<std::string> tokens;
    const std::string_view data = all.input;
    const auto byte = [&](size_t index) { return index < data.size() ? static_cast<unsigned char>(data[index]) : 0u; };
    all.eos.clear();
    for (size_t i = 0; i < byte(0); ++i) {
      const size_t at = 1 + 4 * i;
      all.eos.push_back(byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24);
    }
    for (size_t at = 1 + 4 * all.eos.size(); at < data.size();) {
      size_t size = byte(at++);
      if (size == 255) {
        size = byte(at) | byte(at + 1) << 8;
        at += 2;
      }
      tokens.emplace_back(data.substr(std::min(at, data.size()), size));
      at += size;
    }
    all.tokens = std::make_shared<TokenTrie>(tokens);
    all.vocabulary_size = static_cast<uint32_t>(tokens.size());
    all.limits.cache_bytes = uint64_t{64} << 20;
    out = "{\"tokens\":" + std::to_string(tokens.size()) + "}";
  });
}

int load_library() {
  return answered([](std::string& out) {
    session().library = Library::parse(session().input);
    out = "{\"programs\":" + std::to_string(session().library.programs.size()) + "}";
  });
}

// Compiles the argument, written in a notation (`Source`).
int compile(int source) {
  return answered([&](std::string& out) {
    const std::string text = std::move(session().input);
    const Program program = read(static_cast<Source>(source), text);
    couple(program);
    out = "{\"instructions\":" + std::to_string(program.instructions.size()) + "}";
  });
}

// How many tokens the shortest text takes; null where tokens spell none.
int shortest_text() {
  return answered([](std::string& out) {
    Matcher start(matcher());
    start.reset();
    const uint32_t fewest = start.min_tokens();
    out = "{\"tokens\":" + (fewest == kNone ? "null" : std::to_string(fewest)) + "}";
  });
}

// The program of the argument, packed, without distances: for tests.
int pack_source(int source) {
  return answered([&](std::string& out) { out = pack(read(static_cast<Source>(source), session().input), {}); });
}

int reset_text() {
  return answered([](std::string& out) {
    matcher().reset();
    out = "{}";
  });
}

// Whether a token may come next; it is taken then.
int accept_token(int token) {
  return answered([&](std::string& out) { out = matcher().accept(static_cast<uint32_t>(token)) ? "{\"accepted\":true}" : "{\"accepted\":false}"; });
}

// Writes the mask of the next token, EOS included, and counts it.
int fill_mask() {
  return answered([](std::string& out) {
    Matcher& own = matcher();
    session().mask.assign(own.constraint().words(), 0);
    const uint64_t steps = steps_of([&] { own.fill_mask(session().mask.data()); });
    out = "{\"allowed\":" + std::to_string(count_of(session().mask)) + ",\"ends\":" + (own.is_accepting() ? "true" : "false") + ",\"steps\":" + std::to_string(steps) + "}";
  });
}

// Makes what the mask after a token needs, and keeps it; the text stays as it is.
int prepare_mask(int token) {
  return answered([&](std::string& out) {
    Matcher next(matcher());
    uint64_t taken = 0;
    if (next.accept(static_cast<uint32_t>(token)) && !next.is_terminated()) {
      std::vector<uint32_t> mask(next.constraint().words());
      taken = steps_of([&] { next.fill_mask(mask.data()); });
    }
    out = "{\"steps\":" + std::to_string(taken) + "}";
  });
}

// What may follow: bytes that are forced, a shortest completion, bytes that may come, the rules around.
int describe() {
  return answered([](std::string& out) {
    Matcher& own = matcher();
    out = "{\"forced\":";
    add_bytes(out, own.is_terminated() ? std::string() : own.forced_bytes());
    out += ",\"completion\":";
    add_numbers(out, own.shortest_completion());
    const uint32_t fewest = own.min_tokens();
    out += ",\"tokens\":" + (fewest == kNone ? "null" : std::to_string(fewest)) + ",\"bytes\":";
    add_bytes(out, own.live_bytes());
    out += ",\"rules\":[";
    for (const std::string& rule : own.rule_path()) {
      if (out.back() != '[') out.push_back(',');
      add_text(out, rule);
    }
    out += "]}";
  });
}

// How many bytes of the argument may come next, what may come after these, and the rules there.
int explain() {
  return answered([](std::string& out) {
    Matcher next(matcher());
    const size_t taken = next.accept_bytes(session().input);
    Matcher there(matcher());
    if (taken > 0) there.accept_bytes(std::string_view(session().input).substr(0, taken));
    out = "{\"taken\":" + std::to_string(taken) + ",\"bytes\":";
    add_bytes(out, there.live_bytes());
    out += ",\"ends\":";
    out += there.is_accepting() ? "true" : "false";
    out += ",\"rules\":[";
    for (const std::string& rule : there.rule_path()) {
      if (out.back() != '[') out.push_back(',');
      add_text(out, rule);
    }
    out += "]}";
  });
}

}  // extern "C"
