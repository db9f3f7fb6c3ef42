#include "frontends/json_schema/simple_chain.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "automaton/automaton.h"

namespace structgen {

namespace {

constexpr size_t kMaxParses = 256;     // of one member, as _MAX_MEMBER_PARSES in emit/object_chain.py
constexpr size_t kMaxStates = 20'000;  // names times states; the planner in Python has more
constexpr size_t kBits = 64;
constexpr uint64_t kStateCost = 4;

}  // namespace

bool SimpleLayout::matches(size_t at, std::string_view pattern) const {
  if (!names) return false;
  const auto& matched = at < entries.size() ? names->matched[at] : regions[at - entries.size()].matched;
  return std::ranges::find(matched, pattern_of.at(pattern)) != matched.end();
}

std::vector<SchemaRef> SimpleLayout::said(const SimpleObject& object, size_t at) const {
  std::vector<SchemaRef> found;
  const JsonDocument::Member* property = at < entries.size() ? object.find(entries[at].name) : nullptr;
  if (property != nullptr) found.push_back(property->value);
  for (const auto& [pattern, value] : object.patterns)
    if (matches(at, pattern)) found.push_back(value);
  if (found.empty() && object.additional != kNone) found.push_back(object.additional);
  return found;
}

SimpleChain::SimpleChain(SimpleLayout layout, SimpleShapes& shapes, SimpleReader& reader) : layout_(std::move(layout)) {
  const size_t count = layout_.entries.size();
  require(layout_.negated.size() <= kBits);
  reader.spend(count * layout_.negated.size());
  members_.resize(count);
  for (size_t at = 0; at < count; ++at) add_parses(members_[at], at, kNone, shapes);
  for (uint32_t region = 0; region < layout_.regions.size(); ++region) add_parses(others_, count + region, region, shapes);
  calls_.resize(count), called_by_.resize(count), missing_.resize(count), bit_of_.resize(count);
  size_t bits = 0;
  const auto bit_of = [&](size_t entry) {
    if (bit_of_[entry] == 0) {
      require(bits < kBits);
      bit_of_[entry] = uint64_t{1} << bits++;
    }
    return bit_of_[entry];
  };
  for (const auto& [entry, others] : layout_.dependents)
    for (size_t other : others) {
      if (layout_.entries[other].is_required) continue;
      if (other > entry) calls_[entry] |= bit_of(other);
      else called_by_[other] |= bit_of(entry);
    }
  cap_ = layout_.fewest;
  if (layout_.most != kNone) cap_ = std::max(cap_, layout_.most + 1);
  std::unordered_map<std::string_view, size_t> entry_of;
  for (size_t at = 0; at < count; ++at) entry_of.emplace(layout_.entries[at].name, at);
  for (size_t number = 0; number < layout_.negated.size(); ++number) {
    const SimpleObject& object = *layout_.negated[number];
    for (std::string_view name : object.required) missing_[entry_of.at(name)] |= uint64_t{1} << number;
    cap_ = std::max(cap_, object.fewest);
    if (object.most != kNone) cap_ = std::max(cap_, object.most + 1);
  }
}

void SimpleChain::add_parses(std::vector<Parse>& out, size_t at, uint32_t region, SimpleShapes& shapes) {
  struct Option {
    uint64_t violates = 0, proves = 0;
    std::vector<SchemaRef> applied;
  };
  std::vector<Option> options(1);
  const std::vector<SchemaRef> own = layout_.values[at];
  for (size_t number = 0; number < layout_.negated.size(); ++number) {
    const uint64_t bit = uint64_t{1} << number;
    std::vector<SchemaRef> outside;  // the complements by which a value may violate the object
    bool is_violated = false;
    for (SchemaRef schema : layout_.said(*layout_.negated[number], at)) {
      const auto relation = shapes.compare(own, schema);
      if (relation == SimpleShapes::Relation::kOutside) is_violated = true;
      if (relation == SimpleShapes::Relation::kOutside) break;
      if (relation == SimpleShapes::Relation::kUnknown) outside.push_back(complement(schema));
    }
    if (is_violated) {
      for (Option& one : options) one.violates |= bit;
      continue;
    }
    for (size_t i = 0, known = options.size(); i < known; ++i)
      for (SchemaRef schema : outside) {
        Option grown = options[i];
        grown.violates |= bit;
        grown.proves |= bit;
        grown.applied.push_back(schema);
        options.push_back(std::move(grown));
      }
    require(options.size() <= kMaxParses);
  }
  for (Option& one : options) {
    std::vector<SchemaRef> applied = own;
    applied.insert(applied.end(), one.applied.begin(), one.applied.end());
    out.push_back({one.violates, one.proves, static_cast<uint32_t>(values_.size()), region});
    values_.push_back(std::move(applied));
  }
}

std::optional<SimpleChain::State> SimpleChain::begin(const State& state) const {
  if (state.size == layout_.most) return std::nullopt;
  State next = state;
  next.size = std::min(state.size + 1, cap_);
  return next;
}

std::optional<SimpleChain::State> SimpleChain::take(size_t index, const State& state) const {
  if (state.size == layout_.most || state.forbidden & bit_of_[index]) return std::nullopt;
  State next = state;
  next.due = (state.due | calls_[index]) & ~bit_of_[index];
  next.size = std::min(state.size + 1, cap_);
  return next;
}

std::optional<SimpleChain::State> SimpleChain::skip(size_t index, const State& state) const {
  if (layout_.entries[index].is_required || state.due & bit_of_[index]) return std::nullopt;
  State next = state;
  next.violated |= missing_[index];
  next.forbidden = (state.forbidden | called_by_[index]) & ~bit_of_[index];
  return next;
}

bool SimpleChain::accepts(const State& state) const {
  if (state.size < layout_.fewest) return false;
  for (size_t number = 0; number < layout_.negated.size(); ++number) {
    const SimpleObject& object = *layout_.negated[number];
    const bool is_counted_out = state.size < object.fewest || (object.most != kNone && state.size > object.most);
    if (!(state.violated >> number & 1) && !is_counted_out) return false;
  }
  return true;
}

std::vector<SimpleChain::Step> SimpleChain::after(std::span<const Parse> parses, const std::optional<State>& state) {
  std::vector<Step> steps;
  if (!state) return steps;
  for (const Parse& parse : parses) {
    if (parse.proves & state->violated) continue;  // no proof is needed
    steps.push_back({parse.value, *state});
    steps.back().after.violated |= parse.violates;
  }
  return steps;
}

bool SimpleChain::is_empty(const std::function<bool(uint32_t)>& is_value_empty, SimpleReader& reader) const {
  std::set<std::pair<size_t, State>> reached = {{0, {}}};
  std::vector<std::pair<size_t, State>> waiting = {{0, {}}};
  while (!waiting.empty()) {
    const auto [index, state] = waiting.back();
    waiting.pop_back();
    reader.spend(kStateCost);
    if (index == members_.size() && accepts(state)) return false;
    const auto reach = [&](size_t at, const State& next) {
      if (reached.emplace(at, next).second) waiting.emplace_back(at, next);
    };
    const auto take_all = [&](size_t at, const std::vector<Step>& steps) {
      for (const Step& step : steps)
        if (!reached.contains({at, step.after}) && !is_value_empty(step.value)) reach(at, step.after);
    };
    take_all(index, after(others_, begin(state)));
    if (index < members_.size()) {
      if (const auto skipped = skip(index, state)) reach(index + 1, *skipped);
      take_all(index + 1, after(members_[index], take(index, state)));
    }
    require(reached.size() <= kMaxStates);
  }
  return true;
}

// Chains the members from the right, for all states that are reached.
struct SimpleChain::Builder {
  using Kind = SimpleTerms::Kind;
  struct Row {
    SimpleNode following = kNone;  // further entries; kNone: there are none
    SimpleNode tail = kNone;       // what may follow a member, where the object can be completed
    bool has_tail = false, ends = false;  // ends: without further entries
  };
  using Rows = std::map<State, Row>;

