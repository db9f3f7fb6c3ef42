#include "plain_schema.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
#include <unordered_set>

#include "automaton.h"

namespace nb = nanobind;

namespace structgen {

namespace {

// Types as bits, as json_types.py has them.
constexpr std::array<std::string_view, 7> kTypeNames = {"null", "boolean", "integer", "number", "string", "array", "object"};
enum TypeBits : uint8_t {
  kNullType = 1, kBooleanType = 2, kIntegerType = 4, kFractionType = 8, kStringType = 16, kArrayType = 32, kObjectType = 64,
  kNumberType = kIntegerType | kFractionType,
  kAnyType = 127,
};
constexpr std::array<uint8_t, 7> kTypeBits = {kNullType, kBooleanType, kIntegerType, kNumberType, kStringType, kArrayType, kObjectType};

// As in planner.py: what counts against the limit of nodes.
constexpr uint64_t kShapeCost = 64, kEntryCost = 40, kItemCost = 16, kConstantCost = 3;
// As in plans.py: a choice of so many small terms is small.
constexpr size_t kFewChoices = 8;
constexpr std::array kArrayKeywords = {Keyword::kItems, Keyword::kMinItems, Keyword::kMaxItems};
constexpr std::array kObjectKeywords = {Keyword::kProperties, Keyword::kRequired, Keyword::kAdditionalProperties};
constexpr size_t kUsualPlans = 64;
constexpr uint32_t kMostSteps = 64;  // from reference to reference
constexpr size_t kLongestLeaf = 512;  // bytes of a leaf that is kept
constexpr size_t kMostLeaves = 4'096;

using PlanId = uint32_t;

struct NotPlain {};

void require(bool condition) {
  if (!condition) throw NotPlain();
}

// One step of a JSON Pointer as places.py writes it.
void append_step(std::string_view step, std::string& out) {
  constexpr char kHex[] = "0123456789ABCDEF";
  out.push_back('/');
  for (char c : step) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          std::string_view("!$&'()*+,;=:@?-._").find(c) != std::string_view::npos;
    if (is_plain) {
      out.push_back(c);
    } else if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out.push_back('%');
      out.push_back(kHex[static_cast<unsigned char>(c) >> 4]);
      out.push_back(kHex[static_cast<unsigned char>(c) & 0xF]);
    }
  }
}

}  // namespace

// The planning of one document, in the passes of planner.py and plans.py: the first visits the schemas breadth first
// and notes what each needs, the second makes terms from the leaves on.
class PlainPlanning {
  using Kind = PlainTerms::Kind;

 public:
  PlainPlanning(PlainPlanner& planner, const JsonDocument& document, nb::handle make_leaf)
      : of_(planner), document_(document), make_leaf_(make_leaf), terms_(std::make_unique<PlainTerms>()), plan_of_(document.size(), kNone) {
    shared_.fill(kNone);
    plans_.reserve(std::min(document.size(), kUsualPlans));  // of a large document little may be reached
  }

  std::unique_ptr<PlainTerms> all() {
    require(document_.kind(document_.root()) == JsonKind::kObject);
    const PlanId root = request(document_.root(), {.label = "#"});
    for (size_t next = 0; next < pending_.size(); ++next) {
      depth_ = plans_[pending_[next]].depth + 1;
      expand(pending_[next]);
    }
    require(!has_reference_ || !has_inner_identifier_);  // the one may mean something by the other
    require_content();
    build(root);
    require(plans_[root].term != nothing_);
    terms_->result = plans_[root].term;
    return std::move(terms_);
  }

 private:
  enum class Form : uint8_t { kUnion, kObject, kArray };
  enum class State : uint8_t { kNew, kOpen, kDone };

  struct Entry {
    std::string_view name;
    bool is_required;
  };
  // Where a schema stands: a reference says it, or else the steps from the schema that it is part of.
  struct Origin {
    PlanId parent = kNone;
    std::string_view keyword = {}, name = {};
    uint32_t index = kNone;  // in place of a name
    std::string label = {};  // as a reference says it
  };
  struct Plan {
    ValueId schema = kNone;  // kNone: part of another plan
    uint32_t depth = 0;
    uint32_t uses = 1;
    Form form = Form::kUnion;
    State state = State::kNew;
    bool is_open = true;       // of an object: other names may occur
    bool is_in_place = false;  // its children apply to the same value
    uint32_t rule = kNone;
    PlainNode term = kNone;
    uint32_t fewest = 0, most = kNone;  // items
    std::vector<PlanId> children;
    std::vector<Entry> entries;
    Origin origin;
  };
  // The keywords of one schema.
  struct Schema {
    uint32_t seen = 0;      // bits by Keyword
    uint8_t types = kAnyType;
    std::array<ValueId, kKeywords> values{};

