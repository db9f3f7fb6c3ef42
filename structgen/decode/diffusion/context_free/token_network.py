"""A network whose edges are tokens, although a token may cross calls and returns.

A token may end in the rule where it began, or within rules that it entered. Or it may read past the end of its rule;
its remaining bytes, the *rest*, are then read by the caller of that rule. Two tokens with the same effect from every
state form a class; two rests with the same effect for every caller are one rest. Both are few: recursive JSON has about
250 classes and 26 rests on a vocabulary of 128,000.

A *node* is a position where a token may end: a state, or a state within rules that the token entered, written as the
state to return to and the node within.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np

from structgen.decode.step.context import shared_length
from structgen.errors import GrammarError, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from structgen.engine.network import Network
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["DEAD_CLASS", "MAX_EFFECTS", "RestOutcome", "TokenNetwork", "lift"]

DEAD_CLASS: Final = 0

MAX_EFFECTS: Final = 5_000_000
"""Limit on the entries of all effects (outcomes of some bytes by state) that are built for one network."""

Stack: TypeAlias = "tuple[int, ...]"
"""States to return to, the outermost first, and the current state."""

_StackOrEffect: TypeAlias = "Stack | int"
"""A stack; or an effect with which the caller continues."""

_FRESH: Final = -1
"""The first item of a stack whose state has not read anything yet."""

_NOTHING: Final = 0
"""The effect that is dead everywhere."""


@final
@dataclass(frozen=True, slots=True)
class RestOutcome:
    """The outcome of reading a rest from the state after a return.

    Attributes:
        nodes: where it may end.
        rests: the rests that remain if it reads past the end of its rule, too.
    """

    nodes: tuple[int, ...]
    rests: tuple[int, ...]


@final
@dataclass(frozen=True, slots=True, eq=False)
class TokenNetwork:
    """The network of a grammar over the tokens of a vocabulary; immutable.

    Nodes below ``states`` are states; node ``states + i`` is ``within[i]`` = (state after the return, inner node); the
    inner node has the smaller number.

    Attributes:
        states: number of states; state 0 is the start.
        final: bool ``[states]``.
        within: see above.
        class_of: int32 ``[vocabulary.size]``; class 0 is dead everywhere, the last one contains EOS.
        classes: number of classes.
        moves: int32 ``[n, 3]``: (state, class, node after the token).
        leaving: int32 ``[n, 3]``: (state, class, rest of the token after the end of the rule).
        readings: by (rest, state after a return).
    """

    states: int
    final: NDArray[np.bool_]
    within: tuple[tuple[int, int], ...]
    class_of: NDArray[np.int32]
    classes: int
    moves: NDArray[np.int32]
    leaving: NDArray[np.int32]
    readings: dict[tuple[int, int], RestOutcome]

    @property
    def eos_class(self) -> int:
        """The class of EOS."""
        return self.classes - 1

    @property
    def nodes(self) -> int:
        """Number of nodes: states, and states within rules."""
        return self.states + len(self.within)


def lift(network: Network, vocabulary: Vocabulary, *, max_effects: int = MAX_EFFECTS) -> TokenNetwork:
    """Return the network over the tokens of ``vocabulary`` that spells the same strings.

    Raises:
        LimitExceeded: effects have more than ``max_effects`` entries.

    Complexity: O(bytes of the vocabulary) look-ups, and the entries of all distinct effects.
    """
    effects = _Effects(network, max_effects)
    effect_of = effects.of_tokens(vocabulary)
    return _Numbering(network, effects).finished(effect_of, vocabulary)


class _Effects:
    """The effects of bytes from each state, built byte by byte, each distinct effect once.

    An effect is a set of pairs (source, outcome). Two paths with the same source and outcome count once: fewer runs for
    the same strings.
    """

    def __init__(self, network: Network, max_effects: int) -> None:
        columns, kind_of_byte = np.unique(network.next, axis=1, return_inverse=True)
        self.kind_of_byte: list[int] = kind_of_byte.reshape(-1).tolist()
        self._targets = columns.tolist()
        tokens = sorted({token for _, token, _ in network.specials})
        self.kind_of_special = {token: columns.shape[1] + index for index, token in enumerate(tokens)}
        for row in self._targets:
            row.extend([-1] * len(tokens))
        for state, token, after in network.specials:
            self._targets[state][self.kind_of_special[token]] = after
        self._calls: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for state, start, after in network.calls:
            self._calls[state].append((start, after))
        self._final = network.final.tolist()
        self._states = network.states
        self._max_effects = max_effects
        self._made = 0
        self.items: list[frozenset[tuple[int, _StackOrEffect]]] = []
        self._number: dict[frozenset[tuple[int, _StackOrEffect]], int] = {}
        self._after: dict[tuple[int, int], int] = {}
        self._stacks_after: dict[tuple[Stack, int, bool], tuple[frozenset[Stack], bool]] = {}
        self._numbered(frozenset())
        returns = {after for _, _, after in network.calls}
        # A rule that ends before it reads anything ends at the boundary between two tokens, or passes on the whole
        # rest. Neither is an effect of the bytes read here, so the first byte must be read.
        self._unread = self._numbered(frozenset((state, (_FRESH, state)) for state in returns))
        self._start = self._numbered(frozenset((state, (_FRESH, state)) for state in range(network.states)))

    def of_tokens(self, vocabulary: Vocabulary) -> NDArray[np.int32]:
        """The effect of each token."""
        effect_of = np.full(vocabulary.size, _NOTHING, dtype=np.int32)
        path, before = [self._start], b""
        kinds, after = self.kind_of_byte, self._after
        for text, token in sorted((text, token) for token, text in enumerate(vocabulary.tokens) if text):
            shared = shared_length(text, before)
            del path[shared + 1 :]
            effect = path[-1]
            for byte in text[shared:]:
                if effect != _NOTHING:
                    cached = after.get((effect, kinds[byte]))
                    effect = self._step(effect, kinds[byte]) if cached is None else cached
                path.append(effect)
            effect_of[token] = effect
            before = text
        for token, kind in self.kind_of_special.items():
            effect_of[token] = self._step(self._start, kind)
        return effect_of

    def _numbered(self, items: frozenset[tuple[int, _StackOrEffect]]) -> int:
        number = self._number.setdefault(items, len(self.items))
        if number == len(self.items):
            self.items.append(items)
            self._made += len(items)
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
            stepped, needed = self._stepped(one, kind)
            if stepped is None:
                agenda.extend(needed)
            else:
                self._after[one, kind] = self._numbered(stepped)
                agenda.pop()
        return self._after[effect, kind]

    def _stepped(self, effect: int, kind: int) -> tuple[frozenset[tuple[int, _StackOrEffect]] | None, set[int]]:
        """The items after a byte; or None, and the effects that must take the byte first."""
        items: set[tuple[int, _StackOrEffect]] = set()
        needed: set[int] = set()
        for source, outcome in self.items[effect]:
            if isinstance(outcome, int):
                rest: int | None = outcome
            else:
                stacks, is_left = self._read(outcome, kind)
                items.update((source, stack) for stack in stacks)
                rest = self._unread if is_left else None
            if rest is not None:
                after = self._after.get((rest, kind))
                if after is None:
                    needed.add(rest)
                elif after != _NOTHING:
                    items.add((source, after))
        return (None, needed) if needed else (frozenset(items), needed)

    def _read(self, stack: Stack, kind: int) -> tuple[frozenset[Stack], bool]:
        """The stacks after a byte, and whether the callers of the whole stack may read the byte."""
        fresh = stack[0] == _FRESH
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


class _Numbering:
    """Numbers everything reachable from the start, in order of discovery."""

    def __init__(self, network: Network, effects: _Effects) -> None:
        self._network = network
        self._effects = effects

    def finished(self, effect_of: NDArray[np.int32], vocabulary: Vocabulary) -> TokenNetwork:
        """The tables, restricted to states that tokens reach."""
        distinct = [effect for effect in np.unique(effect_of).tolist() if effect != _NOTHING]
        outcomes: dict[int, list[tuple[int, _StackOrEffect]]] = defaultdict(list)  # by source
        for effect in distinct:
            for source, outcome in self._effects.items[effect]:
                outcomes[source].append((effect, outcome))
        readings = self._readings(outcome for of_source in outcomes.values() for _, outcome in of_source)
        reached = self._reached(outcomes, readings)
        state_number = {state: index for index, state in enumerate(reached)}
        rest_number: dict[int, int] = {}
        within: dict[tuple[int, int], int] = {}

        def node(stack: Stack) -> int:
            made = state_number[stack[-1]]
            for state in reversed(stack[:-1]):
                made = within.setdefault((state_number[state], made), len(reached) + len(within))
            return made

        class_number: dict[int, int] = {}
        moves: list[tuple[int, int, int]] = []
        leaving: list[tuple[int, int, int]] = []
        for state in reached:
            for effect, outcome in outcomes[state]:
                of = class_number.setdefault(effect, len(class_number) + 1)
                if isinstance(outcome, int):
                    leaving.append((state_number[state], of, rest_number.setdefault(outcome, len(rest_number))))
                else:
                    moves.append((state_number[state], of, node(outcome)))
        numbered = self._numbered(readings, rest_number, state_number, node)
        number_of_effect = np.zeros(len(self._effects.items), dtype=np.int32)
        for effect, of in class_number.items():
            number_of_effect[effect] = of
        class_of = number_of_effect[effect_of]
        classes = len(class_number) + 2
        class_of[list(vocabulary.eos)] = classes - 1
        return TokenNetwork(
            states=len(reached),
            final=self._network.final[reached],
            within=tuple(within),
            class_of=class_of,
            classes=classes,
            moves=np.array(sorted(moves), dtype=np.int32).reshape(-1, 3),
            leaving=np.array(sorted(leaving), dtype=np.int32).reshape(-1, 3),
            readings=numbered,
        )

    def _numbered(
        self,
        readings: dict[int, dict[int, list[_StackOrEffect]]],
        rest_number: dict[int, int],
        state_number: dict[int, int],
        node: Callable[[Stack], int],
    ) -> dict[tuple[int, int], RestOutcome]:
        """The readings of the rests in ``rest_number``, and of the rests that these leave, which are added to it."""
        made: dict[tuple[int, int], RestOutcome] = {}
        agenda = list(rest_number)
        for rest in agenda:  # grows in the loop
            for state, results in readings[rest].items():
                if state not in state_number:
                    continue
                nodes, rests = [], []
                for outcome in results:
                    if not isinstance(outcome, int):
                        nodes.append(node(outcome))
                        continue
                    if outcome not in rest_number:
                        rest_number[outcome] = len(rest_number)
                        agenda.append(outcome)
                    rests.append(rest_number[outcome])
                made[rest_number[rest], state_number[state]] = RestOutcome(tuple(sorted(nodes)), tuple(sorted(rests)))
        return made

    def _readings(self, outcomes: Iterable[_StackOrEffect]) -> dict[int, dict[int, list[_StackOrEffect]]]:
        """The outcomes of each possible rest, by the caller's state."""
        agenda = sorted({outcome for outcome in outcomes if isinstance(outcome, int)})
        readings: dict[int, dict[int, list[_StackOrEffect]]] = {}
        while agenda:
            rest = agenda.pop()
            if rest in readings:
                continue
            by_state: dict[int, list[_StackOrEffect]] = defaultdict(list)
            for state, outcome in sorted(self._effects.items[rest], key=repr):
                by_state[state].append(outcome)
                if isinstance(outcome, int):
                    agenda.append(outcome)
            readings[rest] = by_state
        return readings

    def _reached(
        self,
        outcomes: dict[int, list[tuple[int, _StackOrEffect]]],
        readings: dict[int, dict[int, list[_StackOrEffect]]],
    ) -> list[int]:
        """The states where tokens may end, and the states they return to; the start first."""
        order = [0]
        seen = {0}

        def add(stack: Iterable[int]) -> None:
            for state in stack:
                if state not in seen:
                    seen.add(state)
                    order.append(state)

        left: set[int] = set()
        index = 0
        while True:
            while index < len(order):
                for _, outcome in outcomes[order[index]]:
                    if isinstance(outcome, int):
                        left.add(outcome)
                    else:
                        add(outcome)
                index += 1
            # Callers are among the states that are returned to, whatever the rule.
            for rest in sorted(left):
                for state, results in readings[rest].items():
                    if state in seen:
                        for outcome in results:
                            if isinstance(outcome, int):
                                left.add(outcome)
                            else:
                                add(outcome)
            if index == len(order) and not self._has_more(left, seen, readings):
                return order

    def _has_more(self, left: set[int], seen: set[int], readings: dict[int, dict[int, list[_StackOrEffect]]]) -> bool:
        for rest in left:
            for state, results in readings[rest].items():
                if state in seen and any(
                    outcome not in left if isinstance(outcome, int) else not seen.issuperset(outcome)
                    for outcome in results
                ):
                    return True
        return False
