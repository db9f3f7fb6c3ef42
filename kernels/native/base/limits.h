// Counted bounds and the errors that the engine raises on purpose.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace structgen {

struct Limits {
  uint64_t states = 1'000'000;
  uint64_t regular_states = 200'000;
  uint64_t steps = 16'000'000;
  uint64_t distance_steps = 5'000'000;
  uint64_t cache_bytes = size_t{256} << 20;
};

class LimitError : public std::runtime_error {
 public:
  LimitError(std::string limit, uint64_t maximum, std::string evidence)
      : std::runtime_error(limit), limit(std::move(limit)), maximum(maximum), evidence(std::move(evidence)) {}
  std::string limit;
  uint64_t maximum;
  std::string evidence;
};

}  // namespace structgen
