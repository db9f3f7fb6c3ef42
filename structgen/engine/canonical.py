"""Canonical tokens: only token sequences that the tokenizer itself writes for their text.

A token sequence is canonical iff ``encode(decode(tokens)) == tokens``.  Automata decide this from left to right: one
over the splits of the text before byte pairs are merged (``tokenizers/pretokens.py``), one over pairs of tokens within
a piece (``tokenizers/merges.py``), and the rules that some tokenizers have besides (``tokenizers/text_rules.py``).  A
special token ends a text, and another begins after it; so does an added token that is text.

Whether a prefix can be completed depends on the grammar too.  ``CanonicalTokens.can_complete`` decides it by a search
over pairs of a grammar's state and a state of these automata, and nearly always by its first look: where the text may
end, or where a byte may follow at which the tokenizer begins anew, or by the tokens of a shortest completion.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Final, NamedTuple, final
from weakref import ref

import numpy as np

from structgen.engine.completion_search import CompletionSearch
from structgen.engine.mask import MaskWords, allowed_ids, contains, empty_masks, pack, without
from structgen.engine.tokenizers.encoding import read_encoding_of
from structgen.engine.tokenizers.pretokens import START, Place
from structgen.engine.tokenizers.text_rules import AddedContents, TextRule
from structgen.errors import VocabularyError
from structgen.memory_cache import TERMS, ContentCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from structgen.engine.matcher import Matcher
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["AllowedRow", "CanonicalState", "CanonicalTokens", "Known", "canonical_tokens"]

_NO_TOKEN: Final = -1
_ENTRY_BYTES: Final = 256
_MAX_STATES: Final = 1 << 14
_MAX_AFTER: Final = 256
_MAX_SPELLED: Final = 256
_LOOKED_AT: Final = 2_048
_FEW_WORDS: Final = 256
_MOST_TESTED: Final = 64


@final
class CanonicalState:
    """What decides which tokens may follow; one object for equal states, so that it is quick to look up.

    Attributes:
        place: the place among the splits.
        last: the last token of the text; -1 where it begins.
        rules: the states of the rules.
    """

    __slots__ = ("last", "place", "rules")

    def __init__(self, place: Place, last: int, rules: tuple[Hashable, ...]) -> None:
        self.place = place
        self.last = last
        self.rules = rules


@final
class Known:
    """What was found out about a state of a grammar with a state of these tokens, once for all outputs that reach it.

    Attributes:
        state: the latter.
        allowed: the mask of the tokens that may follow; None before it is asked for.
        plenty: a number of tokens that need no heed of the budget; None if none is known.
    """

    __slots__ = ("__weakref__", "after", "allowed", "plenty", "state")

    def __init__(self, state: CanonicalState) -> None:
        self.state = state
        self.allowed: AllowedRow | None = None
        self.plenty: int | None = None
        self.after: dict[int, ref[Known] | None] = {}  # by token; None: it must not follow


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
        vocabulary: its tokenizer is BPE, from a tokenizer.json, a tekken.json or a byte-level GGUF file.

    Attributes:
        start: the state before the first token.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        encoding = read_encoding_of(vocabulary.encoder, vocabulary.tokens)
        self._pretokens, self._merges, self._rules = encoding.pretokens, encoding.merges, encoding.rules
        self._added = encoding.added
        self._tokens, self._vocabulary_tokenize = vocabulary.tokens, vocabulary.tokenize
        self._size = vocabulary.size
        reachable = np.flatnonzero(self._merges.reachable).tolist()
        self._single = {self._tokens[token][0]: token for token in reachable if len(self._tokens[token]) == 1}
        self._ends = frozenset(vocabulary.special) | frozenset(() if self._added is None else self._added.added)
        special = np.zeros(self._size, dtype=np.bool_)
        special[list(vocabulary.special)] = True
        self._special_mask = pack(special)
        lengths = np.array([len(data) for data in self._tokens], dtype=np.int32)
        by_length = np.argsort(-lengths, kind="stable")
        self._by_length = by_length[~np.isin(by_length, vocabulary.eos)]
        self._rank = np.full(self._size, -1, dtype=np.int64)
        self._rank[self._by_length] = np.arange(len(self._by_length))
        self._masks: ContentCache[tuple[MaskWords, MaskWords]] = ContentCache(TERMS)
        self._rule_masks: ContentCache[MaskWords] = ContentCache(TERMS)
        self._known: ContentCache[Known] = ContentCache(TERMS)
        self._states: dict[tuple[Place, int, tuple[Hashable, ...]], CanonicalState] = {}
        self._after: dict[tuple[CanonicalState, int], CanonicalState | None] = {}
        self._spelled: dict[bytes, list[int] | None] = {}
        self.start: Final = CanonicalState(START, _NO_TOKEN, tuple(rule.start for rule in self._rules))

    def after(self, state: CanonicalState, token: int) -> CanonicalState | None:
        """Return the state after a token; None if it cannot follow in any canonical sequence, whatever comes later."""
        key = state, token
        if key in self._after:
            return self._after[key]
        if len(self._after) >= _MAX_STATES:
            self._after.clear()
        found = self._after[key] = self._state_after(state, token)
        return found

    def _state_after(self, state: CanonicalState, token: int) -> CanonicalState | None:
        if token in self._ends:
            return self.start if self._may_stop(state, token) else None
        if not self._merges.reachable[token]:
            return None
        joins = state.last != _NO_TOKEN and not self._merges.conflict(state.last, token)
        place = self._pretokens.after(state.place, token, joins=joins)
        if place is None:
            return None
        rules: list[Hashable] = []
        for rule, before in zip(self._rules, state.rules, strict=True):
            after = rule.after(before, token)
            if after is None:
                return None
            rules.append(after)
        content = place, token, tuple(rules)
        if len(self._states) >= _MAX_STATES:
            self._states.clear()
        return self._states.setdefault(content, CanonicalState(*content))

    def _may_stop(self, state: CanonicalState, token: int) -> bool:
        """Whether a token that ends the text may follow."""
        if not self.may_end(state):
            return False
        added = self._added
        if added is None or token not in added.added:
            return True
        before = state.rules[0]  # of the added tokens: see ``Encoding``
        return isinstance(before, bytes) and added.admits(before, token)

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
        return self._pretokens.ends(state.place)

    def is_canonical(self, tokens: Iterable[int]) -> bool:
        """Whether a token sequence is what the tokenizer writes for its text; special tokens stand between texts."""
        state = self.after_all(tokens)
        return state is not None and self.may_end(state)

    def mask(self, state: CanonicalState) -> MaskWords:
        """Return the mask of the tokens for which ``after`` has a state, EOS and special tokens included.

        Complexity: at steady state a few operations on a mask row, O(V / 32).
        """
        splitting, going_on = self._rows(state.place)
        row: MaskWords = splitting.copy()
        if state.last != _NO_TOKEN:
            row |= going_on & self._merges.row(state.last)
        for rule, before in zip(self._rules, state.rules, strict=True):
            row &= self._rule_row(rule, before)
        if self.may_end(state):
            row |= self._special_mask
            if self._added is not None:
                row |= self._added_row(self._added, state)
        return row

    def _added_row(self, added: AddedContents, state: CanonicalState) -> MaskWords:
        """The mask of the added tokens that may follow where the text may end."""
        key = added, state.rules[0]
        known = self._rule_masks.get(key)
        if known is None:
            admitted = np.zeros(self._size, dtype=np.bool_)
            admitted[[token for token in added.added if self._may_stop(state, token)]] = True
            known = pack(admitted)
            self._rule_masks.put(key, known, known.nbytes + _ENTRY_BYTES)
        return known

    def _rows(self, place: Place) -> tuple[MaskWords, MaskWords]:
        known = self._masks.get(place)
        if known is None:
            reachable = self._merges.reachable
            splitting = pack(self._pretokens.alive(place, splits=True) & reachable)
            going_on = pack(self._pretokens.alive(place, splits=False) & reachable)
            known = splitting, going_on
            self._masks.put(place, known, 2 * splitting.nbytes + _ENTRY_BYTES)
        return known

    def _rule_row(self, rule: TextRule, state: Hashable) -> MaskWords:
        key = self._rules.index(rule), state
        known = self._rule_masks.get(key)
        if known is None:
            known = pack(rule.alive(state))
            self._rule_masks.put(key, known, known.nbytes + _ENTRY_BYTES)
        return known

    def known(self, matcher: Matcher, state: CanonicalState) -> Known | None:
        """Return what is known of a state, without a budget; None if values of earlier text matter."""
        grammar_state = matcher.mask_id
        if grammar_state is None:
            return None
        key = grammar_state, state
        known = self._known.get(key)
        if known is None:
            known = Known(state)
            self._known.put(key, known, self._special_mask.nbytes + _ENTRY_BYTES)
        return known

    def next_known(self, before: Known, token: int, matcher: Callable[[], Matcher]) -> Known | None:
        """Return what is known after one more token; None if ``follows`` is false, or nothing is known then.

        Args:
            before: before the token.
            token: it.
            matcher: makes a Matcher before the token, where it is needed.

        Raises:
            LimitExceeded: as ``can_complete``.
        """
        link = before.after.get(token, _UNKNOWN)
        after = None if link is None else link()
        if after is not None or link is None:
            return after
        ours, row = matcher(), before.allowed
        if contains(row.row, token) if row is not None and row.is_exact else self.follows(ours, before.state, token):
            state = self.after(before.state, token)
            ours = ours.fork()
            if state is not None and ours.accept(token):
                after = self.known(ours, state)
        if len(before.after) >= _MAX_AFTER:
            before.after.clear()
        before.after[token] = None if after is None else ref(after)
        return after

    def allowed(self, matcher: Matcher, state: CanonicalState, budget: int | None = None) -> AllowedRow:
        """Return a mask of the tokens after which some canonical sequence of the grammar goes on.

        It has no others where at most 64 tokens are left; otherwise it may have some, and ``follows`` decides.
        Arguments and errors are those of ``can_complete``.
        """
        known = None if budget is not None else self.known(matcher, state)
        if known is None:
            return self._allowed_row(matcher, state, budget)
        if known.allowed is None:
            known.allowed = self._allowed_row(matcher, state, None)
        return known.allowed

    def _allowed_row(self, matcher: Matcher, state: CanonicalState, budget: int | None) -> AllowedRow:
        mask = self.mask(state)
        rows = empty_masks(self._size)
        matcher.fill_mask(rows)
        both = rows[0] & mask
        filled = both[both != 0]
        if len(filled) > _MOST_TESTED or int.from_bytes(filled.tobytes(), "little").bit_count() > _MOST_TESTED:
            return AllowedRow(mask, is_exact=False)
        tokens = allowed_ids(both, self._size).tolist()
        wrong = [each for each in tokens if not self.follows(matcher, state, each, budget)]
        return AllowedRow(without(both, wrong), is_exact=True)

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

    def can_complete(self, matcher: Matcher, state: CanonicalState, budget: int | None = None) -> bool:
        """Whether some canonical sequence of the grammar begins with the tokens so far.

        Args:
            matcher: after the tokens so far, and so again when it returns.
            state: after the tokens so far.
            budget: how many tokens are left, EOS not counted; None is no limit.

        Raises:
            LimitExceeded: the search takes more than ``Limits.steps``.
        """
        return CompletionSearch(self, matcher, budget).succeeds(state)

    def begins_anew(self, state: CanonicalState, live: bytes) -> Iterator[tuple[int, int]]:
        """Return those of ``live`` before which the tokenizer begins anew whatever follows, each with its token."""
        free = self._pretokens.free_bytes(state.place)
        return ((byte, self._single[byte]) for byte in live if byte in free and byte in self._single)

    @property
    def has_rules(self) -> bool:
        """Whether canonical tokens must obey more than splits and merges, so that not every text has some."""
        return bool(self._rules)

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
        for start in range(0, len(self._by_length), _LOOKED_AT):  # most often the first ones do
            tokens = self._by_length[start : start + _LOOKED_AT]
            yield from tokens[(words[tokens >> 5] >> (tokens & 31) & 1) != 0].tolist()
