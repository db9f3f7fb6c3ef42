#include "diffusion/class_scores.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/portable.h"
#include "base/thread_pool.h"

namespace structgen {

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 256;  // partial results of a chunk: so many that loops over them vectorize

// out[i] = exp(x), where x = scale * (logits[i] - largest), from kLowest to 0; to about 1e-7 of itself: 2^n times a
// polynomial.
STRUCTGEN_WIDE void exponentials(const float* __restrict logits, size_t count, float scale, float largest, float* __restrict out) {
  for (size_t i = 0; i < count; ++i) {
    const float wanted = scale * (logits[i] - largest);
    const float raised = wanted > kLowest ? wanted : kLowest;  // NaN, too
    const float x = raised < 0 ? raised : 0;
    const float magic = x * 1.44269504F + 12582912.0F;  // rounds to an integer, held in the low bits
    const float n = magic - 12582912.0F;
    const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
    float p = 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    const float e = p * r * r + r + 1.0F;
    const int32_t exponent = static_cast<int32_t>(n) * (1 << 23);
    out[i] = std::bit_cast<float>(std::bit_cast<int32_t>(e) + exponent);
  }
}

// powers[i] *= x.
STRUCTGEN_WIDE void times_exponent(const float* __restrict logits, size_t count, float scale, float largest, float* __restrict powers) {
  for (size_t i = 0; i < count; ++i) {
    const float wanted = scale * (logits[i] - largest);
    const float raised = wanted > kLowest ? wanted : kLowest;
    powers[i] *= raised < 0 ? raised : 0;
  }
}

// The sum of the values of one class, of a chunk.
STRUCTGEN_WIDE double sum_where(const float* __restrict values, const int32_t* __restrict classes_of, size_t count, int32_t of) {
  float lanes[kLanes] = {};
  for (size_t begin = 0; begin < count; begin += kLanes) {
    const size_t stop = std::min(kLanes, count - begin);
    for (size_t i = 0; i < stop; ++i) lanes[i] += classes_of[begin + i] == of ? values[begin + i] : 0.0F;
  }
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return static_cast<double>(lanes[0]);
}

double sum_of(const float* values, std::span<const uint16_t> offsets) {
  double lanes[4] = {};
  size_t i = 0;
  for (; i + 4 <= offsets.size(); i += 4)
    for (size_t lane = 0; lane < 4; ++lane) lanes[lane] += static_cast<double>(values[offsets.data()[i + lane]]);
  for (; i < offsets.size(); ++i) lanes[0] += static_cast<double>(values[offsets.data()[i]]);
  return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

STRUCTGEN_WIDE float largest_in(float* lanes) {
  for (size_t half = kLanes / 2; half > 0; half /= 2)
    for (size_t i = 0; i < half; ++i) lanes[i] = lanes[i + half] > lanes[i] ? lanes[i + half] : lanes[i];
  return lanes[0];
}

STRUCTGEN_WIDE float largest_where(const float* __restrict values, const int32_t* __restrict classes_of, size_t count, int32_t of) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kNone);
  for (size_t begin = 0; begin < count; begin += kLanes) {
    const size_t stop = std::min(kLanes, count - begin);
    for (size_t i = 0; i < stop; ++i) {
      const float value = classes_of[begin + i] == of ? values[begin + i] : kNone;
      lanes[i] = value > lanes[i] ? value : lanes[i];
    }
  }
  return largest_in(lanes);
}

float largest_of(const float* values, std::span<const uint16_t> offsets) {
  float lanes[4] = {kNone, kNone, kNone, kNone};
  size_t i = 0;
  for (; i + 4 <= offsets.size(); i += 4)
    for (size_t lane = 0; lane < 4; ++lane) {
      const float value = values[offsets.data()[i + lane]];
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
  for (; i < offsets.size(); ++i) lanes[0] = std::max(lanes[0], values[offsets.data()[i]]);
  return std::max(std::max(lanes[0], lanes[1]), std::max(lanes[2], lanes[3]));
}

// NaN where some value is NaN.
STRUCTGEN_WIDE float largest_of_all(const float* __restrict values, size_t count) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, kNone);
  int32_t wrong = 0;
  for (size_t begin = 0; begin < count; begin += kLanes) {
    const size_t stop = std::min(kLanes, count - begin);
    for (size_t i = 0; i < stop; ++i) lanes[i] = values[begin + i] > lanes[i] ? values[begin + i] : lanes[i];
    for (size_t i = 0; i < stop; ++i) wrong |= values[begin + i] != values[begin + i];
  }
  return wrong ? std::numeric_limits<float>::quiet_NaN() : largest_in(lanes);
}

