// The syntax of Lark's grammar files: text to statements with trees, for the constructs of most grammars.
//
// structgen.frontends.lark.syntax and .definition read all of the language and report what is wrong with it; what is
// not known here is left to them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace structgen {

using LarkNode = uint32_t;  // index into LarkFile::nodes

struct LarkFile {
  enum class Kind : uint8_t {
    kExpansions,  // alternatives
    kExpansion,   // one after the other
    kAlias,       // an expansion with the name of its tree
    kRepeat,      // one item, low to high times; high kNone: no bound
    kMaybe,
    kRange,     // text: both strings; begin, end: none
    kTemplate,  // text: its name; begin, end: its arguments
    kRule,      // these four: text as it stands in the file
    kTerminal,
    kString,
    kRegexp,
  };
  struct Node {
    Kind kind;
    uint32_t begin = 0, end = 0;  // children
    uint32_t low = 0, high = 0;
    std::string_view text;
    std::string_view last;  // the second string of a range
  };
  struct Definition {
    std::string_view name;
    bool is_terminal = false;
    std::vector<std::string_view> parameters;
    LarkNode tree = 0;
  };
  struct Import {
    std::string_view path;  // of a file of Lark's library
    std::string_view name, alias;
  };

  // Null where the text is malformed, or has what is not known here.  O(size of the text), nesting at most `max_depth`.
  static std::unique_ptr<const LarkFile> parse(std::string text, uint32_t max_depth);

  std::span<const LarkNode> parts(const Node& node) const { return {children.data() + node.begin, node.end - node.begin}; }

  std::string text;
  std::vector<Node> nodes;
  std::vector<LarkNode> children;
  std::vector<Definition> definitions;
  std::vector<Import> imports;
  std::vector<LarkNode> ignored;
};

}  // namespace structgen
