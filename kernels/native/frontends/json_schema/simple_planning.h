// The planning of one simple JSON Schema, for the files that it takes: which plans there are and the terms of these
// (simple_schema.cpp), what arrays and objects need (simple_containers.cpp), constants and leaves (simple_leaves.cpp),
// arguments that are not JSON (simple_arguments.cpp), whether alternatives overlap (simple_overlaps.cpp).
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/interrupt.h"
#include "frontends/json_schema/simple_chain.h"
#include "frontends/json_schema/simple_schema.h"
#include "frontends/json_schema/simple_shapes.h"

namespace structgen {

// The planning of one document, in the passes of emit/planner.py and emit/plan.py: the first visits the schemas breadth
// first and notes what each needs, the second makes terms from the leaves on.
class SimplePlanning {
  using Kind = SimpleTerms::Kind;
  using PlanId = uint32_t;
  static constexpr uint32_t kPlanSteps = 64, kMemberSteps = 8;  // of `pulse_`
  // As in emit/type_plan.py: what counts against the limit of nodes.
  static constexpr uint64_t kShapeCost = 64, kEntryCost = 40, kItemCost = 16, kConstantCost = 3;
  static constexpr size_t kUsualPlans = 64;

 public:
  // overlaps: the alternatives that are met with the complement of others.
  SimplePlanning(SimplePlanner& planner, const JsonDocument& document, nanobind::handle make_leaf, nanobind::handle helper, const SimpleOverlaps& overlaps, SimpleKeys& keys)
      : of_(planner), document_(document), reader_(planner.dialect_, planner.limits_, document, keys), overlaps_(overlaps),
        shapes_(reader_, document, planner.closes_ || planner.requires_all_, overlaps),
        make_leaf_(make_leaf), helper_(helper), notation_(planner.notation_.get()), emit_(planner.syntax_, notation_), plan_of_(document.size(), kNone),
        is_read_(document.size()) {
    plans_.reserve(std::min(document.size(), kUsualPlans));  // of a large document little may be reached
  }

  // Null where further alternatives overlap: it has to be planned again, with these.
  std::unique_ptr<SimpleTerms> all();
  const SimpleOverlaps& found() const { return found_; }

 private:
  enum class Form : uint8_t {
    kUnion, kObject, kArray,
    kArguments,  // an object, in the notation
    kItems,      // an array, in the notation
    kValue,      // of an argument, not planned yet; then a union
    kWritten,    // from its JSON
    kDistinct,   // an array without equal items
    kChain,      // an object with a state between its members
  };
  enum class State : uint8_t { kNew, kOpen, kDone };

  struct Plan : SimpleContainer {
    std::vector<SchemaRef> schemas;  // none: part of another plan
    uint32_t depth = 0;
    uint32_t uses = 1;
    Form form = Form::kUnion;
    State state = State::kNew;
    bool is_in_place = false;  // its children apply to the same value
    uint32_t rule = kNone;
    SimpleNode term = kNone;
    std::vector<PlanId> children;
    const SimpleNotation::Written* written = nullptr;  // how its JSON is written
    std::shared_ptr<const SimpleChain> chain;
  };

  // First pass

  PlanId anything() {
    if (anything_ == kNone) anything_ = done(emit_.shared(SimpleSyntax::kAnyValue));
    return anything_;
  }

  PlanId done(SimpleNode term) {
    Plan plan;
    plan.state = State::kDone;
    plan.term = term;
    return add(std::move(plan));
  }

  PlanId add(Plan plan) {
    plans_.push_back(std::move(plan));
    return static_cast<PlanId>(plans_.size() - 1);
  }

  PlanId add_pending(std::vector<SchemaRef> schemas);
  PlanId request(ValueId id);
  PlanId request_all(const std::vector<SchemaRef>& schemas);
  // The schemas of a conjunction that matter, each once.
  struct Conjunction {
    std::vector<SchemaRef> schemas, keys;  // the latter sorted, and where there is one schema, itself
    bool is_possible = true;               // they do not obviously contradict each other
  };
  Conjunction conjunction(std::span<const SchemaRef> schemas);
  void expand(PlanId id);

  void set_children(PlanId id, std::vector<PlanId> children) { plans_[id].children = std::move(children); }

  void in_place(PlanId id, ValueId value, const SimpleSchema& schema);
  void alternatives(PlanId id, ValueId schema, std::span<const ValueId> branches, bool is_one_of);
  void fill(PlanId id, std::span<const SimpleShape> shapes);
  PlanId constants(ValueId value, const SimpleSchema& schema);
  PlanId constants(std::span<const ValueId> listed, uint8_t types, bool are_texts);
  PlanId constants(const SimpleShape& shape, bool are_texts = false);
  std::span<const ValueId> constants_of(const SimpleSchema& schema) const;
  // The values of a shape that it admits.
  std::vector<ValueId> admitted(const SimpleShape& shape);
  std::vector<bool> excluded_of(const SimpleValues& values, std::span<const SimpleScalar> scalars);

