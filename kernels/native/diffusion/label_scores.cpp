#include "diffusion/label_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace structgen {

std::vector<double> label_scores(LabelLists labels, std::span<const double> scores, size_t rows, size_t classes, bool is_max) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<double> made(rows * labels.size(), kNone), held(classes);
  for (size_t row = 0; row < rows; ++row) {
    const std::span<const double> mine = scores.subspan(row * classes, classes);
    double largest = is_max || mine.empty() ? 0.0 : *std::max_element(mine.begin(), mine.end());
    if (largest == kNone) largest = 0.0;
    for (size_t of = 0; of < classes; ++of) held[of] = is_max ? mine[of] : std::exp(mine[of] - largest);
    for (size_t label = 0; label < labels.size(); ++label) {
      const auto first = static_cast<size_t>(labels.begin[label]), last = static_cast<size_t>(labels.begin[label + 1]);
      double& out = made[row * labels.size() + label];
      if (is_max) {
        for (size_t i = first; i < last; ++i) out = std::max(out, held[static_cast<size_t>(labels.classes[i])]);
        continue;
      }
      double sum = 0;
      for (size_t i = first; i < last; ++i) sum += held[static_cast<size_t>(labels.classes[i])];
      out = std::log(sum) + largest;
    }
  }
  return made;
}

std::vector<double> class_sums(LabelLists labels, std::span<const double> values, size_t rows, size_t classes) {
  std::vector<double> made(rows * classes);
  for (size_t row = 0; row < rows; ++row)
    for (size_t label = 0; label < labels.size(); ++label) {
      const double value = values[row * labels.size() + label];
      if (value == 0) continue;
      for (auto i = static_cast<size_t>(labels.begin[label]); i < static_cast<size_t>(labels.begin[label + 1]); ++i)
        made[row * classes + static_cast<size_t>(labels.classes[i])] += value;
    }
  return made;
}

}  // namespace structgen
