"""The effects of tokens on a network: where their bytes lead from each state, and what they leave unread."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np

from structgen.engine.network import distinct_columns
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.limits import spend, spend_steps

if TYPE_CHECKING:
    from collections.abc import Iterator

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

NOTHING: Final = 0
"""The effect that is dead everywhere."""

_NODES_PER_STEP: Final = 4
"""Nodes of the trie that are looked up in the time of an elementary step."""

_Pairs: TypeAlias = "NDArray[np.int64]"
"""Pairs of numbers, each as first times 2^32 plus second, ascending."""


@final
class Effect(NamedTuple):
    """The outcomes of some bytes, by the state where they begin.

    Attributes:
        single: pairs (source, state): outcomes that are one state, from which nothing is called.  These are nearly all,
            so bytes are read from all of them at once.
        left: pairs (source, effect): outcomes with which the caller continues.
        others: all other pairs (source, stack).
    """

    single: _Pairs
    left: _Pairs
    others: frozenset[tuple[int, Stack]]

    @property
    def size(self) -> int:
        """The number of pairs."""
        return len(self.single) + len(self.left) + len(self.others)

    @property
    def items(self) -> Iterator[tuple[int, StackOrEffect]]:
        """All pairs (source, outcome)."""
        for pair in self.single.tolist():
            yield pair >> 32, (pair & _SECOND,)
        for pair in self.left.tolist():
            yield pair >> 32, pair & _SECOND
        yield from self.others


_SECOND: Final = (1 << 32) - 1


def _paired(first: NDArray[np.integer], second: NDArray[np.integer]) -> _Pairs:
    pairs: _Pairs = first.astype(np.int64) << 32 | second
    return pairs


class Effects:
    """The effects of bytes from each state, built byte by byte, each distinct effect once.

    An effect is a set of pairs (source, outcome). Two paths with the same source and outcome count once: fewer runs for
    the same strings.
    """

    def __init__(self, network: Network, max_effects: int) -> None:
        columns, kind_of_byte = distinct_columns(network.next)
        self._kind_of_byte = kind_of_byte
        tokens = sorted({token for _, token, _ in network.specials})
        self.kind_of_special = {token: columns.shape[1] + index for index, token in enumerate(tokens)}
        table = np.full((network.states, columns.shape[1] + len(tokens)), -1, dtype=np.int32)
        table[:, : columns.shape[1]] = columns
        for state, token, after in network.specials:
            table[state, self.kind_of_special[token]] = after
        self._table = np.ascontiguousarray(table.T)  # by kind
        self._calls: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for state, start, after in network.calls:
            self._calls[state].append((start, after))
        self._final = network.final
        self._is_final: list[bool] = network.final.tolist()
        self._is_single = np.ones(network.states, dtype=bool)  # nothing is called from these
        self._is_single[list(self._calls)] = False
        self._states = network.states
        self._max_effects = max_effects
        self._made = 0
        self.effects: list[Effect] = []
        self._number: dict[tuple[bytes, bytes, frozenset[tuple[int, Stack]], bool], int] = {}
        self._after: dict[tuple[int, int], int] = {}
        self._stacks_after: dict[tuple[Stack, int, bool], tuple[frozenset[Stack], bool]] = {}
        nothing = np.zeros(0, dtype=np.int64)
        self._numbered(nothing, nothing, frozenset())
        # A rule that ends before it reads anything ends at the boundary between two tokens, or passes on the whole
        # rest. Neither is an effect of the bytes read here, so in a fresh effect the first byte must be read.
        self._unread = self._fresh(np.unique([after for _, _, after in network.calls]).astype(np.int64))
        self._start = self._fresh(np.arange(network.states))

    def _fresh(self, states: NDArray[np.int64]) -> int:
        """The effect of reading nothing yet, from some states."""
        is_single = self._is_single[states]
        others = frozenset((state, (state,)) for state in states[~is_single].tolist())
        return self._numbered(
            _paired(states[is_single], states[is_single]), np.zeros(0, dtype=np.int64), others, is_fresh=True
        )

    def of_tokens(self, vocabulary: Vocabulary) -> NDArray[np.int32]:
        """The effect of each token."""
        byte, depth, begin, tokens = vocabulary.trie.nodes()
        spend_steps(len(byte) // _NODES_PER_STEP, "tokens of a grammar", f"the vocabulary has {vocabulary.size} tokens")
        kinds = self._kind_of_byte[byte]
        order = np.argsort(depth, kind="stable")
        level = np.searchsorted(depth[order], np.arange(int(depth.max(initial=0)) + 2))
        effect_at = np.full(len(byte), NOTHING, dtype=np.int64)
        above = order[: level[1]]  # the root
        effect_at[above] = self._start
        after = np.full((len(self.effects), len(self._table)), -1, dtype=np.int64)  # what of ``_after`` was needed here
        for first, last in pairwise(level[1:].tolist()):
            level_nodes = order[first:last]
            parents = effect_at[above[np.searchsorted(above, level_nodes) - 1]]
            alive = parents != NOTHING
            nodes, parents = level_nodes[alive], parents[alive]
            unknown = np.unique(_paired(parents, kinds[nodes])[after[parents, kinds[nodes]] < 0])
            for pair in unknown.tolist():
                after[pair >> 32, pair & _SECOND] = self._step(pair >> 32, pair & _SECOND)
            effect_at[nodes] = after[parents, kinds[nodes]]
            more = len(self.effects) - len(after)
            after = np.concatenate([after, np.full((more, len(self._table)), -1, dtype=np.int64)])
            above = level_nodes
        effect_of = np.full(vocabulary.size, NOTHING, dtype=np.int32)
        effect_of[tokens] = np.repeat(effect_at, np.diff(begin.astype(np.int64)))
        for token, kind in self.kind_of_special.items():
            effect_of[token] = self._step(self._start, kind)
        return effect_of

    def _numbered(
        self, single: _Pairs, left: _Pairs, others: frozenset[tuple[int, Stack]], *, is_fresh: bool = False
    ) -> int:
        """The number of an effect."""
        number = self._number.setdefault((single.tobytes(), left.tobytes(), others, is_fresh), len(self.effects))
        if number == len(self.effects):
            self.effects.append(Effect(single, left, others))
            self._made += self.effects[number].size
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
        single, left, others = self.effects[effect]
        is_fresh = effect in (self._unread, self._start)
        spend(
            2 * len(others) + (len(single) + len(left)) // 16 + 32,
            "tokens of a grammar",
            f"its network has {self._states} states",
        )
        source, top = single >> 32, single & _SECOND
        leaving = [] if is_fresh else [source[self._final[top]]]  # the caller reads the byte
        stacks: set[tuple[int, Stack]] = set()
        for begin, stack in others:
            after, is_left = self._read(stack, kind, is_fresh=is_fresh)
            stacks.update((begin, each) for each in after)
            if is_left:
                leaving.append(np.array([begin]))
        lefts = [left, *(_paired(begins, np.full(len(begins), self._unread)) for begins in leaving)]
        before = np.concatenate(lefts)
        rests, rest_of = np.unique(before & _SECOND, return_inverse=True)
        needed = {rest for rest in rests.tolist() if (rest, kind) not in self._after}
        if needed:
            return None, needed
        rest_after = np.array([self._after[rest, kind] for rest in rests.tolist()], dtype=np.int64)[rest_of]
        lives = rest_after != NOTHING
        reached = self._table[kind][top].astype(np.int64)
        is_read = reached >= 0
        source, reached = source[is_read], reached[is_read]
        is_single = self._is_single[reached]
        stacks.update(zip(source[~is_single].tolist(), zip(reached[~is_single].tolist(), strict=True), strict=True))
        more = [(begin, stack[0]) for begin, stack in stacks if len(stack) == 1 and self._is_single[stack[0]]]
        stacks.difference_update((begin, (state,)) for begin, state in more)
        found = np.array(more, dtype=np.int64).reshape(-1, 2)
        singles = np.append(_paired(source, reached)[is_single], _paired(found[:, 0], found[:, 1]))
        lefts_after = np.unique(_paired(before[lives] >> 32, rest_after[lives]))
        return self._numbered(np.unique(singles), lefts_after, frozenset(stacks)), needed

    def _read(self, stack: Stack, kind: int, *, is_fresh: bool) -> tuple[frozenset[Stack], bool]:
        """The stacks after a byte, and whether the callers of the whole stack may read the byte."""
        key = stack, kind, is_fresh
        result = self._stacks_after.get(key)
        if result is None:
            targets = self._table[kind]
            after: set[Stack] = set()
            is_left = False
            seen = {(stack, False)}
            agenda = list(seen)
            while agenda:
                one, is_entered = agenda.pop()
                new: list[tuple[Stack, bool]] = []
                target = int(targets[one[-1]])
                if target >= 0:
                    after.add((*one[:-1], target))
                for start, state in self._calls.get(one[-1], ()):
                    new.append(((*one[:-1], state, start), True))
                if self._is_final[one[-1]] and not is_entered:  # a call reads something
                    if len(one) > 1:
                        new.append((one[:-1], False))
                    elif not is_fresh:
                        is_left = True
                for each in new:
                    if each not in seen:
                        seen.add(each)
                        agenda.append(each)
                        if len(each[0]) > len(stack) + self._states:
                            raise GrammarError("grammar", "a rule calls itself before it reads anything")
            result = self._stacks_after[key] = frozenset(after), is_left
        return result
