"""What may not follow a lexeme, because another match would then have won.

A guard is a state of a deterministic automaton that reads the text behind a lexeme.  A guard with a letter in its
``fails`` is broken by it; one without a target for a letter is satisfied by it, for good.  Equal guards are one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Final, TypeVar

from structgen.errors import LimitExceeded
from structgen.frontends.lark.contextual.graph import equivalence_classes
from structgen.frontends.lark.contextual.lexer_automaton import LexerAutomaton
from structgen.frontends.lark.contextual.pattern import LetterAlphabet

__all__ = ["BROKEN", "FREE", "Guards"]

FREE: Final = 0
"""The guard that nothing breaks."""
BROKEN: Final = -1
_Node = TypeVar("_Node", bound=Hashable)


class Guards:
    """All guards of a grammar.

    Attributes:
        fails: by guard, the letters that break it; the end of the text may be one.
        targets: by guard, the next guard by letters.
    """

    def __init__(self, machine: LexerAutomaton, max_states: int, subject: str) -> None:
        self._machine = machine
        self._alphabet: LetterAlphabet = machine.alphabet
        self._max_states = max_states
        self._subject = subject
        self._spent = 0
        self.fails: list[int] = [0]
        self.targets: list[tuple[tuple[int, int], ...]] = [()]
        self._ids: dict[object, int] = {(0, ()): FREE}
        self._both: dict[tuple[int, int], int] = {}
        self._after: dict[tuple[int, int, int], int] = {}

    def step(self, guard: int, letters: int) -> int:
        """The guard after any of ``letters``, which it must not tell apart."""
        if self.fails[guard] & letters:
            return BROKEN
        return next((target for mask, target in self.targets[guard] if mask & letters), FREE)

    def divide(self, guard: int, letters: int) -> list[tuple[int, int]]:
        """``letters`` that do not break the guard, in sets with the guard after each."""
        if guard == FREE:
            return [(letters, FREE)] if letters else []
        letters &= ~self.fails[guard]
        parts: list[tuple[int, int]] = []
        for mask, target in self.targets[guard]:
            if mask & letters:
                parts.append((mask & letters, target))
                letters &= ~mask
        return [*parts, (letters, FREE)] if letters else parts

    def after(self, state: int, following: int, readable: int) -> int:
        """The guard behind a match that ends in a state of the lexer.

        Args:
            state: the state.
            following: the letters that may come next for the match to count.
            readable: the letters that may come next at all.
        """
        key = (state, following, readable)
        found = self._after.get(key)
        if found is None:
            if not (self._machine.alive[state] | ~following & self._alphabet.all) & readable:
                found = FREE
            else:
                found = self._interned((~state, following), partial(self._expand_run, readable))
            self._after[key] = found
        return found

    def _expand_run(self, readable: int, node: tuple[int, int]) -> tuple[int, list[tuple[int, tuple[int, int]]]]:
        state, following = node
        if state >= 0:
            readable = self._alphabet.all
        else:  # the first state, which no other is equal to
            state = ~state
        edges = []
        fails = self._alphabet.all & ~following
        for letters, target in self._machine.following(state).items():
            matches = 0
            for _, _, mask in self._machine.ends[target]:
                matches |= mask
            if matches == self._alphabet.all:
                fails |= letters
            elif letters & following & readable:
                edges.append((letters & following & readable, (target, self._alphabet.all & ~matches)))
        return fails & readable, edges

    def both(self, one: int, other: int) -> int:
        """The guard that is broken where either is."""
        if one in {FREE, other}:
            return other
        if other == FREE:
            return one
        key = (min(one, other), max(one, other))
        found = self._both.get(key)
        if found is None:
            found = self._both[key] = self._interned(key, self._expand_both)
        return found

    def _expand_both(self, node: tuple[int, int]) -> tuple[int, list[tuple[int, tuple[int, int]]]]:
        one, other = node
        fails = self.fails[one] | self.fails[other]
        edges = []
        for letters, left in self.divide(one, self._alphabet.all & ~fails & ~self._alphabet.end):
            edges += [(part, (min(left, right), max(left, right))) for part, right in self.divide(other, letters)]
        return fails, edges

    def restricted(self, guard: int, readable: int) -> int:
        """The guard without what letters outside ``readable`` would do at once; they cannot come."""
        if guard == FREE:
            return FREE
        targets = tuple((mask & readable, target) for mask, target in self.targets[guard] if mask & readable)
        return self._hashed(self.fails[guard] & readable, targets)

    def _hashed(self, fails: int, targets: tuple[tuple[int, int], ...]) -> int:
        key = (fails, tuple(sorted(targets, key=lambda pair: pair[1])))
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.fails)
            self.fails.append(fails)
            self.targets.append(key[1])
        return found

    def _interned(self, root: _Node, expand: Callable[[_Node], tuple[int, list[tuple[int, _Node]]]]) -> int:
        """Return the guard of the automaton that ``expand`` makes."""
        fails: dict[_Node, int] = {}
        edges: dict[_Node, list[tuple[int, _Node]]] = {}
        work = [root]
        while work:
            node = work.pop()
            if node in fails:
                continue
            fails[node], found = expand(node)
            edges[node] = found
            work.extend(target for _, target in found)
            self._spent += 1 + len(found)
            if self._spent > self._max_states * 8:
                raise LimitExceeded(
                    self._subject,
                    limit="regular_states",
                    maximum=self._max_states,
                    evidence="what may follow its terminals takes more",
                    remedy='choose terminals that are easier to tell apart, or use lexer="any"',
                )
        dangerous = _leading_to({node for node, mask in fails.items() if mask}, edges)
        if root not in dangerous:
            return FREE
        classes = equivalence_classes(dangerous, edges, fails.__getitem__)
        return self._numbered(root, classes, fails, edges)

    def _numbered(
        self,
        root: _Node,
        classes: dict[_Node, int],
        fails: dict[_Node, int],
        edges: dict[_Node, list[tuple[int, _Node]]],
    ) -> int:
        by_class: dict[int, tuple[int, dict[int, int]]] = {}
        for node, found_class in classes.items():
            if found_class not in by_class:
                merged: dict[int, int] = {}
                for letters, following in edges[node]:
                    if following in classes:
                        merged[classes[following]] = merged.get(classes[following], 0) | letters
                by_class[found_class] = (fails[node], merged)
        # One serialisation of the whole, from the root: it says which automaton this is.
        order = {classes[root]: 0}
        listed = [classes[root]]
        shape: list[object] = []
        for number in listed:
            mask, merged = by_class[number]
            row = sorted((letters, target) for target, letters in merged.items())
            for _, target in row:
                if target not in order:
                    order[target] = len(order)
                    listed.append(target)
            shape.append((mask, tuple((letters, order[target]) for letters, target in row)))
        key = tuple(shape)
        found = self._ids.get(key)
        if found is not None:
            return found
        made: dict[int, int] = {}
        for each in reversed(listed):
            mask, merged = by_class[each]
            if any(target not in made for target in merged):
                break  # a circle, or a shorter way to it was found first
            made[each] = self._hashed(mask, tuple((letters, made[target]) for target, letters in merged.items()))
        else:
            self._ids[key] = made[classes[root]]
            return made[classes[root]]
        base = len(self.fails)
        for number in listed:
            mask, merged = by_class[number]
            self.fails.append(mask)
            self.targets.append(tuple((letters, base + order[target]) for target, letters in merged.items()))
        self._ids[key] = base
        return base


def _leading_to(found: set[_Node], edges: dict[_Node, list[tuple[int, _Node]]]) -> dict[_Node, None]:
    """The nodes from which one of ``found`` is reached, in the order of ``edges``."""
    sources: dict[_Node, list[_Node]] = {}
    for node, out in edges.items():
        for _, target in out:
            sources.setdefault(target, []).append(node)
    reached = set(found)
    work = list(found)
    while work:
        for node in sources.get(work.pop(), ()):
            if node not in reached:
                reached.add(node)
                work.append(node)
    return dict.fromkeys(node for node in edges if node in reached)
