// Scores of the classes of a vocabulary from logits.
#include <nanobind/nanobind.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "diffusion/class_scores.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

Logits to_logits(const Array<float, 2>& values) { return {values.data(), values.shape(0), values.shape(1)}; }

Logits to_logits(const Array<float, 2>& values, const ClassLayout& layout) {
  check(values.shape(1) == layout.tokens(), "ClassLayout: logits must have one column for each token");
  return to_logits(values);
}

void check_wanted(const Logits& logits, const ClassLayout& layout, const Array<int64_t, 1>& rows, const Array<int32_t, 1>& classes,
                  size_t numbers) {
  check(rows.shape(0) == classes.shape(0) && rows.shape(0) == numbers, "ClassLayout: there must be a row, a class and a number for each wanted token");
  for (int64_t row : flat(rows))
    if (row < 0 || static_cast<size_t>(row) >= logits.rows) throw nb::index_error("ClassLayout: a row is out of range");
  if (!all_below(flat(classes), layout.classes())) throw nb::index_error("ClassLayout: a class is out of range");
}

nb::object maxima_of(const ClassLayout& self, const Array<float, 2>& values) {
  const Logits logits = to_logits(values, self);
  std::vector<float> made(logits.rows * self.classes());
  {
    nb::gil_scoped_release release;
    self.maxima(logits, made.data());
  }
  return to_numpy(std::move(made), {logits.rows, self.classes()});
}

nb::object find_of(const ClassLayout& self, const Array<float, 2>& values, const Array<int64_t, 1>& rows, const Array<int32_t, 1>& classes,
                   const Array<float, 1>& wanted) {
  const Logits logits = to_logits(values, self);
  check_wanted(logits, self, rows, classes, wanted.shape(0));
  std::vector<int32_t> made(rows.shape(0));
  {
    nb::gil_scoped_release release;
    self.find(logits, flat(rows), flat(classes), flat(wanted), made.data());
  }
  const size_t count = made.size();
  return to_numpy(std::move(made), {count});
}

nb::tuple sums_of(const ClassLayout& self, const Array<float, 2>& values, float scale, const Array<float, 1>& largest, bool with_moments,
                 bool with_maxima) {
  const Logits logits = to_logits(values, self);
  check(largest.shape(0) == logits.rows, "ClassLayout: there must be one largest logit for each row");
  const size_t cells = logits.rows * self.classes();
  std::vector<double> sums(cells), by_chunk(logits.rows * self.chunks()), moments(with_moments ? cells : 0);
  std::vector<float> maxima(with_maxima ? cells : 0);
  {
    nb::gil_scoped_release release;
    self.sums(logits, scale, flat(largest), sums.data(), by_chunk.data(), with_moments ? moments.data() : nullptr,
              with_maxima ? maxima.data() : nullptr);
  }
  const auto optional = [&](bool is_wanted, auto& made) {
    return is_wanted ? to_numpy(std::move(made), {logits.rows, self.classes()}) : nb::object(nb::none());
  };
  return nb::make_tuple(to_numpy(std::move(sums), {logits.rows, self.classes()}),
                        to_numpy(std::move(by_chunk), {logits.rows, self.chunks()}), optional(with_moments, moments),
                        optional(with_maxima, maxima));
}

nb::object draw_of(const ClassLayout& self, const Array<float, 2>& values, float scale, const Array<float, 1>& largest,
                   const Array<double, 2>& sums, const Array<double, 2>& by_chunk, const Array<int64_t, 1>& rows,
                   const Array<int32_t, 1>& classes, const Array<double, 1>& uniform) {
  const Logits logits = to_logits(values, self);
  check(largest.shape(0) == logits.rows && sums.shape(0) == logits.rows && sums.shape(1) == self.classes() &&
            by_chunk.shape(0) == logits.rows && by_chunk.shape(1) == self.chunks(),
        "ClassLayout: the sums are not those of these logits");
  check_wanted(logits, self, rows, classes, uniform.shape(0));
  std::vector<int32_t> made(rows.shape(0));
  {
    nb::gil_scoped_release release;
    self.draw(logits, scale, flat(largest), flat(sums), flat(by_chunk), flat(rows), flat(classes), flat(uniform), made.data());
  }
  const size_t count = made.size();
  return to_numpy(std::move(made), {count});
}

}  // namespace

void bind_class_scores(nb::module_& m) {
  m.def("row_maxima",
        [](const Array<float, 2>& values) {
          const Logits logits = to_logits(values);
          std::vector<float> made(logits.rows);
          {
            nb::gil_scoped_release release;
            row_maxima(logits, made.data());
          }
          return to_numpy(std::move(made), {logits.rows});
        },
        "logits"_a.noconvert());
  nb::class_<ClassLayout>(m, "ClassLayout")
      .def("__init__",
           [](ClassLayout* self, const Array<int32_t, 1>& classes_of, size_t classes) {
             check(classes > 0 && all_below(flat(classes_of), classes), "ClassLayout: a class is out of range");
             new (self) ClassLayout(flat(classes_of), classes);
           },
           "classes_of"_a.noconvert(), "classes"_a)
      .def("maxima", &maxima_of, "logits"_a.noconvert())
      .def("find", &find_of, "logits"_a.noconvert(), "rows"_a.noconvert(), "classes"_a.noconvert(), "values"_a.noconvert())
      .def("sums", &sums_of, "logits"_a.noconvert(), "scale"_a, "largest"_a.noconvert(), "with_moments"_a = false, "with_maxima"_a = false)
      .def("draw", &draw_of, "logits"_a.noconvert(), "scale"_a, "largest"_a.noconvert(), "sums"_a.noconvert(), "by_chunk"_a.noconvert(),
           "rows"_a.noconvert(), "classes"_a.noconvert(), "uniform"_a.noconvert());
}

}  // namespace structgen
