// Digits of the rows of products with weights of 8 bits.
#include <nanobind/nanobind.h>

#include <cstdint>

#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "products/digits.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace structgen {

namespace {

using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Scales = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void write(const Rows& x, const Floats& digits, const Scales& scales) {
  const size_t rows = x.shape(0), width = x.shape(1);
  check(width > 0 && (x.stride(1) == 1 || width == 1) && (rows < 2 || x.stride(0) >= 0), "write_digits: the elements of a row must be contiguous");
  check(digits.shape(0) == 2 * rows && digits.shape(1) == width && scales.shape(0) == rows, "write_digits: there must be two rows of digits and a scale for each row");
  nb::gil_scoped_release release;
  write_digits(x.data(), rows, static_cast<size_t>(x.stride(0)), width, digits.data(), scales.data());
}

void join(const Floats& products, const Scales& scales) {
  const size_t rows = scales.shape(0);
  check(products.shape(0) == 2 * rows, "join_digits: there must be two rows of products for each scale");
  nb::gil_scoped_release release;
  join_digits(products.data(), rows, products.shape(1), scales.data());
}

}  // namespace

void bind_products(nb::module_& m) {
  m.def("write_digits", &write, "x"_a.noconvert(), "digits"_a.noconvert(), "scales"_a.noconvert());
  m.def("join_digits", &join, "products"_a.noconvert(), "scales"_a.noconvert());
}

}  // namespace structgen