    bool has(Keyword keyword) const { return seen >> static_cast<size_t>(keyword) & 1; }
    ValueId value(Keyword keyword) const { return values[static_cast<size_t>(keyword)]; }
    void drop(Keyword keyword) { seen &= ~bit(keyword); }
    bool has_any(std::span<const Keyword> keywords) const {
      return std::ranges::any_of(keywords, [&](Keyword keyword) { return has(keyword); });
    }
    bool is_leaf() const { return has_only({Keyword::kType, Keyword::kNullable, Keyword::kSimple}); }
    // Whether none but the given keywords, and an identifier, occur.
    bool has_only(std::initializer_list<Keyword> keywords) const {
      uint32_t allowed = bit(Keyword::kIdentifier);
      for (Keyword keyword : keywords) allowed |= bit(keyword);
      return (seen & ~allowed) == 0;
    }
    static uint32_t bit(Keyword keyword) { return 1u << static_cast<size_t>(keyword); }
  };

  // First pass

  PlanId anything() {
    if (anything_ == kNone) anything_ = done(shared(PlainSyntax::kAnyValue));
    return anything_;
  }

  PlanId done(PlainNode term) {
    Plan plan;
    plan.state = State::kDone;
    plan.term = term;
    return add(std::move(plan));
  }

  PlanId add(Plan plan) {
    plans_.push_back(std::move(plan));
    return static_cast<PlanId>(plans_.size() - 1);
  }

  // The plan of a schema, made if it is new.
  PlanId request(ValueId id, Origin origin) {
    const JsonKind kind = document_.kind(id);
    if (kind == JsonKind::kTrue) return anything();
    if (kind == JsonKind::kFalse) return done(nothing());
    require(kind == JsonKind::kObject);
    PlanId& known = plan_of_[id];
    if (known != kNone) {
      ++plans_[known].uses;
      return known;
    }
    const Schema schema = read(id);
    if (schema.is_leaf()) return known = done(leaf_of(id, std::nullopt));
    Plan plan;
    plan.schema = id;
    plan.depth = depth_;
    plan.origin = std::move(origin);
    require(depth_ <= of_.limits_.depth);
    known = add(std::move(plan));
    pending_.push_back(known);
    return known;
  }

  Schema read(ValueId id) {
    Schema schema;
    for (const auto& [name, value] : document_.members(id)) {
      const auto found = of_.keywords_.find(name);
      if (found == of_.keywords_.end()) continue;
      const Keyword keyword = found->second;
      require(keyword != Keyword::kOther);
      if (keyword == Keyword::kIdentifier && id != document_.root()) has_inner_identifier_ |= is_resource(id, value);
      schema.seen |= Schema::bit(keyword);
      schema.values[static_cast<size_t>(keyword)] = value;
    }
    if (schema.has(Keyword::kReference)) {
      require(of_.reference_stands_alone_ || schema.has_only({Keyword::kReference}));
      schema.seen = Schema::bit(Keyword::kReference);
      has_reference_ = true;
      return schema;
    }
    if (schema.has(Keyword::kType)) {
      schema.types = types(schema.value(Keyword::kType));
      if (schema.has(Keyword::kNullable) && document_.kind(schema.value(Keyword::kNullable)) == JsonKind::kTrue) schema.types |= kNullType;
    }
    if (schema.has(Keyword::kNullable)) boolean(schema.value(Keyword::kNullable));
    if (schema.has(Keyword::kUniqueItems)) {
      require(!boolean(schema.value(Keyword::kUniqueItems)));
      schema.drop(Keyword::kUniqueItems);
    }
    if (schema.has(Keyword::kAdditionalItems)) {  // means nothing without an array under `items`
      require_schema(schema.value(Keyword::kAdditionalItems));
      schema.drop(Keyword::kAdditionalItems);
    }
    if (!(schema.types & kArrayType)) drop_array(schema);
    if (!(schema.types & kObjectType)) drop_object(schema);
    return schema;
  }

