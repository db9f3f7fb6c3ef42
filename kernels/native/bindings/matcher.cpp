// The moving state of one sequence over a constraint, and masks of several at once.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bindings.h"
#include "bindings/text.h"
#include "matcher/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

uint32_t* row_of(const Bitmask& mask, size_t row, const Constraint& constraint) {
  const size_t words = constraint.words();
  if (mask.shape(1) != words)
    throw nb::value_error(("bitmask: rows have " + std::to_string(mask.shape(1)) + " words; the vocabulary needs ceil(V / 32) = " +
                           std::to_string(words)).c_str());
  if (row >= mask.shape(0))
    throw nb::index_error(("bitmask: row " + std::to_string(row) + " of " + std::to_string(mask.shape(0))).c_str());
  return reinterpret_cast<uint32_t*>(mask.data()) + row * words;
}

Branches take_branches(const char* call, nb::handle token_ids, nb::handle of_each, const Constraint& constraint) {
  const uint32_t size = constraint.vocabulary_size();
  auto tokens = take<std::vector<uint32_t>>(call, "token_ids", token_ids, size);
  if (std::any_of(tokens.begin(), tokens.end(), [&](uint32_t token) { return token >= size; })) refuse_argument(call, "token_ids", token_ids, size);
  auto parents = take<std::vector<int32_t>>(call, "parents", of_each);
  if (tokens.size() != parents.size())
    throw nb::value_error(("tree: " + std::to_string(tokens.size()) + " tokens and " + std::to_string(parents.size()) + " parents").c_str());
  for (size_t i = 0; i < parents.size(); ++i)
    if (parents[i] < -1 || parents[i] >= static_cast<int64_t>(i))
      throw nb::value_error(("tree: a parent stands before its child, or is -1; token " + std::to_string(i) + " has the parent " +
                             std::to_string(parents[i])).c_str());
  return {std::move(tokens), std::move(parents)};
}

// The index of a row; row_of() checks that the row is there.
size_t take_row(const char* call, nb::handle row, const Bitmask& mask) { return take<size_t>(call, "row", row, mask.shape(0)); }

// The first of the rows from `row` on of a tree; all of them are there.
uint32_t* rows_of(const Bitmask& mask, size_t row, const Branches& tree, const Constraint& constraint) {
  if (row < mask.shape(0)) row_of(mask, row + std::min(tree.tokens.size(), SIZE_MAX - row), constraint);
  return row_of(mask, row, constraint);
}

// Masks, and what they allow.
void bind_masks(nb::class_<Matcher>& matcher) {
  matcher
      .def("fill_mask",
           [](Matcher& self, nb::handle bitmask, nb::handle row, nb::handle budget) {
             const GivenMask mask("fill_mask", bitmask);
             uint32_t* words = row_of(*mask, take_row("fill_mask", row, *mask), self.constraint());
             const std::optional<uint32_t> left = take_limit("fill_mask", "budget", budget);
             nb::gil_scoped_release release;
             if (left && self.needs_budget_mask(*left))
               self.fill_mask_within(words, *left);
             else
               self.fill_mask(words);
           },
           nb::sig("def fill_mask(self, bitmask: Any, row: int = 0, *, budget: int | None = None) -> None"),
           "bitmask"_a.none(), "row"_a.none() = 0, nb::kw_only(), "budget"_a.none() = nb::none(),
           "Write the mask of the next token into one row of ``bitmask``.\n\n"
           "Args:\n"
           "    bitmask: int32 array or CPU tensor, contiguous, ``[rows, ceil(V / 32)]``.\n"
           "    row: the row to write.\n"
           "    budget: how many tokens are left, EOS not counted.  The mask then allows only tokens after which the\n"
           "        output can still be completed within the budget; with 0 it allows nothing but EOS.  None is no limit.\n\n"
           "Raises:\n"
           "    ValueError: the rows have the wrong width, or the budget is negative.\n"
           "    IndexError: there is no such row.\n"
           "    LimitExceeded: a bound of the constraint's limits was reached.\n")
      .def("fill_mask_within",
           [](Matcher& self, nb::handle bitmask, nb::handle row, nb::handle budget) {
             const GivenMask mask("fill_mask_within", bitmask);
             uint32_t* words = row_of(*mask, take_row("fill_mask_within", row, *mask), self.constraint());
             const uint32_t left = take_count("fill_mask_within", "budget", budget);
             nb::gil_scoped_release release;
             self.fill_mask_within(words, left);
           },
           nb::sig("def fill_mask_within(self, bitmask: Any, row: int, budget: int) -> None"), "bitmask"_a.none(),
           "row"_a.none(), "budget"_a.none())
      .def("needs_budget_mask",
           [](Matcher& self, nb::handle budget) {
             const uint32_t left = take_count("needs_budget_mask", "budget", budget);
             nb::gil_scoped_release release;
             return self.needs_budget_mask(left);
           },
           nb::sig("def needs_budget_mask(self, budget: int) -> bool"), "budget"_a.none())
      .def("allowed_tokens",
           [](Matcher& self, nb::handle most) {
             const uint32_t count = take_count("allowed_tokens", "most", most);
             nb::gil_scoped_release release;
             return self.allowed_tokens(count);
           },
           nb::sig("def allowed_tokens(self, most: int) -> list[int]"), "most"_a.none())
      .def("temperature", &Matcher::temperature, nb::call_guard<nb::gil_scoped_release>())
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
      .def_prop_ro("mask_id", &Matcher::mask_id, nb::call_guard<nb::gil_scoped_release>());
}

