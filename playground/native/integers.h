// Integers between bounds as programs; the reference is structgen.frontends.json_schema.emit.decimal_interval.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "build_program.h"

namespace structgen {

struct Integer {
  bool negative = false;
  std::string digits;  // without leading zeros; "0" has no sign

  static std::optional<Integer> of(std::string_view text);
  Integer next() const;
  Integer previous() const { return minus().next().minus(); }
  Integer minus() const { return {!negative && digits != "0", digits}; }
};

// The integers from `lower` to `upper`, each with at most 64 digits unless a bound has more; nothing where there are none.
std::optional<uint32_t> integers_between(ProgramBuilder& builder, const std::optional<Integer>& lower, const std::optional<Integer>& upper);

}  // namespace structgen
