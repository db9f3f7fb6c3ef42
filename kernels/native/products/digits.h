// Rows of a product of integers: each row of floats in two digits of 7 bits, and back.  The torch reference is
// structgen/models/products.py.
#pragma once

#include <cstddef>

namespace structgen {

// Writes the high digits of `rows` rows of `width` floats, which are `stride` apart, then the low ones, and the scale
// of each row: x = scale * (high + low / 126).
void write_digits(const float* x, size_t rows, size_t stride, size_t width, float* digits, float* scales);

// Adds the product of each row's low digits, which come after those of the high ones, and multiplies by its scale;
// the first `rows` rows are the result.
void join_digits(float* products, size_t rows, size_t width, const float* scales);

}  // namespace structgen
