#include "attention/own_attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "attention/openmp.h"
#include "base/portable.h"
#include "diffusion/exponential.h"

namespace structgen {

namespace {

constexpr size_t kLanes = 8;

// Sums run in lanes, in the same order on every processor.
STRUCTGEN_INLINE double folded(const double* lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

// scores[q, e] for queries [count, width] and keys [length, width]; `stride` apart are the scores of two queries.
template <class Entry>
STRUCTGEN_INLINE void score(const double* queries, size_t count, const Entry* keys, size_t length, size_t width, double* scores, size_t stride) {
  for (size_t entry = 0; entry < length; ++entry) {
    const Entry* key = keys + entry * width;
    for (size_t query = 0; query < count; ++query) {
      const double* one = queries + query * width;
      double lanes[kLanes] = {};
      for (size_t at = 0; at < width; at += kLanes)
        for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += one[at + lane] * static_cast<double>(key[at + lane]);
      scores[query * stride + entry] = folded(lanes);
    }
  }
}

template <class Entry>
STRUCTGEN_INLINE void mix(const double* weights, size_t stride, size_t count, const Entry* values, size_t length, size_t width, double* output) {
  for (size_t entry = 0; entry < length; ++entry) {
    const Entry* value = values + entry * width;
    for (size_t query = 0; query < count; ++query) {
      const double weight = weights[query * stride + entry];
      double* to = output + query * width;
      for (size_t at = 0; at < width; ++at) to[at] += weight * static_cast<double>(value[at]);
    }
  }
}

STRUCTGEN_INLINE double soften(double* scores, size_t length) {
  double largest = scores[0];
  for (size_t entry = 1; entry < length; ++entry) largest = std::max(largest, scores[entry]);
  double lanes[kLanes] = {};
  const size_t whole = length / kLanes * kLanes;
  for (size_t at = 0; at < whole; at += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += scores[at + lane] = exp_of(scores[at + lane] - largest);
  for (size_t at = whole; at < length; ++at) lanes[at - whole] += scores[at] = exp_of(scores[at] - largest);
  const double sum = folded(lanes);
  for (size_t entry = 0; entry < length; ++entry) scores[entry] /= sum;
  return largest + std::log(sum);
}

template <class Entry>
STRUCTGEN_WIDE void attend_head(const AttentionShape& shape, const NewRows& part, size_t head, const LayerRows& rows, double* output, double* log_sums,
                 std::vector<double>& room) {
  const size_t width = shape.width, heads = shape.key_value_heads, all = heads * shape.groups, count = part.count * shape.groups;
  size_t past = 0;
  for (const CacheSpan& span : part.spans) past += span.length;
  const size_t length = past + part.count;
  room.resize(count * (2 * width + length));
  double* queries = room.data();
  double* mixed = queries + count * width;
  double* scores = mixed + count * width;
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  for (size_t row = 0; row < part.count; ++row)
    for (size_t group = 0; group < shape.groups; ++group) {
      const float* from = rows.queries.data + (part.first + row) * rows.queries.stride + (head * shape.groups + group) * width;
      double* to = queries + (row * shape.groups + group) * width;
      for (size_t at = 0; at < width; ++at) to[at] = scale * static_cast<double>(from[at]);
    }
  const auto heads_of = [&](const CacheSpan& span, size_t kind) {
    return static_cast<Entry*>(span.entries) + (((rows.layer * 2 + kind) * heads + head) * span.capacity + span.start) * width;
  };
  // The new entries come after those of the last span.
  const CacheSpan& last = part.spans.back();
  Entry* new_keys = heads_of(last, 0) + last.length * width;
  Entry* new_values = heads_of(last, 1) + last.length * width;
  for (size_t row = 0; row < part.count; ++row) {
    const float* key = rows.keys.data + (part.first + row) * rows.keys.stride + head * width;
    const float* value = rows.values.data + (part.first + row) * rows.values.stride + head * width;
    std::copy(key, key + width, new_keys + row * width);
    std::copy(value, value + width, new_values + row * width);
  }
  size_t before = 0;
  for (const CacheSpan& span : part.spans) {
    score(queries, count, heads_of(span, 0), span.length, width, scores + before, length);
    before += span.length;
  }
  score(queries, count, new_keys, part.count, width, scores + past, length);
  for (size_t row = 0; row < part.count; ++row)
    for (size_t group = 0; group < shape.groups; ++group) {
      double* own = scores + (row * shape.groups + group) * length;
      for (size_t other = 0; other < part.count; ++other) {
        const bool is_visible = part.visible ? part.visible[row * part.count + other] : other <= row;
        if (!is_visible) own[past + other] = -HUGE_VAL;
      }
      log_sums[(part.first + row) * all + head * shape.groups + group] = soften(own, length);
    }
  std::fill(mixed, mixed + count * width, 0.0);
  before = 0;
  for (const CacheSpan& span : part.spans) {
    mix(scores + before, length, count, heads_of(span, 1), span.length, width, mixed);
    before += span.length;
  }
  mix(scores + past, length, count, new_values, part.count, width, mixed);
  for (size_t row = 0; row < part.count; ++row)
    std::memcpy(output + ((part.first + row) * all + head * shape.groups) * width, mixed + row * shape.groups * width, shape.groups * width * sizeof(double));
}

}  // namespace

template <class Entry>
void attend_to_own(const AttentionShape& shape, std::span<const NewRows> parts, const LayerRows& rows, double* output, double* log_sums) {
  const size_t heads = shape.key_value_heads;
  with_openmp_threads(parts.size() * heads, [&](std::atomic<size_t>& next) {
    thread_local std::vector<double> room;
    for (size_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < parts.size() * heads;)
      attend_head<Entry>(shape, parts[task / heads], task % heads, rows, output, log_sums, room);
  });
}

template void attend_to_own<float>(const AttentionShape&, std::span<const NewRows>, const LayerRows&, double*, double*);
template void attend_to_own<double>(const AttentionShape&, std::span<const NewRows>, const LayerRows&, double*, double*);

}  // namespace structgen