  void require_schema(ValueId id) const {
    if (document_.kind(id) != JsonKind::kObject) boolean(id);
  }

  // What constrains a type that is excluded must only be well-formed.
  void drop_array(Schema& schema) {
    if (schema.has(Keyword::kItems)) require_schema(schema.value(Keyword::kItems));
    if (schema.has(Keyword::kMinItems)) count(schema.value(Keyword::kMinItems));
    if (schema.has(Keyword::kMaxItems)) count(schema.value(Keyword::kMaxItems));
    for (Keyword keyword : kArrayKeywords) schema.drop(keyword);
  }
  void drop_object(Schema& schema) {
    if (schema.has(Keyword::kProperties))
      for (const auto& [name, value] : properties(schema)) require_schema(value);
    if (schema.has(Keyword::kRequired)) required_names(schema);
    if (schema.has(Keyword::kAdditionalProperties)) require_schema(schema.value(Keyword::kAdditionalProperties));
    for (Keyword keyword : kObjectKeywords) schema.drop(keyword);
  }

  // Whether an inner schema is a resource of its own, with a URI that is plain; another dialect it may not have.
  bool is_resource(ValueId id, ValueId identifier) const {
    if (document_.kind(identifier) != JsonKind::kString || document_.string(identifier).starts_with('#')) return false;
    require(document_.find(id, "$schema") == nullptr);
    return true;
  }

  std::span<const JsonDocument::Member> properties(const Schema& schema) const {
    require(document_.kind(schema.value(Keyword::kProperties)) == JsonKind::kObject);
    return document_.members(schema.value(Keyword::kProperties));
  }
  std::vector<std::string_view> required_names(const Schema& schema) const {
    require(document_.kind(schema.value(Keyword::kRequired)) == JsonKind::kArray);
    std::vector<std::string_view> names;
    for (ValueId name : document_.items(schema.value(Keyword::kRequired))) {
      require(document_.kind(name) == JsonKind::kString);
      names.push_back(document_.string(name));
    }
    return names;
  }

  bool boolean(ValueId id) const {
    const JsonKind kind = document_.kind(id);
    require(kind == JsonKind::kTrue || kind == JsonKind::kFalse);
    return kind == JsonKind::kTrue;
  }

  uint8_t types(ValueId id) const {
    if (document_.kind(id) == JsonKind::kString) return type(id);
    require(document_.kind(id) == JsonKind::kArray && !document_.items(id).empty());
    uint8_t bits = 0;
    for (ValueId item : document_.items(id)) bits |= type(item);
    return bits;
  }

  uint8_t type(ValueId id) const {
    require(document_.kind(id) == JsonKind::kString);
    const auto found = std::ranges::find(kTypeNames, document_.string(id));
    require(found != kTypeNames.end());
    return kTypeBits[static_cast<size_t>(found - kTypeNames.begin())];
  }

  uint32_t count(ValueId id) const {
    const std::string_view digits = document_.source(id);
    uint32_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    require(document_.kind(id) == JsonKind::kInteger && error == std::errc() && end == digits.data() + digits.size() && value < 1u << 31);
    return value;
  }

  void spend(uint64_t cost) {
    spent_ += cost;
    require(spent_ <= of_.limits_.cost);
  }

  void expand(PlanId id) {
    const ValueId value = plans_[id].schema;
    const Schema schema = read(value);
    if (schema.has(Keyword::kReference)) {
      auto [named, label] = target(schema);
      plans_[id].is_in_place = true;
      return set_children(id, {request(named, {.label = std::move(label)})});
    }
    for (Keyword keyword : {Keyword::kAnyOf, Keyword::kOneOf, Keyword::kAllOf})
      if (schema.has(keyword)) return in_place(id, schema, keyword);
    if (schema.has(Keyword::kEnum) || schema.has(Keyword::kConst)) return constants(id, schema);
    const bool has_array = schema.has_any(kArrayKeywords), has_object = schema.has_any(kObjectKeywords);
    const uint8_t others = schema.types & ~((has_array ? kArrayType : 0) | (has_object ? kObjectType : 0));
    if (others == 0 && schema.has(Keyword::kSimple)) leaf_of(value, schema.types);  // which refuses what is not plain
    if (schema.types == kObjectType) return object(id, schema, id);
    std::vector<PlanId> parts;
    if (others != 0) parts.push_back(done(leaf_of(value, others)));
    if (has_array) {
      parts.push_back(add(Plan()));
      array(parts.back(), schema, id);
    }
    if (has_object) {
      parts.push_back(add(Plan()));
      object(parts.back(), schema, id);
    }
    set_children(id, std::move(parts));
  }

