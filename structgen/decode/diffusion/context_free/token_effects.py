"""The effects of tokens on a network: where their bytes lead from each state, and what they leave unread."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np

from structgen.decode.step.context import shared_length
from structgen.engine.network import distinct_columns
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.limits import spend

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from structgen.engine.network import Network
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["MAX_EFFECTS", "NOTHING", "Effect", "Effects", "Stack", "StackOrEffect"]

MAX_EFFECTS: Final = 5_000_000
"""Limit on the entries of all effects (outcomes of some bytes by state) that are built for one network."""

Stack: TypeAlias = "tuple[int, ...]"
"""States to return to, the outermost first, and the current state."""

StackOrEffect: TypeAlias = "Stack | int"
"""A stack; or an effect with which the caller continues."""

FRESH: Final = -1
"""The first item of a stack whose state has not read anything yet."""

NOTHING: Final = 0
"""The effect that is dead everywhere."""


@final
class Effect(NamedTuple):
    """The outcomes of some bytes, by the state where they begin.

    Attributes:
        source, top: int32 ``[plain]``: outcomes that are one state, from which only bytes lead on; sorted.  These are
            nearly all of a grammar with counts, so bytes are read from all of them at once.
        others: all other pairs (source, outcome).
    """

    source: NDArray[np.int32]
    top: NDArray[np.int32]
    others: frozenset[tuple[int, StackOrEffect]]

    @property
    def size(self) -> int:
        """The number of pairs."""
        return len(self.source) + len(self.others)

    @property
    def items(self) -> Iterable[tuple[int, StackOrEffect]]:
        """All pairs (source, outcome)."""
        return chain(zip(self.source.tolist(), zip(self.top.tolist(), strict=True), strict=True), self.others)


class Effects:
    """The effects of bytes from each state, built byte by byte, each distinct effect once.

    An effect is a set of pairs (source, outcome). Two paths with the same source and outcome count once: fewer runs for
    the same strings.
    """

    def __init__(self, network: Network, max_effects: int) -> None:
        columns, kind_of_byte = distinct_columns(network.next)
        self.kind_of_byte: list[int] = kind_of_byte.tolist()
        tokens = sorted({token for _, token, _ in network.specials})
        self.kind_of_special = {token: columns.shape[1] + index for index, token in enumerate(tokens)}
        table = np.full((network.states, columns.shape[1] + len(tokens)), -1, dtype=np.int32)
        table[:, : columns.shape[1]] = columns
        for state, token, after in network.specials:
            table[state, self.kind_of_special[token]] = after
        self._table = np.ascontiguousarray(table.T)  # by kind
        self._targets = table.tolist()
        self._calls: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for state, start, after in network.calls:
            self._calls[state].append((start, after))
        self._final = network.final.tolist()
        # From these a byte leads to one state at most, and nothing is called or left.
        self._is_plain = ~network.final
        self._is_plain[list(self._calls)] = False
        self._plain = frozenset(np.flatnonzero(self._is_plain).tolist())
        self._states = network.states
        self._max_effects = max_effects
        self._made = 0
        self.effects: list[Effect] = []
        self._number: dict[tuple[bytes, frozenset[tuple[int, StackOrEffect]]], int] = {}
        self._after: dict[tuple[int, int], int] = {}
        self._stacks_after: dict[tuple[Stack, int, bool], tuple[frozenset[Stack], bool]] = {}
        nothing = np.zeros(0, dtype=np.int64)
        self._numbered(nothing, frozenset())
        returns = {after for _, _, after in network.calls}
        # A rule that ends before it reads anything ends at the boundary between two tokens, or passes on the whole
        # rest. Neither is an effect of the bytes read here, so the first byte must be read.
        self._unread = self._numbered(nothing, frozenset((state, (FRESH, state)) for state in returns))
        plain = np.flatnonzero(self._is_plain)
        others = np.flatnonzero(~self._is_plain).tolist()
        self._start = self._numbered(
            plain * self._states + plain, frozenset((state, (FRESH, state)) for state in others)
        )

    def of_tokens(self, vocabulary: Vocabulary) -> NDArray[np.int32]:
        """The effect of each token."""
        effect_of = np.full(vocabulary.size, NOTHING, dtype=np.int32)
        path, before = [self._start], b""
        kinds, after = self.kind_of_byte, self._after
        for text, token in sorted((text, token) for token, text in enumerate(vocabulary.tokens) if text):
            shared = shared_length(text, before)
            del path[shared + 1 :]
            effect = path[-1]
            for byte in text[shared:]:
                if effect != NOTHING:
                    cached = after.get((effect, kinds[byte]))
                    effect = self._step(effect, kinds[byte]) if cached is None else cached
                path.append(effect)
            effect_of[token] = effect
            before = text
        for token, kind in self.kind_of_special.items():
            effect_of[token] = self._step(self._start, kind)
        return effect_of

    def _numbered(self, plain: NDArray[np.int64], others: frozenset[tuple[int, StackOrEffect]]) -> int:
        """The number of an effect; ``plain``, of its plain part, are source times states plus outcome, ascending."""
        number = self._number.setdefault((plain.tobytes(), others), len(self.effects))
        if number == len(self.effects):
            source, top = (each.astype(np.int32) for each in np.divmod(plain, self._states))
            self.effects.append(Effect(source, top, others))
            self._made += len(plain) + len(others)
            if self._made > self._max_effects:
                raise LimitExceeded(
                    "tokens of a grammar",
                    limit="max_effects",
                    maximum=self._max_effects,
                    remedy="simplify the grammar, or raise max_effects",
                )
        return number

    def _step(self, effect: int, kind: int) -> int:
        """The effect after one more byte."""
        agenda = [effect]
        while agenda:
            one = agenda[-1]
            if (one, kind) in self._after:
                agenda.pop()
                continue
            number, needed = self._stepped(one, kind)
            if number is None:
                agenda.extend(needed)
            else:
                self._after[one, kind] = number
                agenda.pop()
        return self._after[effect, kind]

    def _stepped(self, effect: int, kind: int) -> tuple[int | None, set[int]]:
        """The effect after a byte; or None, and the effects that must take the byte first."""
        source, top, others = self.effects[effect]
        spend(len(others) + len(source) // 16 + 16, "tokens of a grammar", f"its network has {self._states} states")
        items: set[tuple[int, StackOrEffect]] = set()
        needed: set[int] = set()
        for begin, outcome in others:
            if isinstance(outcome, int):
                rest: int | None = outcome
            elif outcome[-1] in self._plain:
                target = self._targets[outcome[-1]][kind]
                if target >= 0:
                    items.add((begin, (*outcome[outcome[0] == FRESH : -1], target)))
                continue
            else:
                stacks, is_left = self._read(outcome, kind)
                items.update((begin, stack) for stack in stacks)
                rest = self._unread if is_left else None
            if rest is not None:
                after = self._after.get((rest, kind))
                if after is None:
                    needed.add(rest)
                elif after != NOTHING:
                    items.add((begin, after))
        if needed:
            return None, needed
        reached = self._table[kind][top]
        is_read = reached >= 0
        source, reached = source[is_read], reached[is_read]
        is_plain = self._is_plain[reached]
        items.update(zip(source[~is_plain].tolist(), zip(reached[~is_plain].tolist(), strict=True), strict=True))
        keys = source[is_plain].astype(np.int64) * self._states + reached[is_plain]
        more: list[int] = []
        for begin, outcome in list(items):
            if not isinstance(outcome, int) and len(outcome) == 1 and outcome[0] in self._plain:
                items.remove((begin, outcome))
                more.append(begin * self._states + outcome[0])
        if more:
            keys = np.append(keys, more)
        return self._numbered(np.unique(keys), frozenset(items)), needed

    def _read(self, stack: Stack, kind: int) -> tuple[frozenset[Stack], bool]:
        """The stacks after a byte, and whether the callers of the whole stack may read the byte."""
        fresh = stack[0] == FRESH
        if fresh:
            stack = stack[1:]
        key = stack, kind, fresh
        result = self._stacks_after.get(key)
        if result is None:
            after: set[Stack] = set()
            is_left = False
            seen = {(stack, False)}
            agenda = list(seen)
            while agenda:
                one, is_entered = agenda.pop()
                new: list[tuple[Stack, bool]] = []
                target = self._targets[one[-1]][kind]
                if target >= 0:
                    after.add((*one[:-1], target))
                for start, state in self._calls[one[-1]]:
                    new.append(((*one[:-1], state, start), True))
                if self._final[one[-1]] and not is_entered:  # a call reads something
                    if len(one) > 1:
                        new.append((one[:-1], False))
                    elif not fresh:
                        is_left = True
                for each in new:
                    if each not in seen:
                        seen.add(each)
                        agenda.append(each)
                        if len(each[0]) > len(stack) + self._states:
                            raise GrammarError("grammar", "a rule calls itself before it reads anything")
            result = self._stacks_after[key] = frozenset(after), is_left
        return result
