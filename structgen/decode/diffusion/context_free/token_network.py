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
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.diffusion.context_free.token_effects import MAX_EFFECTS, NOTHING, Effects
from structgen.grammar.limits import spend, spend_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.context_free.token_effects import Stack, StackOrEffect
    from structgen.engine.network import Network
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["DEAD_CLASS", "RestOutcome", "TokenNetwork", "lift"]

DEAD_CLASS: Final = 0


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
        LimitExceeded: effects have more than ``max_effects`` entries, or the steps of the call are counted and used up.

    Complexity: O(bytes of the vocabulary) look-ups, and the entries of all distinct effects.
    """
    return _Numbering(network, Effects(network, vocabulary, max_effects)).finished(vocabulary)


class _Numbering:
    """Numbers everything reachable from the start, in order of discovery."""

    def __init__(self, network: Network, effects: Effects) -> None:
        self._network = network
        self._effects = effects

    def finished(self, vocabulary: Vocabulary) -> TokenNetwork:
        """The tables, restricted to states that tokens reach.

        Pairs whose outcome is one state are nearly all, and stay in arrays.
        """
        effects, states = self._effects, self._network.states
        distinct = np.setdiff1d(effects.of, [NOTHING])
        singles = [effects.singles(effect) for effect in distinct.tolist()]
        spend_steps(
            sum(_STEPS_OF_SINGLE * len(sources) for sources, _ in singles),
            "tokens of a grammar",
            f"its network has {states} states",
        )
        source = np.concatenate([_NO_STATES, *(sources for sources, _ in singles)])
        target = np.concatenate([_NO_STATES, *(targets for _, targets in singles)])
        of_single = np.repeat(distinct, np.array([len(sources) for sources, _ in singles], dtype=np.int64))
        others = self._others(distinct)
        readings = self._readings(outcome for of_source in others.values() for _, outcome in of_source)
        reached = self._reached(_first_ways(source, target, of_single, others), readings)
        state_number = {state: index for index, state in enumerate(reached)}
        rest_number: dict[int, int] = {}
        within: dict[tuple[int, int], int] = {}

        def node(stack: Stack) -> int:
            made = state_number[stack[-1]]
            for state in reversed(stack[:-1]):
                made = within.setdefault((state_number[state], made), len(reached) + len(within))
            return made

        rank = np.full(states, states)
        rank[reached] = np.arange(len(reached))
        lives = rank[source] < states
        source, target, of_single = rank[source[lives]], rank[target[lives]], of_single[lives]
        first = np.full(effects.count, states)  # by effect, the first state at which its tokens may follow
        np.minimum.at(first, of_single, source)
        for state in reached:
            for effect, _ in others.get(state, ()):
                first[effect] = min(first[effect], state_number[state])
        class_number = _class_numbers(first, distinct, states)
        moves: list[tuple[int, int, int]] = []
        leaving: list[tuple[int, int, int]] = []
        for state in reached:
            for effect, outcome in others.get(state, ()):
                of = int(class_number[effect])
                if isinstance(outcome, int):
                    leaving.append((state_number[state], of, rest_number.setdefault(outcome, len(rest_number))))
                else:
                    moves.append((state_number[state], of, node(outcome)))
        numbered = self._numbered(readings, rest_number, state_number, node)
        rows = np.concatenate(
            [
                np.stack([source, class_number[of_single], target], axis=1),
                np.array(moves, dtype=np.int64).reshape(-1, 3),
            ]
        ).astype(np.int32)
        class_of = class_number[effects.of]
        classes = int(class_number.max(initial=0)) + 2
        class_of[list(vocabulary.eos)] = classes - 1
        return TokenNetwork(
            states=len(reached),
            final=self._network.final[reached],
            within=tuple(within),
            class_of=class_of,
            classes=classes,
            moves=_sorted_rows(rows),
            leaving=np.array(sorted(leaving), dtype=np.int32).reshape(-1, 3),
            readings=numbered,
        )

    def _others(self, distinct: NDArray[np.intp]) -> dict[int, list[tuple[int, StackOrEffect]]]:
        """The other pairs of a source and an outcome: by source, each effect with its outcome."""
        others: dict[int, list[tuple[int, StackOrEffect]]] = defaultdict(list)
        for effect in distinct.tolist():
            found = self._effects.others(effect)
            spend(10 * len(found), "tokens of a grammar", f"its network has {self._network.states} states")
            for begin, outcome in found:
                others[begin].append((effect, outcome))
        return others

    def _numbered(
        self,
        readings: dict[int, dict[int, list[StackOrEffect]]],
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

    def _readings(self, outcomes: Iterable[StackOrEffect]) -> dict[int, dict[int, list[StackOrEffect]]]:
        """The outcomes of each possible rest, by the caller's state."""
        agenda = sorted({outcome for outcome in outcomes if isinstance(outcome, int)})
        readings: dict[int, dict[int, list[StackOrEffect]]] = {}
        while agenda:
            rest = agenda.pop()
            if rest in readings:
                continue
            by_state: dict[int, list[StackOrEffect]] = defaultdict(list)
            for state, outcome in sorted(self._effects.items(rest), key=repr):
                by_state[state].append(outcome)
                if isinstance(outcome, int):
                    agenda.append(outcome)
            readings[rest] = by_state
        return readings

    def _reached(
        self, outcomes: dict[int, list[StackOrEffect]], readings: dict[int, dict[int, list[StackOrEffect]]]
    ) -> list[int]:
        """The states where tokens may end, and the states they return to; the start first.

        Args:
            outcomes: of all tokens, by the state where they begin.
            readings: see ``_readings``.
        """
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
                for outcome in outcomes.get(order[index], ()):
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

    def _has_more(self, left: set[int], seen: set[int], readings: dict[int, dict[int, list[StackOrEffect]]]) -> bool:
        for rest in left:
            for state, results in readings[rest].items():
                if state in seen and any(
                    outcome not in left if isinstance(outcome, int) else not seen.issuperset(outcome)
                    for outcome in results
                ):
                    return True
        return False


