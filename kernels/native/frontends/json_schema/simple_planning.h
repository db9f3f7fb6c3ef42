// The planning of one simple JSON Schema, for the four files that it takes: which plans there are and the terms of
// these (simple_schema.cpp), what arrays and objects need (simple_containers.cpp), constants and leaves
// (simple_leaves.cpp), arguments that are not JSON (simple_arguments.cpp).
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
#include <utility>
#include <vector>

#include "frontends/json_schema/simple_schema.h"
#include "frontends/json_schema/simple_shapes.h"

namespace structgen {

// The planning of one document, in the passes of emit/planner.py and emit/plan.py: the first visits the schemas breadth
// first and notes what each needs, the second makes terms from the leaves on.
class SimplePlanning {
  using Kind = SimpleTerms::Kind;
  using PlanId = uint32_t;
  // As in emit/type_plan.py: what counts against the limit of nodes.
  static constexpr uint64_t kShapeCost = 64, kEntryCost = 40, kItemCost = 16, kConstantCost = 3;
  static constexpr size_t kUsualPlans = 64;

 public:
  SimplePlanning(SimplePlanner& planner, const JsonDocument& document, nanobind::handle make_leaf, nanobind::handle helper)
      : of_(planner), document_(document), reader_(planner.dialect_, planner.limits_, document), shapes_(reader_, document),
        make_leaf_(make_leaf), helper_(helper), notation_(planner.notation_.get()), emit_(planner.syntax_, notation_), plan_of_(document.size(), kNone),
        is_read_(document.size()) {
    plans_.reserve(std::min(document.size(), kUsualPlans));  // of a large document little may be reached
  }

  std::unique_ptr<SimpleTerms> all();

 private:
  enum class Form : uint8_t {
    kUnion, kObject, kArray,
    kArguments,  // an object, in the notation
    kItems,      // an array, in the notation
    kValue,      // of an argument, not planned yet; then a union
    kWritten,    // from its JSON
  };
  enum class State : uint8_t { kNew, kOpen, kDone };

  struct Plan : SimpleContainer {
    std::vector<ValueId> schemas;  // none: part of another plan
    uint32_t depth = 0;
    uint32_t uses = 1;
    Form form = Form::kUnion;
    State state = State::kNew;
    bool is_in_place = false;  // its children apply to the same value
    uint32_t rule = kNone;
    SimpleNode term = kNone;
    std::vector<PlanId> children;
    const SimpleNotation::Written* written = nullptr;  // how its JSON is written
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

  PlanId add_pending(std::vector<ValueId> schemas);
  PlanId request(ValueId id);
  PlanId request_all(const std::vector<ValueId>& ids);
  void expand(PlanId id);

  void set_children(PlanId id, std::vector<PlanId> children) { plans_[id].children = std::move(children); }

  void in_place(PlanId id, ValueId value, const SimpleSchema& schema);
  void alternatives(PlanId id, std::span<const ValueId> branches);
  void fill(PlanId id, std::span<const SimpleShape> shapes);
  PlanId constants(ValueId value, const SimpleSchema& schema);
  PlanId constants(std::span<const ValueId> listed, uint8_t types, bool are_texts);
  PlanId constants(const SimpleShape& shape, bool are_texts = false);
  std::span<const ValueId> constants_of(const SimpleSchema& schema) const;
  std::vector<bool> excluded_of(const SimpleValues& values, std::span<const ValueId> scalars);

  // Arguments in a notation

  PlanId request_arguments(ValueId root);
  PlanId request_value(ValueId id);
  PlanId request_item(const std::vector<ValueId>& ids);
  PlanId any_argument();
  void expand_value(PlanId id);
  PlanId add_written(const SimpleNotation::Written& written, PlanId json);
  void add_containers(std::span<const SimpleShape> shapes, std::vector<PlanId>& children);
  PlanId text(std::span<const SimpleShape> shapes);
  SimpleNode texts(std::span<const SimpleNode> literals);
  PlanId part(ValueId id) { return in_arguments_ ? request_value(id) : request(id); }
  PlanId any_part() { return in_arguments_ ? any_argument() : anything(); }
  PlanId array(std::span<const ValueId> schemas);
  bool closes(std::span<const SimpleSchema> schemas) const;
  void bound(Plan& plan, const SimpleSchema& schema, Keyword fewest, Keyword most) const;
  void object(PlanId id, std::span<const ValueId> schemas);
  void met_objects(PlanId id, std::span<const ValueId> schemas);
  std::shared_ptr<const SimplePlanner::Names> names_of(const std::vector<SimpleEntry>& entries,
                                                       const std::vector<std::string_view>& patterns);
  void set_members(PlanId id, std::vector<SimpleEntry> entries, std::vector<SimpleNode> regions, std::vector<PlanId> children);
  void require_content();

  // Second pass

  void build(PlanId root);
  void finish(PlanId id);
  uint32_t rule_of(PlanId id);
  std::string label(PlanId id) const;
  SimpleNode leaf_of(std::span<const ValueId> schemas, std::optional<uint8_t> types, bool is_argument = false);
  SimpleNode leaf_of(ValueId schema, bool is_argument = false);
  void append_leaf(ValueId id, bool with_types_and_values, std::string& text) const;

  SimplePlanner& of_;
  const JsonDocument& document_;
  SimpleReader reader_;
  SimpleShapes shapes_;
  nanobind::handle make_leaf_, helper_;
  const SimpleNotation* notation_;  // of the arguments that are planned; null: JSON is
  SimpleEmitter emit_;
  std::vector<PlanId> plan_of_;  // by schema
  std::map<std::vector<ValueId>, PlanId> conjunctions_;
  std::vector<bool> is_read_;    // likewise: by the planner in Python
  std::unordered_map<const SimpleValues*, nanobind::object> listed_;  // the values for the planner in Python
  std::vector<Plan> plans_;
  std::vector<PlanId> pending_;
  std::unordered_map<ValueId, PlanId> value_of_;  // by schema, in the notation
  PlanId anything_ = kNone;
  PlanId any_argument_ = kNone;
  bool in_arguments_ = false;
  std::string leaf_text_;
  uint32_t depth_ = 0;
};

}  // namespace structgen
