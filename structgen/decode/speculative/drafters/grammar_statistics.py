"""Drafts from the grammar: ``ForcedTokens`` where it allows few tokens, ``GrammarStatistics`` by state counts."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, final
from weakref import WeakKeyDictionary

import numpy as np

from structgen.cache import Locked
from structgen.decode.speculative.acceptance import Calibration, DraftCandidate, FollowingDrafting
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.engine.mask import empty_masks

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.engine import Constraint, Matcher

__all__ = ["ForcedTokens", "GrammarStatistics", "StateCounts", "few_allowed"]

_MAX_PIECES: Final = 64
"""The largest number of allowed tokens, prefixes of others included, that is examined."""


@final
@dataclass(frozen=True, slots=True)
class ForcedTokens(Drafter):
    """All allowed tokens where they are few: enumerations, booleans, keys, punctuation, and the text forced after them.

    It drafts choices, unlike its name: text that is forced already needs no drafter.

    Prefixes of other allowed tokens are left out: of ``t``, ``tr`` and ``true`` only the last is drafted.  The
    probability of each token is measured for each set of choices.

    Attributes:
        most: the largest number of choices that are all drafted.
        calibration: estimates the confidences; outputs that share it learn from each other.

    Raises:
        ValueError: ``most`` is less than 1.
    """

    most: int = 8
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"ForcedTokens: most must be at least 1; found {self.most!r}")

    name = "forced tokens"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _ForcedDrafting(self, context, task)


@final
class _ForcedDrafting(FollowingDrafting):
    def __init__(self, settings: ForcedTokens, context: Context, task: DraftTask) -> None:
        super().__init__(context, task, settings.calibration)
        self._most = settings.most
        self._vocabulary = task.constraint.vocabulary
        self._row: NDArray[np.int32] = empty_masks(self._vocabulary)

    def drafts(self, state: DraftState) -> Iterable[DraftCandidate]:
        """See ``FollowingDrafting.drafts``."""
        return self._choices(state.matcher, state.mask)

    def _choices(self, matcher: Matcher, mask: NDArray[np.int32]) -> Iterator[DraftCandidate]:
        longest = _longest(few_allowed(mask, self._vocabulary.eos, _MAX_PIECES), self._vocabulary.tokens)
        if not longest or len(longest) > self._most:
            return
        among = tuple(longest)
        prior = 0.97 if len(longest) == 1 else 0.95 / len(longest)
        for token in longest:
            then = partial(self._after, matcher, [token])
            yield DraftCandidate(token, ("allowed", among, token), prior, then)

    def _after(self, matcher: Matcher, tokens: list[int]) -> Iterator[DraftCandidate]:
        probe = matcher.fork()
        if not all(probe.accept(token) for token in tokens):
            return
        forced = probe.forced_tokens()
        if forced:
            yield self._forced(probe, forced, 0)
        else:
            probe.fill_mask(self._row)
            yield from self._choices(probe, self._row[0])

    def _forced(self, matcher: Matcher, tokens: list[int], index: int) -> DraftCandidate:
        """The candidate for the token at ``index``; ``matcher`` is the state before the first."""

        def after() -> Iterable[DraftCandidate]:
            if index + 1 < len(tokens):
                return (self._forced(matcher, tokens, index + 1),)
            return self._after(matcher, tokens)

        return DraftCandidate(tokens[index], "forced", 0.99, after)


def few_allowed(mask: NDArray[np.int32], eos: Iterable[int], most: int) -> list[int]:
    """Return the ids that a mask ``[ceil(V / 32)]`` allows, EOS left out; none if there are more than ``most``."""
    words = np.flatnonzero(mask)
    if len(words) > most:
        return []
    stops = set(eos)
    ids: list[int] = []
    for word, bits in zip(words.tolist(), mask[words].view(np.uint32).tolist(), strict=True):
        left = bits
        while left:
            token = 32 * word + (left & -left).bit_length() - 1
            left &= left - 1
            if token not in stops:
                ids.append(token)
        if len(ids) > most:
            return []
    return ids


def _longest(ids: list[int], tokens: tuple[bytes, ...]) -> list[int]:
    """The ``ids`` whose bytes are not a prefix of the bytes of another, in order; of equal bytes the lowest id."""
    ordered = sorted(ids, key=lambda token: (tokens[token], -token))
    begins = [tokens[after].startswith(tokens[token]) for token, after in pairwise(ordered)]
    return sorted(token for token, is_shorter in zip(ordered, [*begins, False], strict=False) if not is_shorter)


_MAX_STATES: Final = 1 << 14
_MAX_SUCCESSORS: Final = 16
_STATE_BYTES: Final = 512


@final
class StateCounts(Locked):
    """Counts of tokens for each engine and state; threads may share one.

    The engine of a vocabulary numbers states alike for constraints of equal grammars, so a grammar that is compiled
    again continues with the same counts.  A state keeps its 16 most frequent tokens.  Beyond ``max_states``, the least
    recently used states are dropped.  Counts live as long as their engine.

    Args:
        max_states: the largest number of states of each engine, each with up to 32 counts.

    Raises:
        ValueError: ``max_states`` is less than 1.
    """

    def __init__(self, *, max_states: int = _MAX_STATES) -> None:
        if max_states < 1:
            raise ValueError(f"StateCounts: max_states must be at least 1; found {max_states!r}")
        self._max_states = max_states
        self._counts: WeakKeyDictionary[object, OrderedDict[Hashable, dict[int, int]]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Counts stay with their engine: a copy or a pickle has none."""
        return {"_max_states": self._max_states}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._max_states = state["_max_states"]
        self._counts = WeakKeyDictionary()
        self._lock = threading.Lock()

    def states(self, constraint: Constraint) -> int:
        """Return the number of states with counts for the engine of a constraint."""
        with self._lock:
            return len(self._counts.get(constraint.engine, ()))

    def __len__(self) -> int:
        """The number of keys of states, of all engines."""
        with self._lock:
            return sum(map(len, self._counts.values()))

    @property
    def nbytes(self) -> int:
        """About the bytes of all counts: most states have few."""
        return _STATE_BYTES * len(self)

    def add(self, constraint: Constraint, states: Iterable[Hashable], token: int) -> None:
        """Count a token in a state, under several keys from precise to coarse."""
        with self._lock:
            by_state = self._counts.setdefault(constraint.engine, OrderedDict())
            for state in states:
                counts = by_state.setdefault(state, {})
                counts[token] = counts.get(token, 0) + 1
                if len(counts) > 2 * _MAX_SUCCESSORS:
                    for rare in sorted(counts, key=counts.__getitem__)[:_MAX_SUCCESSORS]:
                        del counts[rare]
                by_state.move_to_end(state)
            while len(by_state) > self._max_states:
                by_state.popitem(last=False)

    def after(
        self, constraint: Constraint, states: Iterable[Hashable], count: int
    ) -> tuple[int, int, list[tuple[int, int]]]:
        """Return the most frequent tokens of a state.

        Args:
            constraint: the constraint.
            states: the keys of the state, from precise to coarse; the first with counts is used.
            count: the largest number of tokens.

        Returns:
            The index of that key (the number of keys if there is none), the count of the state, and its tokens with
            their counts, the most frequent first.
        """
        level = 0
        with self._lock:
            by_state = self._counts.get(constraint.engine)
            for state in states:
                counts = by_state.get(state) if by_state is not None else None
                if counts:
                    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:count]
                    return level, sum(counts.values()), best
                level += 1
        return level, 0, []


