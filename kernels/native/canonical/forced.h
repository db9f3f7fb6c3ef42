// Completions where the grammar leaves no choice for a while: a search over the text that every continuation begins with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "canonical/canonical.h"

namespace structgen {

// The next bytes of a matcher, which must have no scopes, where all continuations agree on them: here, or after a token.  Only
// the tokens that spell them are tried, without the grammar's states between.
class Canonical::Forced {
 public:
  static constexpr size_t kMost = 24;

  Forced(Canonical& canonical, Matcher& matcher)
      : canonical_(canonical), matcher_(matcher), trie_(matcher.constraint().tokens().trie()), text_(matcher.forced_bytes(kMost)) {}
  Forced(Canonical& canonical, Matcher& matcher, const Matcher::After& after)
      : canonical_(canonical), matcher_(matcher), trie_(matcher.constraint().tokens().trie()), text_(after.literal), after_text_(after.after_literal) {}

  // Whether a token lies within the text.
  bool has(uint32_t token) const {
    const std::string_view data = matcher_.constraint().tokens().token(token);
    return !data.empty() && data.size() < text_.size() && std::string_view(text_).starts_with(data);
  }
  // Whether there is a completion from a state so many bytes on; nothing where what follows the text decides that.
  std::optional<bool> completes(size_t offset, Number state) {
    PairMap<bool> seen(SIZE_MAX);
    std::vector<std::pair<size_t, Number>> way{{offset, state}};
    bool is_open = false;
    while (!way.empty()) {
      const auto [at, here] = way.back();
      way.pop_back();
      if (at == text_.size()) {
        is_open = true;
        continue;
      }
      if (dead_.find({at, here}) || !seen.set({at, here}, true)) continue;
      const Anew anew = begins_anew(at, here);
      if (anew == Anew::kYes) return true;
      is_open |= anew == Anew::kUnknown;
      // Short tokens first, so that long ones are tried first.
      uint32_t node = 0;
      for (size_t end = at; end < text_.size() && (node = trie_.child(node, static_cast<uint8_t>(text_[end]))) != 0;) {
        ++end;
        for (uint32_t token : trie_.tokens_at(node))
          if (const Number next = canonical_.found_after(here, token)) way.emplace_back(end, next);
        is_open = is_open || (end == text_.size() && !trie_.is_leaf(node));
      }
    }
    if (is_open) return std::nullopt;
    seen.for_each([&](const auto& each, bool) { dead_.set(each, true); });
    return false;
  }

 private:
  enum class Anew : uint8_t { kNo, kYes, kUnknown };

  // Whether the tokenizer begins anew before the byte there, so that the tokens of what follows are canonical.
  Anew begins_anew(size_t at, Number number) {
    const CanonicalState state = CanonicalState::of(number);
    const auto byte = static_cast<uint8_t>(text_[at]);
    if (!canonical_.place(state.place).place.free.contains(byte) || canonical_.tokens_.single[byte] == kNone) return Anew::kNo;
    if (!canonical_.tokens_.has_rules) return Anew::kYes;
    if (canonical_.settles(state.rules, byte) && is_harmless(at)) return Anew::kYes;
    if (after_text_) return Anew::kUnknown;
    if (!whole_) {
      whole_.emplace();
      if (!write_completion(matcher_, *whole_)) whole_->clear();
    }
    const bool goes_on = whole_->size() > at && canonical_.lets_through(matcher_, state.rules, std::string_view(*whole_).substr(at));
    return goes_on ? Anew::kYes : Anew::kNo;
  }

  // Whether the rules let the rest of the shortest completion through from every settled state, as far as that is known.
  bool is_harmless(size_t at) {
    const auto id = after_text_ ? after_text_ : matcher_.mask_id();
    const auto is_harmless_byte = [&](char byte) { return canonical_.tokens_.harmless.contains(static_cast<uint8_t>(byte)); };
    if (after_text_ && !std::all_of(text_.begin() + static_cast<ptrdiff_t>(at), text_.end(), is_harmless_byte)) return false;
    if (!is_harmless_) is_harmless_ = id && canonical_.goal(matcher_, *id) != kNoGoal;
    return *is_harmless_;
  }

  Canonical& canonical_;
  Matcher& matcher_;
  const Trie& trie_;
  const std::string text_;
  const std::optional<uint64_t> after_text_;  // the mask_id() there; nothing where the text is the matcher's own
  std::optional<bool> is_harmless_;
  std::optional<std::string> whole_;  // a whole completion; empty: none that is a text
  PairMap<bool> dead_{SIZE_MAX};
};

}  // namespace structgen
