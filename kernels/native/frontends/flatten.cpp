#include "frontends/flatten.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>
#include <string_view>

#include "frontends/json_schema/simple_terms.h"

namespace nb = nanobind;

namespace structgen {

namespace {

enum Mode : uint8_t {
  kText,     // rules may be called
  kRegular,  // text inside an intersection or complement: references are spliced in
  kDecoded,  // the value of a JSON string: regular, and of any bytes
};

using ScopeId = uint32_t;
constexpr ScopeId kNoScope = 0;
constexpr uint32_t kMaxCount = std::numeric_limits<int32_t>::max();
constexpr uint8_t kMaxBooleanNesting = 64;

nb::object interned(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

}  // namespace

// The flattening of one grammar.
class Flattening {
 public:
  Flattening(const Flattener& flattener, nb::dict known, nb::handle host, nb::handle vocabulary, uint64_t max_nodes, nb::handle rewrite)
      : of_(flattener), known_(std::move(known)), host_(host), vocabulary_(vocabulary), rewrite_(rewrite), max_nodes_(max_nodes), scopes_(1) {}

  FlatGrammar all(PyObject* root) {
    need(root, kNoScope, kText);
    finish_above(0);
    flat_.program.result = results_.at(0);
    return std::move(flat_);
  }

 private:
  struct Entry {  // a node in a scope and a mode
    PyObject* node;
    ScopeId scope;
    Mode mode;
    uint32_t instruction = kNone;  // kNone: its parts are being made
  };
  struct Frame {
    uint32_t entry;
    PyObject* node;
    PyObject* items;   // the parts of a Sequence, Choice or Intersection, and the rules of Rules
    ScopeId scope;     // of the parts
    Mode mode;
    NodeClass node_class;
    size_t next = 0, count = 0;
    size_t results = 0;  // where those of the parts begin
    uint32_t first_rule = 0;
  };
  struct Scope {
    nb::dict indices;  // rule name -> index
    PyObject* rules;
    ScopeId around;
    uint32_t first_rule;
  };
  struct Part {
    PyObject* node;
    ScopeId scope;
    Mode mode;
  };

  // What a node holds lives as long as the node does, which is immutable.
  static PyObject* attribute(PyObject* node, const nb::object& name) {
    PyObject* value = PyObject_GetAttr(node, name.ptr());
    if (value == nullptr) throw nb::python_error();
    Py_DECREF(value);
    return value;
  }
  static PyObject* tuple(PyObject* value) {
    if (!PyTuple_Check(value)) throw nb::type_error("grammar: expected a tuple");
    return value;
  }

  NodeClass class_of(PyObject* node) const {
    const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(node));
    for (size_t i = 0; i < kNodeClasses; ++i)
      if (of_.classes_[i].ptr() == type) return static_cast<NodeClass>(i);
    host_.attr("unknown")(nb::handle(node));
    throw nb::type_error("grammar: unknown node");
  }

  // Puts the instruction of a node among the results, now or when its parts are made.
  void need(PyObject* node, ScopeId scope, Mode mode) {
    const uint64_t hash = combine(reinterpret_cast<uintptr_t>(node), uint64_t{scope} << 2 | mode);
    const uint32_t found = table_.find(hash, [&](uint32_t id) {
      const Entry& entry = entries_[id];
      return entry.node == node && entry.scope == scope && entry.mode == mode;
    });
    if (found != kNone) {
      if (entries_[found].instruction == kNone) host_.attr("recursive")(nb::handle(stack_.back().node));
      results_.push_back(entries_[found].instruction);
      return;
    }
    if (entries_.size() >= max_nodes_) host_.attr("exceeded")("grammar_nodes", max_nodes_);
    const auto entry = static_cast<uint32_t>(entries_.size());
    entries_.push_back({node, scope, mode});
    table_.insert(hash, entry);
    open(entry);
  }

  // Makes all that is on the stack above `height`.
  void finish_above(size_t height) {
    while (stack_.size() > height) {
      Frame& frame = stack_.back();
      if (frame.next == frame.count) {
        close();
      } else {
        const size_t index = frame.next++;
        if (frame.node_class == NodeClass::kRules && index > 0 && !frame.mode) set_rule(frame, index - 1);
        const auto [child, scope, mode] = part(frame, index);
        need(child, scope, mode);
      }
    }
  }

