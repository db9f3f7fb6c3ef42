// Scores of the classes of a vocabulary from the logits of a slot: the one pass over all tokens that a step of a
// diffusion decoder needs.  The reference implementation is structgen/decode/diffusion/class_posterior.py.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace structgen {

// A slot's distribution is the softmax of its scaled logits; none counts as further below the row's largest than this.
constexpr float kLowest = -80;

// Rows of logits, as wide as the vocabulary.
struct Logits {
  const float* values;
  size_t rows, tokens;

  const float* row(size_t number) const { return values + number * tokens; }
};

// The largest logit of each row; NaN where a row has NaN.
void row_maxima(const Logits& logits, float* largest);

// A partition of a vocabulary, laid out for passes over rows of logits.
//
// Most tokens are in one class: the text of a string, or what is dead everywhere.  That one is found by comparing all
// classes with it; the tokens of the others are listed, chunk by chunk, each with those of its class.
class ClassLayout {
 public:
  static constexpr size_t kChunk = 2048;  // tokens: what is known of them stays in the nearest cache

  // Every class is below `classes`, which is at least 1.
  ClassLayout(std::span<const int32_t> classes_of, size_t classes);

  size_t tokens() const { return classes_of_.size(); }
  size_t classes() const { return classes_; }
  size_t chunks() const { return ends_.size(); }

  // The largest logit of each row and class; -infinity for a class without tokens.
  //   maxima: [rows, classes]
  void maxima(const Logits& logits, float* maxima) const;

  // The first token of a class that has a given logit in a row; -1 where there is none.
  //   values, found: [wanted]
  void find(const Logits& logits, std::span<const int64_t> rows, std::span<const int32_t> classes, std::span<const float> values,
            int32_t* found) const;

  // Sums by row and class of e = exp(x), where x = scale * (logit - the row's largest), and in the same pass, unless
  // null, of e * x, and what maxima() finds.
  //   largest: [rows]   sums, moments, maxima: [rows, classes]   by_chunk: [rows, chunks], of the largest class
  void sums(const Logits& logits, float scale, std::span<const float> largest, double* sums, double* by_chunk, double* moments,
            float* maxima) const;

  // One token for each wanted (row, class), drawn by its share with a uniform number below 1, in the order of ids; -1
  // for a class without tokens.
  //   sums, by_chunk: as above   uniform, drawn: [wanted]
  void draw(const Logits& logits, float scale, std::span<const float> largest, std::span<const double> sums,
            std::span<const double> by_chunk, std::span<const int64_t> rows, std::span<const int32_t> classes,
            std::span<const double> uniform, int32_t* drawn) const;

 private:
  void raise_maxima(const float* values, size_t chunk, float* maxima) const;

  struct Run {
    int32_t of;
    uint32_t end;
  };

  size_t length(size_t chunk) const { return std::min(kChunk, classes_of_.size() - chunk * kChunk); }
  // Where the runs of a chunk begin, and the offsets of a run.
  size_t first_run(size_t chunk) const { return chunk == 0 ? 0 : ends_[chunk - 1]; }
  std::span<const uint16_t> offsets(size_t run) const {
    const size_t begin = run == 0 ? 0 : runs_[run - 1].end;
    return std::span(offsets_).subspan(begin, runs_[run].end - begin);
  }
  int32_t draw_listed(const float* logits, float scale, float largest, int32_t of, double left) const;

  std::vector<int32_t> classes_of_;
  size_t classes_;
  int32_t largest_class_;          // the class with the most tokens
  std::vector<uint16_t> offsets_;  // from the start of the chunk, of the tokens of all others: by chunk, class and id
  std::vector<Run> runs_;          // of equal chunk and class
  std::vector<uint32_t> ends_;     // by chunk: after its last run
};

}  // namespace structgen
