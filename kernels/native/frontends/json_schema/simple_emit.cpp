#include "frontends/json_schema/simple_emit.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "frontends/json_schema/json_document.h"
#include "frontends/json_schema/simple_reading.h"
#include "terms/term.h"

namespace nb = nanobind;

namespace structgen {

namespace {

// As in emit/plan.py: a choice of so many small terms is small.
constexpr size_t kFewChoices = 8;
// As in emit/object_term.py: names times counts of a chain with a bounded number of members.
constexpr uint64_t kMaxStates = 200'000;

std::string with_entities(std::string_view name) {
  std::string text;
  for (const char character : name) {
    switch (character) {
      case '&': text += "&amp;"; break;
      case '<': text += "&lt;"; break;
      case '>': text += "&gt;"; break;
      case '"': text += "&quot;"; break;
      default: text.push_back(character);
    }
  }
  return text;
}

}  // namespace

bool SimpleEmitter::is_small(SimpleNode node) const {
  const auto is_atom = [&](SimpleNode one) {
    const SimpleTerms::Node& made = terms_->nodes[one];
    return made.kind == Kind::kLiteral || made.kind == Kind::kCall || (made.kind == Kind::kLeaf && leaf_sizes_[made.low] == SimpleLeaf::Size::kAtom);
  };
  const SimpleTerms::Node& made = terms_->nodes[node];
  if (made.kind == Kind::kLeaf) return leaf_sizes_[made.low] != SimpleLeaf::Size::kLarge;
  if (made.kind != Kind::kChoice) return is_atom(node);
  const std::span<const SimpleNode> parts = terms_->parts_of(made);
  return parts.size() <= kFewChoices && std::ranges::all_of(parts, is_atom);
}

SimpleNode SimpleEmitter::emit(SimpleTerms::Node node) {
  terms_->nodes.push_back(node);
  return static_cast<SimpleNode>(terms_->nodes.size() - 1);
}

SimpleNode SimpleEmitter::combine(Kind kind, std::span<const SimpleNode> parts, uint32_t low, uint32_t high) {
  const auto begin = static_cast<uint32_t>(terms_->parts.size());
  terms_->parts.insert(terms_->parts.end(), parts.begin(), parts.end());
  return emit({kind, begin, static_cast<uint32_t>(terms_->parts.size()), low, high});
}

SimpleNode SimpleEmitter::empty_string() {
  if (empty_string_ == kNone) empty_string_ = literal("");
  return empty_string_;
}

SimpleNode SimpleEmitter::nothing() {
  if (nothing_ == kNone) nothing_ = choice({});
  return nothing_;
}

SimpleNode SimpleEmitter::literal(std::string_view text, Kind kind) {
  const auto begin = static_cast<uint32_t>(terms_->text.size());
  terms_->text += text;
  return emit({kind, begin, static_cast<uint32_t>(terms_->text.size())});
}

SimpleNode SimpleEmitter::either(std::span<const SimpleNode> terms) {
  std::vector<SimpleNode> kept;
  for (SimpleNode term : terms)
    if (term != nothing_ && std::ranges::find(kept, term) == kept.end()) kept.push_back(term);
  if (kept.empty()) return nothing();
  return kept.size() == 1 ? kept[0] : combine(Kind::kChoice, kept);
}

SimpleNode SimpleEmitter::array_term(const SimpleContainer& container, SimpleNode item) {
  const uint32_t most = item == nothing_ ? 0 : container.most;
  if (container.fewest > most) return nothing();
  if (most == 0) return sequence({shared(SimpleSyntax::kOpenArray), shared(SimpleSyntax::kEndArray)});
  const SimpleNode further[] = {sequence({shared(SimpleSyntax::kComma), item})};
  const SimpleNode tail = combine(Kind::kRepeat, further, container.fewest > 1 ? container.fewest - 1 : 0, most == kNone ? kNone : most - 1);
  const SimpleNode some = sequence({item, tail, shared(SimpleSyntax::kCloseArray)});
  return sequence({shared(SimpleSyntax::kOpenArray), container.fewest > 0 ? some : choice({shared(SimpleSyntax::kEndArray), some})});
}

SimpleNode SimpleEmitter::array_of_values(const SimpleContainer& container, std::span<const std::string> texts) {
  const SimpleNode open = shared(SimpleSyntax::kOpenArray), end = shared(SimpleSyntax::kEndArray);
  const uint32_t fewest = std::max(container.fewest, 1u);
  if (texts.size() < fewest || container.most < fewest) return container.fewest > 0 ? nothing() : sequence({open, end});
  std::vector<SimpleNode> parts;
  for (const std::string& text : texts) parts.push_back(literal(text));
  parts.push_back(nothing());
  parts.push_back(shared(SimpleSyntax::kComma));
  const SimpleNode some = sequence({combine(Kind::kPermutation, parts, fewest, container.most), shared(SimpleSyntax::kCloseArray)});
  return sequence({open, container.fewest > 0 ? some : choice({end, some})});
}

SimpleNode SimpleEmitter::distinct(SimpleNode array) {
  if (is_nothing(array)) return array;
  const SimpleNode parts[] = {array};
  return combine(Kind::kDistinct, parts, static_cast<uint32_t>(Scope::kSpare));
}

SimpleNode SimpleEmitter::items_term(const SimpleContainer& container, SimpleNode item) {
  const uint32_t most = item == nothing_ ? 0 : container.most;
  if (container.fewest > most) return nothing();
  const SimpleNode end = notation(SimpleNotation::kEnd);
  if (most == 0) return chain({end});
  const SimpleNode one = chain({notation(SimpleNotation::kBeforeItem), item, notation(SimpleNotation::kAfterItem)});
  const SimpleNode further[] = {chain({notation(SimpleNotation::kBetween), one})};
  const SimpleNode tail = combine(Kind::kRepeat, further, container.fewest > 1 ? container.fewest - 1 : 0, most == kNone ? kNone : most - 1);
  const SimpleNode some = chain({one, tail, end});
  return container.fewest > 0 ? some : choice({chain({end}), some});
}

SimpleNode SimpleEmitter::object_term(const SimpleContainer& container, std::span<const SimpleNode> values) {
  using Syntax = SimpleSyntax;
  object_ = {shared(Syntax::kOpenObject), shared(Syntax::kEndObject), shared(Syntax::kCloseObject), shared(Syntax::kComma)};
  return members_term(container, values);
}

SimpleNode SimpleEmitter::arguments_term(const SimpleContainer& container, std::span<const SimpleNode> values) {
  const SimpleNode end = notation(SimpleNotation::kEnd);
  object_ = {kNone, end, end, notation(SimpleNotation::kBetween), false};
  return members_term(container, values);
}

SimpleNode SimpleEmitter::written(const nb::object& before, SimpleNode value, const nb::object& after) {
  return value == nothing_ ? value : chain({outside(before), value, outside(after)});
}

SimpleNode SimpleEmitter::members_term(const SimpleContainer& container, std::span<const SimpleNode> values) {
  std::vector<SimpleEntry> entries;
  std::vector<SimpleNode> possible;  // values of those
  for (size_t i = 0; i < container.entries.size(); ++i) {
    if (values[i] != nothing_) {
      entries.push_back(container.entries[i]);
      possible.push_back(values[i]);
    } else if (container.entries[i].is_required) {
      return nothing();
    }
  }
  std::vector<SimpleNode> others;
  for (size_t i = 0; i < container.regions.size(); ++i) {
    const SimpleNode value = values[container.entries.size() + i];
    require(object_.is_json || !notation_->around_repeated);  // names that are not listed cannot be repeated
    if (value == nothing_) continue;
    if (!object_.is_json) {  // the names that are declared would have to be taken out
      require(entries.empty() && container.entries.empty());
      others.push_back(chain({notation(SimpleNotation::kAnyName), notation(SimpleNotation::kAfterName), value,
                              notation(SimpleNotation::kAfterMember)}));
      continue;
    }
    const SimpleNode key = container.regions[i] == kNone ? other_names(container.entries) : container.regions[i];
    others.push_back(sequence({key, shared(SimpleSyntax::kColon), value}));
  }
  const SimpleNode other = either(others);
  const auto required = static_cast<uint32_t>(std::ranges::count_if(entries, &SimpleEntry::is_required));
  const auto optional = static_cast<uint32_t>(entries.size()) - required;
  const uint32_t need = container.fewest - std::min(container.fewest, required);  // beyond the required ones
  if (container.most < required + need) return nothing();
  if (other == nothing_ && need > optional) return nothing();
  require(other == nothing_ || need < 2);  // names that repeat would have to be compared
  std::optional<uint32_t> capacity;
  if (container.most != kNone && (other != nothing_ || container.most - required < optional)) capacity = container.most - required;
  const uint32_t steps = capacity.value_or(need);
  require((entries.size() + 1) * (uint64_t{steps} + 1) <= kMaxStates);
  Chain made;  // for one member more
  for (uint32_t extra = steps + 1; extra-- > 0;)
    made = member_chain(entries, possible, other, extra < steps ? &made : nullptr, capacity == extra, extra >= need);
  if (made.first == kNone) return chain({object_.open, object_.end});
  const SimpleNode some = chain({made.first, object_.close});
  if (required + need > 0) return chain({object_.open, some});
  return chain({object_.open, choice({object_.end == kNone ? empty_string() : object_.end, some})});
}

// The chain, made from the right.
//   after: the chain after an optional or any other member; null: they leave the number as it is.
//   is_capped: only required members may follow.
//   may_end: enough members were written.
SimpleEmitter::Chain SimpleEmitter::member_chain(std::span<const SimpleEntry> entries, std::span<const SimpleNode> values,
                                                 SimpleNode other, const Chain* after, bool is_capped, bool may_end) {
  Chain made;
  made.tails.resize(entries.size() + 1);
  const Chain& next = after ? *after : made;
  const auto append_tail = [&](std::vector<SimpleNode>& parts, const Chain& chain, size_t index) {
    if (chain.loop != kNone) parts.push_back(chain.loop);
    if (chain.tails[index].more != kNone) parts.push_back(chain.tails[index].more);
  };
  const bool is_open = other != nothing_ && !is_capped;
  if (is_open && !after) {
    const SimpleNode more[] = {chain({object_.comma, other})};
    made.loop = combine(Kind::kRepeat, more, 0, kNone);
  }
  SimpleNode following = kNone;  // a member from `index` on
  std::vector<SimpleNode> member;
  bool can_end = may_end;
  for (size_t index = entries.size() + 1; index-- > 0;) {
    if (index < entries.size()) {
      const bool is_required = entries[index].is_required;
      const Chain& rest = is_required ? made : next;
      SimpleNode whole = kNone;
      if (rest.tails[index + 1].is_possible && (is_required || !is_capped)) {
        member.clear();
        append_member(member, entries[index].name, values[index]);
        append_tail(member, rest, index + 1);
        whole = combine(Kind::kSequence, member);
      }
      can_end &= !is_required;
      if (is_required || following == kNone) following = is_required || whole != kNone ? whole : following;
      else if (whole != kNone) following = choice({whole, following});
    }
    SimpleNode more = following;
    if (after && is_open && next.tails[index].is_possible) {
      std::vector<SimpleNode> begun = {other};
      append_tail(begun, next, index);
      const SimpleNode whole = combine(Kind::kSequence, begun);
      more = more == kNone ? whole : choice({whole, more});
    }
    Chain::Tail& tail = made.tails[index];
    tail.is_possible = more != kNone || can_end;
    if (more == kNone) continue;
    tail.more = chain({object_.comma, more});
    if (can_end) tail.more = choice({empty_string(), tail.more});
  }
  made.first = following;
  if (is_open && next.tails[0].is_possible) {
    std::vector<SimpleNode> begun = {other};
    append_tail(begun, next, 0);
    const SimpleNode first = begun.size() == 1 ? other : combine(Kind::kSequence, begun);
    made.first = following == kNone ? first : choice({first, following});
  }
  return made;
}

// A declared member, with what is written around its name and its value.
void SimpleEmitter::append_member(std::vector<SimpleNode>& parts, std::string_view name, SimpleNode value) {
  if (object_.is_json) {
    const auto begin = static_cast<uint32_t>(terms_->text.size());
    append_quoted(name, terms_->text);
    parts.push_back(emit({Kind::kLiteral, begin, static_cast<uint32_t>(terms_->text.size())}));
    parts.push_back(shared(SimpleSyntax::kColon));
    parts.push_back(value);
    return;
  }
  const std::string& end = notation_->name_end;
  const std::string shown = notation_->has_entities ? with_entities(name) : std::string(name);
  require(!shown.empty() && (shown + end).find(end) == shown.size());
  SimpleNode repeated = kNone;
  if (const auto& around = notation_->around_repeated) {
    require(!shown.starts_with('/'));
    repeated = literal(around->first + shown + around->second);
  }
  for (SimpleNode part : {notation(SimpleNotation::kBeforeName), literal(shown), notation(SimpleNotation::kAfterName), value, repeated,
                          notation(SimpleNotation::kAfterMember)})
    if (part != kNone) parts.push_back(part);
}

SimpleNode SimpleEmitter::other_names(const std::vector<SimpleEntry>& entries) {
  if (entries.empty()) return shared(SimpleSyntax::kAnyString);
  std::vector<SimpleNode> names;
  for (const SimpleEntry& entry : entries) names.push_back(literal(entry.name, Kind::kName));
  return combine(Kind::kOtherNames, names);
}

SimpleNode SimpleEmitter::shared(SimpleSyntax::Term term) {
  if (shared_[term] == kNone) shared_[term] = add_leaf({syntax_.terms[term], SimpleLeaf::Size::kAtom});
  return shared_[term];
}

// The node of a term of the notation; kNone: it has none.
SimpleNode SimpleEmitter::outside(const nb::object& term) {
  return term.is_none() ? kNone : add_leaf({term, SimpleLeaf::Size::kAtom});
}

SimpleNode SimpleEmitter::chain(std::initializer_list<SimpleNode> parts) {
  std::array<SimpleNode, 4> kept;
  size_t count = 0;
  for (SimpleNode part : parts)
    if (part != kNone) kept.at(count++) = part;
  if (count == 0) return empty_string();
  return count == 1 ? kept[0] : combine(Kind::kSequence, std::span(kept).first(count));
}

SimpleNode SimpleEmitter::add_leaf(const SimpleLeaf& leaf) {
  require(leaf.term.is_valid());
  if (leaf.term.is_none()) return nothing();
  for (SimpleNode node : leaf_nodes_)
    if (terms_->leaves[terms_->nodes[node].low].is(leaf.term)) return node;
  terms_->leaves.push_back(leaf.term);
  leaf_sizes_.push_back(leaf.size);
  leaf_nodes_.push_back(emit({Kind::kLeaf, 0, 0, static_cast<uint32_t>(terms_->leaves.size() - 1), 0}));
  return leaf_nodes_.back();
}

}  // namespace structgen
