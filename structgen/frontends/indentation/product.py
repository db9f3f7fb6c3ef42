"""The product of a grammar with the automaton of lines and words (Y. Bar-Hillel, M. Perles and E. Shamir, 1961).

The automaton reads characters. Its states are: inside a line, at the start of a line, and one for each guard (a set of
characters that may not come next, as word characters after a word). A part of the grammar also has a context, which its
parts inherit: the width of the block around it, and whether it is inside brackets. A rule gets a variant for each
context, state before it and set of states after it, but only where these make a difference; most rules have one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeAlias

from structgen.errors import LimitExceeded
from structgen.frontends.indentation.facts import (
    BLANK,
    GUARDED,
    LINE,
    MIDDLE,
    SPACED,
    Facts,
    any_number,
    begins_freely,
    facts_of,
    guard_of,
    guards_of,
    is_spaced,
    nonempty,
    optional_text,
    states_after,
    without_start,
)
from structgen.frontends.indentation.marks import GAP, NEWLINE, Block, Enclosed, Indentation, NotBefore
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import either, joined
from structgen.grammar.limits import Limits, spend
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described
from structgen.grammar.visitor import Call, trampoline

__all__ = ["product"]

_ANY: Final = -1
"""The context makes no difference."""
_OUTSIDE: Final = -2
"""Outside brackets, at any width."""
_INSIDE: Final = -3
"""Inside brackets."""
_BLANKS: Final = ir.CharClass([(9, 9), (32, 32)])

_Key: TypeAlias = tuple[int, int, int, int]
_VariantKey: TypeAlias = tuple[str, int, int, int]


def product(
    rules: Mapping[str, Grammar],
    body: Grammar,
    *,
    indentation: Indentation | None,
    newline: Grammar | None,
    ignored: Grammar | None,
    limits: Limits,
) -> ir.Rules:
    """Return a grammar without marks, of the strings that obey them.

    Args:
        rules: terms with marks, ``Block`` and ``Enclosed`` nodes.
        body: the same; it begins at the start of a line if lines have a meaning.
        indentation: ``None``: lines have no meaning, and there are no blocks.
        newline: the end of a line, up to and including its last newline, as a regular term.
        ignored: one piece of ignored text, a regular term; ``None``: there is none.
        limits: ``grammar_nodes`` bounds the nodes that are made.

    Raises:
        GrammarError: a mark is in an invalid position.
        LimitExceeded: the product has too many nodes.

    Complexity: linear in the variants that are made.
    """
    guards = guards_of([*rules.values(), body])
    spacing = _Spacing(_Terms(limits), guards, indentation, newline, ignored)
    facts = facts_of(rules, body, guards, has_gaps=spacing.inside is not ir.EPSILON, newline=newline)
    return _Product(rules, facts, spacing).run(body)


_NODE_STEPS: Final = 12
_SUBJECT: Final = "grammar with indentation"
_VARIANTS: Final = "each width has variants of the rules that hold blocks: lower max_width, or fix the step"


class _Terms:
    """Applies each operator once per operands, so that equal results are one object, and counts the nodes."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.spent = 0
        # By the ids of the operands, to which it refers too so that the ids are not reused.
        self.applied: dict[tuple[str, tuple[int, ...]], tuple[tuple[Grammar, ...], Grammar]] = {}

    def repeated(self, item: Grammar, low: int, high: int | None) -> Grammar:
        if item is ir.EMPTY or item is ir.EPSILON:
            return ir.EPSILON if low == 0 or item is ir.EPSILON else ir.EMPTY
        return self.remembered(f"{low},{high}", lambda: ir.Repeat(item, low, high), item)

    def join(self, one: Grammar, other: Grammar) -> Grammar:
        if one is ir.EMPTY or other is ir.EMPTY:
            return ir.EMPTY
        if one is ir.EPSILON or other is ir.EPSILON:
            return other if one is ir.EPSILON else one
        return self.remembered("join", lambda: joined([one, other]), one, other)

    def either(self, parts: Iterable[Grammar]) -> Grammar:
        unique = tuple({id(part): part for part in parts if part is not ir.EMPTY}.values())
        if len(unique) < 2:
            return unique[0] if unique else ir.EMPTY
        return self.remembered("either", lambda: either(unique), *unique)

    def remembered(self, operator: str, make: Callable[[], Grammar], *parts: Grammar) -> Grammar:
        key = (operator, tuple(map(id, parts)))
        if key not in self.applied:
            self.charge(1 + len(parts))
            self.applied[key] = parts, make()
        return self.applied[key][1]

    def charge(self, count: int) -> None:
        """Count nodes, up to the limit."""
        self.spent += count
        spend(_NODE_STEPS * count, _SUBJECT, _VARIANTS)
        if self.spent > self.limits.grammar_nodes:
            raise LimitExceeded(_SUBJECT, limit="grammar_nodes", maximum=self.limits.grammar_nodes, evidence=_VARIANTS)


