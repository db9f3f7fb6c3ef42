"""The finite automaton over bytes that a constraint is, where it is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
from structgen_kernels import _native

from structgen.engine.budgets import refuse_budgets
from structgen.errors import GrammarError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine.constraint import Constraint

__all__ = ["ByteAutomaton", "byte_automaton", "check_finite_checks"]

MOST_STATES: Final = 300_000
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


def byte_automaton(constraint: Constraint, *, most_states: int = MOST_STATES) -> ByteAutomaton | None:
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
