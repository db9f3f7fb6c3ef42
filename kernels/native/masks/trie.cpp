// Tries as flat arrays: what is known of each node, parts and residual tries.
#include "masks/trie.h"

#include <algorithm>
#include <array>

#include "base/intern.h"

namespace structgen {

ByteGroup group_of(uint8_t byte) {
  if (byte >= 'a' && byte <= 'z') return kLower;
  if (byte >= 'A' && byte <= 'Z') return kUpper;
  if (byte >= '0' && byte <= '9') return kDigit;
  if (byte == ' ') return kSpace;
  if (byte == '"' || byte == '\\') return kQuoting;
  if (byte == 0x7F) return kDelete;
  return byte < 0x20 ? kControl : kPunctuation;
}

ByteSet bytes_of(uint16_t groups) {
  ByteSet bytes;
  for (unsigned byte = 0; byte < 0x80; ++byte)
    if (group_of(static_cast<uint8_t>(byte)) & groups) bytes.insert(static_cast<uint8_t>(byte));
  if (groups & (kForeignGroups | kMalformed)) bytes |= ByteSet::range(0x80, 0xFF);
  return bytes;
}

namespace {

// A recogniser of UTF-8 (Unicode 15, table 3-7).  The state says which bytes may come next.
enum Utf8 : uint8_t { kBoundary, kOneMore, kTwoMore, kThreeMore, kAfterE0, kAfterED, kAfterF0, kAfterF4, kBroken };

Utf8 utf8_step(Utf8 state, uint8_t byte) {
  const auto within = [&](uint8_t low, uint8_t high, Utf8 next) { return byte >= low && byte <= high ? next : kBroken; };
  switch (state) {
    case kBoundary:
      if (byte < 0x80) return kBoundary;
      if (byte < 0xC2 || byte > 0xF4) return kBroken;
      if (byte < 0xE0) return kOneMore;
      if (byte < 0xF0) return byte == 0xE0 ? kAfterE0 : byte == 0xED ? kAfterED : kTwoMore;
      return byte == 0xF0 ? kAfterF0 : byte == 0xF4 ? kAfterF4 : kThreeMore;
    case kOneMore: return within(0x80, 0xBF, kBoundary);
    case kTwoMore: return within(0x80, 0xBF, kOneMore);
    case kThreeMore: return within(0x80, 0xBF, kTwoMore);
    case kAfterE0: return within(0xA0, 0xBF, kOneMore);
    case kAfterED: return within(0x80, 0x9F, kOneMore);
    case kAfterF0: return within(0x90, 0xBF, kTwoMore);
    case kAfterF4: return within(0x80, 0x8F, kTwoMore);
    case kBroken: return kBroken;
  }
  return kBroken;
}

}  // namespace

namespace {

// The group of the character beyond ASCII that the last byte of `tail`, up to three bytes, completes; kForeign where
// it completes none.
ByteGroup foreign_group(const std::array<uint8_t, 3>& tail) {
  uint32_t code = 0;
  if (tail[1] >= 0xC2 && tail[1] < 0xE0) code = (tail[1] & 0x1Fu) << 6 | (tail[2] & 0x3Fu);
  if ((tail[0] & 0xF0) == 0xE0) code = (tail[0] & 0x0Fu) << 12 | (tail[1] & 0x3Fu) << 6 | (tail[2] & 0x3Fu);
  if (code == 0x2028 || code == 0x2029) return kLineSeparator;
  for (const auto& [low, high] : kForeignSpaces)
    if (code >= low && code <= high) return kForeignSpace;
  return kForeign;
}

}  // namespace

// Computes for each node what lies above it, and files the groups of the last bytes, where the characters are
// well-formed, in `own`, and how far each is within a character, a `Utf8`, in `within`.
void Trie::annotate_paths(std::span<uint16_t> own, std::span<uint8_t> within) {
  static const auto kGroups = [] {
    std::array<uint16_t, 0x80> groups{};
    for (uint8_t byte = 0; byte < 0x80; ++byte) groups[byte] = group_of(byte);
    return groups;
  }();
  prefix.assign(size(), 0);
  chars.assign(size(), 0);
  struct Above {  // the last node of a depth
    uint8_t byte;
    Utf8 state;  // of the recogniser that starts at the root
    uint16_t prefix, chars;
  };
  std::vector<Above> path(max_depth + 1u, {0, kBoundary, 0, 0});
  for (uint32_t node = 1; node < size(); ++node) {
    const uint16_t here = depth[node];
    const uint8_t last = byte[node];
    const Above& above = path[here - 1u];
    uint16_t group;
    if (last < 0x80 && above.state == kBoundary) {  // as most are
      group = kGroups[last];
      path[here] = {last, kBoundary, static_cast<uint16_t>(above.prefix | group), static_cast<uint16_t>(above.chars + 1)};
    } else {
      const auto byte_back = [&](unsigned back) { return here > back ? path[here - back].byte : uint8_t{0}; };
      group = last < 0x80 ? kGroups[last] : static_cast<uint16_t>(foreign_group({byte_back(2), byte_back(1), last}));
      const Utf8 state = utf8_step(above.state, last);
      path[here] = {last, state, static_cast<uint16_t>(above.prefix | (state == kBroken ? static_cast<uint16_t>(kMalformed) : group)),
                    static_cast<uint16_t>(above.chars + ((last & 0xC0) != 0x80))};
    }
    prefix[node] = path[here].prefix;
    chars[node] = path[here].chars;
    own[node] = group;
    within[node] = path[here].state;
  }
}

// From a sample of the contents: tries that are alike in all of it are compared anyway.
void Trie::set_hash() {
  constexpr size_t kSample = 512;
  hash = combine(size(), tokens.size());
  for (size_t i = 0; i < size(); i += 1 + size() / kSample)
    hash = combine(hash, uint64_t{byte[i]} << 48 | uint64_t{depth[i]} << 32 | token_begin[i]);
  for (size_t i = 0; i < tokens.size(); i += 1 + tokens.size() / kSample) hash = combine(hash, tokens[i]);
}

// From below: after a whole character a subtree has the groups that are known of it; only within one it is entered.
void Trie::annotate() {
  link_children();
  std::vector<uint16_t> own(size());
  std::vector<uint8_t> within_character(size(), kBoundary);
  annotate_paths(own, within_character);
  set_hash();
  groups.assign(size(), 0);
  height.assign(size(), 0);
  whole.assign(size(), 0);
  struct Position {
    uint32_t node;
    Utf8 state;
  };
  std::vector<Position> within;
  for (uint32_t above = size(); above-- > 0;) {
    within.assign(1, {above, kBoundary});
    while (!within.empty()) {
      const Position from = within.back();
      within.pop_back();
      for (uint32_t at = child_begin[from.node]; at < child_begin[from.node + 1]; ++at) {
        const uint32_t node = child_node[at];
        const Utf8 state = utf8_step(from.state, child_byte[at]);
        groups[above] |= state == kBroken ? uint16_t{kMalformed} : own[node];
        if (from.node == above) height[above] = std::max<uint16_t>(height[above], height[node] + 1);
        if (state == kBoundary) groups[above] |= groups[node];
        else if (state != kBroken) within.push_back({node, state});
      }
    }
    if (within_character[above] == kBoundary) whole[above] = own[above] | groups[above];
    else if (within_character[above] == kBroken) whole[above] = kMalformed;
    else
      for (uint32_t at = child_begin[above]; at < child_begin[above + 1]; ++at) whole[above] |= whole[child_node[at]];
  }
}

void Trie::link_children() {
  child_begin.resize(size() + 1u);
  child_byte.resize(size() - 1u);
  child_node.resize(size() - 1u);
  uint32_t at = 0;
  for (uint32_t node = 0; node < size(); ++node) {
    child_begin[node] = at;
    for (uint32_t child = node + 1; child < end[node]; child = end[child], ++at) {
      child_byte[at] = byte[child];
      child_node[at] = child;
    }
  }
  child_begin[size()] = at;
}

std::optional<TriePart> part_beyond(const Trie& trie, uint16_t inside, uint16_t breaks, size_t max) {
  std::vector<uint32_t> tops;  // of the subtrees that leave
  size_t total = 1, tokens = 0;
  for (uint32_t node = 1; node < trie.size();) {
    const uint16_t leaves_by = trie.prefix[node] & ~inside;
    if (leaves_by == 0) {
      node = (trie.groups[node] & ~inside & breaks) == 0 && (trie.groups[node] & kMalformed) == 0 ? trie.end[node] : node + 1;
      continue;
    }
    if (leaves_by & breaks) {
      tops.push_back(node);
      total += trie.end[node] - node;
      tokens += trie.token_begin[trie.end[node]] - trie.token_begin[node];
      if (total > max) return std::nullopt;
    }
    node = trie.end[node];
  }
  TriePart part;
  Trie& made = part.trie;
  total += total / 4;  // with the way to each of them
  for (auto* values : {&made.depth, &made.groups, &made.height}) values->reserve(total);
  for (auto* values : {&made.end, &made.token_begin, &part.origin}) values->reserve(total);
  made.byte.reserve(total);
  made.tokens.reserve(tokens);
  std::vector<uint32_t> open;  // nodes of the part
  const auto copy = [&](uint32_t first, uint32_t last) {
    const auto append = [&](auto& to, const auto& from) { to.insert(to.end(), from.begin() + first, from.begin() + last); };
    append(made.byte, trie.byte);
    append(made.depth, trie.depth);
    append(made.groups, trie.groups);  // of the whole: a part has no more
    append(made.height, trie.height);
    for (uint32_t node = first; node < last; ++node) part.origin.push_back(node);
  };
  const auto close = [&](uint32_t depth) {
    for (; open.size() > depth; open.pop_back()) made.end[open.back()] = made.size();
  };
  const auto add_on_the_way = [&](uint32_t node) {
    close(trie.depth[node]);
    open.push_back(made.size());
    copy(node, node + 1);
    made.end.push_back(0);
    made.token_begin.push_back(static_cast<uint32_t>(made.tokens.size()));
  };
  add_on_the_way(0);
  for (uint32_t top : tops) {
    while (part.origin[open.back()] != 0 && trie.end[part.origin[open.back()]] <= top) close(static_cast<uint32_t>(open.size()) - 1);
    for (uint32_t node = part.origin[open.back()]; trie.depth[node] + 1u < trie.depth[top];) {
      for (++node; trie.end[node] <= top;) node = trie.end[node];
      add_on_the_way(node);
    }
    const uint32_t last = trie.end[top];
    const uint32_t node_shift = made.size() - top;  // modulo 2^32, as the next
    const uint32_t token_shift = static_cast<uint32_t>(made.tokens.size()) - trie.token_begin[top];
    copy(top, last);
    for (uint32_t node = top; node < last; ++node) {
      made.end.push_back(trie.end[node] + node_shift);
      made.token_begin.push_back(trie.token_begin[node] + token_shift);
    }
    made.tokens.insert(made.tokens.end(), trie.tokens.begin() + trie.token_begin[top], trie.tokens.begin() + trie.token_begin[last]);
    made.max_depth = std::max<uint16_t>(made.max_depth, trie.depth[top] + trie.height[top]);
  }
  close(0);
  made.token_begin.push_back(static_cast<uint32_t>(made.tokens.size()));
  made.link_children();
  return part;
}

void Trie::reserve(size_t nodes) {
  for (auto* values : {&byte, &child_byte}) values->reserve(nodes);
  for (auto* values : {&depth, &groups, &height}) values->reserve(nodes);
  for (auto* values : {&end, &token_begin, &child_begin, &child_node}) values->reserve(nodes + 1);
}

void Trie::shrink() {
  if (byte.capacity() <= byte.size() + byte.size() / 4) return;
  for (auto* values : {&byte, &child_byte}) values->shrink_to_fit();
  for (auto* values : {&depth, &groups, &height}) values->shrink_to_fit();
  for (auto* values : {&end, &token_begin, &child_begin, &child_node, &tokens}) values->shrink_to_fit();
}

size_t Trie::bytes() const {
  return byte.capacity() + child_byte.capacity() +
         (depth.capacity() + groups.capacity() + height.capacity() + whole.capacity() + prefix.capacity() + chars.capacity()) * 2 +
         (end.capacity() + token_begin.capacity() + tokens.capacity() + child_begin.capacity() + child_node.capacity()) * 4;
}

Trie build_trie(std::span<const std::pair<std::string_view, uint32_t>> entries) {
  Trie trie;
  std::vector<uint32_t> path{0};  // nodes from the root to the last entry
  std::string_view last;
  trie.byte.push_back(0);
  trie.depth.push_back(0);
  trie.end.push_back(0);
  trie.token_begin.push_back(0);
  for (const auto& [text, token] : entries) {
    size_t common = 0;
    while (common < last.size() && common < text.size() && last[common] == text[common]) ++common;
    while (path.size() > common + 1) {
      trie.end[path.back()] = trie.size();
      path.pop_back();
    }
    for (size_t i = common; i < text.size(); ++i) {
      path.push_back(trie.size());
      trie.byte.push_back(static_cast<uint8_t>(text[i]));
      trie.depth.push_back(static_cast<uint16_t>(i + 1));
      trie.end.push_back(0);
      trie.token_begin.push_back(static_cast<uint32_t>(trie.tokens.size()));
    }
    trie.max_depth = std::max(trie.max_depth, static_cast<uint16_t>(text.size()));
    trie.tokens.push_back(token);
    last = text;
  }
  for (uint32_t node : path) trie.end[node] = trie.size();
  trie.token_begin.push_back(static_cast<uint32_t>(trie.tokens.size()));
  trie.annotate();
  return trie;
}

namespace {

// Appends values to a list, each changed in the same way.
template <class Value, class Change>
void append_changed(std::vector<Value>& to, const std::vector<Value>& from, size_t first, size_t last, Change&& change) {
  const size_t at = to.size();
  to.resize(at + last - first);
  std::transform(from.data() + first, from.data() + last, to.data() + at, change);
}

// Appends what lies below `from` in one trie to another, in which it lies below the last node, of depth `depth`.
void copy_below(const Trie& trie, uint32_t from, uint16_t depth, Trie& made) {
  const uint32_t first = from + 1, last = trie.end[from];
  const uint32_t node_shift = made.size() - first;  // modulo 2^32, as the others
  const uint32_t token_shift = static_cast<uint32_t>(made.tokens.size()) - trie.token_begin[first];
  const uint32_t first_child = trie.child_begin[from], last_child = trie.child_begin[last];
  const uint32_t child_shift = static_cast<uint32_t>(made.child_node.size()) - first_child;
  const auto depth_shift = static_cast<uint16_t>(depth - trie.depth[from]);
  const auto copy = [](auto& to, const auto& values, size_t begin, size_t end) {
    to.insert(to.end(), values.data() + begin, values.data() + end);
  };
  const auto shift = [](uint32_t by) { return [by](uint32_t value) { return value + by; }; };
  copy(made.byte, trie.byte, first, last);
  copy(made.groups, trie.groups, first, last);
  copy(made.height, trie.height, first, last);
  copy(made.tokens, trie.tokens, trie.token_begin[first], trie.token_begin[last]);
  copy(made.child_byte, trie.child_byte, first_child, last_child);
  append_changed(made.depth, trie.depth, first, last, [&](uint16_t held) { return static_cast<uint16_t>(held + depth_shift); });
  append_changed(made.end, trie.end, first, last, shift(node_shift));
  append_changed(made.token_begin, trie.token_begin, first, last, shift(token_shift));
  append_changed(made.child_begin, trie.child_begin, from, last, shift(child_shift));
  append_changed(made.child_node, trie.child_node, first_child, last_child, shift(node_shift));
  made.max_depth = std::max<uint16_t>(made.max_depth, depth + trie.height[from]);
}

}  // namespace

// The union of subtrees, node by node: what several exits have below them is merged, what one has alone is copied.
Trie residual_trie(const Trie& trie, std::span<const uint32_t> exits, const ByteSet& bytes) {
  struct Level {
    uint32_t node;                                     // made
    std::vector<std::pair<uint8_t, uint32_t>> below;  // byte, node of the trie; sorted
    uint32_t child;                                    // made: of the next one
    size_t next = 0;
  };
  Trie made;
  size_t max = 1, max_tokens = 0;
  for (uint32_t exit : exits) {
    for (uint32_t at = trie.child_begin[exit]; at < trie.child_begin[exit + 1]; ++at) {
      if (!bytes.contains(trie.child_byte[at])) continue;
      const uint32_t top = trie.child_node[at];
      max += trie.end[top] - top;
      max_tokens += trie.token_begin[trie.end[top]] - trie.token_begin[top];
    }
  }
  made.reserve(std::min<size_t>(max, trie.size()));
  made.tokens.reserve(std::min(max_tokens, trie.tokens.size()));
  std::vector<Level> path;
  std::vector<uint32_t> sources(exits.begin(), exits.end());
  const auto open = [&](uint8_t byte) {  // a node for all sources
    const auto depth = static_cast<uint16_t>(path.size());
    made.byte.push_back(byte);
    made.depth.push_back(depth);
    made.max_depth = std::max(made.max_depth, depth);
    made.end.push_back(made.size());
    made.token_begin.push_back(static_cast<uint32_t>(made.tokens.size()));
    made.groups.push_back(0);
    made.height.push_back(0);
    for (uint32_t source : sources) {
      made.groups.back() |= trie.groups[source];
      made.height.back() = std::max(made.height.back(), trie.height[source]);
    }
    if (depth > 0) {  // tokens that end at an exit leave nothing
      const auto first = static_cast<std::ptrdiff_t>(made.tokens.size());
      for (uint32_t source : sources) made.tokens.insert(made.tokens.end(), trie.tokens_at(source).begin(), trie.tokens_at(source).end());
      std::sort(made.tokens.begin() + first, made.tokens.end());
      made.tokens.erase(std::unique(made.tokens.begin() + first, made.tokens.end()), made.tokens.end());
    }
    if (depth > 0 && sources.size() == 1) {
      copy_below(trie, sources[0], depth, made);
      made.end[made.end.size() - (trie.end[sources[0]] - sources[0])] = made.size();
      return;
    }
    Level level{made.size() - 1, {}, static_cast<uint32_t>(made.child_node.size())};
    for (uint32_t source : sources)
      for (uint32_t at = trie.child_begin[source]; at < trie.child_begin[source + 1]; ++at)
        if (depth > 0 || bytes.contains(trie.child_byte[at])) level.below.emplace_back(trie.child_byte[at], trie.child_node[at]);
    std::sort(level.below.begin(), level.below.end());
    made.child_begin.push_back(level.child);
    for (size_t i = 0; i < level.below.size(); ++i)
      if (i == 0 || level.below[i].first != level.below[i - 1].first) made.child_byte.push_back(level.below[i].first);
    made.child_node.resize(made.child_byte.size());
    path.push_back(std::move(level));
  };
  open(0);
  while (!path.empty()) {
    Level& level = path.back();
    if (level.next == level.below.size()) {
      made.end[level.node] = made.size();
      path.pop_back();
      continue;
    }
    const uint8_t byte = level.below[level.next].first;
    sources.clear();
    for (; level.next < level.below.size() && level.below[level.next].first == byte; ++level.next)
      sources.push_back(level.below[level.next].second);
    made.child_node[level.child++] = made.size();
    open(byte);
  }
  made.token_begin.push_back(static_cast<uint32_t>(made.tokens.size()));
  made.child_begin.push_back(static_cast<uint32_t>(made.child_node.size()));
  made.set_hash();
  made.shrink();
  return made;
}

}  // namespace structgen