// How many tokens of a class have a value.
STRUCTGEN_WIDE size_t count_equal(const float* __restrict values, const int32_t* __restrict classes_of, size_t count, int32_t of,
                                  float value) {
  int32_t found = 0;
  for (size_t i = 0; i < count; ++i) found += (classes_of[i] == of) & (values[i] == value);
  return static_cast<size_t>(found);
}

}  // namespace

void row_maxima(const Logits& logits, float* largest) {
  parallel_for(logits.rows, [&](size_t row) { largest[row] = largest_of_all(logits.row(row), logits.tokens); });
}

ClassLayout::ClassLayout(std::span<const int32_t> classes_of, size_t classes)
    : classes_of_(classes_of.begin(), classes_of.end()), classes_(classes) {
  std::vector<uint32_t> slots(classes);
  for (int32_t of : classes_of) ++slots[static_cast<size_t>(of)];
  const auto largest = std::max_element(slots.begin(), slots.end());
  largest_class_ = static_cast<int32_t>(largest - slots.begin());
  offsets_.resize(classes_of.size() - *largest);
  std::fill(slots.begin(), slots.end(), 0);
  std::vector<int32_t> present;
  uint32_t end = 0;
  for (size_t begin = 0; begin < classes_of.size(); begin += kChunk) {
    const auto chunk = classes_of.subspan(begin, std::min(kChunk, classes_of.size() - begin));
    present.clear();
    for (int32_t of : chunk)
      if (of != largest_class_ && slots[static_cast<size_t>(of)]++ == 0) present.push_back(of);
    std::sort(present.begin(), present.end());
    for (int32_t of : present) {
      const uint32_t count = slots[static_cast<size_t>(of)];
      slots[static_cast<size_t>(of)] = end;
      runs_.push_back({of, end += count});
    }
    for (size_t i = 0; i < chunk.size(); ++i)
      if (chunk[i] != largest_class_) offsets_[slots[static_cast<size_t>(chunk[i])]++] = static_cast<uint16_t>(i);
    for (int32_t of : present) slots[static_cast<size_t>(of)] = 0;
    ends_.push_back(static_cast<uint32_t>(runs_.size()));
  }
}

void ClassLayout::maxima(const Logits& logits, float* maxima) const {
  std::fill_n(maxima, logits.rows * classes_, kNone);
  parallel_for(logits.rows, [&](size_t row) {
    for (size_t chunk = 0; chunk < chunks(); ++chunk) raise_maxima(logits.row(row) + chunk * kChunk, chunk, maxima + row * classes_);
  });
}

void ClassLayout::raise_maxima(const float* values, size_t chunk, float* maxima) const {
  maxima[largest_class_] = std::max(maxima[largest_class_], largest_where(values, classes_of_.data() + chunk * kChunk, length(chunk), largest_class_));
  for (size_t run = first_run(chunk); run < ends_[chunk]; ++run)
    maxima[runs_[run].of] = std::max(maxima[runs_[run].of], largest_of(values, offsets(run)));
}

void ClassLayout::find(const Logits& logits, std::span<const int64_t> rows, std::span<const int32_t> classes,
                       std::span<const float> values, int32_t* found) const {
  parallel_for(rows.size(), [&](size_t wanted) {
    found[wanted] = -1;
    for (size_t chunk = 0; chunk < chunks(); ++chunk) {
      const float* here = logits.row(static_cast<size_t>(rows[wanted])) + chunk * kChunk;
      const int32_t* of = classes_of_.data() + chunk * kChunk;
      if (count_equal(here, of, length(chunk), classes[wanted], values[wanted]) == 0) continue;
      size_t i = 0;
      while (of[i] != classes[wanted] || here[i] != values[wanted]) ++i;
      found[wanted] = static_cast<int32_t>(chunk * kChunk + i);
      return;
    }
  });
}