// Trees of tokens that may follow.
void bind_trees(nb::class_<Matcher>& matcher) {
  matcher
      .def("validate_tree",
           [](Matcher& self, nb::handle token_ids, nb::handle parents) {
             const Branches tree = take_branches("validate_tree", token_ids, parents, self.constraint());
             nb::gil_scoped_release release;
             return self.follow_tree(tree, nullptr);
           },
           nb::sig("def validate_tree(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[bool]"),
           "token_ids"_a.none(), "parents"_a.none())
      .def("fill_mask_tree",
           [](Matcher& self, nb::handle token_ids, nb::handle parents, nb::handle bitmask, nb::handle row) {
             const Branches tree = take_branches("fill_mask_tree", token_ids, parents, self.constraint());
             const GivenMask mask("fill_mask_tree", bitmask);
             uint32_t* rows = rows_of(*mask, take_row("fill_mask_tree", row, *mask), tree, self.constraint());
             nb::gil_scoped_release release;
             return self.follow_tree(tree, rows);
           },
           nb::sig("def fill_mask_tree(self, token_ids: Sequence[int], parents: Sequence[int], bitmask: Any, row: int = 0) -> list[bool]"),
           "token_ids"_a.none(), "parents"_a.none(), "bitmask"_a.none(), "row"_a.none() = 0);
}

