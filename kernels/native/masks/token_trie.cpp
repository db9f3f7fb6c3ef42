// The tokens of a vocabulary with their trie: classes of tokens, and the bytes of both in a file.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "base/packed.h"
#include "masks/trie.h"

namespace structgen {

namespace {

constexpr char kMagic[8] = {'s', 'g', 't', 'r', 'i', 'e', '0', '1'};

}  // namespace

template <class Key, class Made>
void TokenTrie::Derived::drop_oldest(Cache<Key, Made>& all, Dropped& dropped) {
  const auto oldest = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.second.last < b.second.last; });
  bytes -= oldest->second.bytes;
  dropped.push_back(std::move(oldest->second.made));
  all.erase(oldest);
}

void TokenTrie::Derived::fit(size_t limit, Dropped& dropped) {
  const auto last = [](const auto& all) {
    uint64_t least = UINT64_MAX;
    for (const auto& entry : all) least = std::min(least, entry.second.last);
    return least;
  };
  while (parts.size() > kKept) drop_oldest(parts, dropped);
  while (residuals.size() > kKept) drop_oldest(residuals, dropped);
  while (bytes > limit)
    if (last(parts) < last(residuals)) drop_oldest(parts, dropped);
    else drop_oldest(residuals, dropped);
}

template <class Key, class Made, class Make>
std::shared_ptr<const Made> TokenTrie::Derived::get(Cache<Key, Made>& all, const Key& key, size_t limit, Make&& make) {
  {
    const std::lock_guard lock(mutex);
    if (const auto known = all.find(key); known != all.end()) {
      known->second.last = ++requests;
      return known->second.made;
    }
  }
  auto [made, size] = make();
  Dropped dropped;
  {
    const std::lock_guard lock(mutex);
    const auto [entry, is_new] = all.try_emplace(key);  // another thread may have made it meanwhile
    if (!is_new) return entry->second.made;
    entry->second = {made, size, ++requests};
    bytes += size;
    fit(limit, dropped);
  }
  return made;
}

std::shared_ptr<const TriePart> TokenTrie::part(uint16_t groups, uint16_t breaks) const {
  using Made = std::pair<std::shared_ptr<const TriePart>, size_t>;
  return derived_->get(derived_->parts, {groups, breaks}, derived_limit(), [&]() -> Made {
    auto found = part_beyond(trie_, groups, breaks, trie_.size() / 8);
    if (!found) return {nullptr, sizeof(*derived_->parts.begin())};
    const size_t size = found->trie.bytes() + found->origin.capacity() * sizeof(uint32_t);
    return {std::make_shared<const TriePart>(std::move(*found)), size};
  });
}

std::shared_ptr<const Trie> TokenTrie::residual(const std::vector<uint32_t>& exits, uint16_t groups) const {
  using Made = std::pair<std::shared_ptr<const Trie>, size_t>;
  std::vector<uint32_t> key = exits;
  key.push_back(groups);
  return derived_->get(derived_->residuals, key, derived_limit(), [&]() -> Made {
    auto made = std::make_shared<const Trie>(residual_trie(trie_, exits, bytes_of(groups)));
    const size_t size = made->bytes() + exits.size() * sizeof(uint32_t);
    return {std::move(made), size};
  });
}

void TokenTrie::drop_derived() const {
  Derived::Dropped dropped;
  const std::lock_guard lock(derived_->mutex);
  derived_->fit(0, dropped);
}

size_t TokenTrie::bytes() const {
  const std::lock_guard lock(derived_->mutex);
  return trie_.bytes() + text_.capacity() + offsets_.size() * sizeof(offsets_[0]) + kinds_.size() * sizeof(kinds_[0]) +
         (by_chars_.size() + chars_begin_.size()) * sizeof(uint32_t) + max_chars_.size() * sizeof(max_chars_[0]) +
         longer_.size() * sizeof(longer_[0]) + derived_->bytes;
}

// Whether a token is in a class is not predictable, so neither of these has a branch on it.
void TokenTrie::mark_within(uint16_t groups, uint32_t chars, uint32_t* words) const {
  for (uint32_t first = 0; first < size(); first += 32) {
    uint32_t word = 0;
    const uint32_t count = std::min<uint32_t>(32, size() - first);
    const TokenKind* const kinds = kinds_.data() + first;
    for (uint32_t i = 0; i < count; ++i) word |= static_cast<uint32_t>(((kinds[i].groups & ~groups) == 0) & (kinds[i].chars <= chars)) << i;
    words[first / 32] |= word;
  }
}

