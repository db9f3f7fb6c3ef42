"""The finite byte automaton of a regular constraint, and its lift to the tokens of a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np
from structgen_kernels import _native

from structgen.engine.constraint import refuse_budgets
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.limits import spend_steps, steps_left

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
    "lift",
    "refuse_infinite_checks",
    "token_automaton",
]

MAX_STATES: Final = 300_000
"""States before minimisation above which no automaton is built.

Counts in a grammar multiply states: the leap second in a date-time with an offset alone takes 66,000.
"""


@final
@dataclass(frozen=True, slots=True, eq=False)
class ByteAutomaton:
    """A minimal deterministic automaton; state 0 is the start, and every state can reach acceptance.

    Attributes:
        kind_of: uint8 ``[256]``: bytes of a kind lead each state to the same one.
        targets: int32 ``[kinds, states]``; -1 where bytes of the kind are not allowed.
        accepting: bool ``[states]``.
        specials: int32 ``[edges, 3]``: state, id of a special token, next state.
    """

    kind_of: NDArray[np.uint8]
    targets: NDArray[np.int32]
    accepting: NDArray[np.bool_]
    specials: NDArray[np.int32]

    @property
    def states(self) -> int:
        """The number of states."""
        return len(self.accepting)


def refuse_infinite_checks(constraint: Constraint) -> None:
    """Refuse checks that no finite automaton decides: values that must differ, and token budgets.

    Raises:
        GrammarError: the grammar has such values or budgets.
    """
    refuse_budgets(constraint, "diffusion decoding")
    if constraint.native.has_scope:
        raise GrammarError(
            "diffusion decoding",
            "the grammar has values or names that must differ, or labels that must decode; no automaton checks these "
            "for all slots at once",
            evidence=f"the term is {constraint.grammar!r}",
            remedy="leave out uniqueItems, repeated='forbidden' and the like, or decode with an autoregressive model",
        )


def byte_automaton(constraint: Constraint, *, max_states: int = MAX_STATES) -> ByteAutomaton | None:
    """Return the minimal automaton of a constraint, or None if it has more than ``max_states`` states.

    A language that is not regular has infinitely many states, so it gives None, too.

    Raises:
        LimitExceeded: the steps of the call are counted and used up.

    Complexity: O(n log n) for n = states x classes of bytes.
    """
    steps, made = _native.byte_automaton(constraint.native, max_states, steps_left(_UNBOUNDED))
    _spend(steps, "automaton", "counts in the grammar (the lengths of an address, say) multiply its states")
    if made is None:
        return None
    kind_of, targets, accepting, specials = made
    return ByteAutomaton(kind_of, targets, accepting.astype(bool), specials)


_UNBOUNDED: Final = 1 << 62


def _spend(steps: int, what: str, evidence: str) -> None:
    spend_steps(
        steps,
        f"diffusion decoding: {what} of a grammar",
        evidence=evidence,
        remedy="bound repetitions and lengths of texts, fix the white space between parts, or raise "
        "Limits(canvas_steps=...)",
    )


DEAD_CLASS: Final = 0
FAR: Final = np.iinfo(np.int32).max // 2
"""The distance of a state from which no tokens lead to acceptance."""

_MAX_MOVES: Final = 5_000_000


@final
@dataclass(frozen=True, slots=True, eq=False)
class TokenAutomaton:
    """States, token classes, and the edges between states with the classes that label them; immutable.

    Edges may be nondeterministic, and two states may be joined by several edges: each run counts.

    Attributes:
        states: number of states; state 0 is the start.
        accepting: bool ``[states]``.
        class_of: int32 ``[vocabulary.size]``.
        classes: number of classes, including the dead class and EOS.
        eos_class: the last class, of all EOS ids.
        source, target: int32 ``[edges]``, sorted by source, then target.
        label: int32 ``[edges]``: the label set of each edge; edges with the same classes share one.
        label_begin, label_class: the classes of label ``k`` are
            ``label_class[label_begin[k] : label_begin[k + 1]]``, increasing.
        distance: int32 ``[states]``: the minimal number of tokens to acceptance, EOS not counted; ``FAR`` if
            acceptance is unreachable.
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
        """The size of the tables."""
        tables = (self.accepting, self.class_of, self.source, self.target, self.label, self.distance)
        return sum(table.nbytes for table in (*tables, self.label_begin, self.label_class))

    def members(self, of: int) -> NDArray[np.intp]:
        """The tokens of a class, by increasing id."""
        return np.flatnonzero(self.class_of == of)


def lift(automaton: ByteAutomaton, vocabulary: Vocabulary) -> TokenAutomaton:
    """Return the automaton over the tokens of ``vocabulary`` that spells the same strings.

    Raises:
        LimitExceeded: token classes have more than 5 million moves between states, or the steps of the call are counted
            and used up.

    Complexity: O(nodes of the vocabulary's trie) look-ups, and for each different effect of a prefix of a token the
        states in which the prefix is alive.
    Source: after T. Suresh et al., "DINGO: Constrained Inference for Diffusion LLMs" (2025, arXiv 2505.23061),
        section 4.
    """
    steps, lifted = _native.token_classes(
        vocabulary.trie, vocabulary.size, automaton.kind_of, automaton.targets, _MAX_MOVES, steps_left(_UNBOUNDED)
    )
    _spend(steps, "tokens", f"its automaton has {automaton.states} states over bytes")
    if lifted is None:
        raise LimitExceeded(
            "diffusion decoding",
            limit="moves of token classes",
            maximum=_MAX_MOVES,
            evidence=f"the automaton has {automaton.states} states over bytes",
            remedy="simplify the grammar: bound repetitions, or fix the white space between parts",
        )
    class_of, begin, sources, targets = lifted
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
    return token_automaton(automaton.accepting, class_of, classes + 1, np.stack([sources, targets, of_move], axis=1))


def token_automaton(
    accepting: NDArray[np.bool_] | Sequence[bool], class_of: NDArray[np.int32], classes: int, moves: NDArray[np.integer]
) -> TokenAutomaton:
    """Return the automaton with these moves, rows of (source, target, class).

    A move that is listed twice becomes two edges, so runs of a nondeterministic automaton keep their multiplicity.

    Raises:
        LimitExceeded: the steps of the call are counted and used up.

    Complexity: O(n log n) for n moves.
    """
    accepting = np.asarray(accepting, dtype=bool)
    states = len(accepting)
    _spend(states + _STEPS_OF_MOVE * len(moves), "tokens", f"its automaton has {states} states, and {len(moves)} moves")
    source, target, label, label_begin, label_class = _native.labelled_edges(
        np.ascontiguousarray(moves, dtype=np.int32), states
    )
    distance = _native.edge_distances(source, target, accepting.astype(np.uint8))
    return TokenAutomaton(
        states=states,
        accepting=accepting,
        class_of=class_of,
        classes=classes,
        source=source,
        target=target,
        label=label,
        label_begin=label_begin,
        label_class=label_class,
        distance=np.minimum(distance, FAR).astype(np.int32),
    )


_STEPS_OF_MOVE: Final = 4
"""To sort a move among those of its source, and to compare its label."""