// What changes the state, and what would be accepted.
void bind_moves(nb::class_<Matcher>& matcher) {
  matcher
      .def("accept",
           [](Matcher& self, nb::handle token_id) {
             const auto token = take<uint32_t>("accept", "token_id", token_id, self.constraint().vocabulary_size());
             if (const std::optional<bool> known = self.accept_known(token)) return *known;
             nb::gil_scoped_release release;
             return self.accept(token);
           },
           nb::sig("def accept(self, token_id: int) -> bool"), "token_id"_a.none())
      .def("accept_bytes",
           [](Matcher& self, nb::handle data) {
             if (!nb::isinstance<nb::bytes>(data)) refuse_argument("accept_bytes", "data", data);
             const std::string_view text = view(nb::borrow<nb::bytes>(data));
             nb::gil_scoped_release release;
             return self.accept_bytes(text);
           },
           nb::sig("def accept_bytes(self, data: bytes) -> int"), "data"_a.none())
      .def("validate",
           [](Matcher& self, nb::handle token_ids) {
             const auto tokens = take<std::vector<uint32_t>>("validate", "token_ids", token_ids, self.constraint().vocabulary_size());
             nb::gil_scoped_release release;
             return self.validate(tokens);
           },
           nb::sig("def validate(self, token_ids: Sequence[int]) -> int"), "token_ids"_a.none())
      .def("rollback",
           [](Matcher& self, nb::handle count) {
             const auto steps = take<size_t>("rollback", "count", count, self.history());
             if (steps > self.history()) refuse_argument("rollback", "count", count, self.history());
             self.rollback(steps);
           },
           nb::sig("def rollback(self, count: int) -> None"), "count"_a.none())
      .def("reset", &Matcher::reset)
      .def("replay", &Matcher::replay, "other"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("taken",
           [](const Matcher& self) {
             nb::list steps;
             self.for_each_step([&](uint32_t token, std::string_view text) {
               if (token == kNone)
                 steps.append(to_bytes(text));
               else
                 steps.append(nb::int_(token));
             });
             return steps;
           },
           "Return what was taken since the start: ids of tokens, and the bytes of texts that had no token boundaries.");
}

// What completes the text.
void bind_completions(nb::class_<Matcher>& matcher) {
  matcher
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
      .def("completes_within",
           [](Matcher& self, nb::handle budget) {
             const uint32_t left = take_count("completes_within", "budget", budget);
             nb::gil_scoped_release release;
             return self.completes_within(left);
           },
           nb::sig("def completes_within(self, budget: int) -> bool"), "budget"_a.none())
      .def("shortest_completion", &Matcher::shortest_completion, nb::call_guard<nb::gil_scoped_release>());
}

// Properties of the state.
void bind_state(nb::class_<Matcher>& matcher) {
  matcher
      .def_prop_ro("is_accepting", &Matcher::is_accepting)
      .def_prop_ro("is_terminated", &Matcher::is_terminated)
      .def_prop_ro("history_length", &Matcher::history)
      .def_prop_rw(
          "limit",
          [](const Matcher& self) { return self.limit() == kNone ? std::nullopt : std::optional<uint32_t>(self.limit()); },
          [](Matcher& self, nb::handle limit) { self.set_limit(take_limit("limit", "limit", limit).value_or(kNone)); }, "limit"_a.none())
      .def_prop_ro("state_id", &Matcher::state_id, nb::call_guard<nb::gil_scoped_release>())
      .def("rule_path", &Matcher::rule_path, nb::call_guard<nb::gil_scoped_release>());
}

// Masks of several matchers.
void bind_batches(nb::module_& m) {
  m.def("fill_masks",
        [](nb::handle given, nb::handle bitmask) {
          const std::vector<Matcher*> matchers = take_matchers("fill_masks", given);
          const GivenMask mask("fill_masks", bitmask);
          std::vector<uint32_t*> rows(matchers.size());
          for (size_t i = 0; i < matchers.size(); ++i) rows[i] = row_of(*mask, i, matchers[i]->constraint());
          nb::gil_scoped_release release;
          fill_masks(matchers, rows);
        },
        nb::sig("def fill_masks(matchers: Sequence[Matcher], bitmask: Any) -> None"), "matchers"_a.none(), "bitmask"_a.none());

  m.def("fill_mask_trees",
        [](nb::handle given, nb::handle given_trees, nb::handle bitmask) {
          const std::vector<Matcher*> matchers = take_matchers("fill_mask_trees", given);
          const auto trees = take<std::vector<std::pair<nb::object, nb::object>>>("fill_mask_trees", "trees", given_trees);
          const GivenMask mask("fill_mask_trees", bitmask);
          if (matchers.size() != trees.size()) throw nb::value_error("fill_mask_trees: one tree for each matcher");
          std::vector<Branches> all;
          std::vector<uint32_t*> rows;
          size_t row = 0;
          for (size_t i = 0; i < trees.size(); ++i) {
            all.push_back(take_branches("fill_mask_trees", trees[i].first, trees[i].second, matchers[i]->constraint()));
            rows.push_back(rows_of(*mask, row, all.back(), matchers[i]->constraint()));
            row += 1 + all.back().tokens.size();
          }
          nb::gil_scoped_release release;
          return follow_trees(matchers, all, rows);
        },
        nb::sig("def fill_mask_trees(matchers: Sequence[Matcher], trees: Sequence[tuple[Sequence[int], Sequence[int]]], bitmask: Any) -> list[list[bool]]"),
        "matchers"_a.none(), "trees"_a.none(), "bitmask"_a.none());
}

}  // namespace

void bind_matcher(nb::module_& m) {
  nb::class_<Matcher> matcher(m, "Matcher");
  matcher
      .def("__init__",
           [](Matcher* self, std::shared_ptr<const Constraint> constraint) {
             nb::gil_scoped_release release;
             new (self) Matcher(std::move(constraint));
           },
           "constraint"_a)
      .def(nb::init<const Matcher&>(), "other"_a)
      .def("__init__", [](Matcher*, nb::handle given) { refuse_argument("Matcher", "constraint", given); },
           nb::sig("def __init__(self, constraint: Any) -> None"), "constraint"_a.none() = nb::none());
  bind_masks(matcher);
  bind_moves(matcher);
  bind_trees(matcher);
  bind_completions(matcher);
  bind_state(matcher);
  bind_batches(m);
}

}  // namespace structgen
