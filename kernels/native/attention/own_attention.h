// Attention of new tokens of several sequences, each over the keys and values of its own sequence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace structgen {

// The entries of some tokens in one cache: [layers, 2, heads, capacity, width], the keys before the values.
struct CacheSpan {
  void* entries;
  size_t capacity;
  size_t start, length;
};

// The new tokens of one sequence.  They attend to the spans, which hold the tokens before them, and to one another.
struct NewRows {
  size_t first, count;             // rows of the pass
  std::span<const CacheSpan> spans;  // the new keys and values are written after the last one
  const uint8_t* visible;          // [count, count]: whether a row attends to a new token; null: to those up to itself
};

struct AttentionShape {
  size_t key_value_heads, groups, width;  // `groups` query heads attend to the same keys
};

// Rows of a pass in one layer, [rows, heads, width]; `stride` apart are two rows.
struct HeadRows {
  const float* data;
  size_t stride;
};

struct LayerRows {
  size_t layer;
  HeadRows queries, keys, values;
};

// Writes the output [rows, heads, width] and the log-sum-exp of the scores [rows, heads] of the rows of `parts`.  Entries are float or
// double, sums are double.  What a row gets depends on its own sequence alone, to the last bit.
template <class Entry>
void attend_to_own(const AttentionShape& shape, std::span<const NewRows> parts, const LayerRows& rows, double* output, double* log_sums);

}  // namespace structgen
