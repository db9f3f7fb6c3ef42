// Which tokens a tokenizer writes after which; Python is asked what the tokenizer does.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/text.h"
#include "canonical/canonical.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

using MaskRow = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::vector<uint32_t> to_words(nb::handle row, size_t words) {
  const auto array = nb::cast<Array<int32_t, 1>>(row);
  check(array.shape(0) == words, "canonical: a row has another width than the vocabulary");
  return {array.data(), array.data() + words};
}

// What a Python object says; see structgen/engine/tokenizers/answers.py.
class AskedTokenizer : public Tokenizer {
 public:
  AskedTokenizer(nb::object asked, size_t words) : asked_(std::move(asked)), words_(words) {}
  ~AskedTokenizer() override {
    const nb::gil_scoped_acquire acquire;
    asked_.reset();
  }
  AskedTokenizer(const AskedTokenizer&) = delete;
  AskedTokenizer& operator=(const AskedTokenizer&) = delete;

  uint32_t move(uint32_t readings, uint32_t kind, bool splits) override {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<uint32_t>(asked_.attr("move")(readings, kind, splits));
  }
  uint32_t unite(uint32_t one, uint32_t other) override {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<uint32_t>(asked_.attr("unite")(one, other));
  }
  Place place(uint32_t place) override {
    const nb::gil_scoped_acquire acquire;
    const nb::tuple found = nb::cast<nb::tuple>(asked_.attr("place")(place));
    Place made{nb::cast<bool>(found[0]), nb::cast<bool>(found[1]), {}};
    for (char byte : view(nb::cast<nb::bytes>(found[2]))) made.free.insert(static_cast<uint8_t>(byte));
    return made;
  }
  PlaceRows rows(uint32_t place) override {
    const nb::gil_scoped_acquire acquire;
    const nb::tuple found = nb::cast<nb::tuple>(asked_.attr("rows")(place));
    return {to_words(found[0], words_), to_words(found[1], words_)};
  }
  bool is_settled(uint32_t rules) override {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<bool>(asked_.attr("is_settled")(rules));
  }
  Rules rules(uint32_t rules) override {
    const nb::gil_scoped_acquire acquire;
    const nb::tuple found = nb::cast<nb::tuple>(asked_.attr("rules")(rules));
    return {to_words(found[0], words_), to_words(found[1], words_)};
  }
  uint64_t after(uint32_t place, uint32_t rules, uint32_t token, bool joins) override {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<uint64_t>(asked_.attr("after")(place, rules, token, joins));
  }
  bool lets_through(uint32_t rules, std::string_view text) override {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<bool>(asked_.attr("lets_through")(rules, to_bytes(text)));
  }
  bool settles(uint32_t rules, uint8_t byte) override {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<bool>(asked_.attr("settles")(rules, byte));
  }
  bool has_tokens(std::string_view text) override {
    const nb::gil_scoped_acquire acquire;
    return nb::cast<bool>(asked_.attr("has_tokens")(to_bytes(text)));
  }

 private:
  nb::object asked_;
  const size_t words_;
};

std::vector<uint32_t> to_numbers(const Array<int32_t, 1>& array) { return {array.data(), array.data() + array.size()}; }

// Whether each is below `bound`, or -1 where that may be.
void check_ids(std::span<const uint32_t> ids, size_t bound, bool may_be_none) {
  check(std::all_of(ids.begin(), ids.end(), [&](uint32_t id) { return id < bound || (may_be_none && id == kNone); }), "canonical: an id is out of range");
}

std::shared_ptr<TokenPairs> make_pairs(size_t tokens, const Array<int32_t, 2>& merges, const Array<int32_t, 1>& ranks, const Array<int32_t, 1>& units) {
  check(merges.shape(1) == 3, "TokenPairs: a merge is two parts and the token that they make");
  check(ranks.size() == merges.shape(0) && std::is_sorted(ranks.data(), ranks.data() + ranks.size()) && all_below(flat(ranks), INT32_MAX),
        "TokenPairs: a merge has a rank, and ranks ascend");
  check(all_below(flat(merges), tokens) && all_below(flat(units), tokens), "TokenPairs: an id is out of range");
  std::vector<TokenPairs::Merge> all(merges.shape(0));
  for (size_t i = 0; i < all.size(); ++i) {
    const int32_t* const one = merges.data() + 3 * i;
    all[i] = {static_cast<uint32_t>(one[0]), static_cast<uint32_t>(one[1]), static_cast<uint32_t>(one[2]),
              static_cast<uint32_t>(ranks.data()[i])};
  }
  const std::vector<uint32_t> begin = to_numbers(units);
  const nb::gil_scoped_release release;
  return std::make_shared<TokenPairs>(tokens, all, begin);
}

