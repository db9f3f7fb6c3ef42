// Tables of transitions with a column for each kind of bytes, and the kinds of bytes of other tables.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace structgen {

// Where bytes lead from each state, by the kind of the byte; -1: dead.  A view.
struct ByteColumns {
  std::span<const uint8_t> kind_of;  // [256]
  size_t states;
  std::span<const int32_t> targets;  // [kinds, states]

  size_t kinds() const { return states == 0 ? 0 : targets.size() / states; }
  std::span<const int32_t> column(size_t kind) const { return targets.subspan(kind * states, states); }
};

// Such a table to which states are added.  Kinds are divided as states demand it, and numbered by their first bytes in the
// end.
class GrowingColumns {
 public:
  using Row = std::array<int32_t, 256>;

  size_t kinds() const { return firsts_.size(); }
  size_t states() const { return states_; }
  void add(const Row& row) {
    unsigned differs = 0;
    for (size_t byte = 0; byte < row.size(); ++byte) differs |= row[byte] != row[firsts_.data()[kind_of_[byte]]];
    if (differs) divide(row);
    for (size_t kind = 0; kind < kinds(); ++kind) columns_.data()[kind].push_back(row[firsts_.data()[kind]]);
    ++states_;
  }
  // The kind of each byte, and the columns, [kinds, states].
  std::pair<std::array<uint8_t, 256>, std::vector<int32_t>> take() const {
    std::vector<size_t> order(kinds());
    for (size_t kind = 0; kind < kinds(); ++kind) order[kind] = kind;
    std::sort(order.begin(), order.end(), [&](size_t one, size_t other) { return firsts_[one] < firsts_[other]; });
    std::pair<std::array<uint8_t, 256>, std::vector<int32_t>> made;
    made.second.reserve(kinds() * states_);
    std::vector<uint8_t> rank(kinds());
    for (size_t at = 0; at < order.size(); ++at) {
      rank[order[at]] = static_cast<uint8_t>(at);
      made.second.insert(made.second.end(), columns_[order[at]].begin(), columns_[order[at]].end());
    }
    for (size_t byte = 0; byte < 256; ++byte) made.first[byte] = rank[kind_of_[byte]];
    return made;
  }

 private:
  // Bytes of a kind that lead elsewhere than the first of the kind become kinds of their own.
  void divide(const Row& row) {
    std::vector<std::pair<size_t, int32_t>> divided;  // of each kind that is new: the one before, and where its bytes lead
    const size_t before = kinds();
    for (size_t byte = 0; byte < row.size(); ++byte) {
      const size_t kind = kind_of_[byte];
      if (row[byte] == row[firsts_[kind]]) continue;
      const std::pair way{kind, row[byte]};
      const auto found = std::find(divided.begin(), divided.end(), way);
      if (found == divided.end()) {
        firsts_.push_back(static_cast<uint8_t>(byte));
        columns_.push_back(std::vector<int32_t>(columns_[kind]));
      }
      kind_of_[byte] = static_cast<uint8_t>(before + static_cast<size_t>(found - divided.begin()));
      if (found == divided.end()) divided.push_back(way);
    }
  }

  size_t states_ = 0;
  std::array<uint8_t, 256> kind_of_{};
  std::vector<uint8_t> firsts_{0};
  std::vector<std::vector<int32_t>> columns_{1};
};

// The kinds of bytes that all states treat alike, in the order of their first bytes.
struct ByteKinds {
  explicit ByteKinds(std::span<const int32_t> next) {
    std::array<uint8_t, 256> first{};  // of the bytes that are treated like each
    for (size_t row = 0; row < next.size(); row += 256) {
      const int32_t* targets = next.data() + row;
      unsigned differs = 0;
      for (size_t byte = 0; byte < 256; ++byte) differs |= targets[byte] != targets[first[byte]];
      if (differs) split(targets, first);
    }
    for (unsigned byte = 0; byte < 256; ++byte) {
      if (first[byte] == byte) firsts.push_back(static_cast<uint8_t>(byte));
      of[byte] = static_cast<uint8_t>(std::find(firsts.begin(), firsts.end(), first[byte]) - firsts.begin());
    }
  }
  size_t size() const { return firsts.size(); }

  std::vector<uint8_t> firsts;
  std::array<uint8_t, 256> of{};

 private:
  static void split(const int32_t* targets, std::array<uint8_t, 256>& first) {
    const std::array<uint8_t, 256> before = first;
    for (size_t byte = 0; byte < 256; ++byte)
      for (size_t other = 0; other <= byte; ++other)
        if (before[other] == before[byte] && targets[other] == targets[byte]) {
          first[byte] = static_cast<uint8_t>(other);
          break;
        }
  }
};

}  // namespace structgen
