"""Canonical tokens: only token sequences that the tokenizer itself writes for their text.

A token sequence is canonical iff ``encode(decode(tokens)) == tokens``.  Two automata decide this from left to right:
one over the splits of the text before byte pairs are merged (``tokenizers/pretokens.py``), one over pairs of tokens
within a piece (``tokenizers/merges.py``).  A special token ends a text, and another begins after it.

Whether a prefix can be completed depends on the grammar too.  ``CanonicalTokens.can_complete`` decides it by a search
over pairs of a grammar's state and a state of these automata, and nearly always by its first look: where the text may
end, or where a byte may follow at which the tokenizer begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.engine.mask import MaskWords, allowed_ids, empty_masks, pack
from structgen.engine.tokenizers.encoding import read_encoding_of
from structgen.engine.tokenizers.pretokens import START, Place
from structgen.errors import LimitExceeded
from structgen.grammar.limits import PYTHON_STEP
from structgen.memory_cache import TERMS, ContentCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from structgen.engine.matcher import Matcher
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["CanonicalState", "CanonicalTokens", "canonical_tokens"]

_NO_TOKEN: Final = -1
_STEPS_PER_TRY: Final = 16 * PYTHON_STEP
_ENTRY_BYTES: Final = 256


class CanonicalState(NamedTuple):
    """What decides which tokens may follow: the place among the splits, and the last token of the open piece."""

    place: Place
    last: int


def canonical_tokens(vocabulary: Vocabulary) -> CanonicalTokens:
    """Return the canonical tokens of a vocabulary's tokenizer, made once for each vocabulary.

    Raises:
        ArgumentError: they are not decided exactly for this kind of tokenizer; the error names what is in the way.
        VocabularyError: the library of the tokenizer is missing.

    Complexity: at first some seconds for a vocabulary of 100,000 tokens.
    """
    known = vocabulary.canonical
    if not isinstance(known, CanonicalTokens):
        known = vocabulary.canonical = CanonicalTokens(vocabulary)
    return known


@final
class CanonicalTokens:
    """Which tokens a tokenizer writes after which; safe to share between threads.

    Args:
        vocabulary: its tokenizer is byte-level BPE, from a tokenizer.json, a tekken.json or a GGUF file.

    Attributes:
        start: the state before the first token.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        encoding = read_encoding_of(vocabulary.encoder, vocabulary.tokens)
        self._pretokens, self._merges = encoding.pretokens, encoding.merges
        self._tokens, self._special = vocabulary.tokens, vocabulary.special
        self._tokenize = vocabulary.tokenize
        self._size = vocabulary.size
        self._single = {data[0]: token for token, data in enumerate(self._tokens) if len(data) == 1}
        special = np.zeros(self._size, dtype=np.bool_)
        special[list(self._special)] = True
        self._special_mask = pack(special)
        lengths = np.array([len(data) for data in self._tokens], dtype=np.int32)
        by_length = np.argsort(-lengths, kind="stable")
        self._by_length = by_length[~np.isin(by_length, vocabulary.eos)]
        self._masks: ContentCache[tuple[MaskWords, MaskWords]] = ContentCache(TERMS)
        self.start: Final = CanonicalState(START, _NO_TOKEN)

    def after(self, state: CanonicalState, token: int) -> CanonicalState | None:
        """Return the state after a token; None if it cannot follow in any canonical sequence, whatever comes later."""
        if token in self._special:
            return self.start if self.may_end(state) else None
        if not self._merges.reachable[token]:
            return None
        joins = state.last != _NO_TOKEN and not self._merges.conflict(state.last, token)
        place = self._pretokens.after(state.place, token, joins=joins)
        return None if place is None else CanonicalState(place, token)

    def after_all(self, tokens: Iterable[int]) -> CanonicalState | None:
        """Return the state after tokens from the start; None as for ``after``."""
        state: CanonicalState | None = self.start
        for token in tokens:
            if state is None:
                break
            state = self.after(state, token)
        return state

    def may_end(self, state: CanonicalState) -> bool:
        """Whether the tokens so far are canonical as they are."""
        return self._pretokens.ends(state.place)

    def is_canonical(self, tokens: Iterable[int]) -> bool:
        """Whether a token sequence is what the tokenizer writes for its text; special tokens stand between texts."""
        state = self.after_all(tokens)
        return state is not None and self.may_end(state)

    def mask(self, state: CanonicalState) -> MaskWords:
        """Return the mask of the tokens for which ``after`` has a state, EOS and special tokens included.

        Complexity: at steady state two operations on a mask row, O(V / 32).
        """
        splitting, going_on = self._rows(state.place)
        if state.last == _NO_TOKEN:
            return splitting
        row: MaskWords = splitting | (going_on & self._merges.row(state.last))
        return row

    def _rows(self, place: Place) -> tuple[MaskWords, MaskWords]:
        known = self._masks.get(place)
        if known is None:
            reachable = self._merges.reachable
            splitting = pack(self._pretokens.alive(place, splits=True) & reachable)
            going_on = pack(self._pretokens.alive(place, splits=False) & reachable)
            if self._pretokens.ends(place):
                splitting |= self._special_mask
            known = splitting, going_on
            self._masks.put(place, known, 2 * splitting.nbytes + _ENTRY_BYTES)
        return known

    def can_complete(self, matcher: Matcher, state: CanonicalState, budget: int | None = None) -> bool:
        """Whether some canonical sequence of the grammar begins with the tokens so far.

        Args:
            matcher: after the tokens so far, and so again when it returns.
            state: after the tokens so far.
            budget: how many tokens are left, EOS not counted; None is no limit.

        Raises:
            LimitExceeded: the search takes more than ``Limits.steps``.
        """
        return _Search(self, matcher, budget).succeeds(state)

    def mask_within(self, matcher: Matcher, state: CanonicalState, budget: int | None = None) -> MaskWords:
        """Return the mask of exactly the tokens after which some canonical sequence of the grammar goes on.

        Arguments and errors are those of ``can_complete``, which is asked for each token that both masks allow.
        """
        rows = empty_masks(self._size)
        matcher.fill_mask(rows, budget=budget)
        both = rows[0] & self.mask(state)
        exact = np.zeros(self._size, dtype=np.bool_)
        for token in allowed_ids(both, self._size).tolist():
            exact[token] = self.follows(matcher, state, token, budget)
        return pack(exact)

    def follows(self, matcher: Matcher, state: CanonicalState, token: int, budget: int | None = None) -> bool:
        """Whether ``can_complete`` after one more token; False where the grammar refuses it."""
        after = self.after(state, token)
        if after is None or not matcher.accept(token):
            return False
        try:
            if matcher.is_terminated:
                return True
            if budget is not None and budget <= 0:
                return False
            return self.can_complete(matcher, after, None if budget is None else budget - 1)
        finally:
            matcher.rollback(1)

    def begins_anew(self, state: CanonicalState, live: bytes) -> Iterator[tuple[int, int]]:
        """Return those of ``live`` before which the tokenizer begins anew whatever follows, each with its token."""
        free = self._pretokens.free_bytes(state.place)
        return ((byte, self._single[byte]) for byte in live if byte in free and byte in self._single)

    def length(self, data: bytes) -> int | None:
        """Return the number of canonical tokens of a text; None if it is no text."""
        try:
            data.decode()
        except UnicodeDecodeError:
            return None
        return len(self._tokenize(data))

    def longest_first(self, mask: MaskWords) -> Iterator[int]:
        """Return the tokens of a mask without EOS, those with most bytes first."""
        bits = np.unpackbits(mask.view(np.uint8), count=self._size, bitorder="little")
        return map(int, self._by_length[np.flatnonzero(bits[self._by_length])])


