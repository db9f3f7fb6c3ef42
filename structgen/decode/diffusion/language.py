"""Which language of canvases a constraint stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from structgen.decode.diffusion.byte_automaton import MOST_STATES, byte_automaton, check_finite_checks
from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.decode.diffusion.token_automaton import lift
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.decode.diffusion.context_free.language import Ambiguity
    from structgen.decode.diffusion.posterior import CanvasLanguage
    from structgen.engine.constraint import Constraint

__all__ = ["MOST_EDGES", "canvas_language"]

MOST_EDGES: Final = 250_000
"""Edges between states of an automaton over tokens, beyond which a constraint is treated as context-free."""

_LANGUAGES: Final[WeakKeyDictionary[Constraint, dict[tuple[int, int, Ambiguity], CanvasLanguage]]] = WeakKeyDictionary()


def canvas_language(
    constraint: Constraint,
    *,
    most_states: int = MOST_STATES,
    most_edges: int = MOST_EDGES,
    ambiguity: Ambiguity = "refused",
) -> CanvasLanguage:
    """Return the canvases that spell a member of a constraint; made once for each constraint.

    A finite automaton of a moderate size is read as it is; every other grammar by charts, which know recursion.

    Args:
        constraint: any that does not ask for values which differ from each other.
        most_states: states of the automaton over bytes, before it is minimised, up to which it is made.
        most_edges: edges of the automaton over tokens up to which it is used.
        ambiguity: what masses and marginals are where a canvas may be read in several ways, which only grammars that
            recur may ask for: ``"refused"``, or ``"counted"`` as often as it is read.

    Raises:
        GrammarError: the grammar has values that must differ, or labels that must decode.
        LimitExceeded: the network of a grammar that recurs has more states or effects than are kept.
        ValueError: a limit is not positive.
    """
    for name, limit in (("most_states", most_states), ("most_edges", most_edges)):
        if limit < 1:
            raise ValueError(f"{name} must be at least 1; found {limit}")
    known = _LANGUAGES.setdefault(constraint, {})
    key = most_states, most_edges, ambiguity
    language = known.get(key)
    if language is None:
        language = known[key] = _made(constraint, most_states, most_edges, ambiguity)
    return language


def _made(constraint: Constraint, most_states: int, most_edges: int, ambiguity: Ambiguity) -> CanvasLanguage:
    check_finite_checks(constraint)
    automaton = byte_automaton(constraint, most_states=most_states)
    if automaton is not None:
        try:
            lifted = lift(automaton, constraint.vocabulary)
        except LimitExceeded:
            pass  # too many moves, whatever their edges are
        else:
            if len(lifted.source) <= most_edges:
                return RegularLanguage(lifted, constraint.vocabulary)
    return ContextFreeLanguage(constraint, ambiguity=ambiguity, most_states=max(most_states, MOST_STATES))
