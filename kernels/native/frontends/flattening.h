// The flattening of one grammar, for the two files that it takes: the way through its nodes (flatten.cpp), and the
// instructions that they become (flatten_instructions.cpp).
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/intern.h"
#include "base/interrupt.h"
#include "frontends/flatten.h"
#include "frontends/json_schema/simple_terms.h"
#include "frontends/python_objects.h"

namespace structgen {

class Flattening {
 public:
  Flattening(const Flattener& flattener, nanobind::dict known, nanobind::handle host, nanobind::handle vocabulary, uint64_t max_nodes, nanobind::handle rewrite)
      : of_(flattener), known_(std::move(known)), host_(host), vocabulary_(vocabulary), rewrite_(rewrite), max_nodes_(max_nodes), scopes_(1) {}

  FlatGrammar all(PyObject* root) {
    need(root, kNoScope, kText);
    finish_above(0);
    flat_.program.result = results_.at(0);
    return std::move(flat_);
  }

 private:
  enum Mode : uint8_t {
    kText,     // rules may be called
    kRegular,  // text inside an intersection or complement: references are spliced in
    kDecoded,  // the value of a JSON string: regular, and of any bytes
  };

  using ScopeId = uint32_t;
  static constexpr ScopeId kNoScope = 0;

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
    nanobind::dict indices;  // rule name -> index
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
  static PyObject* attribute(PyObject* node, const nanobind::object& name) {
    PyObject* value = PyObject_GetAttr(node, name.ptr());
    if (value == nullptr) throw nanobind::python_error();
    Py_DECREF(value);
    return value;
  }
  static PyObject* tuple(PyObject* value) {
    if (!PyTuple_Check(value)) throw nanobind::type_error("grammar: expected a tuple");
    return value;
  }

  NodeClass class_of(PyObject* node) const;
  void need(PyObject* node, ScopeId scope, Mode mode);
  void finish_above(size_t height);
  void open(uint32_t entry);
  void open_rules(Frame& frame);
  std::pair<ScopeId, uint32_t> find(PyObject* reference, ScopeId scope) const;

  uint32_t known_term(PyObject* node) const {
    const nanobind::object key = nanobind::steal(PyLong_FromVoidPtr(node));
    const nanobind::object held = dict_value(known_, key);
    return held.is_valid() ? static_cast<uint32_t>(PyLong_AsUnsignedLong(tuple_item(tuple(held.ptr()), 1))) : kNone;
  }

  Part part(const Frame& frame, size_t index) const;
  PyObject* member(const Frame& frame, size_t index) const;
  void close();
  uint32_t combined(const Frame& frame, std::span<const uint32_t> parts);
  uint32_t budget(const Frame& frame, uint32_t item);
  void set_rule(const Frame& frame, size_t index);

  void finish(uint32_t entry, uint32_t instruction) {
    entries_[entry].instruction = instruction;
    results_.push_back(instruction);
  }

  uint32_t plain(const SimpleTerms& terms);
  uint32_t spliced(const Program& other);
  uint32_t leaf(PyObject* node);
  uint32_t other_strings(std::span<const uint32_t> values);
  uint32_t literal(std::string_view data, Mode mode);
  uint32_t literal(PyObject* node, Mode mode);

  uint32_t symbols(Instruction::Kind kind, PyObject* node, Mode mode) { return ranges_of(kind, attribute(node, of_.ranges_), mode); }

  uint32_t ranges_of(Instruction::Kind kind, PyObject* given, Mode mode);
  uint32_t special(PyObject* node, Mode mode);
  std::pair<uint32_t, uint32_t> bounds(PyObject* node, const char* limit) const;
  uint32_t count(PyObject* number, const char* limit) const;

  static bool holds_instructions(Instruction::Kind kind) {
    using Kind = Instruction::Kind;
    return kind != Kind::kLiteral && kind != Kind::kBytes && kind != Kind::kChars && kind != Kind::kTokens;
  }
  uint8_t nesting(const Instruction& one) const;
  uint32_t emit(Instruction instruction, std::span<const uint32_t> parts = {});

  const Flattener& of_;
  nanobind::dict known_;
  nanobind::handle host_;
  nanobind::handle vocabulary_;
  nanobind::handle rewrite_;
  uint64_t max_nodes_;
  GilPulse pulse_;
  FlatGrammar flat_;
  std::unordered_map<const SimpleTerms*, uint32_t> plain_;  // the instructions that they became
  std::vector<Entry> entries_;
  IdTable table_;
  std::vector<Frame> stack_;
  std::vector<uint32_t> results_;
  std::vector<Scope> scopes_;                // [0] is unused
  std::vector<uint8_t> boolean_nesting_;     // of each instruction, which bounds the engine's recursion
  std::vector<nanobind::object> held_;
};

}  // namespace structgen
