// What derivatives share: what is found at the front of a set of terms, and what finding it is charged with.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "base/byte_set.h"
#include "terms/term.h"

namespace structgen {

// Steps of work, in the unit of `Meter`, and what they are spent on.
constexpr uint64_t kTermSteps = 8;    // a term that is looked at or made
constexpr uint64_t kClassSteps = 64;  // a pass over all bytes
constexpr uint64_t kPairsAStep = 8;   // sets of bytes that are compared
constexpr const char* kDeriving = "deriving terms";
constexpr const char* kEmptiness = "deciding whether an intersection or complement is empty";

struct Expansion {
  std::vector<std::pair<TermId, ByteSet>> forms;             // after a byte of the set, the term remains
  std::vector<std::pair<RuleId, TermId>> calls;              // rule, what remains after its return
  std::vector<std::pair<uint32_t, TermId>> specials;         // special token, what remains
  bool final = false;

  void append(const Expansion& other) {
    forms.insert(forms.end(), other.forms.begin(), other.forms.end());
    calls.insert(calls.end(), other.calls.begin(), other.calls.end());
    specials.insert(specials.end(), other.specials.begin(), other.specials.end());
    final |= other.final;
  }
};

}  // namespace structgen
