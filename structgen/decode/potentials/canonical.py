"""``canonical=True`` of ``generate``: outputs whose tokens are those that the tokenizer writes for their text."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials.potential import Hypothesis, Potential
from structgen.engine.canonical import CanonicalState, canonical_tokens
from structgen.engine.mask import allowed_ids, empty_masks, without
from structgen.errors import GrammarError, VocabularyError
from structgen.grammar.nodes import ByteClass, Complement, Intersection, Literal, postorder
from structgen.memory_cache import TERMS, ContentCache

if TYPE_CHECKING:
    from structgen.engine import Constraint, Matcher
    from structgen.grammar.nodes import Grammar

__all__ = ["Canonical"]

_MAX_POSITIONS: Final = 256
_MAX_DECIDED: Final = 1 << 14
_ENTRY_BYTES: Final = 256
_MOST_TESTED: Final = 64


@final
class Canonical(Potential):
    """Forbids what the tokenizer would not write: 0 for prefixes of canonical outputs, minus infinity for all else.

    An output is canonical if its tokens are ``encode(text)``, for its text alone, without the prompt.  A special token
    ends a text, and another begins after it.

    A prefix is allowed iff some canonical output of the grammar begins with it, so no output comes to a dead end.  The
    mask of ``allowed`` has all tokens that may follow.  It has no others where at most 64 tokens are left; otherwise it
    may have some, and ``prefix`` forbids these when they are sampled.

    Args:
        constraint: of the output; its vocabulary has a tokenizer of byte-level BPE.
        max_tokens: maximum number of tokens, EOS not counted, within which the output must be complete.  It is heeded
            once half of the tokens that are left might not do for the grammar alone; None is no limit.

    Raises:
        ArgumentError: the tokenizer is of a kind whose canonical tokens are not decided exactly.
        GrammarError: the grammar speaks of tokens rather than of text, or of bytes that are no text.

    Complexity: at steady state a mask takes three operations on a row, and a sampled token about a mask of the grammar.
    """

    sees = "tokens"

    def __init__(self, constraint: Constraint, max_tokens: int | None = None) -> None:
        _check_grammar(constraint)
        self.constraint = constraint
        self._canonical = canonical_tokens(constraint.vocabulary)
        self._max_tokens = max_tokens
        self._positions: OrderedDict[tuple[int, ...], tuple[Matcher, CanonicalState]] = OrderedDict()
        self._decided: dict[tuple[int, CanonicalState, int], bool] = {}
        self._masks: ContentCache[NDArray[np.int32]] = ContentCache(TERMS)
        self._rows = empty_masks(constraint.vocabulary)

    @property
    def name(self) -> str:
        """See ``Potential``."""
        return "canonical"

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        tokens = hypothesis.tokens
        if tokens:
            before = self._at(hypothesis, tokens[:-1])
            if before is None:
                return -math.inf
            left = self._left(before[0], len(tokens) - 1)
            return 0.0 if self._follows(*before, tokens[-1], left) else -math.inf
        here = self._at(hypothesis, tokens)
        return 0.0 if here is not None and self._canonical.can_complete(*here, self._max_tokens) else -math.inf

    def complete(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        here = self._at(hypothesis, hypothesis.tokens)
        return 0.0 if here is not None and here[0].is_accepting and self._canonical.may_end(here[1]) else -math.inf

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32]:
        """See ``Potential``."""
        here = self._at(hypothesis, hypothesis.tokens)
        if here is None:
            row: NDArray[np.int32] = np.zeros_like(self._rows[0])
            return row
        matcher, state = here
        left = self._left(matcher, len(hypothesis.tokens))
        if left is not None or matcher.mask_id is None:
            return self._mask(matcher, state, left)
        key = matcher.state_id, state
        known = self._masks.get(key)
        if known is None:
            known = self._mask(matcher, state, None)
            self._masks.put(key, known, known.nbytes + _ENTRY_BYTES)
        return known

    def _mask(self, matcher: Matcher, state: CanonicalState, left: int | None) -> NDArray[np.int32]:
        mask = self._canonical.mask(state)
        matcher.fill_mask(self._rows)
        both = self._rows[0] & mask
        filled = both[both != 0]
        if len(filled) > _MOST_TESTED or int.from_bytes(filled.tobytes(), "little").bit_count() > _MOST_TESTED:
            return mask
        tokens = allowed_ids(both, self.constraint.vocabulary.size).tolist()
        return without(both, [each for each in tokens if not self._follows(matcher, state, each, left)])

    def _left(self, matcher: Matcher, taken: int) -> int | None:
        """How many tokens are left; None where they are plenty."""
        if self._max_tokens is None:
            return None
        left = max(self._max_tokens - taken, 0)
        return left if matcher.needs_budget_mask(left // 2) else None

    def _follows(self, matcher: Matcher, state: CanonicalState, token: int, left: int | None) -> bool:
        """Whether a token may follow; known answers are kept by state, where nothing else matters."""
        if left is not None or matcher.mask_id is None:
            return self._canonical.follows(matcher, state, token, left)
        key = matcher.state_id, state, token
        known = self._decided.get(key)
        if known is None:
            if len(self._decided) >= _MAX_DECIDED:
                self._decided.clear()
            known = self._decided[key] = self._canonical.follows(matcher, state, token)
        return known

    def _at(self, hypothesis: Hypothesis, tokens: tuple[int, ...]) -> tuple[Matcher, CanonicalState] | None:
        """The matcher and the state after tokens; None where one of them is refused."""
        if hypothesis.vocabulary.digest != self.constraint.vocabulary.digest:
            raise VocabularyError(
                "canonical",
                "its constraint was compiled for another vocabulary, not for that of the model",
                evidence=f"{self.constraint.vocabulary!r}, not {hypothesis.vocabulary!r}",
                remedy="compile its grammar with model.vocabulary",
            )
        known = self._positions.get(tokens)
        if known is not None:
            self._positions.move_to_end(tokens)
            return known
        start = self._positions.get(tokens[:-1]) if tokens else None
        matcher, state = (self.constraint.matcher(), self._canonical.start) if start is None else start
        matcher = matcher if start is None else matcher.fork()
        for token in tokens if start is None else tokens[-1:]:
            after = self._canonical.after(state, token)
            if after is None or not matcher.accept(token):
                return None
            state = after
        self._positions[tokens] = matcher, state
        if len(self._positions) > _MAX_POSITIONS:
            self._positions.popitem(last=False)
        return matcher, state


def _check_grammar(constraint: Constraint) -> None:
    """Refuse a grammar in which a text can be allowed with some tokens and not with others, or that is not of text."""
    problem = ""
    if constraint.native.has_budgets:
        problem = "the grammar has token budgets; bound these parts in characters"
    elif constraint.native.has_token_sets:
        problem = "the grammar has sets of tokens; write them as text"
    elif not _is_text(constraint.grammar):
        problem = "the grammar may write bytes that are no UTF-8, for which there are no tokens; write it in characters"
    if problem:
        what, remedy = problem.split("; ")
        raise GrammarError("canonical", what, remedy=f"{remedy}, or leave out canonical=True")


def _is_text(grammar: Grammar) -> bool:
    """Whether a grammar writes UTF-8 only, as far as its parts show."""
    texts: dict[int, bool] = {}
    for node in postorder(grammar):
        inside = [texts[id(child)] for child in node.children]
        match node:
            case Literal(data=data):
                texts[id(node)] = data.isascii() or _decodes(data)
            case ByteClass(ranges=ranges):
                texts[id(node)] = all(high < 0x80 for _, high in ranges)
            case Intersection():
                texts[id(node)] = any(inside)
            case Complement():
                texts[id(node)] = True
            case _:
                texts[id(node)] = all(inside)
    return texts[id(grammar)]


def _decodes(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
