#include "frontends/lark/rule_terms.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace structgen {

namespace {

constexpr size_t kSplicedUpTo = 32;  // as in structgen.grammar.algebra

}  // namespace

RuleTerms::RuleTerms() {
  literal("");
  choice_of({});
}

RuleTerm RuleTerms::add(Node node) {
  nodes_.push_back(node);
  return static_cast<RuleTerm>(nodes_.size() - 1);
}

RuleTerm RuleTerms::literal(std::string_view data) {
  const auto begin = static_cast<uint32_t>(text_.size());
  text_ += data;
  return add({.kind = Kind::kLiteral, .is_nullable = data.empty(), .begin = begin, .end = static_cast<uint32_t>(text_.size())});
}

RuleTerm RuleTerms::chars(std::span<const CodePoints> ranges) {
  const auto begin = static_cast<uint32_t>(ranges_.size());
  ranges_.insert(ranges_.end(), ranges.begin(), ranges.end());
  return add({.kind = Kind::kChars, .begin = begin, .end = static_cast<uint32_t>(ranges_.size())});
}

RuleTerm RuleTerms::call(uint32_t rule) {
  return add({.kind = Kind::kCall, .has_call = true, .is_nullable = rules[rule].is_nullable, .low = rule});
}

RuleTerm RuleTerms::leaf(const Program* program, bool is_nullable) {
  leaves_.push_back(program);
  return add({.kind = Kind::kLeaf, .is_nullable = is_nullable, .low = static_cast<uint32_t>(leaves_.size() - 1)});
}

RuleTerm RuleTerms::repeat(RuleTerm item, uint32_t low, uint32_t high) {
  const RuleTerm made = group(Kind::kRepeat, {&item, 1});
  Node& node = nodes_[made];
  node.low = low;
  node.high = high;
  node.is_nullable = node.is_nullable || low == 0;
  return made;
}

RuleTerm RuleTerms::group(Kind kind, std::span<const RuleTerm> items) {
  const auto begin = static_cast<uint32_t>(parts_.size());
  parts_.insert(parts_.end(), items.begin(), items.end());
  Node node{.kind = kind, .begin = begin, .end = static_cast<uint32_t>(parts_.size())};
  const auto nullable = [this](RuleTerm item) { return nodes_[item].is_nullable; };
  for (RuleTerm item : items) node.has_call = node.has_call || nodes_[item].has_call;
  node.is_nullable = kind == Kind::kChoice ? std::ranges::any_of(items, nullable) : std::ranges::all_of(items, nullable);
  return add(node);
}

// How much splicing a term would copy, in items of at most 32 bytes.
size_t RuleTerms::width(RuleTerm term) const {
  const auto one = [this](RuleTerm item) { return 1 + (nodes_[item].kind == Kind::kLiteral ? text(item).size() / 32 : 0); };
  if (nodes_[term].kind != Kind::kSequence) return one(term);
  const auto items = parts(term);
  return std::accumulate(items.begin(), items.end(), size_t{0}, [&](size_t sum, RuleTerm item) { return sum + one(item); });
}

RuleTerm RuleTerms::joined(std::span<const RuleTerm> items) {
  size_t total = 0;
  for (RuleTerm item : items) total += width(item);
  std::vector<RuleTerm> flat;
  if (total > kSplicedUpTo) {
    for (RuleTerm item : items)
      if (nodes_[item].kind != Kind::kLiteral || !text(item).empty()) flat.push_back(item);
    return flat.size() == 1 ? flat[0] : sequence_of(flat);
  }
  std::string data;  // of the literals that were met last
  RuleTerm last = kNone;
  const auto end_text = [&] {
    if (!data.empty()) flat.push_back(last != kNone ? last : literal(data));
    data.clear();
  };
  const auto take = [&](RuleTerm item) {
    if (nodes_[item].kind != Kind::kLiteral) {
      end_text();
      flat.push_back(item);
    } else if (!text(item).empty()) {
      last = data.empty() ? item : kNone;
      data += text(item);
    }
  };
  for (RuleTerm item : items) {
    if (nodes_[item].kind != Kind::kSequence) {
      take(item);
      continue;
    }
    for (uint32_t i = nodes_[item].begin; i < nodes_[item].end; ++i) take(parts_[i]);
  }
  end_text();
  if (flat.empty()) return kEpsilon;
  return flat.size() == 1 ? flat[0] : sequence_of(flat);
}