@final
class _Search:
    """Depth-first search for one completion, over states of the grammar and of ``CanonicalTokens``."""

    def __init__(self, canonical: CanonicalTokens, matcher: Matcher, budget: int | None) -> None:
        self._canonical = canonical
        self._matcher = matcher
        self._start = matcher.history_length
        self._budget = budget
        self._steps = 0
        self._most = matcher.constraint.limits.steps
        self._seen: dict[tuple[int, CanonicalState], int] = {}

    def succeeds(self, state: CanonicalState) -> bool:
        """Whether there is a completion; the matcher is as before then."""
        if self._is_certain(state):
            return True
        try:
            return self._searched(state)
        finally:
            self._matcher.rollback(self._matcher.history_length - self._start)

    def _searched(self, state: CanonicalState) -> bool:
        stack = [(state, self._candidates(state))]
        while stack:
            before, tokens = stack[-1]
            token = next(tokens, None)
            if token is None:
                stack.pop()
                if stack:
                    self._matcher.rollback(1)
                continue
            self._spend()
            after = self._canonical.after(before, token)
            if after is None or not self._matcher.accept(token):
                continue
            if not self._is_new(after):
                self._matcher.rollback(1)
            elif self._is_certain(after):
                return True
            else:
                stack.append((after, self._candidates(after)))
        return False

    def _left(self) -> int | None:
        taken = self._matcher.history_length - self._start
        return None if self._budget is None else self._budget - taken

    def _candidates(self, state: CanonicalState) -> Iterator[int]:
        left = self._left()
        if left == 0:
            return iter(())
        rows = empty_masks(self._matcher.constraint.vocabulary)
        self._matcher.fill_mask(rows, budget=left)
        return self._canonical.longest_first(rows[0] & self._canonical.mask(state))

    def _is_new(self, state: CanonicalState) -> bool:
        if self._matcher.mask_id is None:  # values of earlier text matter
            return True
        key = self._matcher.state_id, state
        left = self._left()
        most = 0 if left is None else left
        if self._seen.get(key, -1) >= most:
            return False
        self._seen[key] = most
        return True

    def _is_certain(self, state: CanonicalState) -> bool:
        """Whether a completion can be seen at once."""
        matcher = self._matcher
        if matcher.is_accepting and self._canonical.may_end(state):
            return True
        left = self._left()
        if left == 0:
            return False
        firsts = self._canonical.begins_anew(state, matcher.live_bytes())
        return any(
            matcher.validate([token]) == 1 and (left is None or self._fits(byte, left)) for byte, token in firsts
        )

    def _fits(self, byte: int, left: int) -> bool:
        """Whether the canonical tokens of the shortest text that begins with ``byte`` fit."""
        self._spend()
        probe = self._matcher.fork()
        if not probe.accept_bytes(bytes([byte])):
            return False
        rest = probe.shortest_completion()
        if any(symbol < 0 for symbol in rest):  # a special token
            return False
        needed = self._canonical.length(bytes([byte, *rest]))
        return needed is not None and needed <= left

    def _spend(self) -> None:
        self._steps += _STEPS_PER_TRY
        if self._steps > self._most:
            raise LimitExceeded(
                "canonical",
                limit="steps",
                maximum=self._most,
                evidence=f"the search for a canonical completion has tried {self._steps // _STEPS_PER_TRY} tokens",
                remedy="raise limits=Limits(steps=...), or leave out canonical=True",
            )
