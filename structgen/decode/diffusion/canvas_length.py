"""How many slots a canvas gets when nobody says.

A canvas that is too short cuts off what the model wants to say, one that is too long costs passes over empty slots; the
language alone has to tell.  The rule is a random walk through its automaton over tokens: in each state every edge is
taken with a weight of ``log2(1 + tokens of the edge)``, and the member ends, where it may, with a weight of 1.  So a
string goes on for some tokens, a literal is spelled, an optional part comes or not.  Of edges with one token each, of
which one begins with the other, only the longest counts: they are ways to split the same text, and tokenizers take
long pieces.  The canvas has as many slots as three of four walks need, rounded up to a multiple of 8, and never more
than the longest walk.

The rule is ours.  For the 22 schemas of the embedded diffusion model all of 600 documents fit, and the canvases are 1.2
to 2.2 times as long as the longest document of their kind.  What a language without a finite automaton gets is cruder:
see ``canvas_length``.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from structgen.decode.diffusion.regular import RegularLanguage
from structgen.decode.diffusion.token_automaton import FAR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import CanvasLanguage
    from structgen.decode.diffusion.token_automaton import TokenAutomaton
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["MOST_SLOTS", "canvas_length"]

MOST_SLOTS: Final = 256
"""Slots that a canvas gets at most, unless its shortest member takes more."""

_COVERED: Final = 0.75
_MULTIPLE: Final = 8


def canvas_length(language: CanvasLanguage, *, most: int = MOST_SLOTS) -> int:
    """Return how many slots a canvas for a member of ``language`` should have, at least one.

    A language that is not regular gets four times the slots of its shortest member and 16 more.

    Args:
        language: the members.
        most: not to be exceeded, unless the shortest member takes more.

    Raises:
        ValueError: ``most`` is below 1.

    Complexity: O(most x edges of the automaton).
    """
    if most < 1:
        raise ValueError(f"most must be at least 1; found {most!r}")
    least = max(1, language.shortest)
    if isinstance(language, RegularLanguage):
        typical, longest = _walked(language.automaton, language.vocabulary, most)
    else:
        typical, longest = 4 * language.shortest + 2 * _MULTIPLE, most
    rounded = -(-typical // _MULTIPLE) * _MULTIPLE
    return max(least, min(rounded, longest, most))


def _walked(automaton: TokenAutomaton, vocabulary: Vocabulary, most: int) -> tuple[int, int]:
    """Return how many tokens three of four walks take, and how many the longest takes, neither above ``most``."""
    source, target, weights = _choices(automaton, vocabulary)
    stop = automaton.accepting.astype(np.float64)
    total = stop + np.bincount(source, weights, automaton.states)
    # States from which nothing goes on are never reached: their edges were left out.
    shares = np.divide(weights, total[source])
    stops = np.divide(stop, total, out=np.zeros_like(stop), where=total > 0)
    at = np.zeros(automaton.states)
    at[0] = 1.0
    ended, typical = 0.0, most
    for length in range(most + 1):
        ended += float(at @ stops)
        if ended >= _COVERED:
            typical = min(typical, length)
        at = np.bincount(target, at[source] * shares, automaton.states).astype(np.float64)
        if not at.any():
            return min(typical, length), length
    return typical, most


def _choices(
    automaton: TokenAutomaton, vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Return source, target and weight of the edges that a walk may take."""
    tokens_of_class = np.bincount(automaton.class_of, minlength=automaton.classes)
    running = np.concatenate([[0], np.cumsum(tokens_of_class[automaton.label_class])])
    sizes = (running[automaton.label_begin[1:]] - running[automaton.label_begin[:-1]])[automaton.label]
    kept = (automaton.distance[automaton.target] < FAR) & (sizes > 0)
    by_state: dict[int, list[tuple[bytes, int]]] = {}
    for edge in np.flatnonzero(kept & (sizes == 1)).tolist():
        first = int(automaton.label_begin[automaton.label[edge]])
        classes = automaton.label_class[first : int(automaton.label_begin[automaton.label[edge] + 1])]
        token = next(int(automaton.members(int(of))[0]) for of in classes if tokens_of_class[of])
        by_state.setdefault(int(automaton.source[edge]), []).append((vocabulary.tokens[token], edge))
    for spelled in by_state.values():
        spelled.sort()
        for (piece, edge), (longer, _) in pairwise(spelled):
            if piece and longer != piece and longer.startswith(piece):
                kept[edge] = False
    return automaton.source[kept], automaton.target[kept], np.log2(1.0 + sizes[kept])