  void open(uint32_t entry) {
    const auto [node, scope, mode, none] = entries_[entry];
    Frame frame{entry, node, nullptr, scope, mode, class_of(node)};
    frame.results = results_.size();
    switch (frame.node_class) {
      case NodeClass::kLiteral: return finish(entry, literal(node, mode));
      case NodeClass::kByteClass: return finish(entry, symbols(Instruction::Kind::kBytes, node, mode));
      case NodeClass::kCharClass: return finish(entry, symbols(Instruction::Kind::kChars, node, mode));
      case NodeClass::kSpecialToken: return finish(entry, special(node, mode));
      case NodeClass::kTokenSet:
        if (mode != kText) host_.attr("special_in_regular")(nb::handle(node));
        return finish(entry, ranges_of(Instruction::Kind::kTokens, nb::object(host_.attr("token_ranges")(vocabulary_, nb::handle(node))).ptr(), mode));
      case NodeClass::kSequence:
      case NodeClass::kChoice:
      case NodeClass::kIntersection:
        frame.items = tuple(attribute(node, of_.items_));
        frame.count = static_cast<size_t>(PyTuple_GET_SIZE(frame.items));
        break;
      case NodeClass::kPermutation:
        frame.items = tuple(attribute(node, of_.required_));
        frame.count = static_cast<size_t>(PyTuple_GET_SIZE(frame.items) + PyTuple_GET_SIZE(tuple(attribute(node, of_.optional_)))) + 2;
        break;
      case NodeClass::kShared:
        if (mode == kText) {
          if (const uint32_t term = known_term(node); term != kNone)
            return finish(entry, emit({.kind = Instruction::Kind::kTerm, .low = term}));
        }
        frame.scope = kNoScope;
        frame.count = 1;
        break;
      case NodeClass::kRules: open_rules(frame); break;
      case NodeClass::kReference: {
        const auto [found, index] = find(node, scope);
        if (mode == kText)
          return finish(entry, emit({.kind = Instruction::Kind::kCall, .low = scopes_[found].first_rule + index}));
        frame.scope = found;
        frame.items = PyTuple_GET_ITEM(scopes_[found].rules, index);
        frame.count = 1;
        break;
      }
      case NodeClass::kDescribed:
        if (mode == kText) {
          const nb::handle made = attribute(node, of_.plain_);
          if (const FlatGrammar* flat = nullptr; nb::try_cast(made, flat) && flat != nullptr) return finish(entry, spliced(flat->program));
          if (!made.is_none()) return finish(entry, plain(nb::cast<const SimpleTerms&>(made)));
        }
        frame.count = 1;
        break;
      case NodeClass::kDistinct:
        if (mode != kText) host_.attr("distinct_in_regular")(nb::handle(node));
        frame.count = 1;
        break;
      case NodeClass::kBudget:
        if (mode != kText && !nb::handle(attribute(node, of_.tokens_)).is_none()) host_.attr("budget_in_regular")(nb::handle(node));
        frame.count = 1;
        break;
      case NodeClass::kLabel:
        if (mode != kText) host_.attr("label_in_regular")(nb::handle(node));
        [[fallthrough]];
      default: frame.count = 1;
    }
    const bool is_boolean = frame.node_class == NodeClass::kIntersection || frame.node_class == NodeClass::kComplement ||
                            (frame.node_class == NodeClass::kBudget && !nb::handle(attribute(node, of_.characters_)).is_none());
    if (frame.mode == kText && is_boolean) frame.mode = kRegular;
    stack_.push_back(frame);
  }

  void open_rules(Frame& frame) {
    frame.count = 1;
    if (!rewrite_.is_none() && frame.mode == kText && frame.scope == kNoScope) {
      nb::object equal = rewrite_(nb::handle(frame.node));
      if (equal.ptr() != frame.node) {
        held_.push_back(equal);
        frame.node = equal.ptr();
        frame.node_class = class_of(frame.node);
        if (frame.node_class != NodeClass::kRules) {  // its rules were all in use nowhere: one part that is the whole
          frame.node_class = NodeClass::kDescribed;
          frame.items = frame.node;
          return;
        }
      }
    }
    frame.items = tuple(attribute(frame.node, of_.rules_));
    const auto count = static_cast<size_t>(PyTuple_GET_SIZE(frame.items));
    Scope scope{nb::dict(), frame.items, frame.scope, static_cast<uint32_t>(flat_.program.rules.size())};
    for (size_t i = 0; i < count; ++i) {
      const nb::handle name = PyTuple_GET_ITEM(tuple(PyTuple_GET_ITEM(frame.items, i)), 0);
      scope.indices[name] = i;
      if (frame.mode == kText) flat_.program.rules.push_back(nb::cast<std::string>(name));
    }
    frame.first_rule = scope.first_rule;
    frame.scope = static_cast<ScopeId>(scopes_.size());
    scopes_.push_back(std::move(scope));
    if (frame.mode == kText) frame.count += count;
  }