RuleTerm RuleTerms::either(std::span<const RuleTerm> items) {
  std::vector<RuleTerm> distinct(items.begin(), items.end());
  if (distinct.size() > 1) {
    std::vector<std::pair<RuleTerm, uint32_t>> order;
    for (uint32_t i = 0; i < distinct.size(); ++i) order.emplace_back(distinct[i], i);
    std::ranges::sort(order);
    const auto again = std::ranges::unique(order, {}, &std::pair<RuleTerm, uint32_t>::first);
    order.erase(again.begin(), again.end());
    std::ranges::sort(order, {}, &std::pair<RuleTerm, uint32_t>::second);
    distinct.clear();
    for (const auto& [item, index] : order) distinct.push_back(item);
  }
  if (distinct.size() == 1) return distinct[0];
  size_t total = 0;
  for (RuleTerm item : distinct) total += nodes_[item].kind == Kind::kChoice ? parts(item).size() : 1;
  if (total > kSplicedUpTo) return choice_of(distinct);
  std::vector<RuleTerm> flat;
  for (RuleTerm item : distinct) {
    if (nodes_[item].kind == Kind::kChoice) {
      flat.insert(flat.end(), parts(item).begin(), parts(item).end());
    } else {
      flat.push_back(item);
    }
  }
  return flat.size() == 1 ? flat[0] : choice_of(flat);
}

uint32_t RuleTerms::add_rule(std::string name) {
  rules.push_back({std::move(name)});
  return static_cast<uint32_t>(rules.size() - 1);
}

void RuleTerms::solve_nullable() {
  // A node waits for as many of the nodes that it depends on as must be nullable for it to be so.
  std::vector<uint32_t> missing(nodes_.size()), begins(nodes_.size() + 1), waiting;
  const auto for_each_use = [&](auto&& use) {
    for (RuleTerm term = 0; term < nodes_.size(); ++term) {
      if (holds_parts(nodes_[term].kind)) {
        for (RuleTerm part : parts(term)) use(part, term);
      } else if (nodes_[term].kind == Kind::kCall) {
        use(rules[nodes_[term].low].body, term);
      }
    }
  };
  for_each_use([&](RuleTerm on, RuleTerm) { ++begins[on + 1]; });
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  waiting.resize(begins.back());
  std::vector<uint32_t> next(begins.begin(), begins.end() - 1);
  for_each_use([&](RuleTerm on, RuleTerm term) { waiting[next[on]++] = term; });
  std::vector<RuleTerm> queue;
  for (RuleTerm term = 0; term < nodes_.size(); ++term) {
    Node& node = nodes_[term];
    missing[term] = node.kind == Kind::kSequence ? node.end - node.begin : 1;
    if (node.is_nullable) queue.push_back(term);
  }
  while (!queue.empty()) {
    const RuleTerm term = queue.back();
    queue.pop_back();
    for (uint32_t i = begins[term]; i < begins[term + 1]; ++i) {
      Node& node = nodes_[waiting[i]];
      if (--missing[waiting[i]] > 0 || node.is_nullable) continue;
      node.is_nullable = true;
      queue.push_back(waiting[i]);
    }
  }
  for (Rule& rule : rules) rule.is_nullable = nodes_[rule.body].is_nullable;
}

// The program of some terms, on its way.
class RuleProgram {
 public:
  explicit RuleProgram(const RuleTerms& terms) : terms_(terms), made_(terms.size(), kNone), rules_(terms.rules.size(), kNone) {}

