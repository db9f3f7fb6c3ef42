"""Canonical tokens: only token sequences that the tokenizer itself writes for their text.

A token sequence is canonical iff ``encode(decode(tokens)) == tokens``.  Automata decide this from left to right: one
over the splits of the text before byte pairs are merged (``tokenizers/pretokens.py``), one over pairs of tokens within
a piece (``tokenizers/merges.py``), and the rules that some tokenizers have besides (``tokenizers/text_rules.py``).  A
special token ends a text, and another begins after it; so does an added token that is text.

Whether a prefix can be completed depends on the grammar too.  ``CanonicalTokens.can_complete`` decides it by a search
over pairs of a grammar's state and a state of these automata, and nearly always by its first look.  The search is
native (``kernels/native/canonical``), and keeps what it found; within a budget it is
``structgen/engine/completion_search.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn, TypeAlias, final
from weakref import WeakMethod, ref

import numpy as np
from structgen_kernels import _native

from structgen.engine.completion_search import CompletionSearch, search_limit
from structgen.engine.mask import MaskWords, allowed_ids, empty_masks, mask_width, without
from structgen.engine.tokenizers.answers import NO_TOKEN, Answers
from structgen.engine.tokenizers.encoding import Encoding, read_encoding_of
from structgen.errors import VocabularyError
from structgen.memory_cache import TERMS, ContentCache, Followed, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from structgen.engine.matcher import Matcher
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["AllowedRow", "CanonicalState", "CanonicalTokens", "Known", "canonical_tokens"]

CanonicalState: TypeAlias = int
"""A state of the automata, which decides which tokens may follow; see ``Answers``."""
_RowKey: TypeAlias = CanonicalState | tuple[int, ...]
"""The key of a cached mask: a state, or tokens."""

_ENTRY_BYTES: Final = 1_024  # estimated memory of a ``Known``
_MAX_AFTER: Final = 256  # tokens after which a ``Known`` remembers the next one
_MAX_SPELLED: Final = 256  # texts whose tokens are cached
_CHUNK: Final = 2_048  # tokens that ``longest_first`` tests together
_FEW_WORDS: Final = 256  # words that are not empty, up to which ``longest_first`` unpacks a mask
_MAX_TESTED: Final = 64  # tokens of a mask, up to which each is tested by a search
_ROWS_PART: Final = 3  # cached rows have at most a third of the memory
_NEVER, _PLAIN, _ASKED, _SPECIAL = range(4)  # kinds of tokens, see CanonicalTokens in canonical.h


@final
class Known:
    """What is known of a pair (state of a grammar, state of these automata), once for all outputs that reach it.

    Attributes:
        state: the state of these automata.
        is_completable: whether it is known that some canonical output of the grammar goes through it.
        allowed: the tokens that may follow, or the state if they are many; None until it is computed.
        plenty: with at least this many tokens left, the budget does not matter; None if no such number is known.
    """

    __slots__ = ("__weakref__", "after", "allowed", "is_completable", "plenty", "state")

    def __init__(self, state: CanonicalState) -> None:
        self.state = state
        self.is_completable = False
        self.allowed: _RowKey | None = None
        self.plenty: int | None = None
        self.after: dict[int, ref[Known] | None] = {}  # by token; None: it must not follow


@final
class _Kept(Share):
    """The caches of the canonical tokens of all vocabularies; each has the same part of the bound."""

    def __init__(self) -> None:
        super().__init__("canonical tokens")
        self.live: Followed[CanonicalTokens] = Followed()

    def held(self) -> tuple[int, int]:
        sizes = [each.memory_bytes for each in self.live]
        return len(sizes), sum(sizes)

    def fit(self) -> int:
        live, before = list(self.live), self.held()[1]
        for each in live:
            each.set_limit(self.max_bytes // len(live))
        return max(before - self.held()[1], 0)

    def clear(self) -> int:
        before = self.held()[1]
        for each in self.live:
            each.drop()
        return before


_KEPT: Final = _Kept()


class AllowedRow(NamedTuple):
    """A mask of tokens that may follow.

    Attributes:
        row: the mask, ``[ceil(V / 32)]``.
        is_exact: whether it has no other tokens.
    """

    row: MaskWords
    is_exact: bool


def _UNKNOWN() -> None:  # noqa: N802  like a dead reference
    return None


def canonical_tokens(vocabulary: Vocabulary) -> CanonicalTokens:
    """Return the canonical tokens of a vocabulary's tokenizer, made once for each vocabulary.

    Raises:
        ArgumentError: they are not decided exactly for this kind of tokenizer; the error names the feature.
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
        vocabulary: its tokenizer is BPE, from a tokenizer.json, a tekken.json or a byte-level GGUF file.

    Attributes:
        start: the state before the first token.
        has_rules: whether canonical tokens must obey more than splits and merges, so that not every text has some.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        encoding = read_encoding_of(vocabulary.encoder, vocabulary.tokens)
        self._tokens, self._vocabulary_tokenize = vocabulary.tokens, vocabulary.tokenize
        self._size = vocabulary.size
        self._width: Final = mask_width(self._size)
        self._row_bytes: Final = 4 * self._width + _ENTRY_BYTES // 4
        lengths = np.array([len(data) for data in self._tokens], dtype=np.int32)
        by_length = np.argsort(-lengths, kind="stable").astype(np.int32)
        self._by_length = by_length[~np.isin(by_length, vocabulary.eos)]
        self._rank = np.full(self._size, -1, dtype=np.int64)
        self._rank[self._by_length] = np.arange(len(self._by_length))
        self._single = {
            self._tokens[token][0]: token
            for token in np.flatnonzero(encoding.merges.reachable & (lengths == 1)).tolist()
        }
        self._answers = Answers(encoding, vocabulary.special, _weak_tokens_of(self))
        self._native = self._made(encoding, vocabulary)
        self._known: ContentCache[Known] = ContentCache(TERMS)
        self._rows: dict[_RowKey, AllowedRow] = {}
        self._spelled: dict[bytes, list[int] | None] = {}
        self.start: Final[CanonicalState] = _native.Canonical.start
        self.has_rules: Final = bool(encoding.rules)
        _KEPT.live.add(self)
        _KEPT.fit()

    @property
    def memory_bytes(self) -> int:
        """Memory of the cached states of the tokenizer, results of searches, and rows."""
        return self._native.memory_bytes + self._row_bytes * len(self._rows)

    def set_limit(self, size: int) -> None:
        """Bound the memory; the results of one search may exceed it."""
        self._native.set_limit(size - size // _ROWS_PART)
        self._most_rows = max(size // _ROWS_PART // self._row_bytes, 1)
        while len(self._rows) > self._most_rows:
            self._drop_row()

    def drop(self) -> None:
        """Drop everything that can be recomputed."""
        self._rows.clear()
        self._native.drop()

    def _made(self, encoding: Encoding, vocabulary: Vocabulary) -> _native.Canonical:
        shapes, merges = encoding.pretokens.shapes, encoding.merges
        kinds = np.where(merges.reachable, np.uint8(_PLAIN), np.uint8(_NEVER))
        asked = {*shapes.rests, *shapes.tails, *np.flatnonzero(merges.reachable & (shapes.of_token == 0)).tolist()}
        kinds[[token for token in asked if merges.reachable[token]]] = _ASKED
        kinds[list(self._answers.ends)] = _ASKED
        kinds[list(vocabulary.special)] = _SPECIAL
        settled = np.full(self._size, NO_TOKEN, dtype=np.int32)
        if encoding.rules:
            plain = np.flatnonzero(kinds == _PLAIN).tolist()
            settled[plain] = list(map(self._answers.settled_after, plain))
        single = np.full(256, NO_TOKEN, dtype=np.int32)
        single[list(self._single)] = list(self._single.values())
        begins = np.cumsum([0, 0, *(len(classes) for classes, _ in shapes.shapes)], dtype=np.int32)
        harmless = set(range(256)).intersection(*(rule.harmless for rule in encoding.rules))
        return _native.Canonical(
            pairs=merges.pairs,
            tokenizer=self._answers,
            kinds=kinds,
            shapes=shapes.of_token,
            shape_begins=begins,
            classes=np.frombuffer(b"".join(classes for classes, _ in shapes.shapes), dtype=np.uint8),
            has_rest=np.array([False, *(bool(rest) for _, rest in shapes.shapes)], dtype=np.uint8),
            class_count=encoding.pretokens.class_count,
            settled=settled,
            single=single,
            by_length=self._by_length,
            harmless=bytes(sorted(harmless)),
            has_rules=bool(encoding.rules),
        )

    def after(self, state: CanonicalState, token: int) -> CanonicalState | None:
        """Return the state after a token; None if no canonical sequence has it there."""
        return self._native.after(state, token) or None

    def after_all(self, tokens: Iterable[int], state: CanonicalState | None = None) -> CanonicalState | None:
        """Return the state after tokens, from the start or another state; None as for ``after``."""
        here: CanonicalState | None = self.start if state is None else state
        for token in tokens:
            if here is None:
                break
            here = self.after(here, token)
        return here

    def may_end(self, state: CanonicalState) -> bool:
        """Whether the tokens so far are canonical as they are."""
        return self._native.may_end(state)

    def is_canonical(self, tokens: Iterable[int]) -> bool:
        """Whether a token sequence is what the tokenizer writes for its text; special tokens separate texts."""
        state = self.after_all(tokens)
        return state is not None and self.may_end(state)

    def mask(self, state: CanonicalState) -> MaskWords:
        """Return the mask of the tokens for which ``after`` has a state, EOS and special tokens included.

        Complexity: O(V / 32), and linear in the tokens that may not follow the last one.
        """
        row: MaskWords = np.empty(self._width, dtype=np.int32)
        self._native.mask(state, row)
        return row

    def known(self, matcher: Matcher, state: CanonicalState) -> Known | None:
        """Return what is known of a state, without a budget; None if values of earlier text matter."""
        grammar_state = matcher.mask_id
        if grammar_state is None:
            return None
        key = grammar_state, state
        known = self._known.get(key)
        if known is None:
            known = Known(state)
            self._known.put(key, known, _ENTRY_BYTES)
        return known

    def next_known(
        self, before: Known, token: int, matcher: Callable[[], Matcher]
    ) -> tuple[Known, Matcher | None] | None:
        """Return what is known after one more token, and the Matcher there if one was made.

        None if ``follows`` is false, or nothing is known then.

        Args:
            before: the pair before the token.
            token: the token.
            matcher: makes a Matcher before the token, where it is needed.

        Raises:
            LimitExceeded: as ``can_complete``.
        """
        link = before.after.get(token, _UNKNOWN)
        if link is None:
            return None
        after, there = link(), None
        if after is not None:
            return after, None
        ours, key = matcher(), before.allowed
        if token in key if isinstance(key, tuple) else self.follows(ours, before.state, token):
            state = self.after(before.state, token)
            there = ours.fork()
            if state is not None and there.accept(token):
                after = self.known(there, state)
        if len(before.after) >= _MAX_AFTER:
            before.after.clear()
        before.after[token] = None if after is None else ref(after)
        return None if after is None else (after, there)

    def allowed(self, matcher: Matcher, state: CanonicalState, budget: int | None = None) -> AllowedRow:
        """Return a mask of the tokens after which some canonical sequence of the grammar goes on.

        It has no others where at most 64 tokens are left; otherwise it may have some, and ``follows`` decides.
        Arguments and errors are those of ``can_complete``.
        """
        if budget is not None:
            return self._allowed_within(matcher, state, budget)
        known = self.known(matcher, state)
        if known is None:
            return self._allowed(matcher, state, is_completable=False)[1]
        return self.allowed_after(known, lambda: matcher)

    def allowed_after(self, known: Known, matcher: Callable[[], Matcher]) -> AllowedRow:
        """``allowed`` for a known pair; ``matcher`` makes a Matcher in that state, where it is needed.

        The row is cached from its second use on: allocating its memory costs more than filling it.
        """
        if known.allowed is not None:
            return self._row(known.allowed)
        known.allowed, row = self._allowed(matcher(), known.state, is_completable=known.is_completable)
        return row

    def narrow(self, known: Known, matcher: Callable[[], Matcher], row: MaskWords) -> None:
        """Remove the tokens that ``allowed_after`` excludes from a mask of the grammar, or from a part of one.

        Only on the first use: ``known.allowed`` is None.
        """
        there = matcher()
        steps = there.constraint.limits.steps
        try:
            tokens = self._native.narrow(there, known.state, known.is_completable, _MAX_TESTED, steps, row)
        except _native.SearchLimit as error:
            _raise_limit(there, error)
        known.allowed = known.state if tokens is None else tuple(tokens)

    def _allowed(self, matcher: Matcher, state: CanonicalState, *, is_completable: bool) -> tuple[_RowKey, AllowedRow]:
        row: MaskWords = np.empty(self._width, dtype=np.int32)
        steps = matcher.constraint.limits.steps
        try:
            tokens = self._native.allowed(matcher, state, is_completable, _MAX_TESTED, steps, row)
        except _native.SearchLimit as error:
            _raise_limit(matcher, error)
        if tokens is None:
            return state, AllowedRow(row, is_exact=False)
        return tuple(tokens), AllowedRow(row, is_exact=True)

    def _row(self, key: _RowKey) -> AllowedRow:
        known = self._rows.get(key)
        if known is None:
            if len(self._rows) >= self._most_rows:
                self._drop_row()
            if isinstance(key, int):
                known = AllowedRow(self.mask(key), is_exact=False)
            else:
                row: MaskWords = np.empty(self._width, dtype=np.int32)
                self._native.write_tokens(key, row)
                known = AllowedRow(row, is_exact=True)
            self._rows[key] = known
        return known

    def _drop_row(self) -> None:
        """Drop the oldest row, so that the next one takes its memory."""
        try:
            self._rows.pop(next(iter(self._rows)), None)
        except (RuntimeError, StopIteration):  # another thread has changed them
            self._rows.clear()

    def _allowed_within(self, matcher: Matcher, state: CanonicalState, budget: int) -> AllowedRow:
        mask = self.mask(state)
        rows = empty_masks(self._size)
        matcher.fill_mask(rows)
        both = rows[0] & mask
        filled = both[both != 0]
        if len(filled) > _MAX_TESTED or int.from_bytes(filled.tobytes(), "little").bit_count() > _MAX_TESTED:
            return AllowedRow(mask, is_exact=False)
        tokens = allowed_ids(both, self._size).tolist()
        wrong = [each for each in tokens if not self.follows(matcher, state, each, budget)]
        return AllowedRow(without(both, wrong), is_exact=True)

    def follows(self, matcher: Matcher, state: CanonicalState, token: int, budget: int | None = None) -> bool:
        """Whether ``can_complete`` after one more token; False where the grammar refuses it."""
        if budget is None:
            try:
                return self._native.follows(matcher, state, token, matcher.constraint.limits.steps)
            except _native.SearchLimit as error:
                _raise_limit(matcher, error)
        after = self.after(state, token)
        if after is None or not matcher.accept(token):
            return False
        try:
            return matcher.is_terminated or (budget > 0 and self.can_complete(matcher, after, budget - 1))
        finally:
            matcher.rollback(1)

    def can_complete(self, matcher: Matcher, state: CanonicalState, budget: int | None = None) -> bool:
        """Whether some canonical sequence of the grammar begins with the tokens so far.

        Args:
            matcher: after the tokens so far, and so again when it returns.
            state: after the tokens so far.
            budget: how many tokens are left, EOS not counted; None is no limit.

        Raises:
            LimitExceeded: the search takes more than ``Limits.steps``.
        """
        if budget is not None:
            return CompletionSearch(self, matcher, budget).succeeds(state)
        try:
            return self._native.completes(matcher, state, matcher.constraint.limits.steps)
        except _native.SearchLimit as error:
            _raise_limit(matcher, error)

    def free_starts(self, state: CanonicalState, live: bytes) -> Iterator[tuple[int, int]]:
        """Return those of ``live`` before which the tokenizer always splits, each with its token."""
        free = self._answers.free_bytes(state)
        return ((byte, self._single[byte]) for byte in live if byte in free and byte in self._single)

    def tokens_of(self, data: bytes) -> list[int] | None:
        """Return the canonical tokens of a text; None if it is no text."""
        if data not in self._spelled:
            if len(self._spelled) >= _MAX_SPELLED:
                self._spelled.clear()
            self._spelled[data] = self._tokens_of(data)
        return self._spelled[data]

    def _tokens_of(self, data: bytes) -> list[int] | None:
        try:
            return self._vocabulary_tokenize(data.decode())
        except (UnicodeDecodeError, VocabularyError):
            return None

    def longest_first(self, mask: MaskWords) -> Iterator[int]:
        """Return the tokens of a mask without EOS, those with most bytes first."""
        words = mask.view(np.uint32)
        filled = np.flatnonzero(words)
        if len(filled) <= _FEW_WORDS:
            at, bit = np.nonzero(np.unpackbits(words[filled].view(np.uint8), bitorder="little").reshape(-1, 32))
            ranks = np.sort(self._rank[filled[at] * 32 + bit])
            yield from self._by_length[ranks[ranks >= 0]].tolist()
            return
        for start in range(0, len(self._by_length), _CHUNK):  # most often the first ones do
            tokens = self._by_length[start : start + _CHUNK]
            yield from tokens[(words[tokens >> 5] >> (tokens & 31) & 1) != 0].tolist()


def _raise_limit(matcher: Matcher, error: _native.SearchLimit) -> NoReturn:
    raise search_limit(matcher.constraint.limits.steps, int(str(error))) from None


def _weak_tokens_of(canonical: CanonicalTokens) -> Callable[[bytes], list[int] | None]:
    """Its ``tokens_of`` by a weak reference: the garbage collector finds no cycle through native objects."""
    method = WeakMethod(canonical.tokens_of)

    def tokens_of(data: bytes) -> list[int] | None:
        found = method()
        return None if found is None else found(data)

    return tokens_of