  std::pair<ScopeId, uint32_t> find(PyObject* reference, ScopeId scope) const {
    PyObject* name = attribute(reference, of_.name_);
    for (; scope != kNoScope; scope = scopes_[scope].around) {
      PyObject* index = PyDict_GetItemWithError(scopes_[scope].indices.ptr(), name);
      if (index != nullptr) return {scope, static_cast<uint32_t>(PyLong_AsUnsignedLong(index))};
      if (PyErr_Occurred()) throw nb::python_error();
    }
    host_.attr("undefined")(nb::handle(name));
    throw nb::type_error("grammar: undefined rule");
  }

  uint32_t known_term(PyObject* node) const {
    const nb::object key = nb::steal(PyLong_FromVoidPtr(node));
    PyObject* held = PyDict_GetItemWithError(known_.ptr(), key.ptr());
    if (held != nullptr) return static_cast<uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(tuple(held), 1)));
    if (PyErr_Occurred()) throw nb::python_error();
    return kNone;
  }

  // The part of a node that is made next.
  Part part(const Frame& frame, size_t index) const {
    switch (frame.node_class) {
      case NodeClass::kSequence:
      case NodeClass::kChoice:
      case NodeClass::kIntersection: return {PyTuple_GET_ITEM(frame.items, index), frame.scope, frame.mode};
      case NodeClass::kPermutation: return {member(frame, index), frame.scope, frame.mode};
      case NodeClass::kRules:
        if (index + 1 == frame.count) return {attribute(frame.node, of_.body_), frame.scope, frame.mode};
        return {PyTuple_GET_ITEM(PyTuple_GET_ITEM(frame.items, index), 1), frame.scope, kText};
      case NodeClass::kReference: return {PyTuple_GET_ITEM(frame.items, 1), frame.scope, frame.mode};
      case NodeClass::kJsonString: return {attribute(frame.node, of_.value_), frame.scope, kDecoded};
      case NodeClass::kDescribed:
        if (frame.items != nullptr) return {frame.items, frame.scope, frame.mode};
        [[fallthrough]];
      default: return {attribute(frame.node, of_.item_), frame.scope, frame.mode};
    }
  }

  // The parts of a permutation: what is required, what is optional, the rest and the separator.
  PyObject* member(const Frame& frame, size_t index) const {
    if (index + 1 == frame.count) return attribute(frame.node, of_.separator_);
    if (index + 2 == frame.count) return attribute(frame.node, of_.rest_);
    const auto required = static_cast<size_t>(PyTuple_GET_SIZE(frame.items));
    if (index < required) return PyTuple_GET_ITEM(frame.items, index);
    return PyTuple_GET_ITEM(attribute(frame.node, of_.optional_), index - required);
  }

  // All parts of the topmost frame are made: their instructions are the last results.
  void close() {
    const Frame frame = stack_.back();
    stack_.pop_back();
    const std::span<const uint32_t> parts{results_.data() + frame.results, results_.size() - frame.results};
    const uint32_t instruction = combined(frame, parts);
    results_.resize(frame.results);
    finish(frame.entry, instruction);
  }

  uint32_t combined(const Frame& frame, std::span<const uint32_t> parts) {
    using Kind = Instruction::Kind;
    switch (frame.node_class) {
      case NodeClass::kSequence: return emit({.kind = Kind::kSequence}, parts);
      case NodeClass::kChoice: return emit({.kind = Kind::kChoice}, parts);
      case NodeClass::kRepeat: {
        const auto [min, max] = bounds(frame.node, "repetition count");
        return emit({.kind = Kind::kRepeat, .low = min, .high = max}, parts);
      }
      case NodeClass::kPermutation: {
        const auto [min, max] = bounds(frame.node, "number of members");
        const auto required = static_cast<uint32_t>(PyTuple_GET_SIZE(frame.items));
        return emit({.kind = Kind::kPermutation, .low = min, .high = max, .required = required}, parts);
      }
      case NodeClass::kIntersection: return emit({.kind = Kind::kAnd, .decoded = frame.mode == kDecoded}, parts);
      case NodeClass::kComplement: return emit({.kind = Kind::kNot, .decoded = frame.mode == kDecoded}, parts);
      case NodeClass::kJsonString: {
        const uint32_t instruction = emit({.kind = Kind::kJsonString}, parts);
        if (frame.mode != kText) return instruction;
        // A rule of its own: its states, and so its mask rows, do not depend on what follows the string.
        return emit({.kind = Kind::kShare}, std::span(&instruction, 1));
      }
      case NodeClass::kDistinct: {
        const auto holds = [&](const nb::object& name) { return nb::cast<bool>(nb::handle(attribute(frame.node, name))); };
        using Known = structgen::Scope;
        const Known known = holds(of_.is_spare_) ? Known::kSpare : holds(of_.is_endless_) ? Known::kEndless : Known::kUnknown;
        return emit({.kind = Kind::kScope, .low = static_cast<uint32_t>(known)}, parts);
      }
      case NodeClass::kLabel: {
        const auto kind = nb::cast<std::string>(nb::handle(attribute(frame.node, of_.kind_)));
        using Known = structgen::Scope;
        const Known scope = kind == "bidi" ? Known::kBidiLabel : kind == "u-label" ? Known::kLetterLabel : Known::kLabel;
        return emit({.kind = Kind::kScope, .low = static_cast<uint32_t>(scope)}, parts);
      }
      case NodeClass::kBudget: return budget(frame, parts[0]);
      case NodeClass::kTempered: {
        if (frame.mode != kText) return parts[0];  // of a regular part no piece has a temperature of its own
        const auto temperature = nb::cast<double>(nb::handle(attribute(frame.node, of_.temperature_)));
        const auto bits = std::bit_cast<uint64_t>(temperature);
        return emit({.kind = Kind::kTempered, .low = static_cast<uint32_t>(bits), .high = static_cast<uint32_t>(bits >> 32)}, parts);
      }
      case NodeClass::kShared: {
        if (frame.mode != kText) return parts[0];
        const uint32_t instruction = emit({.kind = Kind::kShare}, parts);
        flat_.shared.push_back({nb::borrow(frame.node), instruction, false});
        return instruction;
      }
      default: return parts.back();  // what stands for its only part, or for the body of rules
    }
  }

  // The texts of an item that are short enough, and those that few enough tokens write.
  uint32_t budget(const Frame& frame, uint32_t item) {
    using Kind = Instruction::Kind;
    PyObject* tokens = attribute(frame.node, of_.tokens_);
    PyObject* characters = attribute(frame.node, of_.characters_);
    if (!nb::handle(characters).is_none()) {
      const bool decoded = frame.mode == kDecoded;
      auto& ranges = flat_.program.ranges;
      const auto begin = static_cast<uint32_t>(ranges.size());
      ranges.insert(ranges.end(), {{0, 0xD7FF}, {0xE000, 0x10FFFF}});
      const uint32_t any = emit({.kind = Kind::kChars, .decoded = decoded, .begin = begin, .end = begin + 2});
      const uint32_t short_texts = emit({.kind = Kind::kRepeat, .high = count(characters, "characters of a part")}, std::span(&any, 1));
      item = emit({.kind = Kind::kAnd, .decoded = decoded}, std::array{item, short_texts});
    }
    if (nb::handle(tokens).is_none()) return item;
    return emit({.kind = Kind::kBudget, .low = count(tokens, "tokens of a part")}, std::span(&item, 1));
  }

  void set_rule(const Frame& frame, size_t index) {
    emit({.kind = Instruction::Kind::kSetRule, .low = static_cast<uint32_t>(frame.first_rule + index)},
         std::span(results_).last(1));
  }

  void finish(uint32_t entry, uint32_t instruction) {
    entries_[entry].instruction = instruction;
    results_.push_back(instruction);
  }

  // The instruction of terms that hold no objects but for their leaves.
  uint32_t plain(const SimpleTerms& terms) {
    using Kind = Instruction::Kind;
    const auto first_rule = static_cast<uint32_t>(flat_.program.rules.size());
    for (const auto& [name, body] : terms.rules) flat_.program.rules.push_back(name);
    if (entries_.size() + terms.nodes.size() > max_nodes_) host_.attr("exceeded")("grammar_nodes", max_nodes_);
    std::vector<uint32_t> made, parts;
    made.reserve(terms.nodes.size());
    for (const SimpleTerms::Node& node : terms.nodes) {
      parts.clear();
      const auto take_parts = [&] {
        for (SimpleNode part : terms.parts_of(node)) parts.push_back(made[part]);
      };
      switch (node.kind) {
        case SimpleTerms::Kind::kLeaf: made.push_back(leaf(terms.leaves[node.low].ptr())); break;
        case SimpleTerms::Kind::kLiteral: made.push_back(literal(terms.text_of(node), kText)); break;
        case SimpleTerms::Kind::kName: made.push_back(literal(terms.text_of(node), kDecoded)); break;
        case SimpleTerms::Kind::kSequence: take_parts(); made.push_back(emit({.kind = Kind::kSequence}, parts)); break;
        case SimpleTerms::Kind::kChoice: take_parts(); made.push_back(emit({.kind = Kind::kChoice}, parts)); break;
        case SimpleTerms::Kind::kRepeat:
          take_parts();
          made.push_back(emit({.kind = Kind::kRepeat, .low = node.low, .high = node.high}, parts));
          break;
        case SimpleTerms::Kind::kCall: made.push_back(emit({.kind = Kind::kCall, .low = first_rule + node.low})); break;
        case SimpleTerms::Kind::kOtherNames: take_parts(); made.push_back(other_strings(parts)); break;
      }
    }
    for (uint32_t rule = 0; rule < terms.rules.size(); ++rule)
      emit({.kind = Kind::kSetRule, .low = first_rule + rule}, std::span(&made[terms.rules[rule].body], 1));
    return made[terms.result];
  }

  // The instruction of a whole program that was made before.
  uint32_t spliced(const Program& other) {
    Program& program = flat_.program;
    if (entries_.size() + other.instructions.size() > max_nodes_) host_.attr("exceeded")("grammar_nodes", max_nodes_);
    const uint32_t result = program.splice(other);
    for (size_t i = boolean_nesting_.size(); i < program.instructions.size(); ++i) {
      const Instruction& one = program.instructions[i];
      boolean_nesting_.push_back(holds_instructions(one.kind) ? nesting(one) : 0);
    }
    return result;
  }

  // Leaves live long and many grammars use them, as they do shared nodes.
  uint32_t leaf(PyObject* node) {
    const bool is_shared = class_of(node) == NodeClass::kShared;
    if (!is_shared) {
      if (const uint32_t term = known_term(node); term != kNone) return emit({.kind = Instruction::Kind::kTerm, .low = term});
    }
    const size_t height = stack_.size();
    need(node, kNoScope, kText);
    finish_above(height);
    const uint32_t instruction = results_.back();
    results_.pop_back();
    if (!is_shared) flat_.shared.push_back({nb::borrow(node), instruction, true});
    return instruction;
  }

  // JSON strings whose value is none of `values`.
  uint32_t other_strings(std::span<const uint32_t> values) {
    using Kind = Instruction::Kind;
    uint32_t last = values.size() == 1 ? values[0] : emit({.kind = Kind::kChoice}, values);
    for (const Instruction& next : {Instruction{.kind = Kind::kNot, .decoded = true}, {.kind = Kind::kJsonString}, {.kind = Kind::kShare}})
      last = emit(next, std::span(&last, 1));
    return last;
  }

  uint32_t literal(std::string_view data, Mode mode) {
    const auto begin = static_cast<uint32_t>(flat_.program.text.size());
    flat_.program.text += data;
    return emit({.kind = Instruction::Kind::kLiteral,
                 .decoded = mode == kDecoded,
                 .begin = begin,
                 .end = static_cast<uint32_t>(flat_.program.text.size())});
  }

  uint32_t literal(PyObject* node, Mode mode) {
    char* data = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(attribute(node, of_.data_), &data, &size) < 0) throw nb::python_error();
    return literal(std::string_view(data, static_cast<size_t>(size)), mode);
  }

  uint32_t symbols(Instruction::Kind kind, PyObject* node, Mode mode) { return ranges_of(kind, attribute(node, of_.ranges_), mode); }

  uint32_t ranges_of(Instruction::Kind kind, PyObject* given, Mode mode) {
    auto& ranges = flat_.program.ranges;
    const auto begin = static_cast<uint32_t>(ranges.size());
    PyObject* pairs = tuple(given);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(pairs); ++i) {
      PyObject* pair = tuple(PyTuple_GET_ITEM(pairs, i));
      ranges.emplace_back(count(PyTuple_GetItem(pair, 0), "code point"), count(PyTuple_GetItem(pair, 1), "code point"));
    }
    return emit({.kind = kind, .decoded = mode == kDecoded, .begin = begin, .end = static_cast<uint32_t>(ranges.size())});
  }

  uint32_t special(PyObject* node, Mode mode) {
    const nb::object token = host_.attr("special_id")(vocabulary_, nb::handle(node));
    if (token.is_none()) {  // its text stands for it
      const auto text = nb::cast<std::string>(nb::handle(node).attr("token"));
      return literal(std::string_view(text), mode);
    }
    if (mode != kText) host_.attr("special_in_regular")(nb::handle(node));
    return emit({.kind = Instruction::Kind::kSpecial, .low = nb::cast<uint32_t>(token)});
  }

  // The attributes `min` and `max` of a node; kNone is unbounded.
  std::pair<uint32_t, uint32_t> bounds(PyObject* node, const char* limit) const {
    PyObject* max = attribute(node, of_.max_);
    const bool unbounded = nb::handle(max).is_none();
    return {count(attribute(node, of_.min_), limit), unbounded ? kNone : count(max, limit)};
  }
  uint32_t count(PyObject* number, const char* limit) const {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    if (overflow != 0 || value > kMaxCount) host_.attr("exceeded")(limit, kMaxCount);
    return static_cast<uint32_t>(value);
  }

  static bool holds_instructions(Instruction::Kind kind) {
    using Kind = Instruction::Kind;
    return kind != Kind::kLiteral && kind != Kind::kBytes && kind != Kind::kChars && kind != Kind::kTokens;
  }
  // How deep boolean operators are nested in an instruction with operands.
  uint8_t nesting(const Instruction& one) const {
    using Kind = Instruction::Kind;
    uint8_t inner = 0;
    for (uint32_t i = one.begin; i < one.end; ++i) inner = std::max(inner, boolean_nesting_[flat_.program.operands[i]]);
    inner += one.kind == Kind::kAnd || one.kind == Kind::kNot || one.kind == Kind::kJsonString;
    if (inner > kMaxBooleanNesting) host_.attr("exceeded")("boolean nesting", kMaxBooleanNesting);
    return inner;
  }

  uint32_t emit(Instruction instruction, std::span<const uint32_t> parts = {}) {
    auto& operands = flat_.program.operands;
    if (!parts.empty()) {
      instruction.begin = static_cast<uint32_t>(operands.size());
      operands.insert(operands.end(), parts.begin(), parts.end());
      instruction.end = static_cast<uint32_t>(operands.size());
    }
    boolean_nesting_.push_back(parts.empty() ? 0 : nesting(instruction));
    flat_.program.instructions.push_back(instruction);
    return static_cast<uint32_t>(flat_.program.instructions.size() - 1);
  }

  const Flattener& of_;
  nb::dict known_;
  nb::handle host_;
  nb::handle vocabulary_;
  nb::handle rewrite_;
  uint64_t max_nodes_;
  FlatGrammar flat_;
  std::vector<Entry> entries_;
  IdTable table_;
  std::vector<Frame> stack_;
  std::vector<uint32_t> results_;
  std::vector<Scope> scopes_;                // [0] is unused
  std::vector<uint8_t> boolean_nesting_;     // of each instruction, which bounds the engine's recursion
  std::vector<nb::object> held_;
};

Flattener::Flattener(nb::handle classes)
    : data_(interned("data")),
      ranges_(interned("ranges")),
      items_(interned("items")),
      item_(interned("item")),
      min_(interned("min")),
      max_(interned("max")),
      name_(interned("name")),
      rules_(interned("rules")),
      body_(interned("body")),
      value_(interned("value")),
      required_(interned("required")),
      optional_(interned("optional")),
      rest_(interned("rest")),
      separator_(interned("separator")),
      is_spare_(interned("is_spare")),
      is_endless_(interned("is_endless")),
      kind_(interned("kind")),
      plain_(interned("plain")),
      temperature_(interned("temperature")),
      tokens_(interned("tokens")),
      characters_(interned("characters")) {
  if (nb::len(classes) != kNodeClasses) throw nb::value_error("flattener: one class for each kind of node");
  for (size_t i = 0; i < kNodeClasses; ++i) classes_[i] = classes[i];
}

FlatGrammar Flattener::flatten(nb::handle grammar, nb::dict known, nb::handle host, nb::handle vocabulary, uint64_t max_nodes,
                               nb::handle rewrite) const {
  return Flattening(*this, std::move(known), host, vocabulary, max_nodes, rewrite).all(grammar.ptr());
}

}  // namespace structgen
