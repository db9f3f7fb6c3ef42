"""Which language of canvases a constraint stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.decode.diffusion.token_automaton import MAX_STATES, byte_automaton, check_finite_checks, lift
from structgen.engine.network import recurs
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.decode.diffusion.context_free.language import Ambiguity
    from structgen.decode.diffusion.posterior import CanvasLanguage
    from structgen.engine.constraint import Constraint

__all__ = ["MAX_EDGES", "MAX_RECURSIVE_STATES", "canvas_language", "regular_language"]

MAX_EDGES: Final = 250_000
"""Edges of an automaton over tokens, beyond which a constraint that recurs is treated as context-free."""

MAX_RECURSIVE_STATES: Final = 2_000
"""States of the automaton over bytes, before it is minimised, beyond which a constraint that recurs is context-free.

Most of these have infinitely many, each of which may take longer to make than the one before.
"""

_REGULAR: Final[WeakKeyDictionary[Constraint, RegularLanguage | None]] = WeakKeyDictionary()
_CONTEXT_FREE: Final[WeakKeyDictionary[Constraint, dict[Ambiguity, ContextFreeLanguage]]] = WeakKeyDictionary()


def canvas_language(constraint: Constraint, *, ambiguity: Ambiguity = "refused") -> CanvasLanguage:
    """Return the canvases that spell a member of a constraint; made once for each constraint.

    Args:
        constraint: any that does not ask for values which differ from each other.
        ambiguity: what masses and marginals are where a canvas may be read in several ways, which only grammars that
            recur may ask for: ``"refused"``, or ``"counted"`` as often as it is read.

    Raises:
        GrammarError: the grammar has values that must differ, or labels that must decode.
        LimitExceeded: the automaton of a grammar that does not recur has more states or moves than are kept, or the
            network of one that does more states or effects.
    """
    regular = regular_language(constraint)
    if regular is not None:
        return regular
    known = _CONTEXT_FREE.setdefault(constraint, {})
    if ambiguity not in known:
        known[ambiguity] = ContextFreeLanguage(constraint, ambiguity=ambiguity)
    return known[ambiguity]


def regular_language(constraint: Constraint) -> RegularLanguage | None:
    """Return the canvases of a constraint that is read by its finite automaton, None for any other.

    What does not recur has one, and is read by it however large it is; what does, where it has one that is small.

    Raises:
        GrammarError: as ``canvas_language``.
        LimitExceeded: the automaton of a grammar that does not recur has more states or moves than are kept.
    """
    if constraint not in _REGULAR:
        check_finite_checks(constraint)
        _REGULAR[constraint] = _small(constraint) if recurs(constraint) else _finite(constraint)
    return _REGULAR[constraint]


def _finite(constraint: Constraint) -> RegularLanguage:
    automaton = byte_automaton(constraint)
    if automaton is None:
        raise LimitExceeded(
            "diffusion decoding",
            limit="MOST_STATES",
            maximum=MAX_STATES,
            evidence="what the grammar counts (lengths of an address, say) makes an automaton of more states",
            remedy="leave out a bound, or a format: JsonPolicy(formats='annotation')",
        )
    return RegularLanguage(lift(automaton, constraint.vocabulary), constraint.vocabulary)


def _small(constraint: Constraint) -> RegularLanguage | None:
    try:
        automaton = byte_automaton(constraint, most_states=MAX_RECURSIVE_STATES)
        lifted = None if automaton is None else lift(automaton, constraint.vocabulary)
    except LimitExceeded:
        return None  # a chart may do with less
    if lifted is None or len(lifted.source) > MAX_EDGES:
        return None
    return RegularLanguage(lifted, constraint.vocabulary)
