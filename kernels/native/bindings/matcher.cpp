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

#include "bindings/bindings.h"
#include "bindings/text.h"
#include "matcher/matcher.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

using Bitmask = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

constexpr uint32_t kMaxBudget = uint32_t{1} << 31;

uint32_t* row_of(const Bitmask& mask, size_t row, const Constraint& constraint) {
  const size_t words = constraint.words();
  if (mask.shape(1) != words)
    throw nb::value_error(("bitmask: rows have " + std::to_string(mask.shape(1)) + " words; the vocabulary needs ceil(V / 32) = " +
                           std::to_string(words)).c_str());
  if (row >= mask.shape(0))
    throw nb::index_error(("bitmask: row " + std::to_string(row) + " of " + std::to_string(mask.shape(0))).c_str());
  return reinterpret_cast<uint32_t*>(mask.data()) + row * words;
}

// A budget in tokens, nothing for None. A larger budget than 2**31 has the same masks.
std::optional<uint32_t> to_budget(nb::handle budget) {
  if (budget.is_none()) return std::nullopt;
  int overflow = 0;
  const int64_t count = PyLong_AsLongLongAndOverflow(budget.ptr(), &overflow);
  if (count == -1 && PyErr_Occurred()) throw nb::python_error();
  if (overflow > 0) return kMaxBudget;
  if (count < 0)  // also where the count is too small for an int64
    throw nb::value_error(("fill_mask: the budget is " + std::string(nb::str(budget).c_str()) +
                           "; it counts the tokens that are left; pass 0 where nothing but EOS may come, or None for no limit").c_str());
  return static_cast<uint32_t>(std::min<int64_t>(count, kMaxBudget));
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

// Masks, and what they allow.
void bind_masks(nb::class_<Matcher>& matcher) {
  matcher
      .def("fill_mask",
           [](Matcher& self, const Bitmask& bitmask, size_t row, nb::handle budget) {
             uint32_t* words = row_of(bitmask, row, self.constraint());
             const std::optional<uint32_t> left = to_budget(budget);
             nb::gil_scoped_release release;
             if (left && self.needs_budget_mask(*left))
               self.fill_mask_within(words, *left);
             else
               self.fill_mask(words);
           },
           "bitmask"_a.noconvert(), "row"_a = 0, nb::kw_only(), "budget"_a.none() = nb::none(),
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
           [](Matcher& self, const Bitmask& bitmask, size_t row, uint32_t budget) {
             uint32_t* words = row_of(bitmask, row, self.constraint());
             nb::gil_scoped_release release;
             self.fill_mask_within(words, budget);
           },
           "bitmask"_a.noconvert(), "row"_a, "budget"_a)
      .def("needs_budget_mask", &Matcher::needs_budget_mask, "budget"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("allowed_tokens", &Matcher::allowed_tokens, "most"_a, nb::call_guard<nb::gil_scoped_release>())
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
           "token_ids"_a, "parents"_a, "bitmask"_a.noconvert(), "row"_a = 0);
}

// What changes the state, and what would be accepted.
void bind_moves(nb::class_<Matcher>& matcher) {
  matcher
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
      .def("rollback", &Matcher::rollback, "count"_a)
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
      .def("completes_within", &Matcher::completes_within, "budget"_a, nb::call_guard<nb::gil_scoped_release>())
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
          [](Matcher& self, std::optional<uint32_t> limit) { self.set_limit(limit.value_or(kNone)); }, "limit"_a.none())
      .def_prop_ro("state_id", &Matcher::state_id, nb::call_guard<nb::gil_scoped_release>())
      .def("rule_path", &Matcher::rule_path, nb::call_guard<nb::gil_scoped_release>());
}

// Masks of several matchers.
void bind_batches(nb::module_& m) {
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
      .def(nb::init<const Matcher&>(), "other"_a);
  bind_masks(matcher);
  bind_moves(matcher);
  bind_trees(matcher);
  bind_completions(matcher);
  bind_state(matcher);
  bind_batches(m);
}

}  // namespace structgen
