"""``canonical=True``: outputs whose tokens are those that the tokenizer writes for their text."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials.potential import Hypothesis, Potential
from structgen.engine.canonical import CanonicalState, Known, canonical_tokens
from structgen.engine.mask import contains, empty_masks
from structgen.errors import GrammarError, VocabularyError
from structgen.grammar.nodes import ByteClass, Complement, Intersection, Literal, postorder

if TYPE_CHECKING:
    from structgen.engine import Constraint, Matcher
    from structgen.grammar.nodes import Grammar

__all__ = ["Canonical"]

_MAX_POSITIONS: Final = 256


@final
class _Position:
    """The state after some tokens.

    Attributes:
        matcher, state: after the tokens; the matcher is made on first use.
        known: what earlier outputs have computed for this pair; None if values of earlier text matter.
        left: how many tokens are left; None where they are plenty.
        row: the mask of the next token once it is made; ``is_exact`` if it has no other tokens.
        is_completable: whether some canonical output is known to have these tokens as a prefix.
    """

    __slots__ = ("_before", "_matcher", "_token", "is_completable", "is_exact", "known", "left", "row", "state")

    def __init__(self, matcher: Matcher | None, state: CanonicalState, known: Known | None) -> None:
        self._matcher = matcher
        self._before: _Position | None = None
        self._token = -1
        self.state = state
        self.known = known
        self.left: int | None = None
        self.row: NDArray[np.int32] | None = None
        self.is_exact = False
        self.is_completable = False

    @classmethod
    def after(cls, before: _Position, token: int, known: Known, matcher: Matcher | None) -> _Position:
        """The position after one more token that may follow."""
        position = cls(matcher, known.state, known)
        if matcher is None:
            position._before, position._token = before, token
        return position

    def matcher(self) -> Matcher:
        """A Matcher after the tokens, which is not to be moved."""
        if self._matcher is None:
            tokens: list[int] = []
            here: _Position = self
            while here._matcher is None and here._before is not None:
                tokens.append(here._token)
                here = here._before
            matcher = here.matcher().fork()
            for token in reversed(tokens):
                matcher.accept(token)
            self._matcher, self._before = matcher, None
        return self._matcher


@final
class Canonical(Potential):
    """Forbids what the tokenizer would not write: 0 for prefixes of canonical outputs, minus infinity for all else.

    An output is canonical if its tokens are ``encode(text)``, for its text alone, without the prompt.  A special token
    ends a text, and another begins after it.

    A prefix is allowed iff some canonical output of the grammar begins with it, so no output comes to a dead end.  The
    mask of ``allowed`` has all tokens that may follow.  It has no others where at most 64 tokens are left; otherwise it
    may have some, and ``prefix`` forbids these when they are sampled.

    Args:
        constraint: of the output; its vocabulary has a tokenizer of byte pairs (BPE).
        max_tokens: maximum number of tokens, EOS not counted, within which the output must be complete.  It is heeded
            once half of the remaining tokens might not suffice for the grammar alone; None is no limit.

    Raises:
        ArgumentError: the tokenizer is of a kind whose canonical tokens are not decided exactly.
        GrammarError: the grammar speaks of tokens rather than of text, or of bytes that are no text.

    Complexity: at steady state a mask is looked up; a sampled token takes a step of the grammar and look-ups.
    """

    sees = "tokens"

    def __init__(self, constraint: Constraint, max_tokens: int | None = None) -> None:
        _check_grammar(constraint)
        self.constraint = constraint
        self._canonical = canonical_tokens(constraint.vocabulary)
        self._max_tokens = max_tokens
        self._positions: OrderedDict[tuple[int, ...], _Position] = OrderedDict()
        self._latest: tuple[tuple[int, ...], _Position] | None = None  # quicker to find than by content
        self._vocabulary = constraint.vocabulary
        self._nothing: NDArray[np.int32] = empty_masks(constraint.vocabulary)[0]

    @property
    def name(self) -> str:
        """See ``Potential``."""
        return "canonical"

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        tokens = hypothesis.tokens
        here = self._positions.get(tokens)
        if here is None or not here.is_completable:
            here = self._completable(hypothesis, tokens)
            if here is None:
                return -math.inf
            here.is_completable = True
            if here.known is not None:
                here.known.is_completable = True
        self._latest = tokens, here
        return 0.0

    def _completable(self, hypothesis: Hypothesis, tokens: tuple[int, ...]) -> _Position | None:
        """The position after tokens with which some canonical output begins; None if none does."""
        before = self._at(hypothesis, tokens[:-1])
        if before is None:
            return None
        if not tokens:
            may_begin = self._canonical.can_complete(before.matcher(), before.state, self._max_tokens)
            return before if may_begin else None
        token = tokens[-1]
        if before.known is not None and before.left is None:
            found = self._canonical.next_known(before.known, token, before.matcher)
            if found is None:
                return None
            known, matcher = found
            return self._placed(tokens, _Position.after(before, token, known, matcher))
        if before.row is not None and before.is_exact:
            may_follow = contains(before.row, token)
        else:
            may_follow = self._canonical.follows(before.matcher(), before.state, token, before.left)
        return self._at(hypothesis, tokens) if may_follow else None

    def complete(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        here = self._at(hypothesis, hypothesis.tokens)
        if here is None:
            return -math.inf
        return 0.0 if here.matcher().is_accepting and self._canonical.may_end(here.state) else -math.inf

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32]:
        """See ``Potential``."""
        latest = self._latest
        here = latest[1] if latest and latest[0] is hypothesis.tokens else self._at(hypothesis, hypothesis.tokens)
        if here is None:
            return self._nothing
        if here.row is None:
            known = here.known if here.left is None else None
            if known is None:
                here.row, here.is_exact = self._canonical.allowed(here.matcher(), here.state, here.left)
            elif known.allowed is None:  # nothing keeps this row, so that the next one takes its memory
                return self._canonical.allowed_after(known, here.matcher).row
            else:
                here.row, here.is_exact = self._canonical.allowed_after(known, here.matcher)
        return here.row

    def narrow(self, hypothesis: Hypothesis, row: NDArray[np.int32], /) -> None:
        """See ``Potential``: without a row of its own where the state was not met before."""
        latest = self._latest
        here = latest[1] if latest and latest[0] is hypothesis.tokens else self._at(hypothesis, hypothesis.tokens)
        if here is not None and here.row is not None:
            row &= here.row
        elif here is None or here.known is None or here.left is not None:
            row &= self.allowed(hypothesis)
        elif here.known.allowed is None:
            self._canonical.narrow(here.known, here.matcher, row)
        else:
            here.row, here.is_exact = self._canonical.allowed_after(here.known, here.matcher)
            row &= here.row

    def _left(self, here: _Position, taken: int) -> int | None:
        """How many tokens are left; None where they are plenty."""
        if self._max_tokens is None:
            return None
        left, known = max(self._max_tokens - taken, 0), here.known
        if known is not None and known.plenty is not None and left >= known.plenty:
            return None
        if here.matcher().needs_budget_mask(left // 2):
            return left
        if known is not None:
            known.plenty = left  # and so are all larger numbers
        return None

    def _at(self, hypothesis: Hypothesis, tokens: tuple[int, ...]) -> _Position | None:
        """The position after tokens; None where grammar or tokenizer refuse one of them."""
        if self._latest is not None and self._latest[0] is tokens:
            return self._latest[1]
        if hypothesis.vocabulary is not self._vocabulary:
            self._check_vocabulary(hypothesis)
        known = self._positions.get(tokens)
        if known is not None:
            return known
        start = self._positions.get(tokens[:-1]) if tokens else None
        if start is None:
            matcher, state = self.constraint.matcher(), self._canonical.start
        else:
            matcher, state = start.matcher().fork(), start.state
        for token in tokens if start is None else tokens[-1:]:
            after = self._canonical.after(state, token)
            if after is None or not matcher.accept(token):
                return None
            state = after
        return self._placed(tokens, _Position(matcher, state, self._canonical.known(matcher, state)))

    def _placed(self, tokens: tuple[int, ...], position: _Position) -> _Position:
        """Keep a new position."""
        position.left = self._left(position, len(tokens))
        self._positions[tokens] = position
        if len(self._positions) > _MAX_POSITIONS:
            _, oldest = self._positions.popitem(last=False)
            oldest.matcher()  # so that it keeps no earlier ones
        return position

    def _check_vocabulary(self, hypothesis: Hypothesis) -> None:
        if hypothesis.vocabulary.digest != self._vocabulary.digest:
            raise VocabularyError(
                "canonical",
                "its constraint was compiled for another vocabulary, not for that of the model",
                evidence=f"{self.constraint.vocabulary!r}, not {hypothesis.vocabulary!r}",
                remedy="compile its grammar with model.vocabulary",
            )


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
