"""Split terms at their left edge: what they can start with, and what follows.

The two operations of left-recursion removal. Both share nodes instead of copying them, and use an explicit stack.

* ``without_empty(t)``: the non-empty strings of ``t``.
* ``split(t, rules)``: ``t`` as ``rest | A.nonempty part[A] | ...``, where ``rest`` starts with none of the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from structgen.errors import GrammarError, LimitExceeded, UnsupportedFeature
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import either, joined, with_children
from structgen.grammar.analysis import Nullability
from structgen.grammar.limits import Limits, spend
from structgen.grammar.nodes import Grammar, choice
from structgen.grammar.nodes.description import Described
from structgen.grammar.scopes import nodes_with_names

__all__ = ["LeftPositions", "Split", "Splitter", "is_empty_choice"]


_NODE_STEPS: Final = 20  # of those that refer to rules: several passes go over them
_STEPS_A_NODE: Final = 7  # that is made
_MANY_RULES: Final = "left recursion between very many rules"


class LeftPositions:
    """Where the expressions of a grammar can call a rule before they have read anything."""

    def __init__(self, flat: ir.Rules, nullable: Nullability) -> None:
        self.nullable = nullable
        self._named = nodes_with_names(flat)
        spend(_NODE_STEPS * len(self._named), "grammar", _MANY_RULES)

    def children(self, node: Grammar) -> list[Grammar]:
        """Return the children of ``node`` that can start it and have a reference below them."""
        if isinstance(node, ir.Sequence):
            found: list[Grammar] = []
            for item in node.items:
                if id(item) in self._named:
                    found.append(item)
                if not self.nullable(item):
                    break
            return found
        if isinstance(node, ir.Permutation):
            members = (*node.required, *node.optional, node.rest)
            starts = (*members, node.separator) if any(map(self.nullable, members)) else members
            return [child for child in starts if id(child) in self._named]
        if isinstance(node, (ir.JsonString, ir.Shared)) or (isinstance(node, ir.Repeat) and node.max == 0):
            return []
        return [child for child in node.children if id(child) in self._named]

    def references(self, term: Grammar) -> dict[str, None]:
        """Return the names of the rules that ``term`` can start with, as an ordered set."""
        names: dict[str, None] = {}
        seen: set[int] = set()
        stack = [term]
        while stack:
            node = stack.pop()
            if isinstance(node, ir.Reference):
                names[node.name] = None
            elif id(node) not in seen:
                seen.add(id(node))
                stack += reversed(self.children(node))
        return names


class Split(NamedTuple):
    """A term as ``rest``, or a non-empty string of a rule followed by its part."""

    rest: Grammar
    parts: Mapping[str, Grammar]


class Splitter:
    """Makes the terms of the rewritten grammar, and counts them up to a limit.

    ``nonempty`` names the rule for the non-empty strings of a rule.
    """

    def __init__(self, positions: LeftPositions, nonempty: Callable[[str], str], limits: Limits) -> None:
        self.nullable = positions.nullable
        self._positions = positions
        self._nonempty = nonempty
        self._limits = limits
        self._count = 0
        self._without_empty: dict[int, tuple[Grammar, Grammar]] = {}

    # Terms without the empty string

    def without_empty(self, term: Grammar) -> Grammar:
        """Return the non-empty strings of ``term``; ``term`` itself if it is not nullable."""
        known = self._without_empty
        stack = [term]
        while stack:
            node = stack[-1]
            if id(node) in known:
                stack.pop()
                continue
            if not self.nullable(node):
                known[id(node)] = (node, node)
                continue
            waiting = [child for child in node.children if id(child) not in known]
            if waiting and not isinstance(node, ir.Complement):
                stack += waiting
                continue
            known[id(node)] = (node, self._nonempty_term(node))
        return known[id(term)][1]

    def _nonempty_term(self, node: Grammar) -> Grammar:
        def inner(child: Grammar) -> Grammar:
            return self._without_empty[id(child)][1]

        match node:
            case ir.Literal() | ir.Sequence(items=()):
                return ir.EMPTY
            case ir.Reference():
                return ir.Reference(self._nonempty(node.name))
            case ir.Sequence():
                tails = self._tails(node.items, len(node.items) - 1)
                return self.choice(
                    self.sequence(inner(item), tail) for item, tail in zip(node.items, tails, strict=True)
                )
            case ir.Choice():
                return self.choice(inner(item) for item in node.items)
            case ir.Repeat():
                return ir.EMPTY if node.max == 0 else self._repeat(inner(node.item), 1, node.max)
            case ir.Permutation():
                return self._nonempty_permutation(node, inner)
            case ir.Capture() | ir.Budget() | ir.Tempered() | ir.Shared():
                item = inner(node.item)
                return item if is_empty_choice(item) else with_children(node, [item])
            case Described():
                return inner(node.item)
            case ir.Intersection() if node.items:
                return ir.Intersection([inner(node.items[0]), *node.items[1:]])
            case ir.Intersection():  # every string
                return ir.Repeat(ir.ANY_CHAR, 1, None)
            case ir.Complement():
                return ir.Complement(choice(node.item, ir.EPSILON))
            case _:
                raise GrammarError("grammar", f"unknown node {type(node).__name__}")

    def _nonempty_permutation(self, node: ir.Permutation, inner: Callable[[Grammar], Grammar]) -> Grammar:
        """Permutations in which some item, or else some separator, is not empty."""
        required, optional, rest, separator = node.required, node.optional, node.rest, node.separator
        min_count, max_count = node.min, node.max
        if max_count == 0:
            return ir.EMPTY
        if not any(map(self.nullable, (*required, *optional, rest))):  # so none is required
            return self._permutation(required, optional, rest, separator, max(min_count, 1), max_count)
        ways: list[Grammar] = []
        for index, item in enumerate(required):
            once = [*required[:index], inner(item), *required[index + 1 :]]
            ways.append(self._permutation(once, optional, rest, separator, min_count, max_count))
        if max_count is None or len(required) < max_count:
            for index, item in enumerate(optional):
                left = [*optional[:index], *optional[index + 1 :]]
                ways.append(self._permutation([*required, inner(item)], left, rest, separator, min_count, max_count))
            ways.append(self._permutation([*required, inner(rest)], optional, rest, separator, min_count, max_count))
        if all(map(self.nullable, required)):
            ways.append(self._separators(node, inner))
        return self.choice(ways)

    def _separators(self, node: ir.Permutation, inner: Callable[[Grammar], Grammar]) -> Grammar:
        """Separators, not all of them empty, between as many empty items as ``node`` may have."""
        max_count = node.max
        if not self.nullable(node.rest):
            count = len(node.required) + sum(map(self.nullable, node.optional))
            max_count = count if max_count is None else min(max_count, count)
        further = max(node.min, len(node.required), 2) - 2
        if max_count is not None and max_count - 2 < further:
            return ir.EMPTY
        more = self._repeat(node.separator, further, None if max_count is None else max_count - 2)
        return self.sequence(inner(node.separator), more)

    # Terms split at what they start with

    def split(self, term: Grammar, rules: Collection[str]) -> Split:
        """Split an expression of the grammar at those of ``rules`` that it can start with.

        Raises:
            GrammarError: an intersection, complement, distinct term, label, temperature or budget starts with one of
                the rules.
            UnsupportedFeature: a capture or a permutation does.
            LimitExceeded: too many terms were made.
        """
        known: dict[int, Split] = {}
        stack = [(term, False)]
        while stack:
            node, is_open = stack.pop()
            if is_open:
                known[id(node)] = self._split_node(node, rules, known)
            elif id(node) not in known:
                stack.append((node, True))
                stack.extend((child, False) for child in self._positions.children(node))
        return known[id(term)]

    def _split_node(self, node: Grammar, rules: Collection[str], known: Mapping[int, Split]) -> Split:
        if isinstance(node, ir.Reference) and node.name in rules:
            return Split(ir.EPSILON if self.nullable(node) else ir.EMPTY, {node.name: ir.EPSILON})
        starts = [known[id(child)] for child in self._positions.children(node)]
        if not any(split.parts for split in starts):
            return Split(node, {})
        match node:
            case ir.Choice():
                splits = [known.get(id(item), Split(item, {})) for item in node.items]
                return Split(self.choice(split.rest for split in splits), self._merged(splits))
            case ir.Sequence():
                return self._split_sequence(node, known)
            case ir.Repeat():
                return self._split_repeat(node, starts[0])
            case Described():
                return starts[0]
            case ir.Capture():
                raise UnsupportedFeature(
                    "grammar",
                    "capture",
                    where=node.name,
                    problem=f"capture {node.name!r} starts with the left-recursive rule {_first(starts)!r}, "
                    "whose start is only known once it ends",
                    remedy="capture inside that rule, or write it with repetition: t (op t)*",
                )
            case ir.Permutation():
                raise UnsupportedFeature(
                    "grammar",
                    "permutation",
                    where=_first(starts),
                    problem=f"a permutation starts with the left-recursive rule {_first(starts)!r}",
                    remedy="write that rule with repetition: t (op t)*, or begin the items with something else",
                )
            case ir.Distinct() | ir.Label() | ir.Tempered() | ir.Budget():
                problem, remedy = _UNSPLIT[type(node)]
                raise GrammarError("grammar", problem.format(repr(_first(starts))), remedy=remedy)
            case _:
                raise GrammarError(
                    "grammar",
                    f"rule {_first(starts)!r} is recursive through an intersection or complement",
                    remedy="intersect and complement only what is regular",
                )

    def _split_sequence(self, node: ir.Sequence, known: Mapping[int, Split]) -> Split:
        splits: list[Split] = []
        last = 0
        for index, item in enumerate(node.items):
            splits.append(known.get(id(item), Split(item, {})))
            if splits[-1].parts:
                last = index
            if not self.nullable(item):
                break
        del splits[last + 1 :]
        tails = self._tails(node.items, last)
        # Where an item before the last is empty, the next one starts the sequence: these are separate cases.
        rests = [
            self.sequence(self.without_empty(split.rest) if index < last else split.rest, tails[index])
            for index, split in enumerate(splits)
        ]
        followed = [
            Split(ir.EMPTY, {name: self.sequence(part, tails[index]) for name, part in split.parts.items()})
            for index, split in enumerate(splits)
        ]
        return Split(self.choice(rests), self._merged(followed))

    def _split_repeat(self, node: ir.Repeat, item: Split) -> Split:
        # A nullable item repeated m..n times is its non-empty part repeated 0..n times.
        min_count = 0 if self.nullable(node.item) else node.min
        max_count = None if node.max is None else node.max - 1
        tail = self._repeat(node.item, max(min_count - 1, 0), max_count)
        rest = self.sequence(self.without_empty(item.rest), tail)
        return Split(
            rest if min_count else self.choice([rest, ir.EPSILON]),
            {name: self.sequence(part, tail) for name, part in item.parts.items()},
        )

    def _merged(self, splits: Iterable[Split]) -> dict[str, Grammar]:
        found: dict[str, list[Grammar]] = {}
        for split in splits:
            for name, part in split.parts.items():
                found.setdefault(name, []).append(part)
        return {name: self.choice(parts) for name, parts in found.items()}

    def _tails(self, items: tuple[Grammar, ...], last: int) -> list[Grammar]:
        """Return what follows each of the items 0..last, each tail sharing the next one."""
        tails = [self.sequence(*items[last + 1 :])]
        for item in reversed(items[1 : last + 1]):
            tails.append(self.sequence(item, tails[-1]))
        return tails[::-1]

    # Terms, simplified a little and counted

    def sequence(self, *items: Grammar) -> Grammar:
        """Return the items one after the other; nothing can follow or precede the empty language."""
        if any(map(is_empty_choice, items)):
            return ir.EMPTY
        self._charge(1 + len(items))
        return joined(items)

    def choice(self, items: Iterable[Grammar]) -> Grammar:
        """Return any one of the items."""
        retained = [item for item in items if not is_empty_choice(item)]
        self._charge(1 + len(retained))
        return either(retained)

    def _repeat(self, item: Grammar, min_count: int, max_count: int | None) -> Grammar:
        if max_count == 0 or (is_empty_choice(item) and not min_count):
            return ir.EPSILON
        if is_empty_choice(item) or (min_count, max_count) == (1, 1):
            return item
        return ir.Repeat(item, min_count, max_count)

    def _permutation(
        self,
        required: Iterable[Grammar],
        optional: Iterable[Grammar],
        rest: Grammar,
        separator: Grammar,
        min_count: int,
        max_count: int | None,
    ) -> Grammar:
        made = ir.Permutation(required, optional, rest, separator, min_count, max_count)
        self._charge(1 + len(made.children))
        return ir.EMPTY if any(map(is_empty_choice, made.required)) else made

    def _charge(self, count: int) -> None:
        self._count += count
        if self._count > self._limits.grammar_nodes:
            raise LimitExceeded(
                "grammar",
                limit="grammar_nodes",
                maximum=self._limits.grammar_nodes,
                evidence=_MANY_RULES,
            )
        spend(_STEPS_A_NODE * count, "grammar", _MANY_RULES)


def is_empty_choice(term: Grammar) -> bool:
    """Whether ``term`` is the empty language as written here: a choice of nothing."""
    return isinstance(term, ir.Choice) and not term.items


def _first(splits: Iterable[Split]) -> str:
    return next(name for split in splits for name in split.parts)


_UNSPLIT: Final[Mapping[type[Grammar], tuple[str, str]]] = {
    ir.Distinct: (
        "a distinct term starts with the left-recursive rule {}",
        "an array or object starts with its bracket; write the rule so",
    ),
    ir.Label: ("a label starts with the left-recursive rule {}", "a label starts with xn--; write the rule so"),
    ir.Tempered: (
        "a part with a temperature starts with the left-recursive rule {}, whose start is only known once it ends",
        "write that rule with repetition: t (op t)*",
    ),
    ir.Budget: (
        "a part with a budget starts with the left-recursive rule {}, whose start is only known once it ends",
        "write that rule with repetition: t (op t)*",
    ),
}
