"""The effects of tokens on a network: where their bytes lead from each state, and what they leave unread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from structgen_kernels import _native

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.limits import spend_steps, steps_left

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine.network import Network
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["MAX_EFFECTS", "NOTHING", "Effects", "Stack", "StackOrEffect"]

MAX_EFFECTS: Final = 5_000_000
"""Limit on the entries of all effects (outcomes of some bytes by state) that are built for one network."""

Stack: TypeAlias = "tuple[int, ...]"
"""States to return to, the outermost first, and the current state."""

StackOrEffect: TypeAlias = "Stack | int"
"""A stack; or an effect with which the caller continues."""

NOTHING: Final = 0
"""The effect that is dead everywhere."""

_UNBOUNDED: Final = 1 << 62
_SECOND: Final = np.uint64((1 << 32) - 1)


class Effects:
    """The effects of the tokens of a vocabulary from each state, each different one once.

    An effect is a set of pairs (source, outcome). Two paths with the same source and outcome count once: fewer runs for
    the same strings. Effects are built byte by byte and natively, and numbered by the shortest first prefix.

    Attributes:
        of: int32 ``[vocabulary.size]``, the effect of each token.
        count: the number of effects, ``NOTHING`` and those of prefixes among them.

    Raises:
        GrammarError: a rule calls itself before it reads anything.
        LimitExceeded: effects have more than ``max_effects`` entries, or the steps of the call are counted and used up.
    """

    def __init__(self, network: Network, vocabulary: Vocabulary, max_effects: int) -> None:
        steps, end, tables = _native.token_effects(
            vocabulary.trie,
            vocabulary.size,
            network.next,
            network.final.astype(np.uint8),
            np.array(network.calls, dtype=np.int32).reshape(-1, 3),
            np.array(network.specials, dtype=np.int32).reshape(-1, 3),
            max_effects,
            steps_left(_UNBOUNDED),
        )
        spend_steps(steps, "tokens of a grammar", f"its network has {network.states} states")
        if end == "recursion":
            raise GrammarError("grammar", "a rule calls itself before it reads anything")
        if tables is None:
            raise LimitExceeded(
                "tokens of a grammar",
                limit="max_effects",
                maximum=max_effects,
                remedy="simplify the grammar, or raise max_effects",
            )
        self.of, *pairs, below, top = tables
        self._begins = pairs[0::2]
        self._pairs = [(held >> 32).astype(np.int32) for held in pairs[1::2]], [held & _SECOND for held in pairs[1::2]]
        self._stacks: list[Stack] = []
        for under, state in zip(below.tolist(), top.tolist(), strict=True):  # what is below comes first
            self._stacks.append((*self._stacks[under], state) if under >= 0 else (state,))
        self.count = len(pairs[0]) - 1

    def size(self, effect: int) -> int:
        """The number of pairs (source, outcome)."""
        return sum(int(begin[effect + 1]) - int(begin[effect]) for begin in self._begins)

    def singles(self, effect: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Sources and outcomes of all pairs whose outcome is one state from which nothing is called: nearly all."""
        sources, states = self._part(effect, _SINGLE)
        return sources, states.astype(np.int32)

    def others(self, effect: int) -> list[tuple[int, StackOrEffect]]:
        """All other pairs (source, outcome), first those whose outcome is an effect."""
        made: list[tuple[int, StackOrEffect]] = []
        for source, outcome in zip(*(column.tolist() for column in self._part(effect, _LEFT)), strict=True):
            made.append((source, outcome))
        for source, stack in zip(*(column.tolist() for column in self._part(effect, _OTHER)), strict=True):
            made.append((source, self._stacks[stack]))
        return made

    def items(self, effect: int) -> list[tuple[int, StackOrEffect]]:
        """All pairs (source, outcome)."""
        singles = zip(*(column.tolist() for column in self.singles(effect)), strict=True)
        return [(source, (state,)) for source, state in singles] + self.others(effect)

    def _part(self, effect: int, kind: int) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
        begin, (sources, outcomes) = self._begins[kind], self._pairs
        held = slice(int(begin[effect]), int(begin[effect + 1]))
        return sources[kind][held], outcomes[kind][held]


_SINGLE: Final = 0
_LEFT: Final = 1
_OTHER: Final = 2