  void set_children(PlanId id, std::vector<PlanId> children) { plans_[id].children = std::move(children); }

  // The schema that a reference within the document names, and its pointer.
  std::pair<ValueId, std::string> target(const Schema& schema) {
    const ValueId reference = schema.value(Keyword::kReference);
    require(document_.kind(reference) == JsonKind::kString);
    std::string_view text = document_.string(reference);
    require(text.starts_with('#') && text.find_first_of("%~") == std::string_view::npos);
    text.remove_prefix(1);
    require(text.empty() || text.starts_with('/'));
    ValueId here = document_.root();
    std::string label = "#";
    while (!text.empty()) {
      text.remove_prefix(1);
      const std::string_view step = text.substr(0, text.find('/'));
      text.remove_prefix(step.size());
      require(document_.kind(here) == JsonKind::kObject);
      const JsonDocument::Member* member = document_.find(here, step);
      require(member != nullptr);
      here = member->value;
      append_step(step, label);
      require(here == document_.root() || !is_identified(here));
    }
    return {here, std::move(label)};
  }

  // Whether a schema may have a URI of its own.
  bool is_identified(ValueId id) const {
    if (document_.kind(id) != JsonKind::kObject) return false;
    return std::ranges::any_of(document_.members(id), [&](const auto& member) {
      const auto found = of_.keywords_.find(member.name);
      return found != of_.keywords_.end() && found->second == Keyword::kIdentifier && is_resource(id, member.value);
    });
  }

  // A schema that is nothing but `anyOf`, `oneOf` with alternatives of different types, or `allOf` of one schema.
  void in_place(PlanId id, const Schema& schema, Keyword keyword) {
    const ValueId list = schema.value(keyword);
    require(schema.has_only({keyword}) && document_.kind(list) == JsonKind::kArray);
    const std::span<const ValueId> branches = document_.items(list);
    require(!branches.empty() && (keyword != Keyword::kAllOf || branches.size() == 1));
    const std::string_view name = keyword == Keyword::kAnyOf ? "anyOf" : keyword == Keyword::kOneOf ? "oneOf" : "allOf";
    std::vector<PlanId> children;
    bool are_constants = true;
    uint8_t types_before = 0;
    for (uint32_t index = 0; index < branches.size(); ++index) {
      require(document_.kind(branches[index]) == JsonKind::kObject);
      const Schema branch = read(branches[index]);
      are_constants &= branch.has(Keyword::kEnum) || branch.has(Keyword::kConst);
      if (keyword == Keyword::kOneOf) {
        uint32_t steps = 0;
        const uint8_t types = types_of(branches[index], steps);
        require((types & types_before) == 0);
        types_before |= types;
      }
      children.push_back(request(branches[index], {.parent = id, .keyword = name, .index = index}));
    }
    require(!are_constants || branches.size() == 1);  // they would be merged
    plans_[id].is_in_place = true;
    set_children(id, std::move(children));
  }

  // The types that the values of a schema may have, as far as `type` alone says.
  uint8_t types_of(ValueId id, uint32_t& steps) {
    require(++steps <= kMostSteps);
    if (document_.kind(id) != JsonKind::kObject) return boolean(id) ? kAnyType : 0;
    const Schema schema = read(id);
    if (schema.has(Keyword::kReference)) return types_of(target(schema).first, steps);
    return schema.types;
  }

