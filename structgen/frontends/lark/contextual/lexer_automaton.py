"""Which match ``re`` finds, by a deterministic automaton.

``re`` tries alternatives in order and takes the first that leads to a match.  All attempts are followed at once here,
as an ordered list of *threads*, the preferred first; where one ends, those after it are given up, and a later match
of one before it counts instead.  Such lists are the states of a deterministic automaton (R. Cox, "Regular expression
matching in the wild", 2010, has it for RE2), made when they are reached.

A whole lexer is one such list: the threads of its terminals, in the order in which Lark tries them.  Lists that the
lexers of several parser states come to are the same states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from structgen.errors import LimitExceeded
from structgen.frontends.lark.contextual.pattern import (
    Alternatives,
    CharacterSet,
    LetterAlphabet,
    LookAhead,
    LookBehind,
    Loop,
    PatternRefusal,
    Series,
    Tree,
    letters_of,
)
from structgen.grammar.limits import Limits

__all__ = ["DEAD", "LexerAutomaton", "Scanner"]

DEAD: Final = -1
_Thread: TypeAlias = tuple[int, int]
"""A place of the program, and the letters that may come next for it to live."""


@dataclass(frozen=True, slots=True)
class Scanner:
    """What a lexer tries.

    Attributes:
        terminals: in the order in which they are tried.
        instead: for a terminal, those that take its place where they match the same text, in order.
    """

    terminals: tuple[str, ...]
    instead: tuple[tuple[str, tuple[str, ...]], ...]


class _Instruction(NamedTuple):
    """One instruction; ``kind`` is ``char``, ``look``, ``after``, ``split``, ``round`` or ``match``."""

    kind: str
    mask: int
    targets: tuple[int, ...]
    loop: int


class LexerAutomaton:
    """The automaton of all terminals.

    Attributes:
        alphabet: its letters.
        ends: by state, the matches that end there: the terminal that was tried, the one that it counts as, and the
            letters that must come next.
        alive: by state, the letters that lead on.
    """

    def __init__(self, trees: dict[str, Tree], alphabet: LetterAlphabet, limits: Limits, subject: str) -> None:
        """Write the programs of the terminals.

        Raises:
            LimitExceeded: counted repetitions make them too long.
        """
        self.alphabet = alphabet
        self._limits = limits
        self._subject = subject
        self._steps: list[_Instruction] = []
        self._owner: list[str] = []
        self._loops = 0
        self._entry: dict[str, int] = {}
        for name, tree in trees.items():
            final = self._emit("match")
            self._entry[name] = self._compile(tree, final)
            self._owner += [name] * (len(self._steps) - len(self._owner))
        self._closures: dict[tuple[int, int], tuple[_Thread, ...]] = {}
        self._ids: dict[tuple[object, object], int] = {}
        self._threads: list[tuple[_Thread, ...]] = []
        self._shadows: list[tuple[tuple[str, str, int], ...]] = []
        self._next: list[dict[int, int] | None] = []
        self.ends: list[tuple[tuple[str, str, int], ...]] = []
        self.alive: list[int] = []

    def __len__(self) -> int:
        return len(self.ends)

    def start(self, scanner: Scanner) -> int:
        """The state in which a lexer begins.

        Raises:
            Refusal: a terminal looks at the text before it.
        """
        threads = self._merge([(self._entry[name], DEAD) for name in scanner.terminals])
        shadows = tuple((name, other, self._entry[other]) for name, others in scanner.instead for other in others)
        resolved = []
        for name, other, entry in shadows:
            resolved += [(name, other, place) for place, _ in self._closure(entry, DEAD)]
        return self._state(threads, tuple(resolved))

    def following(self, state: int) -> dict[int, int]:
        """The next state by letters (disjoint sets of them); letters that lead nowhere are left out."""
        found = self._next[state]
        if found is None:
            found = {}
            groups: dict[int, int] = {}
            for letters in self._alike(state):
                target = self._step(state, next(letters_of(letters)))
                if target != DEAD:
                    groups[target] = groups.get(target, 0) | letters
            found = {letters: target for target, letters in groups.items()}
            self._next[state] = found
        return found

    def texts(self, name: str) -> frozenset[int]:
        """The places that a terminal begins at, for ``read``: which texts it matches from end to end."""
        return frozenset(place for place, _ in self._closure(self._entry[name], DEAD))

    def read(self, places: frozenset[int], letters: int) -> list[tuple[int, frozenset[int]]]:
        """``letters`` in sets, with the places after each; for terminals that do not look beside themselves."""
        steps = self._steps
        masks = [(steps[place].mask, steps[place].targets[0]) for place in places if steps[place].kind == "char"]
        groups = [letters]
        for mask, _ in masks:
            groups = [part for group in groups for part in (group & mask, group & ~mask) if part]
        found = []
        for group in groups:
            targets = [target for mask, target in masks if mask & group]
            found.append((group, frozenset(place for target in targets for place, _ in self._closure(target, DEAD))))
        return found

    def is_match(self, places: frozenset[int]) -> bool:
        """Whether a text may end at one of the places."""
        return any(self._steps[place].kind == "match" for place in places)

    def _alike(self, state: int) -> list[int]:
        """The letters that lead on, in sets that do so alike."""
        steps = self._steps
        threads = self._threads[state]
        groups = [self.alive[state]] if self.alive[state] else []
        masks = [mask for place, mask in threads if steps[place].kind == "char"]
        masks += [steps[place].mask for _, _, place in self._shadows[state] if steps[place].kind == "char"]
        for mask in masks:
            groups = [part for group in groups for part in (group & mask, group & ~mask) if part]
        behind = any(self._looks_behind(steps[place].targets[0]) for place, _ in threads if steps[place].targets)
        return [1 << letter for group in groups for letter in letters_of(group)] if behind else groups

    def _looks_behind(self, place: int) -> bool:
        self._closure(place, 0)
        return (place, DEAD) not in self._closures

    def _step(self, state: int, letter: int) -> int:
        bit = 1 << letter
        steps = self._steps
        threads = self._merge(
            [
                (steps[place].targets[0], letter)
                for place, mask in self._threads[state]
                if mask & bit and steps[place].targets
            ]
        )
        if not threads:
            return DEAD
        living = {self._owner[place] for place, _ in threads}
        shadows: list[tuple[str, str, int]] = []
        for name, other, place in self._shadows[state]:
            if steps[place].kind == "char" and steps[place].mask & bit and name in living:
                shadows += [(name, other, target) for target, _ in self._closure(steps[place].targets[0], letter)]
        return self._state(threads, tuple(shadows))

    def _merge(self, entries: Sequence[tuple[int, int]]) -> tuple[_Thread, ...]:
        """The threads of several places in order, without those that others make superfluous."""
        seen: dict[int, int] = {}
        merged: list[_Thread] = []
        left = self.alphabet.all  # what may come next without that an earlier thread has matched
        for entry, before in entries:
            for place, mask in self._closure(entry, before):
                known = seen.get(place, 0)
                kept = mask & left & ~known
                if kept:
                    seen[place] = known | kept
                    merged.append((place, kept))
                    if self._steps[place].kind == "match":
                        left &= ~kept
        return tuple(merged)

    def _state(self, threads: tuple[_Thread, ...], shadows: tuple[tuple[str, str, int], ...]) -> int:
        key = (threads, shadows)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = len(self.ends)
            if found > self._limits.regular_states:
                raise self._exceeded()
            self._threads.append(threads)
            self._shadows.append(shadows)
            self._next.append(None)
            steps = self._steps
            instead: dict[str, str] = {}
            for name, other, place in shadows:
                if steps[place].kind == "match":
                    instead.setdefault(name, other)
            alive = 0
            ends: dict[str, int] = {}
            for place, mask in threads:
                if steps[place].kind == "match":
                    ends[self._owner[place]] = ends.get(self._owner[place], 0) | mask
                else:
                    alive |= mask
            self.ends.append(tuple((name, instead.get(name, name), mask) for name, mask in ends.items()))
            self.alive.append(alive & ~self.alphabet.end)
        return found

    def _closure(self, entry: int, before: int) -> tuple[_Thread, ...]:
        """The characters and matches that ``entry`` leads to after the letter ``before``, the preferred first."""
        known = self._closures.get((entry, DEAD))
        if known is None:
            known = self._closures.get((entry, before))
        if known is not None:
            return known
        looked = False
        seen: dict[tuple[int, frozenset[int]], int] = {}
        found: list[_Thread] = []
        stack: list[tuple[int, int, frozenset[int]]] = [(entry, self.alphabet.all, frozenset())]
        while stack:
            place, mask, rounds = stack.pop()
            step = self._steps[place]
            if step.kind in {"char", "match"}:
                rounds = frozenset()
            known_mask = seen.get((place, rounds), 0)
            mask &= ~known_mask
            if not mask:
                continue
            seen[place, rounds] = known_mask | mask
            match step.kind:
                case "char":
                    if mask & step.mask:
                        found.append((place, mask & step.mask))
                case "match":
                    found.append((place, mask))
                case "look":
                    stack.append((step.targets[0], mask & step.mask, rounds))
                case "behind":
                    looked = True
                    if before == DEAD:
                        raise PatternRefusal(
                            "look-behind",
                            "a look-after or boundary looks at the text before its terminal",
                            self._owner[place],
                        )
                    if step.mask >> before & 1:
                        stack.append((step.targets[0], mask, rounds))
                case "split":
                    stack.extend((target, mask, rounds) for target in reversed(step.targets))
                case _:
                    stack.extend((target, mask, after) for target, after in reversed(_round(step, rounds)))
        result = tuple(found)
        self._closures[entry, before if looked else DEAD] = result
        return result

    def _emit(self, kind: str, mask: int = 0, targets: tuple[int, ...] = (), loop: int = 0) -> int:
        if len(self._steps) >= self._limits.regular_states:
            raise self._exceeded()
        self._steps.append(_Instruction(kind, mask, targets, loop))
        return len(self._steps) - 1

    def _exceeded(self) -> LimitExceeded:
        return LimitExceeded(
            self._subject,
            limit="regular_states",
            maximum=self._limits.regular_states,
            evidence="the lexer needs more states",
            remedy='lower the counts of its regexps, or use lexer="any"',
        )

    def _compile(self, tree: Tree, then: int) -> int:
        """Write the instructions of ``tree``, followed by ``then``; return where they begin."""
        match tree:
            case CharacterSet():
                return self._emit("char", self.alphabet.mask(tree.ranges), (then,))
            case LookAhead():
                mask = self.alphabet.mask(tree.ranges) | (self.alphabet.end if tree.at_end else 0)
                return self._emit("look", mask, (then,))
            case LookBehind():
                return self._emit("behind", self.alphabet.mask(tree.ranges), (then,))
            case Series():
                for item in reversed(tree.items):
                    then = self._compile(item, then)
                return then
            case Alternatives():
                return self._emit("split", 0, tuple(self._compile(item, then) for item in tree.items))
            case Loop():
                return self._compile_loop(tree, then)

    def _compile_loop(self, tree: Loop, then: int) -> int:
        self._loops += 1
        loop = self._loops
        if tree.max is None:
            entry = self._emit("round")
            body = self._compile(tree.item, entry)
            self._steps[entry] = _Instruction("round", int(tree.is_greedy), (body, then), loop)
        else:
            entry = then
            for _ in range(tree.max - tree.min):
                body = self._compile(tree.item, entry)
                entry = self._emit("round", int(tree.is_greedy), (body, then), loop)
        for _ in range(tree.min):
            entry = self._compile(tree.item, entry)
        return entry


def _round(step: _Instruction, rounds: frozenset[int]) -> list[tuple[int, frozenset[int]]]:
    """Where a loop goes on; ``rounds`` are the loops whose current round has read nothing, after which ``re`` stops."""
    body, then = step.targets
    leave = (then, rounds - {step.loop})
    if step.loop in rounds:
        return [leave]
    enter = (body, rounds | {step.loop})
    return [enter, leave] if step.mask else [leave, enter]
