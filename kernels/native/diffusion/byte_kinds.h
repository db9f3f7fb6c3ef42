// The kinds of bytes of a table of transitions.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace structgen {

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
