#include "masks/row.h"

#include <cstring>

namespace structgen {

namespace {

bool has(const uint32_t* words, uint32_t token) { return words[token >> 5] >> (token & 31) & 1; }
void set(uint32_t* words, uint32_t token) { words[token >> 5] |= uint32_t{1} << (token & 31); }
void clear(uint32_t* words, uint32_t token) { words[token >> 5] &= ~(uint32_t{1} << (token & 31)); }

}  // namespace

void Row::prefetch() const {
  if (mask) structgen::prefetch(mask->data());
  structgen::prefetch(removed.data());
  structgen::prefetch(added.data());
}

void Row::write(uint32_t* words, size_t count) const {
  if (mask) std::memcpy(words, mask->data(), count * 4);
  else std::memset(words, 0, count * 4);
  for (uint32_t token : removed) clear(words, token);
  for (uint32_t token : added) set(words, token);
}

void Row::merge(uint32_t* words) const {
  if (mask) {
    std::vector<uint32_t> held;  // removed here, but there for another reason
    for (uint32_t token : removed)
      if (has(words, token)) held.push_back(token);
    const uint32_t* source = mask->data();
    for (size_t i = 0; i < mask->size(); ++i) words[i] |= source[i];
    for (uint32_t token : removed) clear(words, token);
    for (uint32_t token : held) set(words, token);
  }
  for (uint32_t token : added) set(words, token);
}

}  // namespace structgen