void ClassLayout::sums(const Logits& logits, float scale, std::span<const float> largest, double* sums, double* by_chunk,
                       double* moments, float* maxima) const {
  std::fill_n(sums, logits.rows * classes_, 0.0);
  if (moments) std::fill_n(moments, logits.rows * classes_, 0.0);
  if (maxima) std::fill_n(maxima, logits.rows * classes_, kNone);
  parallel_for(logits.rows, [&](size_t row) {
    float values[kChunk];
    for (size_t chunk = 0; chunk < chunks(); ++chunk) {
      const float* here = logits.row(row) + chunk * kChunk;
      const size_t count = length(chunk);
      const auto add = [&](double* out) {
        const double sum = sum_where(values, classes_of_.data() + chunk * kChunk, count, largest_class_);
        out[largest_class_] += sum;
        for (size_t run = first_run(chunk); run < ends_[chunk]; ++run) out[runs_[run].of] += sum_of(values, offsets(run));
        return sum;
      };
      exponentials(here, count, scale, largest[row], values);
      by_chunk[row * chunks() + chunk] = add(sums + row * classes_);
      if (maxima) raise_maxima(here, chunk, maxima + row * classes_);
      if (!moments) continue;
      times_exponent(here, count, scale, largest[row], values);
      add(moments + row * classes_);
    }
  });
}

void ClassLayout::draw(const Logits& logits, float scale, std::span<const float> largest, std::span<const double> sums,
                       std::span<const double> by_chunk, std::span<const int64_t> rows, std::span<const int32_t> classes,
                       std::span<const double> uniform, int32_t* drawn) const {
  parallel_for(rows.size(), [&](size_t wanted) {
    const auto row = static_cast<size_t>(rows[wanted]);
    double left = uniform[wanted] * sums[row * classes_ + static_cast<size_t>(classes[wanted])];
    if (classes[wanted] != largest_class_) {
      drawn[wanted] = draw_listed(logits.row(row), scale, largest[row], classes[wanted], left);
      return;
    }
    const auto parts = by_chunk.subspan(row * chunks(), chunks());
    size_t chunk = 0, last = 0;  // the last chunk that has tokens of the class: rounding may go past it
    for (; chunk < chunks() && left >= parts[chunk]; left -= parts[chunk++])
      if (parts[chunk] > 0) last = chunk;
    if (chunk == chunks()) chunk = last;
    float values[kChunk];
    exponentials(logits.row(row) + chunk * kChunk, length(chunk), scale, largest[row], values);
    drawn[wanted] = -1;
    for (size_t i = 0; i < length(chunk); ++i) {
      if (classes_of_[chunk * kChunk + i] != largest_class_) continue;
      drawn[wanted] = static_cast<int32_t>(chunk * kChunk + i);
      if ((left -= static_cast<double>(values[i])) < 0) return;
    }
  });
}

int32_t ClassLayout::draw_listed(const float* logits, float scale, float largest, int32_t of, double left) const {
  float held[kChunk], powers[kChunk];
  int32_t last = -1;
  for (size_t chunk = 0; chunk < chunks(); ++chunk) {
    const auto begin = runs_.begin() + static_cast<std::ptrdiff_t>(first_run(chunk)), end = runs_.begin() + ends_[chunk];
    const auto found = std::lower_bound(begin, end, of, [](const Run& run, int32_t wanted) { return run.of < wanted; });
    if (found == end || found->of != of) continue;
    const auto members = offsets(static_cast<size_t>(found - runs_.begin()));
    for (size_t i = 0; i < members.size(); ++i) held[i] = logits[chunk * kChunk + members[i]];
    exponentials(held, members.size(), scale, largest, powers);
    for (size_t i = 0; i < members.size(); ++i) {
      last = static_cast<int32_t>(chunk * kChunk + members[i]);
      if ((left -= static_cast<double>(powers[i])) < 0) return last;
    }
  }
  return last;
}

}  // namespace structgen
