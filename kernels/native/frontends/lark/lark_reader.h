// Reads simple Lark grammars from their text to a program, without an object for each part.
//
// It makes what structgen.frontends.lark makes, left recursion removed, in a small part of the time.  That is the
// reference implementation, and takes over for every grammar that needs more, or that is invalid.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "frontends/flatten.h"
#include "frontends/lark/lark_syntax.h"

namespace structgen {

struct LarkLimits {
  uint64_t max_nodes;
  uint32_t max_depth;
};

class LarkReader {
 public:
  // library: called with the name of a file of Lark's library, returns its texts, where later ones replace definitions of
  //   earlier ones; or None for no such file.
  // leaf: called with a string or regexp as it is written, returns its FlatGrammar and whether it may be empty; or None
  //   where it cannot stand for itself.
  LarkReader(nanobind::object library, nanobind::object leaf) : library_(std::move(library)), leaf_(std::move(leaf)) {}
  LarkReader(const LarkReader&) = delete;
  LarkReader& operator=(const LarkReader&) = delete;

  // Null where the grammar is not simple.  O(size of the text and of the instances of templates).
  std::unique_ptr<FlatGrammar> read(std::string text, std::string_view start, LarkLimits limits);

  // A string or regexp that is read by the Python side; `program` is null where that does not either.
  struct Leaf {
    nanobind::object held;
    const Program* program = nullptr;
    bool is_nullable = false;
  };

 private:
  friend class LarkReading;
  using Files = std::vector<std::unique_ptr<const LarkFile>>;
  // The files of the library under a name, which are kept; null where there are none that are simple.
  const Files* files(std::string_view name);
  const Leaf& leaf(std::string_view spelled);

  nanobind::object library_, leaf_;
  std::unordered_map<std::string, Files> files_;
  std::unordered_map<std::string, Leaf> leaves_;
};

}  // namespace structgen
