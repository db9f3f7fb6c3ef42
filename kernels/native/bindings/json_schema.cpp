// The planner of simple JSON Schemas, and JSON values of Python as text.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/text.h"
#include "frontends/json_schema/json_document.h"
#include "frontends/json_schema/python_json.h"
#include "frontends/json_schema/simple_schema.h"
#include "frontends/python_objects.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

constexpr size_t kFewBytes = 1 << 16;  // are read in half a millisecond, less than whoever gives up the GIL may wait for it

// A document of a text, which is read without the GIL; null where the text is not plain JSON (`JsonDocument::parse`).
std::unique_ptr<const JsonDocument> document_of(std::string_view text, size_t max_depth) {
  if (text.size() < kFewBytes) return JsonDocument::parse(std::string(text), max_depth);
  const nb::gil_scoped_release release;
  return JsonDocument::parse(std::string(text), max_depth);
}

// The terms of a simple schema, and the dialect of its planner; None where it is not simple.
//   planners: by what `$schema` declares or None: a planner, what makes its leaves, the dialect, and what
//     helps with more than leaves; or None for no draft.
//   add_planner: called with what `$schema` declares where that is not among the planners, returns one and keeps it.
nb::object plan_simple(nb::str text, size_t max_depth, nb::dict planners, nb::handle add_planner) {
  const std::optional<std::string_view> source = utf8(text);
  if (!source) return nb::none();
  std::unique_ptr<const JsonDocument> document = document_of(*source, max_depth);
  if (document == nullptr || document->kind(document->root()) != JsonKind::kObject) return nb::none();
  const JsonDocument::Member* member = document->find(document->root(), "$schema");
  nb::object declared = nb::none();
  if (member != nullptr && document->kind(member->value) == JsonKind::kString) declared = nb::cast(document->string(member->value));
  nb::object known = dict_value(planners, declared);
  if (!known.is_valid()) known = add_planner(declared);
  if (known.is_none()) return nb::none();
  const nb::object planner = known[0];
  const nb::ft_object_guard alone(planner);  // what it keeps is shared
  std::unique_ptr<SimpleTerms> terms = nb::cast<SimplePlanner&>(planner).plan(*document, known[1], known[3]);
  if (source->size() >= kFewBytes) {
    const nb::gil_scoped_release release;
    document.reset();
  }
  if (terms == nullptr) return nb::none();
  return nb::make_tuple(std::move(terms), known[2]);
}

// The value of a text; None for null, and where the text is not plain JSON (`JsonDocument::parse`).
nb::object read_json(nb::str text, size_t max_depth, nb::handle make_number, const KeptNames& kept, nb::handle keep) {
  const std::optional<std::string_view> source = utf8(text);
  if (!source) return nb::none();
  const std::unique_ptr<const JsonDocument> document = document_of(*source, max_depth);
  return document == nullptr ? nb::none() : json_value(*document, make_number, kept, keep);
}

// A notation of arguments: its terms, how its values are written from JSON, and what names and texts do not hold.
std::unique_ptr<const SimpleNotation> notation_of(nb::handle given) {
  if (given.is_none()) return nullptr;
  auto notation = std::make_unique<SimpleNotation>();
  using Around = std::optional<std::pair<std::string, std::string>>;
  const auto [terms, written, nested, name_end, text_end, around_repeated, has_entities, strips] =
      nb::cast<std::tuple<nb::tuple, nb::tuple, nb::tuple, std::string, std::string, Around, bool, bool>>(given);
  if (nb::len(terms) != SimpleNotation::kTerms) throw nb::value_error("simple planner: one term for each of SimpleNotation");
  for (size_t i = 0; i < SimpleNotation::kTerms; ++i) notation->terms[i] = terms[i];
  for (nb::handle one : written) notation->written.push_back({nb::cast<uint8_t>(one[0]), one[1], one[2]});
  if (nb::len(nested) != 0) {
    notation->array = {kArrayType, nested[0], nb::none()};
    notation->object = {kObjectType, nested[1], nb::none()};
  }
  notation->around_repeated = around_repeated;
  notation->has_entities = has_entities;
  notation->name_end = name_end;
  notation->text_end = text_end;
  notation->strips = strips;
  return notation;
}

}  // namespace

void bind_json_schema(nb::module_& m) {
  nb::class_<SimpleTerms>(m, "SimpleTerms", "The grammar of a simple JSON Schema, as a list of nodes.")
      .def("__len__", [](const SimpleTerms& self) { return self.nodes.size(); })
      .def_ro("unknown", &SimpleTerms::unknown)
      .def_prop_ro("memory_bytes", &SimpleTerms::bytes);

  nb::class_<SimplePlanner>(m, "SimplePlanner", "Makes the terms of simple JSON Schemas of one dialect and policy.")
      .def("__init__",
           [](SimplePlanner* self, nb::dict keywords, bool reference_stands_alone, nb::sequence syntax, uint64_t max_cost, uint32_t max_depth,
              bool closes, bool requires_all, nb::handle notation, nb::sequence others) {
             if (nb::len(syntax) != SimpleSyntax::kTerms) throw nb::value_error("simple planner: one term for each of SimpleSyntax");
             SimpleSyntax terms;
             for (size_t i = 0; i < SimpleSyntax::kTerms; ++i) terms.terms[i] = syntax[i];
             new (self) SimplePlanner(std::move(keywords), reference_stands_alone, std::move(terms), {max_cost, max_depth}, closes, requires_all, notation_of(notation), others);
           },
           "keywords"_a, "reference_stands_alone"_a, "syntax"_a, "max_cost"_a, "max_depth"_a, "closes"_a = false, "requires_all"_a = false,
           "notation"_a = nb::none(), "others"_a = nb::tuple());

  m.def("json_text", &json_text, "value"_a.none(), "max_depth"_a, "max_bytes"_a);
  m.def("read_json", &read_json, "text"_a, "max_depth"_a, "make_number"_a, "kept"_a = KeptNames(), "keep"_a = nb::none());
  m.def("plan_simple", &plan_simple, "text"_a, "max_depth"_a, "planners"_a, "add_planner"_a);
}

}  // namespace structgen