  void constants(PlanId id, const Schema& schema) {
    require(schema.has_only({Keyword::kType, Keyword::kNullable, Keyword::kEnum, Keyword::kConst}));
    require(schema.has(Keyword::kEnum) != schema.has(Keyword::kConst));
    std::span<const ValueId> values(&schema.values[static_cast<size_t>(Keyword::kConst)], 1);
    if (schema.has(Keyword::kEnum)) {
      require(document_.kind(schema.value(Keyword::kEnum)) == JsonKind::kArray);
      values = document_.items(schema.value(Keyword::kEnum));
    }
    spend(kItemCost + kConstantCost * values.size());
    std::unordered_set<std::string> known;
    std::vector<PlainNode> literals;
    for (ValueId value : values) {
      std::string text;
      if (!(append_constant(value, text) & schema.types)) continue;
      if (known.insert(text).second) literals.push_back(literal(text));
    }
    if (literals.empty()) literals.push_back(nothing());
    set_children(id, {done(literals.size() == 1 ? literals[0] : combine(Kind::kChoice, literals))});
  }

  // Writes a scalar in its canonical form; returns its type.
  TypeBits append_constant(ValueId id, std::string& out) {
    switch (document_.kind(id)) {
      case JsonKind::kString: append_quoted(document_.string(id), out); return kStringType;
      case JsonKind::kInteger: require(document_.source(id) != "-0"); out = document_.source(id); return kIntegerType;
      case JsonKind::kNull: out = "null"; return kNullType;
      case JsonKind::kTrue: out = "true"; return kBooleanType;
      case JsonKind::kFalse: out = "false"; return kBooleanType;
      default: throw NotPlain();
    }
  }

  // What the arrays of a schema need; `owner` is the plan of the schema.
  void array(PlanId id, const Schema& schema, PlanId owner) {
    spend(kItemCost);
    if (schema.has(Keyword::kMinItems)) plans_[id].fewest = count(schema.value(Keyword::kMinItems));
    if (schema.has(Keyword::kMaxItems)) plans_[id].most = count(schema.value(Keyword::kMaxItems));
    require(plans_[id].fewest <= plans_[id].most && plans_[id].most > 0);
    plans_[id].form = Form::kArray;
    const PlanId item = schema.has(Keyword::kItems)
                            ? request(schema.value(Keyword::kItems), {.parent = owner, .keyword = "items"})
                            : anything();
    set_children(id, {item});
  }

  // What the objects of a schema need: a plan for the value of each name, then one for those of all other names.
  void object(PlanId id, const Schema& schema, PlanId owner) {
    std::vector<Entry> entries;
    std::vector<PlanId> children;
    std::vector<std::string_view> names;
    if (schema.has(Keyword::kRequired)) names = required_names(schema);
    std::unordered_set<std::string_view> required(names.begin(), names.end());
    std::optional<ValueId> additional;
    bool is_open = true;
    if (schema.has(Keyword::kAdditionalProperties)) {
      const ValueId value = schema.value(Keyword::kAdditionalProperties);
      if (document_.kind(value) == JsonKind::kFalse) is_open = false;
      else if (document_.kind(value) != JsonKind::kTrue) additional = value;
    }
    const auto request_additional = [&] {
      if (!is_open) return done(nothing());
      return additional ? request(*additional, {.parent = owner, .keyword = "additionalProperties"}) : anything();
    };
    std::span<const JsonDocument::Member> declared;
    if (schema.has(Keyword::kProperties)) declared = properties(schema);
    for (const auto& [name, value] : declared) entries.push_back({name, required.erase(name) > 0});
    for (std::string_view name : names)
      if (required.erase(name) > 0) entries.push_back({name, true});
    spend(kShapeCost + kEntryCost * entries.size());
    for (const auto& [name, value] : declared)
      children.push_back(request(value, {.parent = owner, .keyword = "properties", .name = name}));
    for (size_t i = declared.size(); i < entries.size(); ++i) children.push_back(request_additional());
    if (is_open) children.push_back(request_additional());
    Plan& plan = plans_[id];
    plan.form = Form::kObject;
    plan.is_open = is_open;
    plan.entries = std::move(entries);
    plan.children = std::move(children);
  }

  // Makes sure that applying schemas to one value comes to an end.
  void require_content() {
    enum class Colour : uint8_t { kWhite, kGrey, kBlack };
    std::vector<Colour> colours(plans_.size(), Colour::kWhite);
    std::vector<std::pair<PlanId, size_t>> trail;
    for (PlanId start : pending_) {
      if (!plans_[start].is_in_place || colours[start] != Colour::kWhite) continue;
      trail.emplace_back(start, 0);
      while (!trail.empty()) {
        auto& [id, next] = trail.back();
        colours[id] = Colour::kGrey;
        if (next == plans_[id].children.size()) {
          colours[id] = Colour::kBlack;
          trail.pop_back();
          continue;
        }
        const PlanId child = plans_[id].children[next++];
        require(colours[child] != Colour::kGrey && trail.size() < of_.limits_.depth);
        if (plans_[child].is_in_place && colours[child] == Colour::kWhite) trail.emplace_back(child, 0);
      }
    }
  }

