"""The finite automaton over bytes that a constraint is, where it is one, and its lift to the tokens of a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np
from structgen_kernels import _native

from structgen.engine.constraint import refuse_budgets
from structgen.errors import GrammarError, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.engine.constraint import Constraint
    from structgen.engine.vocabulary import Vocabulary

__all__ = [
    "DEAD_CLASS",
    "FAR",
    "ByteAutomaton",
    "TokenAutomaton",
    "byte_automaton",
    "check_finite_checks",
    "lift",
    "token_automaton",
]

MAX_STATES: Final = 300_000
"""States before minimising, beyond which there is no automaton.

What a grammar counts makes them many: the leap second in a date-time with an offset alone takes 66,000.
"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ByteAutomaton:
    """A minimal deterministic automaton; state 0 is the start, and every state can reach acceptance.

    Attributes:
        next: int32 ``[states, 256]``; -1 where the byte may not come.
        accepting: bool ``[states]``.
        specials: int32 ``[edges, 3]``: state, id of a special token, state after it.
    """

    next: NDArray[np.int32]
    accepting: NDArray[np.bool_]
    specials: NDArray[np.int32]

    @property
    def states(self) -> int:
        """How many states there are."""
        return len(self.next)


def check_finite_checks(constraint: Constraint) -> None:
    """Refuse what no automaton decides: values that must differ from each other, and budgets of tokens.

    Raises:
        GrammarError: the grammar has such values or budgets.
    """
    refuse_budgets(constraint, "diffusion decoding")
    if constraint.native.has_scope:
        raise GrammarError(
            "diffusion decoding",
            "the grammar asks for values or names that differ from each other, or for labels that decode, which no "
            "automaton can tell of all slots at once",
            evidence=f"the term is {constraint.grammar!r}",
            remedy="leave out uniqueItems and the like, or decode with an autoregressive model",
        )


def byte_automaton(constraint: Constraint, *, most_states: int = MAX_STATES) -> ByteAutomaton | None:
    """Return the minimal automaton of a constraint, or None where it has more than ``most_states`` states.

    A language that is not regular has infinitely many, so it gives None, too.

    Complexity: O(n log n) for n = states x bytes that some state tells apart.
    """
    made = _native.unfold(constraint.native, most_states)
    if made is None:
        return None
    next_, accepting, specials = made
    return _minimal(next_, accepting.astype(bool), specials)


def _minimal(next_: NDArray[np.int32], accepting: NDArray[np.bool_], specials: NDArray[np.int32]) -> ByteAutomaton:
    """Merge states of equal futures."""
    futures = _native.equal_futures(next_, accepting.astype(np.uint8), specials)
    _, first, block = np.unique(futures, return_index=True, return_inverse=True)
    count = len(first)
    # The start comes first, the others in the order of their first member.
    rank = np.empty(count, dtype=np.int64)
    order = np.argsort(first, kind="stable")
    rank[order] = np.arange(count)
    members = first[order]
    kept = next_[members]
    renamed = np.where(kept >= 0, rank[block[np.maximum(kept, 0)]], -1).astype(np.int32)
    mine = specials[np.isin(specials[:, 0], members)]
    edges = np.stack([rank[block[mine[:, 0]]], mine[:, 1], rank[block[mine[:, 2]]]], axis=1).astype(np.int32)
    return ByteAutomaton(np.ascontiguousarray(renamed), accepting[members], edges)


DEAD_CLASS: Final = 0
FAR: Final = np.iinfo(np.int32).max // 2
"""The distance of a state from which no tokens spell the rest of a member."""

_MAX_MOVES: Final = 5_000_000


@final
@dataclass(frozen=True, slots=True, eq=False)
class TokenAutomaton:
    """States, classes of tokens, and the edges between states with the classes that label them; immutable.

    Edges may be nondeterministic, and several edges may join the same two states: each run counts.

    Attributes:
        states: how many there are; state 0 is the start.
        accepting: bool ``[states]``.
        class_of: int32 ``[vocabulary.size]``.
        classes: how many there are, the dead class and EOS counted.
        eos_class: the last class, of all EOS ids.
        source, target: int32 ``[edges]``, sorted by source, then target.
        label: int32 ``[edges]``: which label set the edge has; edges with the same classes share one.
        label_begin, label_class: the classes of label ``k`` are
            ``label_class[label_begin[k] : label_begin[k + 1]]``, increasing.
        distance: int32 ``[states]``: the fewest tokens to acceptance, EOS not counted; ``FAR`` where there is no way.
    """

    states: int
    accepting: NDArray[np.bool_]
    class_of: NDArray[np.int32]
    classes: int
    source: NDArray[np.int32]
    target: NDArray[np.int32]
    label: NDArray[np.int32]
    label_begin: NDArray[np.int64]
    label_class: NDArray[np.int32]
    distance: NDArray[np.int32] = field(repr=False)

    @property
    def eos_class(self) -> int:
        """The class of EOS."""
        return self.classes - 1

    @property
    def memory_bytes(self) -> int:
        """What the tables take."""
        tables = (self.accepting, self.class_of, self.source, self.target, self.label, self.distance)
        return sum(table.nbytes for table in (*tables, self.label_begin, self.label_class))

    def members(self, of: int) -> NDArray[np.intp]:
        """The tokens of a class, by increasing id."""
        return np.flatnonzero(self.class_of == of)


