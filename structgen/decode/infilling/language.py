"""Which canvases with open slots a constraint stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from structgen.decode.diffusion.byte_automaton import check_finite_checks
from structgen.decode.diffusion.language import regular_language
from structgen.decode.infilling.network_open import NetworkOpen
from structgen.decode.infilling.regular_open import RegularOpen

if TYPE_CHECKING:
    from structgen.decode.infilling.open_canvas import OpenLanguage
    from structgen.engine.constraint import Constraint

__all__ = ["open_language"]

_LANGUAGES: Final[WeakKeyDictionary[Constraint, OpenLanguage]] = WeakKeyDictionary()


def open_language(constraint: Constraint) -> OpenLanguage:
    """Return the canvases with open slots that spell a member of a constraint; made once for each constraint.

    Raises:
        GrammarError: the grammar has values that must differ, or labels that must decode.
        LimitExceeded: the network of a grammar that recurs has more states than are kept.
    """
    known = _LANGUAGES.get(constraint)
    if known is None:
        check_finite_checks(constraint)
        known = _LANGUAGES[constraint] = _made(constraint)
    return known


def _made(constraint: Constraint) -> OpenLanguage:
    regular = regular_language(constraint)
    return NetworkOpen(constraint) if regular is None else RegularOpen(regular)
