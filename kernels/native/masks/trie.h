// Tries over token bytes: one of the whole vocabulary, and the residual tries of what is left of tokens.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/byte_set.h"

namespace structgen {

// Groups of bytes by which a whole subtree is described in one word.
enum ByteGroup : uint16_t {
  kLower = 1,        // a-z
  kUpper = 2,        // A-Z
  kDigit = 4,        // 0-9
  kSpace = 8,        // space
  kPunctuation = 16, // other printable ASCII, without quote and backslash
  kQuoting = 32,     // quote and backslash
  kControl = 64,     // below space
  kDelete = 128,     // DEL, which JSON does not count as a control character
  // Characters beyond ASCII, in well-formed UTF-8 from where the text begins.  What `.` and `\S` leave out has groups
  // of its own; the byte that completes a character decides.
  kForeign = 256,
  kForeignSpace = 512,
  kLineSeparator = 1024,  // U+2028 and U+2029
  kMalformed = 2048,      // other bytes from 0x80 on
};
ByteGroup group_of(uint8_t byte);  // of an ASCII byte
ByteSet bytes_of(uint16_t groups);  // that characters of the groups may begin with
constexpr ByteGroup kAsciiGroups[] = {kLower, kUpper, kDigit, kSpace, kPunctuation, kQuoting, kControl, kDelete};
constexpr uint16_t kForeignGroups = kForeign | kForeignSpace | kLineSeparator;
constexpr uint16_t kEveryGroup = 0xFFF;
constexpr uint16_t kPlainString = kEveryGroup & ~(kQuoting | kControl | kMalformed);  // what JSON strings hold as it is
constexpr uint16_t kStringBreaks = kEveryGroup & ~kControl;  // what may follow there
// Bytes that a text of such characters may lack of its last one.
constexpr uint32_t character_tail(uint16_t groups) { return groups & kForeignGroups ? 3 : 0; }
// The code points of kForeignSpace.
constexpr std::pair<uint32_t, uint32_t> kForeignSpaces[] = {{0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A}, {0x202F, 0x202F},
                                                            {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};

// A trie as flat arrays in depth-first order.  Node 0 is the root.  The subtree of node i is [i, end[i]), so a
// rejected subtree is skipped by one assignment.  tokens[token_begin[i] .. token_begin[i + 1]) end at node i.
struct Trie {
  std::vector<uint8_t> byte;
  std::vector<uint16_t> depth;
  std::vector<uint32_t> end;
  std::vector<uint32_t> token_begin;
  std::vector<uint32_t> tokens;
  uint16_t max_depth = 0;
  // Derived from the above by annotate():
  std::vector<uint16_t> groups;  // of the bytes strictly below each node
  std::vector<uint16_t> height;  // of the subtree of each node
  // Of a vocabulary's trie only:
  std::vector<uint16_t> whole;   // groups of the characters that end at or below each node, one that began above it too
  std::vector<uint16_t> prefix;  // groups of the bytes from the root to each node
  std::vector<uint16_t> chars;   // characters that begin between the root and each node
  // The children of node i, by increasing byte: [child_begin[i], child_begin[i + 1]) of the other two.
  std::vector<uint32_t> child_begin;
  std::vector<uint8_t> child_byte;
  std::vector<uint32_t> child_node;

  uint64_t hash = 0;

  void annotate();
  void annotate_paths(std::span<uint16_t> own, std::span<uint8_t> within);  // `prefix` and `chars`
  void set_hash();
  void reserve(size_t nodes);
  void shrink();  // to what it holds, where that is much less than what was reserved
  void link_children();

  uint32_t size() const { return static_cast<uint32_t>(byte.size()); }
  bool is_leaf(uint32_t node) const { return end[node] == node + 1; }
  std::span<const uint32_t> tokens_at(uint32_t node) const {
    return {tokens.data() + token_begin[node], token_begin[node + 1] - token_begin[node]};
  }
  // The first child from index `at` on, and before `stop`, with a byte of `bytes`; `stop` if there is none.
  uint32_t next_child(uint32_t at, uint32_t stop, const ByteSet& bytes) const {
    while (at < stop && !bytes.contains(child_byte[at])) {
      const unsigned wanted = bytes.next(child_byte[at]);
      at = static_cast<uint32_t>(std::lower_bound(child_byte.begin() + at + 1, child_byte.begin() + stop, wanted) - child_byte.begin());
    }
    return at;
  }
  // The child of a node by a byte; 0, the root, if there is none.
  uint32_t child(uint32_t node, uint8_t wanted) const {
    const auto first = child_byte.begin() + child_begin[node], last = child_byte.begin() + child_begin[node + 1];
    const auto found = std::lower_bound(first, last, wanted);
    return found == last || *found != wanted ? 0 : child_node[static_cast<size_t>(found - child_byte.begin())];
  }
  size_t bytes() const;
  bool operator==(const Trie&) const = default;
};

// Entries are (bytes, token), sorted, without repetition; bytes must not be empty.
Trie build_trie(std::span<const std::pair<std::string_view, uint32_t>> entries);

// The trie of the suffixes that remain below `exits`, nodes of `trie` in increasing order, and begin with one of `bytes`.
Trie residual_trie(const Trie& trie, std::span<const uint32_t> exits, const ByteSet& bytes);

// The tokens of a trie that begin with bytes of `groups` and leave them by a byte of `breaks`, as a trie for walking;
// origin[i] is the node of the whole trie that node i stands for.
struct TriePart {
  Trie trie;
  std::vector<uint32_t> origin;
};
// Nothing where more than `max` nodes leave them.
std::optional<TriePart> part_beyond(const Trie& trie, uint16_t groups, uint16_t breaks, size_t max);

// The tokens of a vocabulary with their trie.
class TokenTrie : public std::enable_shared_from_this<TokenTrie> {
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
  // The maximum number of characters that begin in a token at or below a node of the trie.
  uint32_t max_chars(uint32_t node) const { return max_chars_[node]; }

  // The least length such that at most `max` nodes of the trie are on the way to longer tokens that begin with a byte of
  // `first`, as far as that is kept.
  uint32_t usual_length(const ByteSet& first, uint32_t max) const;

  // The tokens that are made of characters of `groups`, where at most `chars` begin in the token, as bits of `words`.
  void mark_within(uint16_t groups, uint32_t chars, uint32_t* words) const;
  // The same tokens by the number of their characters.
  std::vector<std::vector<uint32_t>> within(uint16_t groups) const;

  // Shared by the engines of a vocabulary, and kept where they are likely to be queried again: what was queried longest
  // ago makes room, so that they take at most derived_limit() bytes.
  std::shared_ptr<const TriePart> part(uint16_t groups, uint16_t breaks) const;  // none: it saves too little
  std::shared_ptr<const Trie> residual(const std::vector<uint32_t>& exits, uint16_t groups) const;
  size_t derived_limit() const { return std::max(size_t{1} << 20, 2 * trie_.bytes()); }
  void drop_derived() const;
  // Of all tables, what is derived included.
  size_t bytes() const;

  // Bytes that are tokens.
  const ByteSet& alone() const { return alone_; }
  // Every byte that tokens hold has a token of its own, and so have those that spell ASCII text and the tails of
  // characters.  Then what spellable bytes can complete, tokens can.  (SmolLM2, for one, lacks 21 bytes that well
  // formed text hardly needs.)
  bool byte_complete() const { return byte_complete_; }

 private:
  TokenTrie() = default;
  // Caches of tries that are made of the vocabulary's.
  struct Derived {
    static constexpr size_t kKept = 64;  // of each kind
    template <class Made>
    struct Held {
      std::shared_ptr<const Made> made;
      size_t bytes = 0;
      uint64_t last = 0;  // when it was queried
    };
    template <class Key, class Made>
    using Cache = std::map<Key, Held<Made>>;
    using Dropped = std::vector<std::shared_ptr<const void>>;  // to be freed when the lock is not held any more

    mutable std::mutex mutex;
    Cache<std::pair<uint16_t, uint16_t>, TriePart> parts;
    Cache<std::vector<uint32_t>, Trie> residuals;
    uint64_t requests = 0;
    size_t bytes = 0;

    // The value of a key; one that is new is made without the lock, since that takes milliseconds.
    template <class Key, class Made, class Make>
    std::shared_ptr<const Made> get(Cache<Key, Made>& all, const Key& key, size_t limit, Make&& make);
    template <class Key, class Made>
    void drop_oldest(Cache<Key, Made>& all, Dropped& dropped);
    void fit(size_t limit, Dropped& dropped);
  };
  std::unique_ptr<Derived> derived_ = std::make_unique<Derived>();
  std::string text_;
  std::vector<uint64_t> offsets_{0};
  Trie trie_;
  struct TokenKind {
    uint16_t groups, chars;  // `prefix` and `chars` of the node where the token ends
  };
  // By token, so that a mask of a class is one pass in order; tokens without bytes have all bits, which no class has.
  std::vector<TokenKind> kinds_;
  std::vector<uint32_t> by_chars_;  // tokens by the number of their characters, [chars_begin_[n], chars_begin_[n + 1])
  std::vector<uint32_t> chars_begin_;
  std::vector<uint16_t> max_chars_;
  ByteSet alone_;
  bool byte_complete_ = false;
  static constexpr size_t kLengths = 32;
  std::vector<std::array<uint32_t, kLengths>> longer_;  // by first byte and length: nodes on the way to longer tokens
  void prepare();
};

}  // namespace structgen