def _class_numbers(first: NDArray[np.intp], distinct: NDArray[np.intp], states: int) -> NDArray[np.int32]:
    """Number the effects as token classes, from 1 on, by the first state, then by the effect; 0 for unreached ones."""
    in_order = distinct[np.argsort(first[distinct], kind="stable")]
    in_order = in_order[first[in_order] < states]
    numbers = np.zeros(len(first), dtype=np.int32)
    numbers[in_order] = 1 + np.arange(len(in_order))
    return numbers


def _first_ways(
    source: NDArray[np.int32],
    target: NDArray[np.int32],
    effect: NDArray[np.int32],
    others: dict[int, list[tuple[int, StackOrEffect]]],
) -> dict[int, list[StackOrEffect]]:
    """The different outcomes of the tokens at each state, in the order of their effects."""
    rows = _sorted_rows(np.stack([source, target, effect], axis=1))
    is_first = np.append([True], (rows[1:, :2] != rows[:-1, :2]).any(axis=1))[: len(rows)]
    ways: dict[int, list[tuple[int, StackOrEffect]]] = defaultdict(list)
    for begin, state, of in rows[is_first].tolist():
        ways[begin].append((of, (state,)))
    for begin, found in others.items():
        ways[begin] += found
    return {begin: [outcome for _, outcome in sorted(found, key=_effect_of)] for begin, found in ways.items()}


def _sorted_rows(rows: NDArray[np.int32]) -> NDArray[np.int32]:
    """Rows of numbers that are not negative, in their order: as single numbers where these are small enough."""
    first, middle, last = (1 + int(column.max(initial=0)) for column in rows.T)
    made: NDArray[np.int32]
    if first * middle * last >= _LARGE:
        made = rows[np.lexsort(rows.T[::-1])]
    else:
        keys = np.sort((rows[:, 0].astype(np.int64) * middle + rows[:, 1]) * last + rows[:, 2])
        firsts, lasts = np.divmod(keys, last)
        made = np.stack([*np.divmod(firsts, middle), lasts], axis=1).astype(np.int32)
    return made


_LARGE: Final = 1 << 63


def _effect_of(way: tuple[int, StackOrEffect]) -> int:
    return way[0]


_NO_STATES: Final = np.zeros(0, dtype=np.int32)
_STEPS_OF_SINGLE: Final = 20
"""To sort a pair of states among those of all tokens, several times."""