nb::object reachable(const TokenPairs& self) {
  std::vector<uint8_t> made(self.tokens());
  for (uint32_t token = 0; token < made.size(); ++token) made[token] = self.reachable(token);
  const size_t size = made.size();
  return to_numpy(std::move(made), {size});
}

bool conflict(const TokenPairs& self, uint32_t left, uint32_t right) {
  check(left < self.tokens() && right < self.tokens() && self.reachable(left) && self.reachable(right), "TokenPairs: a token is not reachable");
  return self.conflict(left, right);
}

void make_canonical(Canonical* self, std::shared_ptr<const TokenPairs> pairs, nb::object tokenizer, const Array<uint8_t, 1>& kinds,
                    const Array<int32_t, 1>& shapes, const Array<int32_t, 1>& shape_begins, const Array<uint8_t, 1>& classes,
                    const Array<uint8_t, 1>& has_rest, uint32_t class_count, const Array<int32_t, 1>& settled, const Array<int32_t, 1>& single,
                    const Array<int32_t, 1>& by_length, nb::bytes harmless, bool has_rules) {
  const size_t size = pairs->tokens(), count = has_rest.size();
  check(kinds.size() == size && shapes.size() == size && settled.size() == size && single.size() == 256 && shape_begins.size() == count + 1,
        "Canonical: arrays differ in size");
  CanonicalTokens tokens;
  tokens.kinds.assign(kinds.data(), kinds.data() + size);
  tokens.shapes = to_numbers(shapes);
  tokens.shape_begins = to_numbers(shape_begins);
  tokens.classes.assign(classes.data(), classes.data() + classes.size());
  tokens.has_rest.assign(has_rest.data(), has_rest.data() + count);
  tokens.class_count = class_count;
  tokens.settled = to_numbers(settled);
  std::copy(single.data(), single.data() + 256, tokens.single.begin());
  tokens.by_length = to_numbers(by_length);
  for (char byte : view(harmless)) tokens.harmless.insert(static_cast<uint8_t>(byte));
  tokens.has_rules = has_rules;
  check_ids(tokens.shapes, count, false);
  check_ids(tokens.shape_begins, classes.size() + 1, false);
  check(std::is_sorted(tokens.shape_begins.begin(), tokens.shape_begins.end()), "Canonical: shapes overlap");
  check(std::all_of(tokens.classes.begin(), tokens.classes.end(), [&](uint8_t kind) { return kind < class_count; }), "Canonical: a class is out of range");
  check_ids(tokens.settled, size_t{1} << CanonicalState::kBits, true);
  check_ids(tokens.single, size, true);
  check_ids(tokens.by_length, size, false);
  for (uint32_t token = 0; token < size; ++token)
    check(tokens.kinds[token] <= CanonicalTokens::kSpecial && (tokens.kinds[token] != CanonicalTokens::kPlain || pairs->reachable(token)),
          "Canonical: the kind of a token is wrong");
  auto asked = std::make_unique<AskedTokenizer>(std::move(tokenizer), (size + 31) / 32);
  new (self) Canonical(std::move(pairs), std::move(tokens), std::move(asked));
}

uint32_t* words_of(const MaskRow& row, const Canonical& canonical) {
  check(row.shape(0) == canonical.words(), "canonical: a row has another width than the vocabulary");
  return reinterpret_cast<uint32_t*>(row.data());
}

void check_state(const Canonical& self, uint64_t state) { check(self.is_state(state), "canonical: there is no such state"); }

void check_state(const Canonical& self, uint64_t state, const Matcher& matcher) {
  check_state(self, state);
  check(matcher.constraint().words() == self.words(), "canonical: the matcher is of another vocabulary");
}

