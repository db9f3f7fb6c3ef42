"""Lazy lexemes commit: where a lazy lexeme has been read, the text before it belongs to no other lexeme.

A lexer reads all lexemes that may come next in parallel.  The first match of a lazy one ends it, and the others are
given up.  As languages: at a position where the lazy lexemes ``U`` may come next, a text of another lexeme ``T`` has no
prefix in ``U``, and a text of a lazy lexeme no proper prefix::

    T & ~(U any*)    and    L & ~(U any+)

Which lexemes may come next depends on the lexemes before.  ``automaton_of`` has a state for each such set; the rules
become their product with it (Y. Bar-Hillel, M. Perles, E. Shamir 1961), in which a rule has a variant for each pair of
states that it begins and ends in.  States that lead to the same restrictions are merged first, so that nearly every
rule has one variant, and a grammar in which no lexeme is restricted stays as it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from structgen.frontends.disjointness import are_disjoint
from structgen.frontends.indentation.facts import nonempty
from structgen.frontends.lark.lexeme_automaton import Automaton, Lexeme, LexemeKind, Skip, automaton_of
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import either, joined, with_children
from structgen.grammar.limits import spend
from structgen.grammar.nodes import Grammar, postorder
from structgen.grammar.visitor import Call, fold, trampoline

__all__ = ["Unclear", "committed"]

_ANY: Final = ir.Repeat(ir.ANY_CHAR, 0, None)
_MORE: Final = ir.Repeat(ir.ANY_CHAR, 1, None)
_STEPS_A_PAIR: Final = 1
_STEPS_A_NODE: Final = 3
_STEPS_A_PROOF: Final = 300
_MAX_PROOFS: Final = 8
"""Lazy lexemes at one position that are compared with each other; of more, each is taken to cut the others."""
_KINDS_A_STEP: Final = 16
_MAX_MERGED: Final = 200
"""States that are compared with each other."""

_Restrictions: TypeAlias = dict[tuple[int, int], tuple[int, ...]]
"""The lazy kinds that cut a kind, by state and kind."""


class Unclear(Exception):
    """It is not clear what a lazy lexeme cuts; ``owner`` is its rule."""

    def __init__(self, owner: str, reason: str, remedy: str) -> None:
        self.owner, self.reason, self.remedy = owner, reason, remedy
        super().__init__(reason)


def committed(
    rules: Mapping[str, Grammar], body: Grammar, subject: str, *, has_marks: bool = False
) -> tuple[dict[str, Grammar], Grammar]:
    """Return rules and their start, in which lexemes are marked, without marks and with what lazy lexemes commit to.

    Args:
        rules: the rules and terminals by name.
        body: the start.
        subject: the grammar, for errors.
        has_marks: whether there are marks of lines and words, which are kept only if nothing is cut.

    Raises:
        Unclear: see ``docs/reference/lark.md``.
        LimitExceeded: the rules take more than ``Limits.steps``.
    """
    automaton = automaton_of(rules, body, subject)
    restrictions = _restrictions(automaton, subject)
    if not restrictions:
        return {name: _unmarked(term) for name, term in rules.items()}, _unmarked(body)
    if has_marks:
        owner = next(iter(_owners(automaton.kinds, restrictions)))
        raise Unclear(
            owner,
            "its text may be cut out of another lexeme, in a grammar of lines or with a terminal that ends at a \\b",
            "remove the boundary, or let the other lexeme not begin like it",
        )
    merged = _merged(automaton, restrictions, subject)
    return _Product(rules, automaton, *merged, subject).rendered(body)


def _unmarked(term: Grammar) -> Grammar:
    def combine(node: Grammar, parts: list[Grammar]) -> Grammar:
        return parts[0] if isinstance(node, (Lexeme, Skip)) else with_children(node, parts)

    if not any(isinstance(node, (Lexeme, Skip)) for node in postorder(term)):
        return term
    return fold(term, combine)


def _owners(kinds: list[LexemeKind], restrictions: _Restrictions) -> list[str]:
    return [kinds[number].owner for cut in restrictions.values() for number in cut]


def _restrictions(automaton: Automaton, subject: str) -> _Restrictions:
    kinds = automaton.kinds
    cuts: dict[tuple[int, tuple[int, ...]], bool] = {}

    def is_cut(number: int, by: tuple[int, ...]) -> bool:
        """Return whether a text of a kind may begin with a match of a lazy one."""
        key = number, by
        if key not in cuts:
            spend(_STEPS_A_PROOF, subject)
            kind = kinds[number]
            text, rest = (kind.text, _ANY) if kind.match is None else (kind.match, _MORE)
            matches = [nonempty(match) for other in by if (match := kinds[other].match) is not None]
            cuts[key] = text is not None and not are_disjoint(text, joined([either(matches), rest]))
        return cuts[key]

    found: _Restrictions = {}
    for state, steps in enumerate(automaton.steps):
        lazy = tuple(number for number in steps if kinds[number].match is not None)
        for number in steps if lazy else ():
            if kinds[number].text is None:
                continue
            if len(lazy) <= _MAX_PROOFS:
                cut = tuple(other for other in lazy if other != number and is_cut(number, (other,)))
            else:
                cut = lazy if kinds[number].match is not None or is_cut(number, lazy) else ()
            if cut:
                _check_clear(kinds, number, cut, automaton.certain[state])
                found[state, number] = cut
    return found


def _check_clear(kinds: list[LexemeKind], number: int, cut: tuple[int, ...], certain: frozenset[int]) -> None:
    unsure = next((other for other in cut if other not in certain), None)
    if unsure is not None:
        raise Unclear(
            kinds[unsure].owner,
            "whether it may come next depends on the depth of a recursion or on a large count, and another lexeme may "
            "begin like it",
            "let the other lexeme not begin like it, or write the recursive part as a grammar of its own (%lark)",
        )
    if kinds[number].is_stop:
        raise Unclear(
            kinds[number].owner,
            "its text may begin with that of another lazy rule",
            "write suffix= in place of stop=",
        )


def _merged(
    automaton: Automaton, restrictions: _Restrictions, subject: str
) -> tuple[list[dict[int, int]], _Restrictions]:
    """Merge states where no kind tells them apart; return the steps and restrictions of what remains."""
    steps = automaton.steps
    parent = list(range(len(steps)))

    def find(state: int) -> int:
        while parent[state] != state:
            state = parent[state]
        return state

    table = [{kind: (target, restrictions.get((state, kind), ())) for kind, target in steps[state].items()}
             for state in range(len(steps))]  # fmt: skip
    if len(steps) <= _MAX_MERGED:
        kept: list[int] = []
        for state in range(len(steps)):
            if find(state) != state or any(_merge(parent, table, find, other, state, subject) for other in kept):
                continue
            kept.append(state)
    numbers: dict[int, int] = {}
    for state in range(len(steps)):
        numbers.setdefault(find(state), len(numbers))
    new_steps: list[dict[int, int]] = [{} for _ in numbers]
    new_restrictions: _Restrictions = {}
    for state, number in numbers.items():
        for kind, (target, cut) in table[state].items():
            new_steps[number][kind] = numbers[find(target)]
            if cut:
                new_restrictions[number, kind] = cut
    return new_steps, new_restrictions


def _merge(
    parent: list[int],
    table: list[dict[int, tuple[int, tuple[int, ...]]]],
    find: Callable[[int], int],
    one: int,
    other: int,
    subject: str,
) -> bool:
    """Merge two states, and those that they lead to by the same kinds; undo it if restrictions differ."""
    undo: list[tuple[int, int, dict[int, tuple[int, tuple[int, ...]]]]] = []
    agenda = [(one, other)]
    while agenda:
        first, second = (find(state) for state in agenda.pop())
        if first == second:
            continue
        first, second = min(first, second), max(first, second)
        row, other_row = table[first], table[second]
        spend(_STEPS_A_PAIR + len(row) // _KINDS_A_STEP, subject)
        if any(kind in other_row and other_row[kind][1] != cut for kind, (_, cut) in row.items()):
            for changed, target, row in reversed(undo):
                parent[changed], table[target] = changed, row
            return False
        agenda += [(target, other_row[kind][0]) for kind, (target, _) in row.items() if kind in other_row]
        undo.append((second, first, row))
        parent[second], table[first] = first, other_row | row
    return True


_Ways: TypeAlias = dict[int, Grammar]
"""Terms by the state that they end in."""


class _Product:
    """The rules with the states that they begin and end in."""

    def __init__(
        self,
        rules: Mapping[str, Grammar],
        automaton: Automaton,
        steps: list[dict[int, int]],
        restrictions: _Restrictions,
        subject: str,
    ) -> None:
        self._rules = rules
        self._kinds, self._numbers = automaton.kinds, automaton.numbers
        self._steps, self._restrictions = steps, restrictions
        self._subject = subject
        self._ends: dict[tuple[str, int], frozenset[int]] = {}
        self._names: dict[tuple[str, int, int], str] = {}
        self._variants: dict[str, int] = defaultdict(int)
        self._waiting: list[tuple[str, int, int]] = []
        self._is_final = False
        self._home = "start"
        self._made: dict[str, Grammar] = {}
        self._cut: dict[tuple[int, int], Grammar] = {}
        self._begun: dict[tuple[tuple[int, ...], bool], Grammar] = {}

    def rendered(self, body: Grammar) -> tuple[dict[str, Grammar], Grammar]:
        while True:  # until the states in which rules end no longer change
            known = dict(self._ends)
            trampoline(self._ways(body, 0))
            for name, state in list(self._ends):
                ways = trampoline(self._ways(self._rules[name], state))
                self._ends[name, state] = frozenset(ways)
            if known == self._ends:
                break
        self._is_final = True
        start = either(trampoline(self._ways(body, 0)).values())
        for name, state, end in self._waiting:  # which grows
            self._home = name
            self._made[self._names[name, state, end]] = trampoline(self._ways(self._rules[name], state))[end]
        terminals = {name: term for name, term in self._rules.items() if name not in self._variants}
        return {**terminals, **self._made}, start

    def _name(self, rule: str, state: int, end: int) -> str:
        key = rule, state, end
        if key not in self._names:
            self._names[key] = self._new_name(rule)
            self._waiting.append(key)
        return self._names[key]

    def _new_name(self, rule: str) -> str:
        self._variants[rule] += 1
        number = self._variants[rule]
        return rule if number == 1 else f"{rule}.{number}"

    def _ways(self, term: Grammar, state: int) -> Call[_Ways]:
        spend(_STEPS_A_NODE, self._subject)
        match term:
            case ir.Sequence(items=items):
                in_order: _Ways = yield self._sequence(items, state)
                return in_order
            case ir.Choice(items=items):
                found: dict[int, list[Grammar]] = defaultdict(list)
                for item in items:
                    for end, part in (yield self._ways(item, state)).items():
                        found[end].append(part)
                return {end: either(parts) for end, parts in found.items()}
            case ir.Repeat():
                rounds: _Ways = yield self._repeat(term, state)
                return rounds
            case ir.Capture(item=item) | ir.Budget(item=item) | ir.Tempered(item=item):
                ways: _Ways = yield self._ways(item, state)
                return {end: with_children(term, [part]) for end, part in ways.items()}
            case ir.Reference(name=name) if name in self._rules:
                ends = self._ends.setdefault((name, state), frozenset())
                return {
                    end: ir.Reference(self._name(name, state, end)) if self._is_final else ir.EPSILON for end in ends
                }
            case ir.Reference() | ir.Literal(data=b""):
                return {state: term}
            case _:
                return self._leaf(term, state)

    def _leaf(self, term: Grammar, state: int) -> _Ways:
        number = self._numbers[term.digest]
        kind = self._kinds[number]
        item = term.item if isinstance(term, (Lexeme, Skip)) else term
        if kind.is_optional and kind.match is not None:
            return {state: item}
        target = self._steps[state].get(number)
        if target is None:
            return {}
        if not self._is_final:
            return dict.fromkeys([target, state] if kind.is_optional else [target], ir.EPSILON)
        cut = self._restrictions.get((state, number), ())
        if cut and (state, number) not in self._cut:
            refused = self._refused(cut, _ANY if kind.match is None else _MORE)
            if isinstance(item, ir.Reference):
                item = self._rules[item.name]
            self._cut[state, number] = ir.Intersection((item, ir.Complement(refused)))
        made = self._cut[state, number] if cut else item
        if target == state or not kind.is_optional:
            return {target: made}
        some = nonempty(made) if not isinstance(made, ir.Reference) else nonempty(self._rules[made.name])
        return {target: some, state: ir.EPSILON}

    def _refused(self, cut: tuple[int, ...], rest: Grammar) -> Grammar:
        key = cut, rest is _ANY
        if key not in self._begun:
            matches = [match for other in cut if (match := self._kinds[other].match) is not None]
            self._begun[key] = joined([either(matches), rest])
        return self._begun[key]

    def _sequence(self, items: tuple[Grammar, ...], state: int) -> Call[_Ways]:
        so_far: _Ways = {state: ir.EPSILON}
        for item in items:
            found: dict[int, list[Grammar]] = defaultdict(list)
            for middle, before in so_far.items():
                for end, part in (yield self._ways(item, middle)).items():
                    found[end].append(joined([before, part]))
            so_far = {end: either(parts) for end, parts in found.items()}
        return so_far

    def _repeat(self, term: ir.Repeat, state: int) -> Call[_Ways]:
        """The rounds of a repetition; in several states they become rules."""
        rounds: dict[int, _Ways] = {}
        agenda = [state]
        while agenda:
            here = agenda.pop()
            if here not in rounds:
                rounds[here] = yield self._ways(term.item, here)
                agenda += rounds[here]
        if set(rounds) == {state}:
            if not rounds[state]:
                return {state: ir.EPSILON} if term.min == 0 else {}
            return {state: ir.Repeat(rounds[state][state], term.min, term.max)}
        if term.max is not None:
            optional, ways = term.max - term.min, {here: {here: ir.EPSILON} for here in rounds}
        else:
            optional, ways = 0, self._loops(rounds)
        for count in range(optional + term.min):
            spend(_STEPS_A_PAIR * len(rounds) ** 2, self._subject)
            ways = {here: self._round(here, rounds, ways, may_end=count < optional) for here in rounds}
        return ways[state]

    @staticmethod
    def _round(here: int, rounds: dict[int, _Ways], ways: dict[int, _Ways], *, may_end: bool) -> _Ways:
        found: dict[int, list[Grammar]] = defaultdict(list)
        if may_end:
            found[here].append(ir.EPSILON)
        for middle, part in rounds[here].items():
            for end, rest in ways[middle].items():
                found[end].append(joined([part, rest]))
        return {end: either(parts) for end, parts in found.items()}

    def _loops(self, rounds: dict[int, _Ways]) -> dict[int, _Ways]:
        """Any number of rounds, by the state at the start; each pair of states becomes a rule."""
        reached: dict[int, set[int]] = {}
        for here in rounds:
            agenda, seen = [here], {here}
            while agenda:
                new = set(rounds[agenda.pop()]) - seen
                seen |= new
                agenda += new
            reached[here] = seen
        if not self._is_final:
            return {here: dict.fromkeys(sorted(ends), ir.EPSILON) for here, ends in reached.items()}
        names = {(here, end): self._new_name(self._home) for here in rounds for end in sorted(reached[here])}
        for (here, end), name in names.items():
            parts = [ir.EPSILON] if here == end else []
            parts += [
                joined([part, ir.Reference(names[middle, end])])
                for middle, part in rounds[here].items()
                if end in reached[middle]
            ]
            self._made[name] = either(parts)
        return {here: {end: ir.Reference(names[here, end]) for end in sorted(reached[here])} for here in rounds}
