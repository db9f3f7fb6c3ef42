// Objects where something must be remembered from member to member, as emit/object_chain.py has them: negated objects
// must be violated by some member, by a missing name or by the number of members; and some names require others.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "frontends/json_schema/simple_emit.h"
#include "frontends/json_schema/simple_schema.h"
#include "frontends/json_schema/simple_shapes.h"

namespace structgen {

// The names and values of the objects that several schemas describe together: ObjectLayout in normal/object_layout.py.
struct SimpleLayout {
  struct Region {
    std::vector<uint32_t> matched;  // patterns
    uint32_t index = kNone;         // of `names`; kNone: all names that are not declared
  };

  std::vector<SimpleEntry> entries;
  std::vector<Region> regions;  // of other names
  std::vector<std::vector<SchemaRef>> values;  // what applies to those of the entries, then to those of the regions
  std::shared_ptr<const SimplePlanner::Names> names;
  std::unordered_map<std::string_view, uint32_t> pattern_of;
  uint32_t fewest = 0, most = kNone;
  std::vector<const SimpleObject*> negated;
  std::vector<std::pair<size_t, std::vector<size_t>>> dependents;  // entries, each with those that it requires

  bool is_stateful() const { return !negated.empty() || !dependents.empty(); }
  // Whether the name of an entry, or those of a region, match a pattern.
  bool matches(size_t at, std::string_view pattern) const;
  // What an object says of the values.
  std::vector<SchemaRef> said(const SimpleObject& object, size_t at) const;
};

class SimpleChain {
 public:
  struct State {
    uint64_t violated = 0, due = 0, forbidden = 0;  // bits of negated objects, and of entries
    uint32_t size = 0;                              // members, as far as it matters
    auto operator<=>(const State&) const = default;
  };
  // One way to read a member, by the negated objects that it violates; `proves`: where this restricts its value.
  struct Parse {
    uint64_t violates, proves;
    uint32_t value;   // of `values`
    uint32_t region;  // of the layout; kNone: an entry
  };
  struct Step {
    uint32_t value;
    State after;
  };

  SimpleChain(SimpleLayout layout, SimpleShapes& shapes, SimpleReader& reader);

  const SimpleLayout& layout() const { return layout_; }
  // What applies to the value of each parse.
  const std::vector<std::vector<SchemaRef>>& values() const { return values_; }
  // The objects, given the terms of the values, and those of the keys of regions.
  SimpleNode term(SimpleEmitter& emit, std::span<const SimpleNode> values, std::span<const SimpleNode> keys, SimpleReader& reader) const;
  // Whether there are no objects, as far as it is known which values there are none of.
  bool is_empty(const std::function<bool(uint32_t)>& is_value_empty, SimpleReader& reader) const;

 private:
  struct Builder;

  void add_parses(std::vector<Parse>& out, size_t at, uint32_t region, SimpleShapes& shapes);
  std::optional<State> begin(const State& state) const;
  std::optional<State> take(size_t index, const State& state) const;
  std::optional<State> skip(size_t index, const State& state) const;
  bool accepts(const State& state) const;
  static std::vector<Step> after(std::span<const Parse> parses, const std::optional<State>& state);

  SimpleLayout layout_;
  std::vector<std::vector<SchemaRef>> values_;
  std::vector<std::vector<Parse>> members_;
  std::vector<Parse> others_;
  std::vector<uint64_t> calls_, called_by_;  // by entry: the later entries that must occur with it, that must not without
  std::vector<uint64_t> missing_;            // by entry: the negated objects that its absence violates
  std::vector<uint64_t> bit_of_;             // by entry, of those that others require
  uint32_t cap_ = 0;
};

}  // namespace structgen
