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
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.engine.mask import MaskWords, allowed_ids, empty_masks, pack, without
from structgen.engine.tokenizers.encoding import read_encoding_of
from structgen.engine.tokenizers.pretokens import START, Place
from structgen.engine.tokenizers.text_rules import TextRule
from structgen.errors import LimitExceeded, VocabularyError
from structgen.grammar.limits import PYTHON_STEP
from structgen.memory_cache import TERMS, ContentCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from structgen.engine.matcher import Matcher
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["AllowedRow", "CanonicalState", "CanonicalTokens", "canonical_tokens"]

_NO_TOKEN: Final = -1
_STEPS_PER_TRY: Final = 16 * PYTHON_STEP
_ENTRY_BYTES: Final = 256
_MAX_STATES: Final = 1 << 14
_MOST_TESTED: Final = 64
_MOST_WITNESSES: Final = 8


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


class AllowedRow(NamedTuple):
    """A mask of tokens that may follow.

    Attributes:
        row: the mask, ``[ceil(V / 32)]``.
        is_exact: whether it has no other tokens.
    """

    row: MaskWords
    is_exact: bool


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
        self._masks: ContentCache[tuple[MaskWords, MaskWords]] = ContentCache(TERMS)
        self._rule_masks: ContentCache[MaskWords] = ContentCache(TERMS)
        self._allowed: ContentCache[AllowedRow] = ContentCache(TERMS)
        self._states: dict[tuple[Place, int, tuple[Hashable, ...]], CanonicalState] = {}
        self._after: dict[tuple[CanonicalState, int], CanonicalState | None] = {}
        self._followed: dict[tuple[int, CanonicalState, int], bool] = {}
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
            for token in () if self._added is None else self._added.added:
                if self._may_stop(state, token):
                    row.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))
        return row

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

    def allowed(self, matcher: Matcher, state: CanonicalState, budget: int | None = None) -> AllowedRow:
        """Return a mask of the tokens after which some canonical sequence of the grammar goes on.

        It has no others where at most 64 tokens are left; otherwise it may have some, and ``follows`` decides.
        Arguments and errors are those of ``can_complete``.
        """
        grammar_state = None if budget is not None else matcher.mask_id
        if grammar_state is None:
            return self._allowed_row(matcher, state, budget)
        key = grammar_state, state
        known = self._allowed.get(key)
        if known is None:
            known = self._allowed_row(matcher, state, None)
            self._allowed.put(key, known, known.row.nbytes + _ENTRY_BYTES)
        return known

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
        grammar_state = None if budget is not None else matcher.mask_id
        if grammar_state is None:
            return self._can_follow(matcher, state, token, budget)
        key = grammar_state, state, token
        known = self._followed.get(key)
        if known is None:
            if len(self._followed) >= _MAX_STATES:
                self._followed.clear()
            known = self._followed[key] = self._can_follow(matcher, state, token, None)
        return known

    def _can_follow(self, matcher: Matcher, state: CanonicalState, token: int, budget: int | None) -> bool:
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
        return _Search(self, matcher, budget).succeeds(state)

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
        try:
            text = data.decode()
        except UnicodeDecodeError:
            return None
        try:
            return self._vocabulary_tokenize(text)
        except VocabularyError:
            return None

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
        matcher, canonical = self._matcher, self._canonical
        if matcher.is_accepting and canonical.may_end(state):
            return True
        left = self._left()
        if left == 0:
            return False
        if canonical.has_rules and self._has_witness(state, b"", left):
            return True
        is_enough = left is None and not canonical.has_rules
        firsts = canonical.begins_anew(state, matcher.live_bytes())
        return any(
            matcher.validate([token]) == 1 and (is_enough or self._has_witness(state, bytes([byte]), left))
            for byte, token in (islice(firsts, _MOST_WITNESSES) if canonical.has_rules else firsts)
        )

    def _has_witness(self, state: CanonicalState, begin: bytes, left: int | None) -> bool:
        """Whether the canonical tokens of the shortest text that begins so complete the text, and fit."""
        self._spend()
        probe = self._matcher.fork()
        if probe.accept_bytes(begin) != len(begin):
            return False
        rest = probe.shortest_completion()
        if any(symbol < 0 for symbol in rest):  # a special token
            return False
        tokens = self._canonical.tokens_of(begin + bytes(rest))
        if tokens is None or (left is not None and len(tokens) > left):
            return False
        if not self._canonical.has_rules:
            return True
        end = self._canonical.after_all(tokens, state)
        return end is not None and self._canonical.may_end(end)

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