class _Spacing:
    """Regular terms, after the indentation or ignored text that stands before them in each state."""

    def __init__(
        self,
        terms: _Terms,
        guards: tuple[ir.CharClass, ...],
        indentation: Indentation | None,
        newline: Grammar | None,
        ignored: Grammar | None,
    ) -> None:
        self.terms = terms
        self.guards = guards
        self.indentation = indentation
        self.newline = newline
        self.character = "" if indentation is None else indentation.character
        self.outside = self.inside = ir.EPSILON if ignored is None else any_number(ignored)
        if newline is not None and indentation is not None and (ignored is not None or indentation.brackets):
            line = joined([newline, ir.Repeat(_BLANKS)])  # between brackets, line ends and indentation are ignored
            self.inside = ir.Repeat(line) if ignored is None else any_number(either([ignored, line]))
        self.is_free = [begins_freely(self.outside, guard) and begins_freely(self.inside, guard) for guard in guards]
        self.indents: dict[int, Grammar] = {}
        self.texts: dict[tuple[int, int, int], Grammar] = {}

    def text(self, node: Grammar, context: int, state: int, goal: int, *, is_empty: bool) -> Grammar:
        """A regular term; if it is empty the state stays."""
        if state == MIDDLE:
            return node
        if not goal & 1:
            return ir.EPSILON
        key = (id(node), context if is_spaced(state) or state == LINE else _ANY, state)
        if key not in self.texts:
            self.texts[key] = self.preceded(nonempty(node), context, state)
        text = self.texts[key]
        return optional_text(text) if is_empty and goal >> state & 1 else text

    def line_end(self, context: int, state: int) -> Grammar:
        if context == _INSIDE or self.newline is None:
            return ir.EMPTY
        return self.text(self.newline, context, state, 1, is_empty=False)

    def preceded(self, text: Grammar, context: int, state: int) -> Grammar:
        """A non-empty term, after the text that ``state`` requires before it."""
        if text is ir.EMPTY:
            return ir.EMPTY
        if state == LINE:
            return joined([self.indent(context), ir.literal(self.character if context else ""), text])
        if state == BLANK:
            return joined([ir.literal(self.character), text])
        gap = ir.EPSILON if not is_spaced(state) else self.inside if context == _INSIDE else self.outside
        if state == SPACED:
            return joined([gap, text])
        guard = self.guards[guard_of(state)]
        bare = without_start(text, guard)
        if gap is ir.EPSILON:
            return bare
        some = nonempty(gap)
        rest = without_start(some, guard)
        if bare is text and rest is some:
            return joined([gap, text])
        return self.terms.either([bare, self.terms.join(rest, text)])

    def relevant(self, facts: Facts, state: int) -> int:
        """The equivalent simplest state."""
        if state < GUARDED or facts.depends_on_guard(state):
            return state
        if not is_spaced(state):
            return MIDDLE
        return SPACED if self.is_free[guard_of(state)] else state

    def indent(self, width: int) -> Grammar:
        """The indentation of a line without its last character: with that in the line, all widths share its rows."""
        if width == _INSIDE:
            return ir.EMPTY  # no line begins between brackets
        if not self.character or width < 0:
            raise AssertionError("a line begins without a known width")
        if width not in self.indents:
            self.indents[width] = ir.literal(self.character * (width - 1)) if width > 1 else ir.EPSILON
        return self.indents[width]

    def after(self, state: int) -> Grammar:
        """The ignored text that may follow the whole, which ends in ``state``."""
        gap = self.outside
        return gap if state == SPACED else optional_text(without_start(gap, self.guards[guard_of(state)]))


