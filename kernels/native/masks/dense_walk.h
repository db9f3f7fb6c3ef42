// Walks over large parts of a trie, from states that go on by many bytes.
#pragma once

#include <memory>
#include <vector>

#include "masks/engine.h"

namespace structgen {

// The states and nodes that one walk meets get small numbers, and their edges a table by byte.  So a node of the trie
// costs a few reads, where looking a state up costs dozens.  The trie's nodes are visited as they are stored.
class Engine::DenseWalk {
 public:
  static bool pays(const Trie& trie, uint32_t top, const ByteSet& live) {
    constexpr uint32_t kManyNodes = 2048;
    constexpr unsigned kManyBytes = 24;
    return trie.end[top] - top >= kManyNodes && live.size() >= kManyBytes;
  }

  DenseWalk(Engine& engine, const Trie& trie, Found& found);
  ~DenseWalk();
  DenseWalk(const DenseWalk&) = delete;
  DenseWalk& operator=(const DenseWalk&) = delete;
  // Files the tokens below `top` that may follow at `from`.  O(nodes below `top` whose parent is alive).  What is known
  // of the states is kept from one call to the next.
  void run(uint32_t top, Spot from);

 private:
  using Number = uint16_t;
  static constexpr Number kNowhere = 0;   // nothing may follow
  static constexpr Number kUnnumbered = static_cast<Number>(~0u);  // found by a closer look only
  static constexpr size_t kMaxNumbers = 8192;  // 4 MiB of edges
  // Edges are numbers with these: what visit() settles by itself shows at once.
  static constexpr Number kAbsorbing = 0x4000;  // there is nothing to do but to pass subtrees whole, or to go on
  static constexpr Number kUnseen = 0x8000;     // needs a closer look
  static constexpr Number kNumber = kAbsorbing - 1;

  enum Flag : uint8_t {
    kMet = 1,       // its distance is counted
    kEntered = 2,   // its edges are in the table
    kLiteral = 4,   // it reads a literal, which needs no states
    kEnds = 8,      // the automaton may end there
    kOnlyEnds = 16, // ... and nothing may follow
    kAbsorbs = 32,  // some subtrees pass whole
  };

  struct Passing {  // see Absorption
    uint16_t groups = 0;
    uint32_t count = 0;
    Distance distance = 0;
  };

  void visit(uint32_t position, uint32_t stop);
  uint32_t pass_foreign(Spot from);
  Number number_of(Spot spot);
  Number edge_to(Number number) const;
  void add_edges(Number number);
  void enter(Number number);
  Number step(Number above, uint32_t position);
  uint32_t look(Number edge, uint32_t position);
  // Whether there is something below a node, and all of it is absorbed.
  bool passes(Number here, uint32_t position) const {
    const Passing& passing = passing_[here];
    const uint16_t below = trie_.groups[position];
    return below != 0 && (below & ~passing.groups) == 0 && trie_.height[position] <= passing.count;
  }
  uint32_t pass(Number here, uint32_t position);
  void add_tokens(uint32_t position, uint32_t end);

  Engine& engine_;
  const Trie& trie_;
  Found& found_;
  std::unique_ptr<DenseScratch> scratch_;
  NumberMap<Number>& numbers_;
  std::vector<Spot>& spots_;
  std::vector<uint8_t>& flags_;
  std::vector<Passing>& passing_;
  std::vector<Number>& edges_;
  std::vector<Number>& path_;
  friend struct Engine::DenseScratch;
};

// What a walk writes, kept by the engine: the first touch of so much memory takes as long as the walk.
struct Engine::DenseScratch {
  NumberMap<DenseWalk::Number> numbers;  // by state or node
  std::vector<Spot> spots;               // by number
  std::vector<uint8_t> flags;
  std::vector<DenseWalk::Passing> passing;
  std::vector<DenseWalk::Number> edges;  // by number and byte
  std::vector<DenseWalk::Number> path;   // by depth
};

}  // namespace structgen