@final
@dataclass(frozen=True, slots=True)
class GrammarStatistics(Drafter):
    """Drafts the most frequent tokens of each grammar state, in this output and in earlier ones.

    A key is the state of the automaton with the last two tokens, with the last one, or alone: the first that has
    counts. ``Matcher.state_id`` numbers states alike for all outputs of equal grammars on a vocabulary, as long as they
    share an engine and the engine drops no states.

    Source: L. Beurer-Kellner et al., "Guiding LLMs The Right Way: Fast, Non-Invasive Constrained Generation" (ICML
    2024, arXiv 2403.06988), which counts by the states of parser and scanner.

    Attributes:
        counts: the counts; outputs and drafters may share them.
        most: the largest number of tokens that are drafted in a state.
        calibration: estimates the confidences; outputs that share it learn from each other.

    Raises:
        ValueError: ``most`` is less than 1.
    """

    counts: StateCounts = field(default_factory=StateCounts, repr=False)
    most: int = 4
    calibration: Calibration = field(default_factory=Calibration, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"GrammarStatistics: most must be at least 1; found {self.most!r}")

    name = "grammar statistics"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _CountDrafting(self, context, task)


@final
class _CountDrafting(FollowingDrafting):
    def __init__(self, settings: GrammarStatistics, context: Context, task: DraftTask) -> None:
        super().__init__(context, task, settings.calibration)
        self._settings = settings
        self._matcher = task.constraint.matcher()
        self._read = 0  # tokens of the output that the matcher accepted

    def appended(self, tokens: Sequence[int]) -> None:
        """See ``FollowingDrafting.appended``."""
        for token in self.output[self._read :]:
            keys = _state_keys(self._matcher, *_last_two(self.output[max(self._read - 2, 0) : self._read]))
            if not self._matcher.accept(token):
                break
            self._settings.counts.add(self._task.constraint, keys, token)
            self._read += 1

    def truncated(self, length: int) -> None:
        """See ``FollowingDrafting.truncated``."""
        left = min(max(length - self._task.prompt_tokens, 0), self._read)
        self._matcher.rollback(self._read - left)
        self._read = left

    def drafts(self, state: DraftState) -> Iterator[DraftCandidate]:
        """See ``FollowingDrafting.drafts``."""
        return self._frequent(state.matcher, *_last_two(self.output))

    def _frequent(self, matcher: Matcher, first: int, second: int) -> Iterator[DraftCandidate]:
        settings = self._settings
        level, total, tokens = settings.counts.after(
            self._task.constraint, _state_keys(matcher, first, second), settings.most
        )
        for token, count in tokens:
            share = count / (total + 1)
            yield DraftCandidate(
                token,
                ("state", level, round(8 * share), min(total, 4)),
                max(min(share, 0.97), 0.01),
                lambda token=token: self._after(matcher, second, token),  # type: ignore[misc]
            )

    def _after(self, matcher: Matcher, second: int, token: int) -> Iterator[DraftCandidate]:
        probe = matcher.fork()
        if probe.accept(token):
            yield from self._frequent(probe, second, token)


def _last_two(output: Sequence[int]) -> tuple[int, int]:
    return (output[-2] if len(output) > 1 else -1, output[-1] if output else -1)


def _state_keys(matcher: Matcher, first: int, second: int) -> tuple[Hashable, ...]:
    """The keys of the state of a matcher after two tokens, from precise to coarse."""
    state = matcher.state_id
    return (state, first, second), (state, second), state