  // Second pass

  void build(PlanId root) {
    std::vector<PlanId> stack = {root};
    while (!stack.empty()) {
      const PlanId id = stack.back();
      Plan& plan = plans_[id];
      if (plan.state == State::kNew) {
        plan.state = State::kOpen;
        for (size_t i = plan.children.size(); i-- > 0;)
          if (plans_[plan.children[i]].state == State::kNew) stack.push_back(plan.children[i]);
        continue;
      }
      stack.pop_back();
      if (plan.state == State::kOpen) finish(id);
    }
  }

  void finish(PlanId id) {
    std::vector<PlainNode> terms;
    for (PlanId child : plans_[id].children) {
      if (plans_[child].term == kNone) plans_[child].rule = rule_of(child);  // above us on the way down
      terms.push_back(plans_[child].term == kNone ? call(plans_[child].rule) : plans_[child].term);
    }
    Plan& plan = plans_[id];
    PlainNode term = kNone;
    switch (plan.form) {
      case Form::kUnion: term = either(terms); break;
      case Form::kObject: term = object_term(plan, terms); break;
      case Form::kArray: term = array_term(plan, terms[0]); break;
    }
    plan.state = State::kDone;
    if (plan.rule != kNone || (plan.uses > 1 && plan.schema != kNone && !is_small(term))) {
      plan.rule = rule_of(id);
      terms_->rules[plan.rule].body = term;
      if (term != nothing_) term = call(plan.rule);
    }
    plan.term = term;
  }

  uint32_t rule_of(PlanId id) {
    if (plans_[id].rule != kNone) return plans_[id].rule;
    terms_->rules.push_back({label(id), kNone});
    return static_cast<uint32_t>(terms_->rules.size() - 1);
  }

  std::string label(PlanId id) const {
    std::vector<PlanId> trail;
    for (; plans_[id].origin.parent != kNone; id = plans_[id].origin.parent) trail.push_back(id);
    std::string text = plans_[id].origin.label;
    for (size_t i = trail.size(); i-- > 0;) {
      const Origin& origin = plans_[trail[i]].origin;
      append_step(origin.keyword, text);
      if (origin.name.data() != nullptr) append_step(origin.name, text);
      if (origin.index != kNone) append_step(std::to_string(origin.index), text);
    }
    return text;
  }

  bool is_small(PlainNode node) const {
    const auto is_small_alone = [&](PlainNode one) {
      const PlainTerms::Node& made = terms_->nodes[one];
      return made.kind == Kind::kLiteral || made.kind == Kind::kCall || (made.kind == Kind::kLeaf && is_small_leaf_[made.low]);
    };
    const PlainTerms::Node& made = terms_->nodes[node];
    if (made.kind != Kind::kChoice) return is_small_alone(node);
    const std::span<const PlainNode> parts = terms_->parts_of(made);
    return parts.size() <= kFewChoices && std::ranges::all_of(parts, is_small_alone);
  }

  // Terms: the same as in terms.py, object_terms.py and arrays.py.

  PlainNode emit(PlainTerms::Node node) {
    terms_->nodes.push_back(node);
    return static_cast<PlainNode>(terms_->nodes.size() - 1);
  }
  PlainNode combine(Kind kind, std::span<const PlainNode> parts, uint32_t low = 0, uint32_t high = 0) {
    const auto begin = static_cast<uint32_t>(terms_->parts.size());
    terms_->parts.insert(terms_->parts.end(), parts.begin(), parts.end());
    return emit({kind, begin, static_cast<uint32_t>(terms_->parts.size()), low, high});
  }
  PlainNode sequence(std::initializer_list<PlainNode> parts) { return combine(Kind::kSequence, {parts.begin(), parts.size()}); }
  PlainNode choice(std::initializer_list<PlainNode> parts) { return combine(Kind::kChoice, {parts.begin(), parts.size()}); }
  PlainNode empty_string() {
    if (empty_string_ == kNone) empty_string_ = literal("");
    return empty_string_;
  }
  PlainNode nothing() {
    if (nothing_ == kNone) nothing_ = choice({});
    return nothing_;
  }
  PlainNode call(uint32_t rule) { return emit({Kind::kCall, 0, 0, rule, 0}); }
  PlainNode literal(std::string_view text, Kind kind = Kind::kLiteral) {
    const auto begin = static_cast<uint32_t>(terms_->text.size());
    terms_->text += text;
    return emit({kind, begin, static_cast<uint32_t>(terms_->text.size())});
  }