  Program all(RuleTerm body) {
    const uint32_t result = make(body);
    while (!waiting_.empty()) {
      const uint32_t rule = waiting_.back();
      waiting_.pop_back();
      const uint32_t made = make(terms_.rules[rule].body);
      emit({.kind = Instruction::Kind::kSetRule, .low = rules_[rule]}, {&made, 1});
    }
    program_.result = result;
    return std::move(program_);
  }

 private:
  uint32_t make(RuleTerm root) {
    std::vector<RuleTerm> stack{root};
    std::vector<uint32_t> operands;
    while (!stack.empty()) {
      const RuleTerm term = stack.back();
      if (made_[term] != kNone) {
        stack.pop_back();
        continue;
      }
      const RuleTerms::Node& node = terms_.at(term);
      operands.clear();
      if (terms_.holds_parts(node.kind)) {
        const size_t height = stack.size();
        for (RuleTerm part : terms_.parts(term)) {
          if (made_[part] == kNone) stack.push_back(part);
          operands.push_back(made_[part]);
        }
        if (stack.size() > height) continue;
      }
      stack.pop_back();
      made_[term] = instruction(node, term, operands);
    }
    return made_[root];
  }

  uint32_t instruction(const RuleTerms::Node& node, RuleTerm term, std::span<const uint32_t> operands) {
    using Kind = Instruction::Kind;
    switch (node.kind) {
      case RuleTerms::Kind::kLiteral: {
        const auto begin = static_cast<uint32_t>(program_.text.size());
        program_.text += terms_.text(term);
        return add({.kind = Kind::kLiteral, .begin = begin, .end = static_cast<uint32_t>(program_.text.size())});
      }
      case RuleTerms::Kind::kChars: {
        const auto begin = static_cast<uint32_t>(program_.ranges.size());
        program_.ranges.insert(program_.ranges.end(), terms_.ranges_.begin() + node.begin, terms_.ranges_.begin() + node.end);
        return add({.kind = Kind::kChars, .begin = begin, .end = static_cast<uint32_t>(program_.ranges.size())});
      }
      case RuleTerms::Kind::kSequence: return emit({.kind = Kind::kSequence}, operands);
      case RuleTerms::Kind::kChoice: return emit({.kind = Kind::kChoice}, operands);
      case RuleTerms::Kind::kRepeat: return emit({.kind = Kind::kRepeat, .low = node.low, .high = node.high}, operands);
      case RuleTerms::Kind::kCall: {
        uint32_t& rule = rules_[node.low];
        if (rule == kNone) {
          rule = static_cast<uint32_t>(program_.rules.size());
          program_.rules.push_back(terms_.rules[node.low].name);
          waiting_.push_back(node.low);
        }
        return add({.kind = Kind::kCall, .low = rule});
      }
      case RuleTerms::Kind::kLeaf: return program_.splice(*terms_.leaves_[node.low]);
    }
    return kNone;
  }

  uint32_t add(Instruction instruction) {
    program_.instructions.push_back(instruction);
    return static_cast<uint32_t>(program_.instructions.size() - 1);
  }
  uint32_t emit(Instruction instruction, std::span<const uint32_t> operands) {
    instruction.begin = static_cast<uint32_t>(program_.operands.size());
    program_.operands.insert(program_.operands.end(), operands.begin(), operands.end());
    instruction.end = static_cast<uint32_t>(program_.operands.size());
    return add(instruction);
  }

  const RuleTerms& terms_;
  Program program_;
  std::vector<uint32_t> made_;     // instructions by terms
  std::vector<uint32_t> rules_;    // rules of the program by rules
  std::vector<uint32_t> waiting_;  // rules whose bodies are not made yet
};

Program RuleTerms::program(RuleTerm body) const { return RuleProgram(*this).all(body); }

}  // namespace structgen
