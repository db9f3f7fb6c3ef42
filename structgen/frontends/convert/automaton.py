"""Intersections and complements as rules, for dialects without these operators.

Sources: J. A. Brzozowski, "Derivatives of regular expressions", J. ACM 11 (1964); S. Owens, J. Reppy and A. Turon,
"Regular-expression derivatives re-examined", J. Funct. Program. 19 (2009); the minimal automaton by E. F. Moore's
refinement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from structgen.grammar import nodes as ir
from structgen.grammar.nodes import MAX_CODE_POINT, SURROGATES, CharClass, Grammar
from structgen.grammar.visitor import RecursiveTerm, fold

__all__ = ["NotRegular", "TooLarge", "right_linear"]

_Ranges: TypeAlias = tuple[tuple[int, int], ...]
_MAX_STATES: Final = 400
_MAX_STEPS: Final = 200_000


class NotRegular(Exception):
    """A rule below the term is recursive, or a node of the term is not regular."""


class TooLarge(Exception):
    """The automaton has too many states to write."""


class _AlgebraTerm(NamedTuple):
    """An expression; parts are numbers of other expressions."""

    kind: str
    data: object
    parts: tuple[int, ...]


class _DerivativeAlgebra:
    """Interned expressions: equal ones have one number; choices and intersections are sets."""

    def __init__(self) -> None:
        self.terms: list[_AlgebraTerm] = []
        self.nullable: list[bool] = []
        self._numbers: dict[_AlgebraTerm, int] = {}
        self._derivatives: dict[tuple[int, int], int] = {}
        self.steps = 0
        self.nothing = self.make("class", (), ())
        self.epsilon = self.make("empty", None, ())

    def make(self, kind: str, data: object, parts: tuple[int, ...]) -> int:
        term = _AlgebraTerm(kind, data, parts)
        number = self._numbers.get(term)
        if number is None:
            number = self._numbers[term] = len(self.terms)
            self.terms.append(term)
            self.nullable.append(self._is_nullable(term))
            self.steps += 1 + len(parts)
            if self.steps > _MAX_STEPS:
                raise TooLarge
        return number

    def _is_nullable(self, term: _AlgebraTerm) -> bool:
        values = [self.nullable[part] for part in term.parts]
        match term.kind:
            case "empty":
                return True
            case "pair" | "all":
                return all(values)
            case "any":
                return any(values)
            case "not":
                return not values[0]
            case "repeat":
                return term.data[0] == 0 or values[0]  # type: ignore[index]
            case _:
                return False

    def pair(self, first: int, second: int) -> int:
        if self.nothing in (first, second):
            return self.nothing
        if first == self.epsilon:
            return second
        if second == self.epsilon:
            return first
        heads = []
        while self.terms[first].kind == "pair":  # right-associative, so that equal sequences are one term
            head, first = self.terms[first].parts
            heads.append(head)
        joined = self.make("pair", None, (first, second))
        for head in reversed(heads):
            joined = self.make("pair", None, (head, joined))
        return joined

    def sequence(self, parts: Iterable[int]) -> int:
        joined = self.epsilon
        for part in reversed(list(parts)):
            joined = self.pair(part, joined)
        return joined

    def any_of(self, parts: Iterable[int]) -> int:
        found: set[int] = set()
        for part in parts:
            term = self.terms[part]
            found.update(term.parts if term.kind == "any" else (part,))
        found.discard(self.nothing)
        if not found:
            return self.nothing
        return found.pop() if len(found) == 1 else self.make("any", None, tuple(sorted(found)))

    def all_of(self, parts: Iterable[int]) -> int:
        found: set[int] = set()
        for part in parts:
            term = self.terms[part]
            found.update(term.parts if term.kind == "all" else (part,))
        if self.nothing in found:
            return self.nothing
        found.discard(self.none_of(self.nothing))
        if not found:
            return self.none_of(self.nothing)
        return found.pop() if len(found) == 1 else self.make("all", None, tuple(sorted(found)))

    def none_of(self, part: int) -> int:
        term = self.terms[part]
        return term.parts[0] if term.kind == "not" else self.make("not", None, (part,))

    def repeat(self, part: int, min_count: int, max_count: int | None) -> int:
        if max_count == 0 or part == self.epsilon:
            return self.epsilon
        if part == self.nothing:
            return self.epsilon if min_count == 0 else self.nothing
        if (min_count, max_count) == (1, 1):
            return part
        return self.make("repeat", (0 if self.nullable[part] else min_count, max_count), (part,))

    def derivative(self, root: int, code: int) -> int:
        """The derivative of ``root`` by the character ``code``."""
        known = self._derivatives
        stack = [root]
        while stack:
            number = stack[-1]
            if (number, code) in known:
                stack.pop()
                continue
            missing = [part for part in self._read(number) if (part, code) not in known]
            if missing:
                stack += missing
                continue
            known[number, code] = self._derived(number, code)
            stack.pop()
            self.steps += 1
            if self.steps > _MAX_STEPS:
                raise TooLarge
        return known[root, code]

    def _read(self, number: int) -> tuple[int, ...]:
        """The parts that the next character may be in."""
        term = self.terms[number]
        if term.kind == "pair":
            return term.parts if self.nullable[term.parts[0]] else term.parts[:1]
        return term.parts

    def _derived(self, number: int, code: int) -> int:
        term = self.terms[number]
        after = [self._derivatives[part, code] for part in self._read(number)]
        match term.kind, term.data:
            case "class", tuple() as ranges:
                return self.epsilon if any(low <= code <= high for low, high in ranges) else self.nothing
            case "pair", _:
                return self.any_of([self.pair(after[0], term.parts[1]), *after[1:]])
            case "any", _:
                return self.any_of(after)
            case "all", _:
                return self.all_of(after)
            case "not", _:
                return self.none_of(after[0])
            case "repeat", (int(min_count), (int() | None) as max_count):
                rest = self.repeat(term.parts[0], max(min_count - 1, 0), None if max_count is None else max_count - 1)
                return self.pair(after[0], rest)
            case _:
                return self.nothing


def right_linear(term: Grammar, rules: Mapping[str, Grammar], name: str) -> tuple[Grammar, dict[str, Grammar]]:
    """Write a regular term with rules that have neither intersections nor complements.

    Args:
        term: of literals, classes, sequences, choices, repetitions, references, intersections and complements.
        rules: the rules of its references.
        name: the prefix of the names of the new rules.

    Returns:
        An equal term, and the rules that it needs; the empty choice if it matches no string.

    Raises:
        NotRegular: it refers to a recursive rule, or contains a special token.
        TooLarge: its automaton has more than 400 states, or takes too long to make.
    """
    algebra = _DerivativeAlgebra()
    root = _converted(algebra, term, rules)
    atoms = _alphabet(algebra)
    numbers = {root: 0}
    moves: list[list[int]] = []
    states = [root]
    while len(moves) < len(states):
        row = []
        for code in atoms.samples:
            target = algebra.derivative(states[len(moves)], code)
            if target not in numbers:
                numbers[target] = len(states)
                states.append(target)
                if len(states) > _MAX_STATES:
                    raise TooLarge
            row.append(numbers[target])
        moves.append(row)
    is_final = [algebra.nullable[state] for state in states]
    return _rules_of(moves, is_final, atoms, name)


class _Alphabet(NamedTuple):
    """Sets of characters that no class separates, each with a sample."""

    samples: list[int]
    ranges: list[list[tuple[int, int]]]


def _alphabet(algebra: _DerivativeAlgebra) -> _Alphabet:
    classes = [term.data for term in algebra.terms if term.kind == "class"]
    cuts = {0, SURROGATES[0], SURROGATES[1] + 1, MAX_CODE_POINT + 1}
    starts: dict[int, list[int]] = {}
    for index, ranges in enumerate(classes):
        for low, high in ranges:  # type: ignore[attr-defined]
            cuts |= {low, high + 1}
            starts.setdefault(low, []).append(index)
            starts.setdefault(high + 1, []).append(index)
    inside: set[int] = set()
    found: dict[frozenset[int], list[tuple[int, int]]] = {}
    ordered = sorted(cuts)
    for low, following in pairwise(ordered):
        inside ^= set(starts.get(low, ()))
        if low != SURROGATES[0]:
            found.setdefault(frozenset(inside), []).append((low, following - 1))
    return _Alphabet([ranges[0][0] for ranges in found.values()], list(found.values()))


def _converted(algebra: _DerivativeAlgebra, root: Grammar, rules: Mapping[str, Grammar]) -> int:
    def below(node: Grammar) -> tuple[Grammar, ...]:
        return (rules[node.name],) if isinstance(node, ir.Reference) else node.children

    try:
        return fold(root, lambda node, parts: _joined(algebra, node, parts), below=below)
    except RecursiveTerm:
        raise NotRegular from None


def _joined(algebra: _DerivativeAlgebra, node: Grammar, parts: list[int]) -> int:
    match node:
        case ir.Literal(data=data):
            return algebra.sequence(algebra.make("class", ((ord(c), ord(c)),), ()) for c in data.decode())
        case CharClass(ranges=ranges) | ir.ByteClass(ranges=ranges):
            return algebra.make("class", ranges, ())
        case ir.Sequence():
            return algebra.sequence(parts)
        case ir.Choice():
            return algebra.any_of(parts)
        case ir.Repeat():
            return algebra.repeat(parts[0], node.min, node.max)
        case ir.Intersection():
            return algebra.all_of(parts)
        case ir.Complement():
            return algebra.none_of(parts[0])
        case ir.Reference():
            return parts[0]
    raise NotRegular


def _rules_of(
    moves: list[list[int]], is_final: list[bool], atoms: _Alphabet, name: str
) -> tuple[Grammar, dict[str, Grammar]]:
    live = _live(moves, is_final)
    if 0 not in live:
        return ir.EMPTY, {}
    block = _minimal(moves, is_final, live)
    names = {block[0]: f"{name}.state1"}
    order = [0]
    rules: dict[str, Grammar] = {}
    for state in order:  # grows in the loop
        targets: dict[int, list[tuple[int, int]]] = {}
        for atom, target in enumerate(moves[state]):
            if target in live:
                if block[target] not in names:
                    names[block[target]] = f"{name}.state{len(names) + 1}"
                    order.append(target)
                targets.setdefault(block[target], []).extend(atoms.ranges[atom])
        ways: list[Grammar] = [ir.EPSILON] if is_final[state] else []
        ways += [ir.Sequence((CharClass(ranges), ir.Reference(names[target]))) for target, ranges in targets.items()]
        rules[names[block[state]]] = ways[0] if len(ways) == 1 else ir.Choice(ways)
    return ir.Reference(names[block[0]]), rules


def _live(moves: list[list[int]], is_final: list[bool]) -> set[int]:
    """The states that reach a final state."""
    before: list[set[int]] = [set() for _ in moves]
    for state, row in enumerate(moves):
        for target in row:
            before[target].add(state)
    found = {state for state, final in enumerate(is_final) if final}
    stack = list(found)
    while stack:
        for state in before[stack.pop()] - found:
            found.add(state)
            stack.append(state)
    return found


def _minimal(moves: list[list[int]], is_final: list[bool], live: set[int]) -> list[int]:
    """The block of each state; the states of a block accept the same strings."""
    block = [0 if state not in live else 1 + final for state, final in enumerate(is_final)]
    while True:
        keys = [(block[state], tuple(block[target] for target in moves[state])) for state in range(len(moves))]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        refined = [numbers[key] for key in keys]
        if len(numbers) == len(set(block)):
            return block
        block = refined