  PlainNode either(std::span<const PlainNode> terms) {
    std::vector<PlainNode> kept;
    for (PlainNode term : terms)
      if (term != nothing_ && std::ranges::find(kept, term) == kept.end()) kept.push_back(term);
    if (kept.empty()) return nothing();
    return kept.size() == 1 ? kept[0] : combine(Kind::kChoice, kept);
  }

  PlainNode array_term(const Plan& plan, PlainNode item) {
    if (item == nothing_) return plan.fewest > 0 ? nothing() : sequence({shared(PlainSyntax::kOpenArray), shared(PlainSyntax::kEndArray)});
    const PlainNode further[] = {sequence({shared(PlainSyntax::kComma), item})};
    const PlainNode tail = combine(Kind::kRepeat, further, plan.fewest > 1 ? plan.fewest - 1 : 0, plan.most == kNone ? kNone : plan.most - 1);
    const PlainNode some = sequence({item, tail, shared(PlainSyntax::kCloseArray)});
    return sequence({shared(PlainSyntax::kOpenArray), plan.fewest > 0 ? some : choice({shared(PlainSyntax::kEndArray), some})});
  }

  PlainNode object_term(const Plan& plan, std::span<const PlainNode> values) {
    std::vector<Entry> entries;
    std::vector<PlainNode> possible;  // values of those
    for (size_t i = 0; i < plan.entries.size(); ++i) {
      if (values[i] != nothing_) {
        entries.push_back(plan.entries[i]);
        possible.push_back(values[i]);
      } else if (plan.entries[i].is_required) {
        return nothing();
      }
    }
    const bool is_open = plan.is_open && values.back() != nothing_;
    std::vector<PlainNode> loop;  // (comma other)*
    PlainNode other = kNone;
    if (is_open) {
      other = sequence({other_names(plan.entries), shared(PlainSyntax::kColon), values.back()});
      const PlainNode more[] = {sequence({shared(PlainSyntax::kComma), other})};
      loop.push_back(combine(Kind::kRepeat, more, 0, kNone));
    }
    std::vector<PlainNode> tail;     // what may follow the member before
    PlainNode following = kNone;
    bool can_end = true;
    for (size_t index = entries.size() + 1; index-- > 0;) {
      if (index < entries.size()) {
        std::string key;
        append_quoted(entries[index].name, key);
        std::vector<PlainNode> member = {literal(key), shared(PlainSyntax::kColon), possible[index]};
        member.insert(member.end(), tail.begin(), tail.end());
        const PlainNode whole = combine(Kind::kSequence, member);
        const bool is_last = following == kNone;
        following = entries[index].is_required || is_last ? whole : choice({whole, following});
        can_end &= !entries[index].is_required;
      }
      tail = loop;
      if (following != kNone) {
        const PlainNode more = sequence({shared(PlainSyntax::kComma), following});
        tail.push_back(can_end ? choice({empty_string(), more}) : more);
      }
    }
    if (is_open) {
      std::vector<PlainNode> begun = {other};
      begun.insert(begun.end(), tail.begin(), tail.end());
      const PlainNode first = combine(Kind::kSequence, begun);
      following = following == kNone ? first : choice({first, following});
    }
    if (following == kNone) return sequence({shared(PlainSyntax::kOpenObject), shared(PlainSyntax::kEndObject)});
    const PlainNode some = sequence({following, shared(PlainSyntax::kCloseObject)});
    return sequence({shared(PlainSyntax::kOpenObject), can_end ? choice({shared(PlainSyntax::kEndObject), some}) : some});
  }

