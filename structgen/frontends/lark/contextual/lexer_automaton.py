"""A deterministic automaton for the match that ``re`` finds.

``re`` tries alternatives in order and takes the first that leads to a match.  Here all attempts advance together, as a
list of *threads* in order of preference; a match drops the threads after it, and a later match of a thread before it
replaces it.  Such lists are the states of a deterministic automaton, built when they are reached (R. Cox, "Regular
expression matching in the wild", 2010, for RE2).

A lexer is one such list: the threads of its terminals, in the order in which Lark tries them.  The lexers of several
parser states share states with equal lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
)
from structgen.frontends.lark.lalr import bits
from structgen.grammar.limits import Limits, spend

__all__ = ["DEAD", "LexerAutomaton", "Scanner"]

DEAD: Final = -1
_STATE_STEPS: Final = 20
_Thread: TypeAlias = tuple[int, int]
"""A program counter, and the letters that may come next for the thread to survive."""


@dataclass(frozen=True, slots=True)
class Scanner:
    """The terminals that a lexer tries.

    Attributes:
        terminals: in the order in which they are tried.
        instead: for a terminal, those that replace it if they match the same text, in order.
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
        ends: by state, the matches that end there: the terminal that was tried, the terminal that it counts as, and
            the letters that must come next.
        alive: by state, the letters that lead to another state.
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
        """Return the first state of a lexer.

        Raises:
            PatternRefusal: a terminal looks at the text before it.
        """
        threads = self._merge([(self._entry[name], DEAD) for name in scanner.terminals])
        shadows = tuple((name, other, self._entry[other]) for name, others in scanner.instead for other in others)
        resolved = []
        for name, other, entry in shadows:
            resolved += [(name, other, pc) for pc, _ in self._closure(entry, DEAD)]
        return self._state(threads, tuple(resolved))

    def following(self, state: int) -> dict[int, int]:
        """Return the next state by letters (disjoint sets of them); letters that lead nowhere are left out."""
        found = self._next[state]
        if found is None:
            found = {}
            groups: dict[int, int] = {}
            for letters in self._alike(state):
                target = self._step(state, next(bits(letters)))
                if target != DEAD:
                    groups[target] = groups.get(target, 0) | letters
            found = {letters: target for target, letters in groups.items()}
            self._next[state] = found
        return found

    def texts(self, name: str) -> frozenset[int]:
        """Return the first program counters of a terminal, for ``read``: which strings it matches as a whole."""
        return frozenset(pc for pc, _ in self._closure(self._entry[name], DEAD))

    def read(self, pcs: frozenset[int], letters: int) -> list[tuple[int, frozenset[int]]]:
        """Return ``letters`` in sets, with the program counters after each; for terminals without look-around."""
        steps = self._steps
        masks = [(steps[pc].mask, steps[pc].targets[0]) for pc in pcs if steps[pc].kind == "char"]
        groups = _divided([letters], [mask for mask, _ in masks])
        found = []
        for group in groups:
            targets = [target for mask, target in masks if mask & group]
            found.append((group, frozenset(pc for target in targets for pc, _ in self._closure(target, DEAD))))
        return found

    def is_match(self, pcs: frozenset[int]) -> bool:
        """Return whether a string may end at one of the program counters."""
        return any(self._steps[pc].kind == "match" for pc in pcs)

    def _alike(self, state: int) -> list[int]:
        """Return the letters that lead to another state, in sets that are treated alike."""
        steps = self._steps
        threads = self._threads[state]
        groups = [self.alive[state]] if self.alive[state] else []
        masks = [mask for pc, mask in threads if steps[pc].kind == "char"]
        masks += [steps[pc].mask for _, _, pc in self._shadows[state] if steps[pc].kind == "char"]
        groups = _divided(groups, masks)
        after = any(self._looks_behind(steps[pc].targets[0]) for pc, _ in threads if steps[pc].targets)
        return [1 << letter for group in groups for letter in bits(group)] if after else groups

    def _looks_behind(self, pc: int) -> bool:
        self._closure(pc, 0)
        return (pc, DEAD) not in self._closures

    def _step(self, state: int, letter: int) -> int:
        bit = 1 << letter
        steps = self._steps
        threads = self._merge(
            [(steps[pc].targets[0], letter) for pc, mask in self._threads[state] if mask & bit and steps[pc].targets]
        )
        if not threads:
            return DEAD
        living = {self._owner[pc] for pc, _ in threads}
        shadows: list[tuple[str, str, int]] = []
        for name, other, pc in self._shadows[state]:
            if steps[pc].kind == "char" and steps[pc].mask & bit and name in living:
                shadows += [(name, other, target) for target, _ in self._closure(steps[pc].targets[0], letter)]
        return self._state(threads, tuple(shadows))

    def _merge(self, entries: Sequence[tuple[int, int]]) -> tuple[_Thread, ...]:
        """Return the threads of several entries in order, without those that earlier threads make redundant."""
        seen: dict[int, int] = {}
        merged: list[_Thread] = []
        left = self.alphabet.all  # the letters that may come next if no earlier thread has matched
        for entry, before in entries:
            for pc, mask in self._closure(entry, before):
                covered = seen.get(pc, 0)
                new = mask & left & ~covered
                if new:
                    seen[pc] = covered | new
                    merged.append((pc, new))
                    if self._steps[pc].kind == "match":
                        left &= ~new
        return tuple(merged)

    def _state(self, threads: tuple[_Thread, ...], shadows: tuple[tuple[str, str, int], ...]) -> int:
        key = (threads, shadows)
        found = self._ids.get(key)
        if found is None:
            spend(_STATE_STEPS + len(threads), self._subject, "its terminals are hard to tell apart")
            found = self._ids[key] = len(self.ends)
            if found > self._limits.regular_states:
                raise self._exceeded()
            self._threads.append(threads)
            self._shadows.append(shadows)
            self._next.append(None)
            steps = self._steps
            instead: dict[str, str] = {}
            for name, other, pc in shadows:
                if steps[pc].kind == "match":
                    instead.setdefault(name, other)
            alive = 0
            ends: dict[str, int] = {}
            for pc, mask in threads:
                if steps[pc].kind == "match":
                    ends[self._owner[pc]] = ends.get(self._owner[pc], 0) | mask
                else:
                    alive |= mask
            self.ends.append(tuple((name, instead.get(name, name), mask) for name, mask in ends.items()))
            self.alive.append(alive & ~self.alphabet.end)
        return found

    def _closure(self, entry: int, before: int) -> tuple[_Thread, ...]:
        """Return the characters and matches that ``entry`` leads to after the letter ``before``, preferred first."""
        cached = self._closures.get((entry, DEAD))
        if cached is None:
            cached = self._closures.get((entry, before))
        if cached is not None:
            return cached
        looked = False
        seen: dict[tuple[int, frozenset[int]], int] = {}
        found: list[_Thread] = []
        stack: list[tuple[int, int, frozenset[int]]] = [(entry, self.alphabet.all, frozenset())]
        while stack:
            pc, mask, rounds = stack.pop()
            step = self._steps[pc]
            if step.kind in {"char", "match"}:
                rounds = frozenset()
            covered = seen.get((pc, rounds), 0)
            mask &= ~covered
            if not mask:
                continue
            seen[pc, rounds] = covered | mask
            match step.kind:
                case "char":
                    if mask & step.mask:
                        found.append((pc, mask & step.mask))
                case "match":
                    found.append((pc, mask))
                case "look":
                    stack.append((step.targets[0], mask & step.mask, rounds))
                case "after":
                    looked = True
                    if before == DEAD:
                        raise PatternRefusal(
                            "look-behind",
                            "a look-behind or boundary looks at the text before its terminal",
                            self._owner[pc],
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
                return self._emit("after", self.alphabet.mask(tree.ranges), (then,))
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
    """Return where a loop goes on; ``re`` ends a loop of ``rounds``, whose current round has read nothing."""
    body, then = step.targets
    leave = (then, rounds - {step.loop})
    if step.loop in rounds:
        return [leave]
    enter = (body, rounds | {step.loop})
    return [enter, leave] if step.mask else [leave, enter]


def _divided(groups: list[int], masks: Iterable[int]) -> list[int]:
    """Return sets of letters that no mask separates."""
    for mask in masks:
        groups = [part for group in groups for part in (group & mask, group & ~mask) if part]
    return groups
