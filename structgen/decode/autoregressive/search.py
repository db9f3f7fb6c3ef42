"""The most probable way to write a part of the output, in place of what a sampler draws token by token.

Best first: of all prefixes that were found, the most probable one is followed next.  A prefix is never less
probable than what it leads to, so the first complete part that comes up is the most probable of all.

Source: O. Castel, O. Ram, A. Efrat and O. Levy, "How Optimal is Greedy Decoding for Extractive Question Answering?"
(2021), which does it for spans of a passage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.distribution import Projection, log_mass, runners_up
from structgen.decode.step.result import Step
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import GenerationError, LimitExceeded
from structgen.models.protocol import Extension, PackedModel

if TYPE_CHECKING:
    from structgen.decode.autoregressive.loop import Generation
    from structgen.models.protocol import Logits, Session

__all__ = ["FoundRegion", "Region", "most_probable"]

_MAX_PACKED: Final = 4
"""Prefixes that are followed in one forward pass: more would be followed in vain, and each holds a cache."""


class Region(Protocol):
    """A part of the output, from where the output stands.

    Attributes:
        is_rest: whether the part ends with the output, and nowhere before.
    """

    is_rest: bool

    def admits(self, data: bytes) -> bool:
        """Whether the part may begin with ``data``, or lie at the start of it."""

    def end(self, data: bytes) -> int | None:
        """How many bytes of ``data``, which it admits, the part has, if it ends within them."""


@final
@dataclass(frozen=True, slots=True)
class FoundRegion:
    """The most probable part.

    Attributes:
        steps: that write it; the last may write more than that, and may be the stop.
        data: the bytes of the part.
        logprob: the model's log-probability of writing it with these tokens and ending it there, by whatever token:
            that of the tokens before the last, and of all together that end the part as the last does.
        followed: prefixes that were run through the model.
        forwards: forward passes that this took, beside those that the context counts.
        time_model_s: seconds in the model.
    """

    steps: tuple[Step, ...]
    data: bytes
    logprob: float
    followed: int
    forwards: int
    time_model_s: float


def most_probable(
    generation: Generation, region: Region, *, limit: int, excluded: Set[bytes] = frozenset()
) -> FoundRegion | None:
    """Find the most probable way to write a part of the output of ``generation``, which stays where it is.

    All sequences of tokens are compared with which the output can go on, by the constraint and the budget, and that
    write such a part, whatever their spelling.  What counts is the model's own distribution, at temperature 1 and
    without the
    mask: what a mask removes at one step makes no sequence more probable than it is.  A part has one probability for
    all tokens that may end it alike: which of them does is left to the sampler.  Of equally probable ones, the one is
    found whose tokens have the lowest ids, compared in order.

    Args:
        generation: at the place where the part begins.
        region: which part.
        limit: the most prefixes that are run through the model.
        excluded: bytes of parts that are passed over.

    Returns:
        None where everything is passed over or blocked.

    Raises:
        LimitExceeded: more than ``limit`` prefixes are more probable than what was found so far.
        GenerationError: the model gives all of them the probability zero, or the logits are not usable.

    Complexity: a forward pass for every ``_PACKED`` prefixes that are at least as probable as the part that is
        found, and for few others, in one pass where the model is a ``PackedModel``.
    """
    search = _RegionSearch(generation, region, excluded)
    search.expand(_PrefixNode(0.0, (), b"", None), generation.logits())
    with _prefix_sessions(generation) as runners:
        while search.heap and not search.is_complete:
            nodes = search.best(len(runners.sessions))
            search.followed += len(nodes)
            if search.followed > limit:
                raise search.too_far(limit)
            for node, logits in zip(nodes, runners.run([node.tokens for node in nodes]), strict=True):
                search.expand(node, logits)
    return search.result(runners.forwards, runners.time_model_s)


@final
@dataclass(eq=False, slots=True)
class _PrefixNode:
    """A prefix of the part.

    Attributes:
        score: its log-probability under the model.
        tokens: that write it.
        data: their bytes.
        parent: without the last token.
        distribution: of what may follow, once it was expanded.
    """

    score: float
    tokens: tuple[int, ...]
    data: bytes
    parent: _PrefixNode | None
    distribution: Projection | None = None


@final
@dataclass(eq=False, slots=True)
class _CompleteRegion:
    """A part, written with the tokens of ``node`` and one of ``lasts``, indices into what may follow it.

    Without any, it ends where nothing may follow.  ``tokens`` has the first of them.
    """

    score: float
    tokens: tuple[int, ...]
    data: bytes
    node: _PrefixNode
    lasts: list[int]


@final
class _RegionSearch:
    """What was found so far."""

    def __init__(self, generation: Generation, region: Region, excluded: Set[bytes]) -> None:
        # By falling score; of equal ones those first that may still lead to others, then by their tokens.
        self.heap: list[tuple[float, bool, tuple[int, ...], _PrefixNode | _CompleteRegion]] = []
        self.followed = 0
        self._generation = generation
        self._region = region
        self._excluded = excluded
        self._matcher = generation.matcher.fork()
        self._tokens = generation.vocabulary.tokens
        self._eos = frozenset(generation.vocabulary.eos)
        self._mask: NDArray[np.int32] = empty_masks(generation.vocabulary)
        self._least = -math.inf  # the score of the best complete part
        self._is_impossible = False  # whether something was left out that the model never writes

    @property
    def is_complete(self) -> bool:
        """Whether the best of all is a complete part."""
        return self.heap[0][1]

    def best(self, most: int) -> list[_PrefixNode]:
        """Take out the most probable prefixes, up to the best complete part."""
        found: list[_PrefixNode] = []
        while self.heap and len(found) < most and isinstance(node := self.heap[0][3], _PrefixNode):
            heappop(self.heap)
            found.append(node)
        return found

    def expand(self, node: _PrefixNode, logits: Logits) -> None:
        """Find what a prefix leads to."""
        ids, accepts = self._allowed(node.tokens)
        if not len(ids):
            if accepts and self._region.is_rest and not self._eos:
                self._push_complete(node, node.data, [], 0.0)
            return
        log_p = logits[ids].astype(np.float64) - log_mass(logits)
        log_z = log_mass(log_p)
        if log_z == -np.inf:
            self._is_impossible = True
            return
        node.distribution = Projection(ids, log_p - log_z, log_z)
        ends: dict[bytes, list[int]] = {}
        for index, token in enumerate(ids.tolist()):
            if token in self._eos:
                if self._region.is_rest:
                    ends.setdefault(node.data, []).append(index)
                continue
            data = node.data + self._tokens[token]
            if not self._region.admits(data):
                continue
            end = self._region.end(data)
            if end is None:
                self._push(_PrefixNode(node.score + float(log_p[index]), (*node.tokens, token), data, node))
            else:
                ends.setdefault(data[:end], []).append(index)
        for data, lasts in ends.items():
            self._push_complete(node, data, lasts, log_mass(log_p[lasts]))

    def result(self, forwards: int, time_model_s: float) -> FoundRegion | None:
        """The best of all; None if there is none."""
        if not self.heap:
            if self._is_impossible:
                raise GenerationError(
                    "logits",
                    "the model gives probability zero to everything that may stand here",
                    remedy="check for another logits processor before the grammar's mask",
                )
            return None
        best = self.heap[0][3]
        if not isinstance(best, _CompleteRegion):
            raise RuntimeError("the search ended before its end")
        steps = tuple(self._steps(best))
        return FoundRegion(steps, best.data, best.score, self.followed, forwards, time_model_s)

    def too_far(self, limit: int) -> LimitExceeded:
        """The error of a search that is not through in time."""
        return LimitExceeded(
            "the most probable quotation",
            limit="search_limit",
            maximum=limit,
            evidence=f"{len(self.heap)} prefixes are left; the best complete one so far has probability "
            f"{math.exp(self._least):.3g}",
            remedy="raise search_limit, shorten the document, or take evidence=True",
        )

    def _push_complete(self, node: _PrefixNode, data: bytes, lasts: list[int], log_p: float) -> None:
        if data not in self._excluded:
            last = () if node.distribution is None or not lasts else (int(node.distribution.ids[lasts[0]]),)
            self._push(_CompleteRegion(node.score + log_p, (*node.tokens, *last), data, node, lasts))

    def _push(self, found: _PrefixNode | _CompleteRegion) -> None:
        if found.score == -math.inf:
            self._is_impossible = True
        elif found.score >= self._least:
            is_complete = isinstance(found, _CompleteRegion)
            if is_complete:
                self._least = found.score
            heappush(self.heap, (-found.score, is_complete, found.tokens, found))

    def _allowed(self, tokens: tuple[int, ...]) -> tuple[NDArray[np.intp], bool]:
        """What may follow ``tokens``, and whether the output may end there."""
        matcher, mask = self._matcher, self._mask
        remaining = self._generation.remaining - len(tokens)
        for token in tokens:
            if not matcher.accept(token):
                raise GenerationError("matcher", f"it refuses token {token}, which its own mask allows")
        matcher.fill_mask(mask, budget=remaining)
        accepts = matcher.is_accepting
        matcher.rollback(len(tokens))
        blocked = self._generation.blocked_after(tokens)
        ids = allowed_ids(mask[0], self._generation.vocabulary.size)
        if blocked:
            ids = ids[~np.isin(ids, list(blocked))]
        if remaining <= 0:
            ids = ids[np.isin(ids, list(self._eos))]
        return ids, accepts

    def _steps(self, best: _CompleteRegion) -> Iterator[Step]:
        """What writes a complete part; the sampler chooses among the tokens that end it alike."""
        path: list[tuple[Projection, int]] = []  # each distribution with the token that was taken from it
        node = best.node
        while node.parent is not None and node.parent.distribution is not None:
            path.append((node.parent.distribution, node.tokens[-1]))
            node = node.parent
        for distribution, token in reversed(path):
            yield self._step(distribution, int(np.searchsorted(distribution.ids, token)))
        distribution_of_last = best.node.distribution
        if distribution_of_last is None or not best.lasts:
            return
        log_p = distribution_of_last.log_p[best.lasts]
        mass = log_mass(log_p)
        index = best.lasts[self._generation.draw(log_p - mass)]
        step = self._step(distribution_of_last, index)
        if step.token in self._eos:  # stopping is one event
            step = replace(step, token=None, forced=len(distribution_of_last.ids) == len(best.lasts), logprob=mass)
        yield step

    def _step(self, distribution: Projection, index: int) -> Step:
        return Step(
            int(distribution.ids[index]),
            len(distribution.ids) == 1,
            float(distribution.log_p[index]),
            distribution.log_z,
            runners_up(distribution, index, self._generation.alternatives),
        )


@final
class _PrefixSessions:
    """Sessions that stand where the search began, and follow prefixes from there.

    Each prefix goes to the session that has most of it already, so that mostly one token is run.
    """

    def __init__(self, generation: Generation) -> None:
        own = generation.context.session
        self._model = generation.context.model
        self._packed = self._model if isinstance(self._model, PackedModel) else None
        self._base = own.length
        self.sessions = [own] if self._packed is None else [own, *(own.fork() for _ in range(_MAX_PACKED - 1))]
        self._held: list[tuple[int, ...]] = [()] * len(self.sessions)
        self._passes = 0
        self._own_before = own.forwards
        self.time_model_s = 0.0

    @property
    def forwards(self) -> int:
        """Forward passes without the generation's own session in them."""
        return self._passes - (self.sessions[0].forwards - self._own_before)

    def run(self, paths: Sequence[tuple[int, ...]]) -> list[Logits]:
        """Return the logits after each of at most as many sequences as there are sessions."""
        began = perf_counter()
        extensions = [Extension(*self._placed(path, taken), all_positions=False) for path, taken in self._places(paths)]
        if self._packed is not None and len(extensions) > 1:
            found = self._packed.extend_many(extensions)
            self._passes += 1
        else:
            found = [each.session.extend(each.token_ids) for each in extensions]
            self._passes += len(extensions)
        self.time_model_s += perf_counter() - began
        return found

    def close(self) -> None:
        """Free the forks, and put the generation's own session back to where it stood."""
        self.sessions[0].truncate(self._base)
        for session in self.sessions[1:]:
            session.close()

    def _places(self, paths: Sequence[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], int]]:
        """Each sequence with the session that has the most of it, of those that are left."""
        free = set(range(len(self.sessions)))
        for path in paths:
            index = max(sorted(free), key=lambda at: _shared_length(self._held[at], path))
            free.remove(index)
            yield path, index

    def _placed(self, path: tuple[int, ...], index: int) -> tuple[Session, tuple[int, ...]]:
        """The session, cut back to what it has of the sequence, and the rest."""
        kept = min(_shared_length(self._held[index], path), len(path) - 1)
        self.sessions[index].truncate(self._base + kept)
        self._held[index] = path
        return self.sessions[index], path[kept:]


@contextmanager
def _prefix_sessions(generation: Generation) -> Iterator[_PrefixSessions]:
    runners = _PrefixSessions(generation)
    try:
        yield runners
    finally:
        runners.close()


def _shared_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many tokens two sequences begin with alike."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