  // The names of an object that are not declared, as JSON strings.
  PlainNode other_names(const std::vector<Entry>& entries) {
    if (entries.empty()) return shared(PlainSyntax::kAnyString);
    std::vector<PlainNode> names;
    for (const Entry& entry : entries) names.push_back(literal(entry.name, Kind::kName));
    return combine(Kind::kOtherNames, names);
  }

  // Leaves

  // The leaf of the simple keywords of a schema; with `types` in place of its `type`.
  PlainNode leaf_of(ValueId id, std::optional<uint8_t> types) {
    std::string text = "{";
    if (types) {
      text += "\"type\":[";
      for (size_t i = 0; i < kTypeNames.size(); ++i) {
        const uint8_t bits = kTypeBits[i];
        if ((*types & bits) != bits || (bits == kIntegerType && *types & kFractionType)) continue;
        if (text.back() != '[') text.push_back(',');
        append_quoted(kTypeNames[i], text);
      }
      text.push_back(']');
    }
    for (const auto& [name, value] : document_.members(id)) {
      const auto found = of_.keywords_.find(name);
      if (found == of_.keywords_.end()) continue;
      const bool is_type = found->second == Keyword::kType || found->second == Keyword::kNullable;
      if (found->second != Keyword::kSimple && (types || !is_type)) continue;
      if (text.size() > 1) text.push_back(',');
      append_quoted(name, text);
      text.push_back(':');
      text += document_.source(value);
    }
    text.push_back('}');
    return add_leaf(of_.leaf(text, make_leaf_));
  }

  PlainNode shared(PlainSyntax::Term term) {
    if (shared_[term] == kNone) shared_[term] = add_leaf({of_.syntax_.terms[term], true});
    return shared_[term];
  }

  PlainNode add_leaf(const PlainPlanner::Leaf& leaf) {
    require(leaf.term.is_valid());
    for (PlainNode node : leaf_nodes_)
      if (terms_->leaves[terms_->nodes[node].low].is(leaf.term)) return node;
    terms_->leaves.push_back(leaf.term);
    is_small_leaf_.push_back(leaf.is_small);
    leaf_nodes_.push_back(emit({Kind::kLeaf, 0, 0, static_cast<uint32_t>(terms_->leaves.size() - 1), 0}));
    return leaf_nodes_.back();
  }

  PlainPlanner& of_;
  const JsonDocument& document_;
  nb::handle make_leaf_;
  std::unique_ptr<PlainTerms> terms_;
  std::vector<PlanId> plan_of_;  // by schema
  std::vector<Plan> plans_;
  std::vector<PlanId> pending_;
  std::vector<PlainNode> leaf_nodes_;
  std::array<PlainNode, PlainSyntax::kTerms> shared_;
  std::vector<bool> is_small_leaf_;
  PlanId anything_ = kNone;
  PlainNode empty_string_ = kNone;
  PlainNode nothing_ = kNone;  // of no text
  bool has_reference_ = false, has_inner_identifier_ = false;
  uint32_t depth_ = 0;
  uint64_t spent_ = 0;
};

PlainPlanner::PlainPlanner(nb::dict keywords, bool reference_stands_alone, PlainSyntax syntax, PlainLimits limits)
    : reference_stands_alone_(reference_stands_alone), syntax_(std::move(syntax)), limits_(limits) {
  for (auto [name, number] : keywords) {
    const auto keyword = nb::cast<size_t>(number);
    if (keyword >= kKeywords) throw nb::value_error("plain planner: no such keyword");
    keywords_.emplace(nb::cast<std::string>(name), static_cast<Keyword>(keyword));
  }
}

std::unique_ptr<PlainTerms> PlainPlanner::plan(const JsonDocument& document, nb::handle make_leaf) {
  try {
    return PlainPlanning(*this, document, make_leaf).all();
  } catch (const NotPlain&) {
    return nullptr;
  }
}

PlainPlanner::Leaf PlainPlanner::leaf(const std::string& text, nb::handle make_leaf) {
  if (const auto found = leaves_.find(text); found != leaves_.end()) return found->second;
  nb::object made = make_leaf(text);
  if (made.is_none()) return {};
  Leaf leaf{made[0], nb::cast<bool>(made[1])};
  if (text.size() <= kLongestLeaf) {
    if (leaves_.size() >= kMostLeaves) leaves_.clear();
    leaves_.insert_or_assign(text, leaf);
  }
  return leaf;
}

}  // namespace structgen