void check_token(const Canonical& self, uint32_t token) { check(token < self.tokens(), "canonical: a token is out of range"); }

}  // namespace

void bind_canonical(nb::module_& m) {
  nb::exception<SearchLimit>(m, "SearchLimit");
  nb::class_<TokenPairs>(m, "TokenPairs")
      .def(nb::new_(&make_pairs), "tokens"_a, "merges"_a, "ranks"_a, "units"_a)
      .def("reachable", &reachable)
      .def("conflict", &conflict, "left"_a, "right"_a);
  nb::class_<Canonical>(m, "Canonical")
      .def("__init__", &make_canonical, "pairs"_a, "tokenizer"_a, "kinds"_a, "shapes"_a, "shape_begins"_a, "classes"_a, "has_rest"_a, "class_count"_a,
           "settled"_a, "single"_a, "by_length"_a, "harmless"_a, "has_rules"_a)
      .def_prop_ro("memory_bytes",
                   [](Canonical& self) {
                     const nb::gil_scoped_release release;
                     return self.memory_bytes();
                   })
      .def("set_limit",
           [](Canonical& self, size_t bytes) {
             const nb::gil_scoped_release release;
             self.set_limit(bytes);
           },
           "bytes"_a)
      .def("drop",
           [](Canonical& self) {
             const nb::gil_scoped_release release;
             self.drop();
           })
      .def_prop_ro_static("start", [](nb::handle) { return Canonical::kStart; })
      .def("after",
           [](Canonical& self, uint64_t state, uint32_t token) {
             check_state(self, state);
             check_token(self, token);
             const nb::gil_scoped_release release;
             return self.after(state, token);
           },
           "state"_a, "token"_a)
      .def("may_end",
           [](Canonical& self, uint64_t state) {
             check_state(self, state);
             const nb::gil_scoped_release release;
             return self.may_end(state);
           },
           "state"_a)
      .def("mask",
           [](Canonical& self, uint64_t state, const MaskRow& row) {
             check_state(self, state);
             uint32_t* const words = words_of(row, self);
             const nb::gil_scoped_release release;
             self.mask(state, words);
           },
           "state"_a, "row"_a.noconvert())
      .def("completes",
           [](Canonical& self, Matcher& matcher, uint64_t state, uint64_t steps) {
             check_state(self, state, matcher);
             const nb::gil_scoped_release release;
             return self.completes(matcher, state, steps);
           },
           "matcher"_a, "state"_a, "steps"_a)
      .def("follows",
           [](Canonical& self, Matcher& matcher, uint64_t state, uint32_t token, uint64_t steps) {
             check_state(self, state, matcher);
             check_token(self, token);
             const nb::gil_scoped_release release;
             return self.follows(matcher, state, token, steps);
           },
           "matcher"_a, "state"_a, "token"_a, "steps"_a)
      .def("allowed",
           [](Canonical& self, Matcher& matcher, uint64_t state, bool is_completable, size_t most, uint64_t steps, const MaskRow& row) {
             check_state(self, state, matcher);
             uint32_t* const words = words_of(row, self);
             const nb::gil_scoped_release release;
             return self.allowed(matcher, state, is_completable, most, steps, words);
           },
           "matcher"_a, "state"_a, "is_completable"_a, "most"_a, "steps"_a, "row"_a.noconvert())
      .def("narrow",
           [](Canonical& self, Matcher& matcher, uint64_t state, bool is_completable, size_t most, uint64_t steps, const MaskRow& row) {
             check_state(self, state, matcher);
             uint32_t* const words = words_of(row, self);
             const nb::gil_scoped_release release;
             return self.narrow(matcher, state, is_completable, most, steps, words);
           },
           "matcher"_a, "state"_a, "is_completable"_a, "most"_a, "steps"_a, "row"_a.noconvert())
      .def("write_tokens",
           [](const Canonical& self, const std::vector<uint32_t>& tokens, const MaskRow& row) {
             uint32_t* const words = words_of(row, self);
             std::fill_n(words, self.words(), 0);
             for (uint32_t token : tokens) {
               check_token(self, token);
               words[token >> 5] |= uint32_t{1} << (token & 31);
             }
           },
           "tokens"_a, "row"_a.noconvert());
}

}  // namespace structgen
