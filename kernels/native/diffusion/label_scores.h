// Scores of labels from those of the classes that they contain, and back: labels of edges are lists of classes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace structgen {

// The classes of each label: label k has [begin[k], begin[k + 1]) of `classes`.
struct LabelLists {
  std::span<const int64_t> begin;
  std::span<const int32_t> classes;

  size_t size() const { return begin.size() - 1; }
};

// Log of the sum of the exponentials of the classes of each label, or their maximum, for each row; minus infinity for a
// label without classes.  No exponential of a score less the largest of its row may underflow.
//   scores: [rows, classes]; returns [rows, labels]
std::vector<double> label_scores(LabelLists labels, std::span<const double> scores, size_t rows, size_t classes, bool is_max);

// The sum of what the labels have that contain each class.
//   values: [rows, labels]; returns [rows, classes]
std::vector<double> class_sums(LabelLists labels, std::span<const double> values, size_t rows, size_t classes);

}  // namespace structgen