def lift(automaton: ByteAutomaton, vocabulary: Vocabulary) -> TokenAutomaton:
    """Return the automaton over the tokens of ``vocabulary`` that spells the same texts.

    Raises:
        LimitExceeded: tokens have more moves between states than are kept (5 million).

    Complexity: O(nodes of the vocabulary's trie, each times the states in which it is alive).
    Source: METHODS 5.6 of the design, after T. Suresh et al., "DINGO: Constrained Inference for Diffusion LLMs"
        (2025, arXiv 2505.23061), section 4.
    """
    made = _native.token_classes(vocabulary.trie, vocabulary.size, automaton.next, _MAX_MOVES)
    if made is None:
        raise LimitExceeded(
            "diffusion decoding",
            limit="moves of token classes",
            maximum=_MAX_MOVES,
            evidence=f"the automaton has {automaton.states} states over bytes",
            remedy="simplify the grammar: bound what repeats, or fix the white space between parts",
        )
    class_of, begin, sources, targets = made
    classes = len(begin) - 1
    of_move = np.repeat(np.arange(classes, dtype=np.int32), np.diff(begin.astype(np.int64)))
    if len(automaton.specials):
        tokens, first = np.unique(automaton.specials[:, 1], return_inverse=True)
        class_of[tokens] = classes + np.arange(len(tokens), dtype=np.int32)
        sources = np.concatenate([sources, automaton.specials[:, 0]])
        targets = np.concatenate([targets, automaton.specials[:, 2]])
        of_move = np.concatenate([of_move, (classes + first.reshape(-1)).astype(np.int32)])
        classes += len(tokens)
    class_of[list(vocabulary.eos)] = classes
    return token_automaton(
        automaton.accepting, class_of, classes + 1, np.stack([sources, targets, of_move], axis=1).astype(np.int64)
    )


def token_automaton(
    accepting: NDArray[np.bool_] | Sequence[bool], class_of: NDArray[np.int32], classes: int, moves: NDArray[np.int64]
) -> TokenAutomaton:
    """Return the automaton with these moves, rows of (source, target, class).

    A move that is listed twice is two edges, so that runs of a nondeterministic automaton count as often as they are.
    """
    accepting = np.asarray(accepting, dtype=bool)
    states = len(accepting)
    moves = moves[np.lexsort((moves[:, 2], moves[:, 1], moves[:, 0]))]
    # The n-th copy of a move belongs to the n-th edge between its states.
    first = np.flatnonzero(_is_new(moves))
    copy = np.arange(len(moves)) - np.repeat(first, np.diff(np.append(first, len(moves))))
    order = np.lexsort((moves[:, 2], copy, moves[:, 1], moves[:, 0]))
    moves, copy = moves[order], copy[order]
    starts = np.flatnonzero(_is_new(np.stack([moves[:, 0], moves[:, 1], copy], axis=1)))
    stops = np.append(starts, len(moves))[1:]
    known: dict[bytes, int] = {}
    label = np.empty(len(starts), dtype=np.int32)
    sets: list[NDArray[np.int32]] = []
    of_move = moves[:, 2].astype(np.int32)
    for edge, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True)):
        held = of_move[start:stop]
        number = known.setdefault(held.tobytes(), len(sets))
        if number == len(sets):
            sets.append(held)
        label[edge] = number
    sizes = np.array([len(one) for one in sets], dtype=np.int64)
    source, target = moves[starts, 0].astype(np.int32), moves[starts, 1].astype(np.int32)
    return TokenAutomaton(
        states=states,
        accepting=accepting,
        class_of=class_of,
        classes=classes,
        source=source,
        target=target,
        label=label,
        label_begin=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        label_class=np.concatenate(sets) if sets else np.zeros(0, dtype=np.int32),
        distance=_distances(accepting, source, target),
    )


def _is_new(rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each row differs from the one before."""
    made = np.ones(len(rows), dtype=bool)
    made[1:] = np.any(rows[1:] != rows[:-1], axis=1)
    return made


def _distances(accepting: NDArray[np.bool_], source: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.int32]:
    """Breadth first, from acceptance against the edges."""
    order = np.argsort(target, kind="stable")
    into = source[order]
    begin = np.searchsorted(target[order], np.arange(len(accepting) + 1))
    distance = np.where(accepting, 0, FAR).astype(np.int32)
    nearest, steps = np.flatnonzero(accepting), 0
    while len(nearest):
        steps += 1
        reached = np.concatenate([into[begin[state] : begin[state + 1]] for state in nearest.tolist()])
        nearest = np.unique(reached[distance[reached] == FAR])
        distance[nearest] = steps
    return distance
