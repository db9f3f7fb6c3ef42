// Tries over token bytes: one of the whole vocabulary, and the residual tries of what is left of tokens.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace structgen {

// Groups of bytes by which a whole subtree is described in one word.
enum ByteGroup : uint16_t {
  kLower = 1,        // a-z
  kUpper = 2,        // A-Z
  kDigit = 4,        // 0-9
  kSpace = 8,        // space
  kPunctuation = 16, // other printable ASCII, without quote and backslash
  kQuoting = 32,     // quote and backslash
  kControl = 64,     // below space, and DEL
  kForeign = 128,    // characters beyond ASCII, in well-formed UTF-8 from the subtree's root on
  kMalformed = 256,  // bytes from 0x80 on that are not
};
ByteGroup group_of(uint8_t byte);  // of an ASCII byte
constexpr ByteGroup kAsciiGroups[] = {kLower, kUpper, kDigit, kSpace, kPunctuation, kQuoting, kControl};

// A trie as flat arrays in depth-first order.  Node 0 is the root.  The subtree of node i is [i, end[i]), so a
// rejected subtree is skipped by one assignment.  tokens[token_begin[i] .. token_begin[i + 1]) end at node i.
struct Trie {
  std::vector<uint8_t> byte;
  std::vector<uint16_t> depth;
  std::vector<uint32_t> end;
  std::vector<uint32_t> token_begin;
  std::vector<uint32_t> tokens;
  std::vector<uint16_t> groups;  // of the bytes strictly below each node
  std::vector<uint16_t> height;  // of the subtree of each node
  uint16_t max_depth = 0;

  void annotate();  // derives groups and height from the rest

  uint32_t size() const { return static_cast<uint32_t>(byte.size()); }
  std::span<const uint32_t> tokens_at(uint32_t node) const {
    return {tokens.data() + token_begin[node], token_begin[node + 1] - token_begin[node]};
  }
  uint64_t hash() const;
  size_t bytes() const;
  bool operator==(const Trie&) const = default;
};

// Entries are (bytes, token), sorted, without repetition; bytes must not be empty.
Trie build_trie(std::span<const std::pair<std::string_view, uint32_t>> entries);

// The trie of the suffixes that remain below `exits`, nodes of `trie` in increasing order.
Trie residual_trie(const Trie& trie, std::span<const uint32_t> exits);

// The tokens of a vocabulary with their trie.
class TokenTrie {
 public:
  // tokens[i] are the bytes of token i; empty bytes: the token is no text.
  explicit TokenTrie(const std::vector<std::string>& tokens);

  std::string serialize() const;
  static TokenTrie deserialize(std::string_view data);  // throws std::invalid_argument

  uint32_t size() const { return static_cast<uint32_t>(offsets_.size() - 1); }
  std::string_view token(uint32_t id) const {
    return std::string_view(text_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
  }
  const Trie& trie() const { return trie_; }

 private:
  TokenTrie() = default;
  std::string text_;
  std::vector<uint64_t> offsets_{0};
  Trie trie_;
};

}  // namespace structgen
