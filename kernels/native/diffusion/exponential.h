// The exponential function for sums of probabilities, without branches: the library's keeps loops from vectorizing.
#pragma once

#include <bit>
#include <cstdint>

#include "base/portable.h"

namespace structgen {

// exp(x) for x <= 0, within 3e-16 of its value; 0 below -700 and for NaN.  The reduction of Cody and Waite, and the
// series.
STRUCTGEN_INLINE double exp_of(double x) {
  constexpr double kMin = -700, kShift = 0x1.8p52, kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0x1.62e42fee00000p-1, kLn2Low = 0x1.a39ef35793c76p-33;
  const double bounded = x > kMin ? x : kMin;
  const double shifted = bounded * kLog2E + kShift;  // the exponent, in the low bits
  const double exponent = shifted - kShift;
  const double r = (bounded - exponent * kLn2High) - exponent * kLn2Low;
  double series = 1.0 / 479001600;
  series = series * r + 1.0 / 39916800;
  series = series * r + 1.0 / 3628800;
  series = series * r + 1.0 / 362880;
  series = series * r + 1.0 / 40320;
  series = series * r + 1.0 / 5040;
  series = series * r + 1.0 / 720;
  series = series * r + 1.0 / 120;
  series = series * r + 1.0 / 24;
  series = series * r + 1.0 / 6;
  series = series * r + 0.5;
  series = series * r + 1.0;
  series = series * r + 1.0;
  const uint64_t power = (std::bit_cast<uint64_t>(shifted) << 52) + std::bit_cast<uint64_t>(1.0);
  const double value = series * std::bit_cast<double>(power);
  return x > kMin ? value : 0.0;
}

}  // namespace structgen