  // Arguments in a notation

  PlanId request_arguments(ValueId root);
  PlanId request_value(ValueId id);
  PlanId request_item(const std::vector<SchemaRef>& ids);
  PlanId any_argument();
  void expand_value(PlanId id);
  PlanId add_written(const SimpleNotation::Written& written, PlanId json);
  void add_containers(std::span<const SimpleShape> shapes, std::vector<PlanId>& children);
  PlanId text(std::span<const SimpleShape> shapes);
  SimpleNode texts(std::span<const SimpleNode> literals);
  PlanId part(ValueId id) { return in_arguments_ ? request_value(id) : request(id); }
  PlanId any_part() { return in_arguments_ ? any_argument() : anything(); }
  PlanId array(std::span<const ValueId> schemas);
  // What several schemas say of arrays.
  struct Arrays {
    std::vector<SchemaRef> items;
    uint32_t fewest = 0, most = kNone;
    bool are_unique = false;  // items that differ are more than one
  };
  Arrays arrays_of(std::span<const ValueId> schemas);
  // The texts of the values that shapes have, where they are enumerated; false where they are not.
  bool enumerate(std::span<const SimpleShape> shapes, std::vector<std::string>& texts);
  void bound(const SimpleSchema& schema, Keyword fewest, Keyword most, uint32_t& low, uint32_t& high) const;
  void object(PlanId id, ValueId schema);
  void objects(PlanId id, std::span<const SimpleObject* const> objects);
  // restricts: whether the policy closes objects and requires members.
  SimpleLayout layout_of(std::span<const SimpleObject* const> objects, bool restricts);
  std::unordered_set<std::string_view> declared_names(std::span<const SimpleObject* const> objects) const;
  std::shared_ptr<const SimplePlanner::Names> names_of(const std::vector<SimpleEntry>& entries,
                                                       const std::vector<std::string_view>& patterns);
  std::vector<SimpleNode> keys_of(const SimpleLayout& layout);
  void set_members(PlanId id, std::vector<SimpleEntry> entries, std::vector<SimpleNode> regions, std::vector<PlanId> children);
  void require_content();

  // Whether alternatives overlap

  // Compares the alternatives that must exclude each other; false where some do not.
  bool are_alternatives_apart();
  bool overlap(const SimpleShape& one, const SimpleShape& other);
  // Whether it is proved that no value satisfies all schemas, or is in a shape.
  bool is_empty(const std::vector<SchemaRef>& schemas);
  bool is_empty(const SimpleShape& shape);
  bool is_object_empty(std::span<const SimpleObject* const> objects);
  bool is_scalar_empty(const SimpleShape& shape);

  // Second pass

  void build(PlanId root);
  void finish(PlanId id);
  uint32_t rule_of(PlanId id);
  std::string label(PlanId id) const;
  SimpleNode leaf_with(std::span<const SimpleScalar> scalars, std::optional<uint8_t> types, bool is_argument = false);
  SimpleNode leaf_of(std::span<const ValueId> schemas, std::optional<uint8_t> types, bool is_argument = false);
  SimpleNode leaf_of(ValueId schema, bool is_argument = false);
  void append_leaf(ValueId id, bool with_types_and_values, std::string& text) const;
  // Valid until the next.
  const std::string& leaf_text(std::span<const SimpleScalar> scalars, std::optional<uint8_t> types);

  SimplePlanner& of_;
  const JsonDocument& document_;
  SimpleReader reader_;
  const SimpleOverlaps& overlaps_;
  SimpleOverlaps found_;
  SimpleShapes shapes_;
  nanobind::handle make_leaf_, helper_;
  const SimpleNotation* notation_;  // of the arguments that are planned; null: JSON is
  SimpleEmitter emit_;
  std::vector<PlanId> plan_of_;  // by schema
  std::map<std::vector<SchemaRef>, PlanId> conjunctions_;
  std::vector<SimpleShapes::Exclusion> exclusions_;    // the alternatives that must exclude each other
  std::map<std::vector<SchemaRef>, bool> proofs_;      // whether conjunctions are empty; false on the way
  uint32_t proof_depth_ = 0;
  std::string leaf_text_;
  std::vector<bool> is_read_;    // likewise: by the planner in Python
  std::unordered_map<const SimpleValues*, nanobind::object> listed_;  // the values for the planner in Python
  std::vector<Plan> plans_;
  std::vector<PlanId> pending_;
  std::unordered_map<ValueId, PlanId> value_of_;  // by schema, in the notation
  PlanId anything_ = kNone;
  PlanId any_argument_ = kNone;
  bool in_arguments_ = false;
  uint32_t depth_ = 0;
  GilPulse pulse_;
};

}  // namespace structgen