  const SimpleChain& chain;
  SimpleEmitter& emit;
  SimpleReader& reader;
  const SimpleNode comma, nothing_more;
  std::vector<std::vector<Parse>> members = {};
  std::vector<Parse> others = {};
  std::vector<SimpleNode> made = {};  // the members, by value

  SimpleNode sequence(std::initializer_list<SimpleNode> parts) { return emit.combine(Kind::kSequence, {parts.begin(), parts.size()}); }

  SimpleNode choice(const std::vector<SimpleNode>& parts) {
    return parts.empty() ? kNone : parts.size() == 1 ? parts[0] : emit.combine(Kind::kChoice, parts);
  }

  void follow(std::vector<SimpleNode>& out, const std::vector<Step>& steps, const Rows& rows, const State* without = nullptr) {
    for (const Step& step : steps) {
      if (without != nullptr && step.after == *without) continue;
      const auto row = rows.find(step.after);
      if (row == rows.end() || !row->second.has_tail) continue;
      out.push_back(row->second.tail == nothing_more ? made[step.value] : sequence({made[step.value], row->second.tail}));
    }
  }

  SimpleNode built() {
    const size_t count = members.size();
    std::vector<std::set<State>> before(count + 1), after_member(count + 1);
    before[0].insert(State());
    size_t total = 0;
    for (const Step& step : chain.after(others, chain.begin({}))) after_member[0].insert(step.after);
    for (size_t index = 0; index <= count; ++index) {
      std::vector<State> waiting(after_member[index].begin(), after_member[index].end());
      while (!waiting.empty()) {
        const State state = waiting.back();
        waiting.pop_back();
        for (const Step& step : chain.after(others, chain.begin(state)))
          if (after_member[index].insert(step.after).second) waiting.push_back(step.after);
      }
      std::set<State> here = before[index];
      here.insert(after_member[index].begin(), after_member[index].end());
      total += here.size();
      require(total <= kMaxStates);
      reader.spend(kStateCost * here.size());
      if (index == count) break;
      for (const State& state : here) {
        if (const auto skipped = chain.skip(index, state)) before[index + 1].insert(*skipped);
        for (const Step& step : chain.after(members[index], chain.take(index, state))) after_member[index + 1].insert(step.after);
      }
    }
    Rows rows, later;
    for (size_t index = count + 1; index-- > 0;) {
      rows.clear();
      std::set<State> here = before[index];
      here.insert(after_member[index].begin(), after_member[index].end());
      for (const State& state : here) {
        Row& row = rows[state];
        if (index == count) {
          row.ends = chain.accepts(state);
          continue;
        }
        std::vector<SimpleNode> ways;
        follow(ways, chain.after(members[index], chain.take(index, state)), later);
        if (const auto skipped = chain.skip(index, state)) {
          const Row& next = later.at(*skipped);
          if (next.following != kNone) ways.push_back(next.following);
          row.ends = next.ends;
        }
        row.following = choice(ways);
      }
      // Members with other names never lead to a state that comes later.
      std::vector<State> order(after_member[index].begin(), after_member[index].end());
      std::ranges::sort(order, std::ranges::greater(), [](const State& state) { return std::tuple(std::popcount(state.violated), state.size, state); });
      for (const State& state : order) add_tail(state, rows);
      later.swap(rows);
    }
    const State start;
    std::vector<SimpleNode> first;
    if (later.at(start).following != kNone) first.push_back(later.at(start).following);
    follow(first, chain.after(others, chain.begin(start)), later);
    using Syntax = SimpleSyntax;
    const SimpleNode open = emit.shared(Syntax::kOpenObject), end = emit.shared(Syntax::kEndObject);
    const bool may_be_empty = later.at(start).ends;
    if (first.empty()) return may_be_empty ? sequence({open, end}) : emit.nothing();
    const SimpleNode some = sequence({choice(first), emit.shared(Syntax::kCloseObject)});
    if (!may_be_empty) return sequence({open, some});
    return sequence({open, choice({end, some})});
  }

