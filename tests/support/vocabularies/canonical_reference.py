"""Canonical tokens in plain Python: the reference implementation of ``kernels/native/canonical``.

Pairs of tokens are tested on the edges of their merge trees, texts are split token by token, and each state of a
grammar is searched anew.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Final, NamedTuple
from unittest.mock import patch

import numpy as np

from structgen.engine import Vocabulary
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.engine.matcher import Matcher
from structgen.engine.tokenizers import encoding as encoding_module
from structgen.engine.tokenizers.pretokens import START, Place
from structgen.errors import VocabularyError

__all__ = ["ReferenceCanonical", "ReferenceMerges", "ReferenceState"]

_NEVER: Final = np.iinfo(np.int32).max
_MAX_WITNESSES: Final = 8


class ReferenceMerges:
    """The merges: the parts at the edges of each token, each with the rank of the merge that takes it up."""

    def __init__(
        self, tokens: Sequence[bytes], merges: Sequence[tuple[int, int, int]], units: Collection[int] | None = None
    ) -> None:
        if units is None:
            made = {whole for _, _, whole in merges}
            units = [token for token, data in enumerate(tokens) if len(data) == 1 and token not in made]
        self._rank: dict[tuple[int, int], int] = {}
        self._right = {token: ((token, _NEVER),) for token in units}
        self._left = dict(self._right)
        for rank, (left, right, whole) in enumerate(merges):
            if whole in self._left or left not in self._left or right not in self._left:
                continue
            if not self.conflict(left, right, rank):
                self._rank[left, right] = rank
                self._right[whole] = ((whole, _NEVER), (right, rank), *self._right[right][1:])
                self._left[whole] = ((whole, _NEVER), (left, rank), *self._left[left][1:])
        self.reachable = np.zeros(len(tokens), dtype=np.bool_)
        self.reachable[list(self._left)] = True

    def conflict(self, left: int, right: int, before: int = _NEVER) -> bool:
        """Whether a merge of a rank below ``before`` crosses the border of two reachable tokens."""
        for one, one_taken in self._right[left]:
            for other, other_taken in self._left[right]:
                crossing = self._rank.get((one, other))
                if crossing is not None and crossing < before and crossing < one_taken and crossing <= other_taken:
                    return True
        return False


class ReferenceState(NamedTuple):
    """A place among the splits, the last token of the text (-1 where it begins), and the states of the rules."""

    place: Place
    last: int
    rules: tuple[Hashable, ...]


class ReferenceCanonical:
    """Which tokens the tokenizer of a vocabulary writes after which, and which of them a grammar can complete."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        with patch.object(encoding_module, "Merges", ReferenceMerges):
            encoding = encoding_module.read_encoding_of(vocabulary.encoder, vocabulary.tokens)
        self._vocabulary = vocabulary
        self._pretokens, self._rules, self._added = encoding.pretokens, encoding.rules, encoding.added
        self._merges: ReferenceMerges = encoding.merges  # type: ignore[assignment]
        self._ends = {*vocabulary.special, *(() if self._added is None else self._added.added)}
        written = [vocabulary.tokens[token] for token in np.flatnonzero(self._merges.reachable).tolist()]
        self._single = {data[0]: vocabulary.tokens.index(data) for data in written if len(data) == 1}
        self.start = ReferenceState(START, -1, tuple(rule.start for rule in self._rules))

    def after(self, state: ReferenceState, token: int) -> ReferenceState | None:
        """The state after a token; None if it cannot follow, whatever comes later."""
        if token in self._ends:
            return self.start if self._may_stop(state, token) else None
        if not self._merges.reachable[token]:
            return None
        joins = state.last != -1 and not self._merges.conflict(state.last, token)
        place = self._pretokens.after(state.place, token, joins=joins)
        rules = tuple(rule.after(before, token) for rule, before in zip(self._rules, state.rules, strict=True))
        return None if place is None or None in rules else ReferenceState(place, token, rules)

    def _may_stop(self, state: ReferenceState, token: int) -> bool:
        if not self.may_end(state):
            return False
        if self._added is None or token not in self._added.added:
            return True
        before = state.rules[0]
        return isinstance(before, bytes) and self._added.admits(before, token)

    def may_end(self, state: ReferenceState) -> bool:
        """Whether the tokens so far are canonical as they are."""
        return self._pretokens.ends(state.place)

    def allowed(self, matcher: Matcher, state: ReferenceState) -> list[int]:
        """The tokens after which some canonical sequence of the grammar goes on."""
        return [token for token in grammar_tokens(matcher) if self.follows(matcher, state, token)]

    def follows(self, matcher: Matcher, state: ReferenceState, token: int) -> bool:
        """Whether some canonical sequence of the grammar goes on after one more token."""
        after, probe = self.after(state, token), matcher.fork()
        if after is None or not probe.accept(token):
            return False
        return probe.is_terminated or self.can_complete(probe, after)

    def can_complete(self, matcher: Matcher, state: ReferenceState) -> bool:
        """Whether some canonical sequence of the grammar begins with the tokens so far: a depth-first search."""
        if self._is_certain(matcher, state):
            return True
        seen: set[tuple[int, ReferenceState]] = set()
        way = [(matcher, state, self._candidates(matcher))]
        while way:
            before, here, tokens = way[-1]
            token = next(tokens, None)
            if token is None:
                way.pop()
                continue
            after, probe = self.after(here, token), before.fork()
            if after is None or not probe.accept(token):
                continue
            if probe.mask_id is not None:
                if (probe.state_id, after) in seen:
                    continue
                seen.add((probe.state_id, after))
            if self._is_certain(probe, after):
                return True
            way.append((probe, after, self._candidates(probe)))
        return False

    def _candidates(self, matcher: Matcher) -> Iterator[int]:
        tokens, eos = self._vocabulary.tokens, self._vocabulary.eos
        return iter(sorted(set(grammar_tokens(matcher)) - {*eos}, key=lambda token: (-len(tokens[token]), token)))

    def _is_certain(self, matcher: Matcher, state: ReferenceState) -> bool:
        if matcher.is_accepting and self.may_end(state):
            return True
        if self._rules and self._has_witness(matcher, state, b""):
            return True
        free = self._pretokens.free_bytes(state.place)
        firsts = [byte for byte in matcher.live_bytes() if byte in free and byte in self._single]
        return any(
            matcher.validate([self._single[byte]]) == 1
            and (not self._rules or self._has_witness(matcher, state, bytes([byte])))
            for byte in (firsts[:_MAX_WITNESSES] if self._rules else firsts)
        )

    def _has_witness(self, matcher: Matcher, state: ReferenceState, begin: bytes) -> bool:
        """Whether the canonical tokens of the shortest text that begins so complete the text."""
        probe = matcher.fork()
        if probe.accept_bytes(begin) != len(begin):
            return False
        rest = probe.shortest_completion()
        if min(rest, default=0) < 0:
            return False
        try:
            tokens = self._vocabulary.tokenize((begin + bytes(rest)).decode())
        except (UnicodeDecodeError, VocabularyError):
            return False
        end: ReferenceState | None = state
        for token in tokens:
            end = None if end is None else self.after(end, token)
        return end is not None and self.may_end(end)


def grammar_tokens(matcher: Matcher) -> list[int]:
    """The tokens that the grammar allows, EOS included."""
    rows = empty_masks(matcher.constraint.vocabulary)
    matcher.fill_mask(rows)
    return allowed_ids(rows[0], matcher.constraint.vocabulary.size).tolist()
