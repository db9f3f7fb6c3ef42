#include "products/digits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/portable.h"

namespace structgen {

namespace {

constexpr float kDigit = 63;
constexpr float kSmallest = 1e-30f;
// The sum with it has no bits after the point, so adding and subtracting it rounds half to even.
constexpr float kRound = 12582912;

}  // namespace

STRUCTGEN_WIDE void write_digits(const float* x, size_t rows, size_t stride, size_t width, float* digits, float* scales) {
  for (size_t row = 0; row < rows; ++row) {
    const float* from = x + row * stride;
    // Bits of floats without their signs are ordered as the floats are, and NaN is the largest.
    uint32_t largest = 0;
    for (size_t at = 0; at < width; ++at) largest = std::max(largest, std::bit_cast<uint32_t>(from[at]) & 0x7fffffffu);
    float scale = std::bit_cast<float>(largest) / kDigit;
    if (scale < kSmallest) scale = kSmallest;
    scales[row] = scale;
    float* high = digits + row * width;
    float* low = digits + (rows + row) * width;
    for (size_t at = 0; at < width; ++at) {
      const float digit = from[at] / scale;
      const float whole = (digit + kRound) - kRound;
      high[at] = whole;
      low[at] = (digit - whole) * (2 * kDigit);
    }
  }
}

STRUCTGEN_WIDE void join_digits(float* products, size_t rows, size_t width, const float* scales) {
  for (size_t row = 0; row < rows; ++row) {
    float* high = products + row * width;
    const float* low = products + (rows + row) * width;
    const float scale = scales[row];
    for (size_t at = 0; at < width; ++at) high[at] = std::fma(low[at], 1 / (2 * kDigit), high[at]) * scale;
  }
}

}  // namespace structgen
