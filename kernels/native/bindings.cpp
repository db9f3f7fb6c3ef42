// The Python face of the engine: thin, typed, and free of policy.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <shared_mutex>

#include "chart_bindings.h"
#include "flatten.h"
#include "label.h"
#include "matcher.h"
#include "lark_reader.h"
#include "plain_schema.h"
#include "python_json.h"
#include "unfolding_bindings.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace structgen;

namespace {

using Bitmask = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::string_view view(const nb::bytes& data) { return {static_cast<const char*>(data.data()), data.size()}; }
nb::bytes to_bytes(std::string_view data) { return nb::bytes(data.data(), data.size()); }

uint32_t* row_of(const Bitmask& mask, size_t row, const Constraint& constraint) {
  const size_t words = constraint.engine().words();
  if (mask.shape(1) != words)
    throw nb::value_error(("bitmask: rows have " + std::to_string(mask.shape(1)) + " words; the vocabulary needs ceil(V / 32) = " +
                           std::to_string(words)).c_str());
  if (row >= mask.shape(0))
    throw nb::index_error(("bitmask: row " + std::to_string(row) + " of " + std::to_string(mask.shape(0))).c_str());
  return reinterpret_cast<uint32_t*>(mask.data()) + row * words;
}

Branches to_branches(std::vector<uint32_t> tokens, std::vector<int32_t> parents) {
  if (tokens.size() != parents.size())
    throw nb::value_error(("tree: " + std::to_string(tokens.size()) + " tokens and " + std::to_string(parents.size()) + " parents").c_str());
  for (size_t i = 0; i < parents.size(); ++i)
    if (parents[i] < -1 || parents[i] >= static_cast<int64_t>(i))
      throw nb::value_error(("tree: a parent stands before its child, or is -1; token " + std::to_string(i) + " has the parent " +
                             std::to_string(parents[i])).c_str());
  return {std::move(tokens), std::move(parents)};
}

// The first of the rows from `row` on of a tree; all of them are there.
uint32_t* rows_of(const Bitmask& mask, size_t row, const Branches& tree, const Constraint& constraint) {
  if (row < mask.shape(0)) row_of(mask, row + std::min(tree.tokens.size(), SIZE_MAX - row), constraint);
  return row_of(mask, row, constraint);
}

struct Lowered {
  TermId term;
  std::vector<std::optional<TermId>> shared;  // the terms of FlatGrammar::shared; none of what must be told of again
  bool left_recursive;                  // then nothing below is known
  std::optional<uint32_t> shortest;     // bytes of the shortest member, if there is one
  std::optional<uint32_t> unspellable;  // a byte that is needed somewhere and that no token holds
};

// Makes the terms of a grammar and solves its rules, under the engine's lock: grammars on one vocabulary share the store.
Lowered lower(Engine& engine, const FlatGrammar& grammar, const Limits& limits) {
  const std::unique_lock lock(engine.mutex());
  Automaton& automaton = engine.machine().automaton();
  automaton.meter() = {0, limits.states, 0, limits.steps};
  automaton.set_regular_limit(limits.regular_states);
  const std::vector<TermId> made = run(grammar.program, automaton, engine.shared_rules());
  TermStore& terms = automaton.terms();
  Lowered result{made[grammar.program.result], {}, false, {}, {}};
  terms.solve_rules();
  result.left_recursive = terms.left_recursive();
  if (result.left_recursive) return result;
  const Distance distance = terms.distance(result.term);
  if (distance < kInfinite) result.shortest = distance;
  result.unspellable = terms.take_unspellable();
  for (const auto& [node, instruction, is_leaf] : grammar.shared) {
    const bool may_lack_bytes = is_leaf && result.unspellable;
    result.shared.push_back(may_lack_bytes ? std::nullopt : std::optional(made[instruction]));
  }
  return result;
}

// Makes the terms of a grammar and a constraint of them.  Gives that, or None where the grammar is left-recursive or has
// no members; the terms of FlatGrammar::shared; whether it is left-recursive; the last two of `Lowered`; bytes of the engine.
nb::tuple couple(std::shared_ptr<Engine> engine, const FlatGrammar& grammar, std::vector<uint32_t> eos, const Limits& limits) {
  Lowered lowered;
  std::shared_ptr<Constraint> constraint;
  size_t bytes = 0;
  {
    nb::gil_scoped_release release;
    lowered = lower(*engine, grammar, limits);
    if (lowered.shortest) constraint = std::make_shared<Constraint>(engine, lowered.term, std::move(eos), limits);
    const std::shared_lock lock(engine->mutex());
    bytes = engine->bytes_used();
  }
  return nb::make_tuple(std::move(constraint), std::move(lowered.shared), lowered.left_recursive, lowered.shortest, lowered.unspellable, bytes);
}

// The terms of a plain schema, and the dialect of its planner; None where it is not plain.
//   planners: by what `$schema` declares or None: a planner, what makes its leaves, the dialect, and what
//     helps with more than leaves; or None for no draft.
//   add_planner: called with what `$schema` declares where that is not among the planners, gives one and keeps it.
nb::object plan_plain(nb::str text, size_t max_depth, nb::dict planners, nb::handle add_planner) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (data == nullptr) {
    PyErr_Clear();  // a lone surrogate
    return nb::none();
  }
  const std::unique_ptr<const JsonDocument> document = JsonDocument::parse(std::string(data, static_cast<size_t>(size)), max_depth);
  if (document == nullptr || document->kind(document->root()) != JsonKind::kObject) return nb::none();
  const JsonDocument::Member* member = document->find(document->root(), "$schema");
  nb::object declared = nb::none();
  if (member != nullptr && document->kind(member->value) == JsonKind::kString) declared = nb::cast(document->string(member->value));
  nb::object known = nb::borrow(PyDict_GetItemWithError(planners.ptr(), declared.ptr()));
  if (!known.is_valid()) {
    if (PyErr_Occurred()) throw nb::python_error();
    known = add_planner(declared);
  }
  if (known.is_none()) return nb::none();
  std::unique_ptr<PlainTerms> terms = nb::cast<PlainPlanner&>(known[0]).plan(*document, known[1], known[3]);
  if (terms == nullptr) return nb::none();
  return nb::make_tuple(std::move(terms), known[2]);
}