class _Product:
    """The grammar without marks, made from the variants of its parts."""

    def __init__(self, rules: Mapping[str, Grammar], facts: Mapping[int, Facts], spacing: _Spacing) -> None:
        self.rules = rules
        self.facts = facts
        self.spacing = spacing
        self.terms = spacing.terms
        self.states = range(GUARDED + 2 * len(spacing.guards))
        self.made: dict[_Key, Grammar] = {}
        self.variants: dict[_VariantKey, ir.Reference] = {}
        self.counts: dict[str, int] = {}  # of the variants of each rule
        self.waiting: deque[tuple[str, _VariantKey]] = deque()

    def run(self, body: Grammar) -> ir.Rules:
        start, context = (MIDDLE, _OUTSIDE) if self.spacing.indentation is None else (LINE, 0)
        whole = self.terms.either([trampoline(self.ended(body, context, start, state)) for state in self.states])
        made: list[tuple[str, Grammar]] = []
        while self.waiting:
            name, (rule, context, state, goal) = self.waiting.popleft()
            made.append((name, trampoline(self.make(self.rules[rule], context, state, goal))))
        return ir.Rules(made, whole)

    def ended(self, body: Grammar, context: int, start: int, state: int) -> Call[Grammar]:
        """The body, if it ends in ``state``, and trailing ignored text."""
        made: Grammar = yield self.make(body, context, start, 1 << state)
        return self.terms.join(made, self.spacing.after(state)) if is_spaced(state) else made

    def make(self, node: Grammar, context: int, state: int, goal: int) -> Call[Grammar]:
        """The strings of ``node`` from ``state`` to one of the states ``goal``."""
        facts = self.facts[id(node)]
        goal &= facts.after[state]
        if not goal:
            return ir.EMPTY
        if state == LINE and facts.begins_line:
            inner = yield self.make(node, context, BLANK if context else MIDDLE, goal)
            return self.terms.join(self.spacing.indent(context), inner)
        state = self.spacing.relevant(facts, state)
        context = _relevant(facts, context, state)
        key = (id(node), context, state, goal)
        if key not in self.made:
            self.terms.charge(1)
            self.made[key] = yield self.build(node, context, state, goal)
        return self.made[key]

    def build(self, node: Grammar, context: int, state: int, goal: int) -> Call[Grammar]:
        match node:
            case NotBefore():
                return ir.EPSILON
            case ir.Reference():
                return self.reference(node, context, state, goal)
            case Block():
                inner: Grammar = yield self.block(node, context)
            case Enclosed():
                inner = yield self.make(node.item, _INSIDE, state, goal)
            case ir.Sequence() if not self.is_text(node):
                inner = yield self.sequence(node.items, context, state, goal)
            case ir.Choice() if not self.is_text(node):
                parts = []
                for item in node.items:
                    parts.append((yield self.make(item, context, state, goal)))  # noqa: PERF401
                return self.terms.either(parts)
            case ir.Repeat() if not self.is_text(node):
                inner = yield self.repeat(node, context, state, goal)
            case ir.Capture() if not self.is_text(node):
                inner = yield self.make(node.item, context, state, goal)
                inner = inner if inner is ir.EMPTY else ir.Capture(node.name, inner)
            case Described() if not self.is_text(node):
                inner = yield self.make(node.item, context, state, goal)
                inner = inner if inner is ir.EMPTY else Described(inner, node.description)
            case _:
                return self.spacing.text(node, context, state, goal, is_empty=self.facts[id(node)].is_empty)
        return inner

    def is_text(self, node: Grammar) -> bool:
        """Whether no mark or rule is below; the children of such nodes have no facts."""
        return bool(node.children) and not all(id(child) in self.facts for child in node.children)

    def reference(self, node: ir.Reference, context: int, state: int, goal: int) -> Grammar:
        if node.name == GAP.name:
            return ir.EPSILON
        if node.name == NEWLINE.name:
            return self.spacing.line_end(context, state)
        key = (node.name, context, state, goal)
        if key not in self.variants:
            self.terms.charge(1)
            name = self.name_of(node.name)
            self.variants[key] = node if name == node.name else ir.Reference(name)
            self.waiting.append((name, key))
        return self.variants[key]

    def name_of(self, rule: str) -> str:
        count = self.counts.get(rule, 0) + 1
        while count > 1 and f"{rule}.{count}" in self.rules:
            count += 1
        self.counts[rule] = count
        return rule if count == 1 else f"{rule}.{count}"

    def block(self, node: Block, width: int) -> Call[Grammar]:
        parts = []
        if self.spacing.indentation is not None and width >= 0:
            for deeper in self.spacing.indentation.deeper(width):
                parts.append((yield self.make(node.item, deeper, LINE, 1 << LINE)))  # noqa: PERF401
        return self.terms.either(parts)

    def sequence(self, items: tuple[Grammar, ...], context: int, state: int, goal: int) -> Call[Grammar]:
        before = [1 << state]  # the possible states before each item
        for item in items:
            after = self.facts[id(item)].after
            before.append(states_after(after, before[-1]))
        rest: dict[int, Grammar] = {each: ir.EPSILON if goal >> each & 1 else ir.EMPTY for each in self.states}
        for index in range(len(items) - 1, -1, -1):
            found = {}
            for each in self.states:
                if before[index] >> each & 1:
                    found[each] = yield self.step(items[index], context, each, rest)
            rest = found
        return rest[state]

    def step(self, item: Grammar, context: int, state: int, rest: Mapping[int, Grammar]) -> Call[Grammar]:
        """``item`` from ``state``, then the term of ``rest`` for the state after it."""
        facts = self.facts[id(item)]
        if state == LINE and facts.begins_line:
            inner = yield self.step(item, context, BLANK if context else MIDDLE, rest)
            return self.terms.join(self.spacing.indent(context), inner)
        after = facts.after[state]
        state = self.spacing.relevant(facts, state)
        goals: dict[int, int] = {}
        for each in self.states:
            if after >> each & 1 and rest[each] is not ir.EMPTY:
                goals[id(rest[each])] = goals.get(id(rest[each]), 0) | 1 << each
        parts = []
        for goal in goals.values():
            part = yield self.make(item, context, state, goal)
            parts.append(self.terms.join(part, rest[(goal & -goal).bit_length() - 1]))
        return self.terms.either(parts)

    def repeat(self, node: ir.Repeat, context: int, state: int, goal: int) -> Call[Grammar]:
        after = self.facts[id(node.item)].after
        low, high = node.min, node.max
        reached = begun = 1 << state  # after any round, and before one
        for _ in self.states if high is None else range(min(high, len(self.states))):
            begun, reached = reached, reached | states_after(after, reached)
        states = [each for each in self.states if begun >> each & 1]
        classes = (yield self.classes(node.item, context, states, goal)) if high != 0 and begun == reached else []
        if len(classes) == 1:
            if not goal >> states[0] & 1:
                return ir.EMPTY
            item = yield self.make(node.item, context, state, reached)
            return self.terms.repeated(item, low, high)
        ends: dict[int, Grammar] = {each: ir.EPSILON if goal >> each & 1 else ir.EMPTY for each in self.states}
        rest = ends
        if high is None:
            rest = yield self.loops(node.item, context, classes, ends)
        for count in range(low if high is None else high, 0, -1):
            found = dict.fromkeys(self.states, ir.EMPTY)
            for each in states:
                part = yield self.step(node.item, context, each, rest)
                found[each] = self.terms.either([part, ends[each]]) if count > low else part
            rest = found
            self.terms.charge(1)
        return rest[state]

    def classes(self, item: Grammar, context: int, states: list[int], goal: int) -> Call[list[int]]:
        """The coarsest partition of ``states`` whose classes are equivalent for any number of rounds."""
        ended = sum(1 << each for each in states if goal >> each & 1)
        division = [part for part in (ended, sum(1 << each for each in states) & ~ended) if part]
        while True:
            found: dict[tuple[int, ...], int] = {}
            for each in states:
                signs = [goal >> each & 1]
                for target in division:
                    signs.append(id((yield self.make(item, context, each, target))))  # noqa: PERF401
                found[tuple(signs)] = found.get(tuple(signs), 0) | 1 << each
            if len(found) == len(division):
                return division
            division = list(found.values())

    def loops(
        self, item: Grammar, context: int, classes: list[int], ends: Mapping[int, Grammar]
    ) -> Call[dict[int, Grammar]]:
        """Any number of rounds from each state: solves Z = A Z | e class by class."""
        count = len(classes)
        first = [(members & -members).bit_length() - 1 for members in classes]
        edges: list[list[Grammar]] = []
        for one in range(count):
            edges.append([])
            for other in range(count):
                edges[one].append((yield self.make(item, context, first[one], classes[other])))
        solved: dict[int, Grammar] = {}
        for start in range(count):
            rows = [list(edge) for edge in edges]
            rests = [ends[each] for each in first]
            for gone in (each for each in range(count) if each != start):
                loop = self.terms.repeated(rows[gone][gone], 0, None)
                for row in range(count):
                    if row != gone and rows[row][gone] is not ir.EMPTY:
                        way = self.terms.join(rows[row][gone], loop)
                        for column in range(count):
                            if column != gone:
                                further = self.terms.join(way, rows[gone][column])
                                rows[row][column] = self.terms.either([rows[row][column], further])
                        rests[row] = self.terms.either([rests[row], self.terms.join(way, rests[gone])])
                        rows[row][gone] = ir.EMPTY
            found = self.terms.join(self.terms.repeated(rows[start][start], 0, None), rests[start])
            for each in self.states:
                if classes[start] >> each & 1:
                    solved[each] = found
        return {each: solved.get(each, ir.EMPTY) for each in self.states}


def _relevant(facts: Facts, context: int, state: int) -> int:
    """The equivalent simplest context."""
    has_gaps = facts.has_gaps or (is_spaced(state) and bool(facts.first))
    has_lines = facts.has_lines or (state == LINE and bool(facts.first))
    if context == _INSIDE:
        return _INSIDE if has_gaps or has_lines else _ANY
    if has_lines:
        return context
    return _OUTSIDE if has_gaps else _ANY