std::vector<std::vector<uint32_t>> TokenTrie::within(uint16_t groups) const {
  std::vector<std::vector<uint32_t>> lists;
  std::vector<uint32_t> room;
  for (uint32_t chars = 0; chars + 1 < chars_begin_.size(); ++chars) {
    room.resize(chars_begin_[chars + 1] - chars_begin_[chars]);
    size_t count = 0;
    for (uint32_t at = chars_begin_[chars]; at < chars_begin_[chars + 1]; ++at) {
      room[count] = by_chars_[at];
      count += (kinds_[by_chars_[at]].groups & ~groups) == 0;
    }
    if (count == 0) continue;
    lists.resize(chars + 1);
    lists[chars].assign(room.begin(), room.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return lists;
}

TokenTrie::TokenTrie(const std::vector<std::string>& tokens) {
  size_t total = 0;
  for (const std::string& token : tokens) {
    if (token.size() > UINT16_MAX) throw std::invalid_argument("a token is longer than 65535 bytes");
    total += token.size();
  }
  text_.reserve(total);
  offsets_.reserve(tokens.size() + 1);
  for (const std::string& token : tokens) {
    text_ += token;
    offsets_.push_back(text_.size());
  }
  std::vector<std::pair<std::string_view, uint32_t>> entries;
  entries.reserve(tokens.size());
  for (uint32_t id = 0; id < size(); ++id)
    if (!token(id).empty()) entries.emplace_back(token(id), id);
  std::sort(entries.begin(), entries.end());
  trie_ = build_trie(entries);
  prepare();
}

void TokenTrie::prepare() {
  for (uint32_t node = 1; node < trie_.size(); node = trie_.end[node])
    if (!trie_.tokens_at(node).empty()) alone_.insert(trie_.byte[node]);
  const ByteSet needed = ByteSet::range(0x20, 0x7E) | ByteSet::range(0x80, 0xBF);
  byte_complete_ = (needed & ~alone_).empty() &&
                   std::all_of(trie_.byte.begin() + 1, trie_.byte.end(), [&](uint8_t byte) { return alone_.contains(byte); });
  kinds_.assign(size(), {UINT16_MAX, 0});
  chars_begin_.assign(size_t{trie_.max_depth} + 2, 0);
  for (uint32_t node = 0; node < trie_.size(); ++node) {
    for (uint32_t token : trie_.tokens_at(node)) kinds_[token] = {trie_.prefix[node], trie_.chars[node]};
    chars_begin_[trie_.chars[node] + 1u] += static_cast<uint32_t>(trie_.tokens_at(node).size());
  }
  for (size_t count = 1; count < chars_begin_.size(); ++count) chars_begin_[count] += chars_begin_[count - 1];
  by_chars_.resize(chars_begin_.back());
  std::vector<uint32_t> next = chars_begin_;
  for (uint32_t token = 0; token < size(); ++token)
    if (kinds_[token].groups != UINT16_MAX) by_chars_[next[kinds_[token].chars]++] = token;
  part(kPlainString, kStringBreaks);  // of nearly all JSON, and milliseconds of work
  max_chars_ = trie_.chars;
  for (uint32_t node = trie_.size(); node-- > 0;)
    for (uint32_t at = trie_.child_begin[node]; at < trie_.child_begin[node + 1]; ++at)
      max_chars_[node] = std::max(max_chars_[node], max_chars_[trie_.child_node[at]]);
  longer_.assign(256, {});
  for (uint32_t at = trie_.child_begin[0]; at < trie_.child_begin[1]; ++at) {
    auto& counts = longer_[trie_.child_byte[at]];
    for (uint32_t node = trie_.child_node[at]; node < trie_.end[trie_.child_node[at]]; ++node)
      ++counts[std::min<size_t>(uint32_t{trie_.depth[node]} + trie_.height[node] - 1, kLengths - 1)];
    for (size_t length = kLengths - 1; length-- > 0;) counts[length] += counts[length + 1];
  }
}

uint32_t TokenTrie::usual_length(const ByteSet& first, uint32_t max) const {
  const auto is_usual = [&](uint32_t length) {
    uint64_t longer = 0;
    first.for_each([&](uint8_t byte) { longer += longer_[byte][length]; });
    return longer <= max;
  };
  uint32_t low = 0, high = kLengths;
  while (low < high) {
    const uint32_t middle = (low + high) / 2;
    if (is_usual(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

std::string TokenTrie::serialize() const {
  std::string out(kMagic, sizeof kMagic);
  put(out, std::vector<char>(text_.begin(), text_.end()));
  put(out, offsets_);
  put(out, trie_.byte);
  put(out, trie_.depth);
  put(out, trie_.end);
  put(out, trie_.token_begin);
  put(out, trie_.tokens);
  return out;
}

TokenTrie TokenTrie::deserialize(std::string_view data) {
  if (data.size() < sizeof kMagic || std::memcmp(data.data(), kMagic, sizeof kMagic) != 0)
    throw std::invalid_argument("not token trie data of this version");
  data.remove_prefix(sizeof kMagic);
  TokenTrie result;
  std::vector<char> text;
  take(data, text);
  result.text_.assign(text.begin(), text.end());
  take(data, result.offsets_);
  Trie& trie = result.trie_;
  take(data, trie.byte);
  take(data, trie.depth);
  take(data, trie.end);
  take(data, trie.token_begin);
  take(data, trie.tokens);
  const size_t nodes = trie.byte.size();
  bool sound = data.empty() && nodes > 0 && trie.depth.size() == nodes && trie.end.size() == nodes &&
               trie.token_begin.size() == nodes + 1 && trie.token_begin.front() == 0 &&
               trie.token_begin.back() == trie.tokens.size() && !result.offsets_.empty() &&
               result.offsets_.front() == 0 && result.offsets_.back() == result.text_.size() &&
               std::is_sorted(result.offsets_.begin(), result.offsets_.end()) &&
               std::is_sorted(trie.token_begin.begin(), trie.token_begin.end()) && trie.depth[0] == 0;
  std::vector<size_t> open;  // nodes whose subtree goes on; their number is a depth
  const auto close = [&](size_t depth, size_t at) {
    for (; open.size() > depth; open.pop_back()) sound = sound && trie.end[open.back()] == at;
  };
  for (size_t i = 0; sound && i < nodes; ++i) {
    sound = i == 0 || (trie.depth[i] > 0 && trie.depth[i] <= trie.depth[i - 1] + 1);
    close(trie.depth[i], i);
    open.push_back(i);
    trie.max_depth = std::max(trie.max_depth, trie.depth[i]);
  }
  close(0, nodes);
  for (size_t i = 0; sound && i < trie.tokens.size(); ++i) sound = trie.tokens[i] < result.size();
  if (!sound) throw std::invalid_argument("token trie data is damaged");
  trie.annotate();
  result.prepare();
  return result;
}

}  // namespace structgen
