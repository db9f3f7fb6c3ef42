"""Which tokens an output can ever contain."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import numpy as np

from structgen.grammar.alphabet import byte_alphabet, special_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine import Constraint

__all__ = ["reachable_tokens"]

_LOCK: Final = Lock()
_KNOWN: Final[WeakKeyDictionary[Constraint, NDArray[np.intp]]] = WeakKeyDictionary()


def reachable_tokens(constraint: Constraint) -> NDArray[np.intp]:
    """Return ids of which no other one is ever allowed, ascending; the array is shared, not to be written to.

    Sound, not complete: the stop, the special tokens that the grammar names, and all tokens made of bytes that its
    terms can hold (``byte_alphabet``).  So a grammar of digits and punctuation leaves a few hundred of 49k tokens,
    and one with free text nearly all.

    Complexity: O(bytes of the vocabulary + size of the grammar), once for each constraint.

    Source of the idea to leave out rows of a drafter's output head: Goel et al. 2025, VocabTrim (arXiv 2506.22694),
    which keeps the tokens that are frequent in some text.
    """
    with _LOCK:
        known = _KNOWN.get(constraint)
    if known is None:
        known = _reachable(constraint)
        known.flags.writeable = False
        with _LOCK:
            _KNOWN[constraint] = known
    return known


def _reachable(constraint: Constraint) -> NDArray[np.intp]:
    vocabulary, grammar = constraint.vocabulary, constraint.grammar
    alphabet = bytes(sorted(byte_alphabet(grammar)))
    named = special_tokens(grammar)
    wanted = set(vocabulary.eos) | {token for token in named if isinstance(token, int)}
    wanted.update(vocabulary.token_id(token) for token in named if isinstance(token, str))
    wanted.update(
        token
        for token, piece in enumerate(vocabulary.tokens)
        if piece and token not in vocabulary.special and not piece.translate(None, alphabet)
    )
    return np.array(sorted(wanted), dtype=np.intp)