// The program of a plain Lark grammar; None if it is not plain.
std::unique_ptr<FlatGrammar> read_lark(LarkReader& reader, nb::str text, nb::str start, uint64_t max_nodes, uint32_t max_depth) {
  Py_ssize_t size = 0, start_size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  const char* start_data = data == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(start.ptr(), &start_size);
  if (start_data == nullptr) {
    PyErr_Clear();  // a lone surrogate
    return nullptr;
  }
  return reader.read(std::string(data, static_cast<size_t>(size)), std::string_view(start_data, static_cast<size_t>(start_size)),
                     {max_nodes, max_depth});
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Automaton engine of structgen: vocabulary trie, lazily derived automata, matcher and masks.";

  // What an exception's traceback still holds when the interpreter ends is no leak, and the message would bury it.
  nb::set_leak_warnings(false);

  static nb::object limit_error;  // called as limit_error(name, maximum, evidence); set by the Python face
  m.def("set_limit_error", [](nb::object type) { limit_error = std::move(type); }, "type"_a);
  m.def("is_a_label", [](std::string_view text, bool bidi) { return is_a_label(text, bidi ? Direction::kBidi : Direction::kLeftToRight); },
        "text"_a, "bidi"_a);
  m.def("a_label_rest", [](std::string_view text, bool bidi) { return a_label_rest(text, bidi ? Direction::kBidi : Direction::kLeftToRight); },
        "text"_a, "bidi"_a);
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { limit_error.reset(); }));
  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const LimitError& error) {
      if (!limit_error.is_valid()) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return;
      }
      try {
        nb::object value = limit_error(error.limit, error.maximum, error.evidence);
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())), value.ptr());
      } catch (nb::python_error& raised) {
        raised.restore();
      }
    }
  });

  nb::class_<Limits>(m, "Limits")
      .def(nb::init<>())
      .def_rw("states", &Limits::states)
      .def_rw("regular_states", &Limits::regular_states)
      .def_rw("steps", &Limits::steps)
      .def_rw("distance_steps", &Limits::distance_steps)
      .def_rw("cache_bytes", &Limits::cache_bytes);

  nb::class_<TokenTrie>(m, "TokenTrie")
      .def("__init__",
           [](TokenTrie* self, nb::sequence tokens) {
             std::vector<std::string> texts;
             texts.reserve(nb::len(tokens));
             for (nb::handle token : tokens) texts.emplace_back(view(nb::cast<nb::bytes>(token)));
             nb::gil_scoped_release release;
             new (self) TokenTrie(texts);
           },
           "tokens"_a)
      .def("to_bytes", [](const TokenTrie& self) { return to_bytes(self.serialize()); })
      .def_static("from_bytes", [](nb::bytes data) { return std::make_shared<TokenTrie>(TokenTrie::deserialize(view(data))); }, "data"_a)
      .def("__len__", &TokenTrie::size)
      .def_prop_ro("node_count", [](const TokenTrie& self) { return self.trie().size(); })
      .def_prop_ro("max_token_bytes", [](const TokenTrie& self) { return self.trie().max_depth; })
      .def_prop_ro("memory_bytes", [](const TokenTrie& self) { return self.trie().bytes(); });

  nb::class_<Engine>(m, "Engine")
      .def(nb::new_([](std::shared_ptr<TokenTrie> tokens, uint32_t vocabulary_size) {
             if (vocabulary_size < tokens->size()) throw nb::value_error("engine: vocabulary size is below the number of tokens");
             return std::shared_ptr<Engine>(new Engine(std::move(tokens), vocabulary_size), Engine::dispose);
           }),
           "tokens"_a, "vocabulary_size"_a)
      .def_prop_ro("byte_complete", &Engine::byte_complete)
      .def_prop_ro("memory_bytes",
                   [](Engine& self) {
                     nb::gil_scoped_release release;
                     const std::shared_lock lock(self.mutex());
                     return self.bytes_used();
                   })
      .def_prop_ro("statistics", [](Engine& self) {
        std::shared_lock lock(self.mutex(), std::defer_lock);
        {
          nb::gil_scoped_release release;
          lock.lock();
        }
        nb::dict result;
        result["terms"] = self.machine().automaton().terms().size();
        result["states"] = self.machine().automaton().size();
        result["frames"] = self.machine().frame_count();
        result["nodes"] = self.machine().size();
        result["rows"] = self.row_count();
        result["tries"] = self.trie_count();
        result["cache_bytes"] = self.cache_bytes();
        result["bytes"] = self.bytes_used();
        result["steps"] = self.machine().automaton().meter().steps;  // of the last call
        return result;
      });

  nb::class_<FlatGrammar>(m, "FlatGrammar", "A grammar as a list of instructions, independent of any engine but for known terms.")
      .def_prop_ro("memory_bytes", [](const FlatGrammar& self) { return self.program.bytes(); })
      .def("to_bytes", [](const FlatGrammar& self) { return to_bytes(pack(self.program)); })
      .def_static("from_bytes", [](nb::bytes data) { return FlatGrammar{unpack(view(data)), {}}; }, "data"_a)
      .def_prop_ro("rules", [](const FlatGrammar& self) { return self.program.rules; })
      .def_prop_ro("result", [](const FlatGrammar& self) { return self.program.result; })
      .def_prop_ro("instructions",  // kind, decoded, operands or text, low, high, required
                   [](const FlatGrammar& self) {
                     using Kind = Instruction::Kind;
                     const Program& program = self.program;
                     nb::list all;
                     for (const Instruction& one : program.instructions) {
                       nb::object operands;
                       if (one.kind == Kind::kLiteral) {
                         operands = to_bytes(std::string_view(program.text).substr(one.begin, one.end - one.begin));
                       } else {
                         nb::list list;
                         const bool are_ranges = one.kind == Kind::kBytes || one.kind == Kind::kChars;
                         for (uint32_t i = one.begin; i < one.end; ++i)
                           list.append(are_ranges ? nb::cast(program.ranges[i]) : nb::cast(program.operands[i]));
                         operands = nb::tuple(list);
                       }
                       all.append(nb::make_tuple(static_cast<int>(one.kind), one.decoded, operands, one.low, one.high, one.required));
                     }
                     return all;
                   })
      .def_prop_ro("shared", [](const FlatGrammar& self) {
        nb::list nodes;
        for (const FlatGrammar::Kept& kept : self.shared) nodes.append(kept.node);
        return nodes;
      });

  nb::class_<Flattener>(m, "Flattener")
      .def(nb::init<nb::handle>(), "classes"_a)
      .def("flatten", &Flattener::flatten, "grammar"_a, "known"_a, "host"_a, "vocabulary"_a.none(), "max_nodes"_a, "rewrite"_a.none());

  nb::class_<PlainTerms>(m, "PlainTerms", "The grammar of a plain JSON Schema, as a list of nodes.")
      .def("__len__", [](const PlainTerms& self) { return self.nodes.size(); });

  nb::class_<PlainPlanner>(m, "PlainPlanner", "Makes the terms of plain JSON Schemas of one dialect and policy.")
      .def("__init__",
           [](PlainPlanner* self, nb::dict keywords, bool reference_stands_alone, nb::sequence syntax, uint64_t max_cost, uint32_t max_depth) {
             if (nb::len(syntax) != PlainSyntax::kTerms) throw nb::value_error("plain planner: one term for each of PlainSyntax");
             PlainSyntax terms;
             for (size_t i = 0; i < PlainSyntax::kTerms; ++i) terms.terms[i] = syntax[i];
             new (self) PlainPlanner(std::move(keywords), reference_stands_alone, std::move(terms), {max_cost, max_depth});
           },
           "keywords"_a, "reference_stands_alone"_a, "syntax"_a, "max_cost"_a, "max_depth"_a);

  nb::class_<LarkReader>(m, "LarkReader", "Reads plain Lark grammars.")
      .def(nb::init<nb::object, nb::object>(), "library"_a, "leaf"_a)
      .def("read", &read_lark, "text"_a, "start"_a, "max_nodes"_a, "max_depth"_a);

  m.def("json_text", &json_text, "value"_a.none(), "max_depth"_a, "max_bytes"_a);
  m.def("plan_plain", &plan_plain, "text"_a, "max_depth"_a, "planners"_a, "add_planner"_a);
  m.def("couple", &couple, "engine"_a, "grammar"_a, "eos"_a, "limits"_a);

  nb::class_<Constraint>(m, "Constraint")
      .def("limited",
           [](const Constraint& self, const Limits& limits) {
             nb::gil_scoped_release release;
             return std::make_shared<Constraint>(self.shared_engine(), self.term(), self.eos(), limits);
           },
           "limits"_a)
      .def_prop_ro("is_searched", &Constraint::is_searched)
      .def_prop_ro("has_reach", &Constraint::has_reach)
      .def_prop_ro("has_scope", &Constraint::has_scope)
      .def_prop_ro("has_budgets", &Constraint::has_budgets)
      .def_prop_ro("has_budgets_in_scopes", &Constraint::has_budgets_in_scopes)
      .def("is_completable", &Constraint::is_completable, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("has_temperatures", &Constraint::has_temperatures)
      .def_prop_ro("has_token_sets", &Constraint::has_token_sets)
      .def_prop_ro("states_used", &Constraint::states_used);

  nb::class_<Matcher>(m, "Matcher")
      .def("__init__",
           [](Matcher* self, std::shared_ptr<const Constraint> constraint) {
             nb::gil_scoped_release release;
             new (self) Matcher(std::move(constraint));
           },
           "constraint"_a)
      .def(nb::init<const Matcher&>(), "other"_a)
      .def("fill_mask",
           [](Matcher& self, const Bitmask& bitmask, size_t row) {
             uint32_t* words = row_of(bitmask, row, self.constraint());
             nb::gil_scoped_release release;
             self.fill_mask(words);
           },
           "bitmask"_a.noconvert(), "row"_a = 0)
      .def("fill_mask_within",
           [](Matcher& self, const Bitmask& bitmask, size_t row, uint32_t budget) {
             uint32_t* words = row_of(bitmask, row, self.constraint());
             nb::gil_scoped_release release;
             self.fill_mask_within(words, budget);
           },
           "bitmask"_a.noconvert(), "row"_a, "budget"_a)
      .def("needs_budget_mask", &Matcher::needs_budget_mask, "budget"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("accept", &Matcher::accept, "token_id"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("accept_bytes",
           [](Matcher& self, nb::bytes data) {
             const std::string_view text = view(data);
             nb::gil_scoped_release release;
             return self.accept_bytes(text);
           },
           "data"_a)
      .def("validate",
           [](Matcher& self, const std::vector<uint32_t>& tokens) {
             nb::gil_scoped_release release;
             return self.validate(tokens);
           },
           "token_ids"_a)
      .def("validate_tree",
           [](Matcher& self, std::vector<uint32_t> tokens, std::vector<int32_t> parents) {
             const Branches tree = to_branches(std::move(tokens), std::move(parents));
             nb::gil_scoped_release release;
             return self.follow_tree(tree, nullptr);
           },
           "token_ids"_a, "parents"_a)
      .def("fill_mask_tree",
           [](Matcher& self, std::vector<uint32_t> tokens, std::vector<int32_t> parents, const Bitmask& bitmask, size_t row) {
             const Branches tree = to_branches(std::move(tokens), std::move(parents));
             uint32_t* rows = rows_of(bitmask, row, tree, self.constraint());
             nb::gil_scoped_release release;
             return self.follow_tree(tree, rows);
           },
           "token_ids"_a, "parents"_a, "bitmask"_a.noconvert(), "row"_a = 0)
      .def("allowed_tokens", &Matcher::allowed_tokens, "most"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("rollback", &Matcher::rollback, "count"_a)
      .def("reset", &Matcher::reset)
      .def("replay", &Matcher::replay, "other"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("forced_bytes",
           [](Matcher& self) {
             std::string forced;
             {
               nb::gil_scoped_release release;
               forced = self.forced_bytes();
             }
             return to_bytes(forced);
           })
      .def("uncertain_from",
           [](Matcher& self, nb::bytes forced, const std::vector<size_t>& starts) {
             for (size_t start : starts)
               if (start > forced.size()) throw nb::value_error("uncertain_from: a start lies beyond the text");
             const std::string_view text = view(forced);
             nb::gil_scoped_release release;
             return self.uncertain_from(text, starts);
           },
           "forced"_a, "starts"_a)
      .def("min_tokens",
           [](Matcher& self) -> std::optional<uint32_t> {
             nb::gil_scoped_release release;
             const uint32_t count = self.min_tokens();
             return count == kNone ? std::nullopt : std::optional<uint32_t>(count);
           })
      .def("shortest_completion", &Matcher::shortest_completion, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("is_accepting", &Matcher::is_accepting)
      .def_prop_ro("is_terminated", &Matcher::is_terminated)
      .def_prop_ro("history_length", &Matcher::history)
      .def_prop_ro("state_id", &Matcher::state_id, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("mask_id", &Matcher::mask_id, nb::call_guard<nb::gil_scoped_release>())
      .def("live_bytes",
           [](Matcher& self) {
             std::string live;
             {
               nb::gil_scoped_release release;
               live = self.live_bytes();
             }
             return to_bytes(live);
           })
      .def("live_specials", &Matcher::live_specials, nb::call_guard<nb::gil_scoped_release>())
      .def("temperature", &Matcher::temperature, nb::call_guard<nb::gil_scoped_release>())
      .def("rule_path", &Matcher::rule_path, nb::call_guard<nb::gil_scoped_release>());

  m.def("fill_masks",
        [](const std::vector<Matcher*>& matchers, const Bitmask& bitmask) {
          std::vector<uint32_t*> rows(matchers.size());
          for (size_t i = 0; i < matchers.size(); ++i) rows[i] = row_of(bitmask, i, matchers[i]->constraint());
          nb::gil_scoped_release release;
          fill_masks(matchers, rows);
        },
        "matchers"_a, "bitmask"_a.noconvert());

  m.def("fill_mask_trees",
        [](const std::vector<Matcher*>& matchers, std::vector<std::pair<std::vector<uint32_t>, std::vector<int32_t>>> trees,
           const Bitmask& bitmask) {
          if (matchers.size() != trees.size()) throw nb::value_error("fill_mask_trees: one tree for each matcher");
          std::vector<Branches> all;
          std::vector<uint32_t*> rows;
          size_t row = 0;
          for (size_t i = 0; i < trees.size(); ++i) {
            all.push_back(to_branches(std::move(trees[i].first), std::move(trees[i].second)));
            rows.push_back(rows_of(bitmask, row, all.back(), matchers[i]->constraint()));
            row += 1 + all.back().tokens.size();
          }
          nb::gil_scoped_release release;
          return follow_trees(matchers, all, rows);
        },
        "matchers"_a, "trees"_a, "bitmask"_a.noconvert());

  bind_charts(m);
  bind_unfolding(m);
}