  void add_tail(const State& state, Rows& rows) {
    const std::vector<Step> steps = chain.after(others, chain.begin(state));
    Row& row = rows.at(state);
    std::vector<SimpleNode> more, loops;
    if (row.following != kNone) more.push_back(row.following);
    follow(more, steps, rows, &state);
    for (const Step& step : steps)
      if (step.after == state) loops.push_back(made[step.value]);
    const SimpleNode rest = choice(more), loop = choice(loops);
    row.has_tail = rest != kNone || row.ends;
    if (!row.has_tail) return;
    SimpleNode tail = nothing_more;
    if (rest != kNone) {
      tail = sequence({comma, rest});
      if (row.ends) tail = choice({nothing_more, tail});
    }
    if (loop != kNone) {
      const SimpleNode again[] = {sequence({comma, loop})};
      const SimpleNode repeated = emit.combine(Kind::kRepeat, again, 0, kNone);
      tail = tail == nothing_more ? repeated : sequence({repeated, tail});
    }
    row.tail = tail;
  }
};

SimpleNode SimpleChain::term(SimpleEmitter& emit, std::span<const SimpleNode> values, std::span<const SimpleNode> keys, SimpleReader& reader) const {
  Builder builder{*this, emit, reader, emit.shared(SimpleSyntax::kComma), emit.empty_string()};
  const auto is_possible = [&](const Parse& parse) { return !emit.is_nothing(values[parse.value]); };
  std::ranges::copy_if(others_, std::back_inserter(builder.others), is_possible);
  uint32_t needed = layout_.fewest;
  for (const SimpleObject* object : layout_.negated)
    if (object->most != kNone) needed = std::max(needed, object->most + 1);
  const auto required = static_cast<uint32_t>(std::ranges::count_if(layout_.entries, &SimpleEntry::is_required));
  require(builder.others.empty() || needed < required + 2);  // names that repeat would have to be compared
  builder.made.resize(values.size(), kNone);
  const auto add_member = [&](const Parse& parse, SimpleNode key) { builder.made[parse.value] = builder.sequence({key, emit.shared(SimpleSyntax::kColon), values[parse.value]}); };
  std::string text;
  for (size_t at = 0; at < members_.size(); ++at) {
    text.clear();
    append_quoted(layout_.entries[at].name, text);
    const SimpleNode key = emit.literal(text);
    std::vector<Parse>& kept = builder.members.emplace_back();
    std::ranges::copy_if(members_[at], std::back_inserter(kept), is_possible);
    for (const Parse& parse : kept) add_member(parse, key);
  }
  for (const Parse& parse : builder.others) add_member(parse, keys[parse.region]);
  return builder.built();
}

}  // namespace structgen
