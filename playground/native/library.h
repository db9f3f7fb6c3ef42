// What Python has compiled for this page: the syntax of JSON, simple types, formats, classes of characters, Lark's files.
//
// `playground/library.py` writes it as one JSON text whose programs are in base64.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "automaton/program.h"
#include "frontends/json_schema/simple_schema.h"
#include "regex.h"

namespace structgen {

struct Library {
  // By name: "any value", "open_object", "type string", "format  date", "number 0 [ 1 ]" ...
  std::map<std::string, std::shared_ptr<const Program>, std::less<>> programs;
  std::map<std::string, std::vector<std::string>, std::less<>> lark_files;
  RegexClasses python, ecma;
  struct Dialect {
    std::vector<std::pair<std::string, size_t>> keywords;  // with the numbers of `Keyword`
    bool reference_stands_alone;
  };
  std::map<std::string, Dialect, std::less<>> dialects;  // by what `$schema` declares; "": nothing

  static Library parse(std::string text);  // throws std::invalid_argument
  const std::shared_ptr<const Program>* find(std::string_view name) const {
    const auto found = programs.find(name);
    return found == programs.end() ? nullptr : &found->second;
  }
};

std::string from_base64(std::string_view text);

}  // namespace structgen
