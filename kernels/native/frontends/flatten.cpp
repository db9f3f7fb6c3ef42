// The way through the nodes of a grammar: what is met where, which parts of it are made next, and the rules in scope.
#include "frontends/flatten.h"

#include <nanobind/stl/string.h>

#include <span>
#include <string>

#include "frontends/flattening.h"

namespace nb = nanobind;

namespace structgen {

namespace {

nb::object interned(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

}  // namespace

NodeClass Flattening::class_of(PyObject* node) const {
  const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(node));
  for (size_t i = 0; i < kNodeClasses; ++i)
    if (of_.classes_[i].ptr() == type) return static_cast<NodeClass>(i);
  host_.attr("unknown")(nb::handle(node));
  throw nb::type_error("grammar: unknown node");
}

// Puts the instruction of a node among the results, now or when its parts are made.
void Flattening::need(PyObject* node, ScopeId scope, Mode mode) {
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
void Flattening::finish_above(size_t height) {
  while (stack_.size() > height) {
    pulse_.beat();
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

void Flattening::open(uint32_t entry) {
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
      frame.count = static_cast<size_t>(tuple_size(frame.items));
      break;
    case NodeClass::kPermutation:
      frame.items = tuple(attribute(node, of_.required_));
      frame.count = static_cast<size_t>(tuple_size(frame.items) + tuple_size(tuple(attribute(node, of_.optional_)))) + 2;
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
      frame.items = tuple_item(scopes_[found].rules, index);
      frame.count = 1;
      break;
    }
    case NodeClass::kDescribed:
      if (mode == kText) {
        const nb::handle made = attribute(node, of_.plain_);
        if (const FlatGrammar* flat = nullptr; nb::try_cast(made, flat) && flat != nullptr) return finish(entry, spliced(flat->program));
        if (!made.is_none()) {
          const auto& terms = nb::cast<const SimpleTerms&>(made);
          const auto [known, is_new] = plain_.try_emplace(&terms, kNone);  // several nodes may have them
          if (is_new) known->second = plain(terms);
          return finish(entry, known->second);
        }
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

void Flattening::open_rules(Frame& frame) {
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
  const auto count = static_cast<size_t>(tuple_size(frame.items));
  Scope scope{nb::dict(), frame.items, frame.scope, static_cast<uint32_t>(flat_.program.rules.size())};
  for (size_t i = 0; i < count; ++i) {
    const nb::handle name = tuple_item(tuple(tuple_item(frame.items, i)), 0);
    scope.indices[name] = i;
    if (frame.mode == kText) flat_.program.rules.push_back(nb::cast<std::string>(name));
  }
  frame.first_rule = scope.first_rule;
  frame.scope = static_cast<ScopeId>(scopes_.size());
  scopes_.push_back(std::move(scope));
  if (frame.mode == kText) frame.count += count;
}

std::pair<Flattening::ScopeId, uint32_t> Flattening::find(PyObject* reference, ScopeId scope) const {
  PyObject* name = attribute(reference, of_.name_);
  for (; scope != kNoScope; scope = scopes_[scope].around) {
    PyObject* index = PyDict_GetItemWithError(scopes_[scope].indices.ptr(), name);
    if (index != nullptr) return {scope, static_cast<uint32_t>(PyLong_AsUnsignedLong(index))};
    if (PyErr_Occurred()) throw nb::python_error();
  }
  host_.attr("undefined")(nb::handle(name));
  throw nb::type_error("grammar: undefined rule");
}

// The part of a node that is made next.
Flattening::Part Flattening::part(const Frame& frame, size_t index) const {
  switch (frame.node_class) {
    case NodeClass::kSequence:
    case NodeClass::kChoice:
    case NodeClass::kIntersection: return {tuple_item(frame.items, index), frame.scope, frame.mode};
    case NodeClass::kPermutation: return {member(frame, index), frame.scope, frame.mode};
    case NodeClass::kRules:
      if (index + 1 == frame.count) return {attribute(frame.node, of_.body_), frame.scope, frame.mode};
      return {tuple_item(tuple_item(frame.items, index), 1), frame.scope, kText};
    case NodeClass::kReference: return {tuple_item(frame.items, 1), frame.scope, frame.mode};
    case NodeClass::kJsonString: return {attribute(frame.node, of_.value_), frame.scope, kDecoded};
    case NodeClass::kDescribed:
      if (frame.items != nullptr) return {frame.items, frame.scope, frame.mode};
      [[fallthrough]];
    default: return {attribute(frame.node, of_.item_), frame.scope, frame.mode};
  }
}

// The parts of a permutation: what is required, what is optional, the rest and the separator.
PyObject* Flattening::member(const Frame& frame, size_t index) const {
  if (index + 1 == frame.count) return attribute(frame.node, of_.separator_);
  if (index + 2 == frame.count) return attribute(frame.node, of_.rest_);
  const auto required = static_cast<size_t>(tuple_size(frame.items));
  if (index < required) return tuple_item(frame.items, index);
  return tuple_item(attribute(frame.node, of_.optional_), index - required);
}

// All parts of the topmost frame are made: their instructions are the last results.
void Flattening::close() {
  const Frame frame = stack_.back();
  stack_.pop_back();
  const std::span<const uint32_t> parts{results_.data() + frame.results, results_.size() - frame.results};
  const uint32_t instruction = combined(frame, parts);
  results_.resize(frame.results);
  finish(frame.entry, instruction);
}

void Flattening::set_rule(const Frame& frame, size_t index) {
  emit({.kind = Instruction::Kind::kSetRule, .low = static_cast<uint32_t>(frame.first_rule + index)},
       std::span(results_).last(1));
}

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

void Flattener::untrack(nb::handle term) const {
#if !defined(Py_GIL_DISABLED)  // there it has no lists by age, and other threads may be at work on a node
  GilPulse pulse;
  std::vector<PyObject*> stack = {term.ptr()};
  const auto push = [](PyObject* part, void* pushed) {
    if (PyObject_GC_IsTracked(part)) static_cast<std::vector<PyObject*>*>(pushed)->push_back(part);
    return 0;
  };
  const auto is_node = [&](PyObject* part) {
    const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(part));
    for (size_t i = 0; i < kNodeClasses; ++i)
      if (classes_[i].ptr() == type) return static_cast<NodeClass>(i) != NodeClass::kDescribed;
    return false;
  };
  while (!stack.empty()) {
    pulse.beat();
    PyObject* part = stack.back();
    stack.pop_back();
    if (!PyObject_GC_IsTracked(part) || !(PyTuple_CheckExact(part) || is_node(part))) continue;
    PyObject_GC_UnTrack(part);
    const auto traverse = reinterpret_cast<traverseproc>(PyType_GetSlot(Py_TYPE(part), Py_tp_traverse));
    traverse(part, push, &stack);
  }
#endif
}

}  // namespace structgen
