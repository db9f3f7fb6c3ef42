"""Exact search for the most probable text of one part of the output, in place of sampling token by token.

The search is best-first: the most probable open prefix is expanded next.  A prefix is at least as probable as its
continuations, so the first complete text that comes up is the most probable one.

Source: O. Castel, O. Ram, A. Efrat and O. Levy, "How Optimal is Greedy Decoding for Extractive Question Answering?"
(2021), for spans of a passage.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.context import shared_length
from structgen.decode.step.distribution import Projection, log_mass
from structgen.decode.step.result import Step
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import GenerationError, LimitExceeded
from structgen.models.protocol import Extension, PackedModel

if TYPE_CHECKING:
    from structgen.decode.autoregressive.loop import Generation
    from structgen.models.protocol import Logits, Session

__all__ = ["FoundRegion", "Region", "most_probable"]

_MAX_PACKED: Final = 4
"""Prefixes that are run in one forward pass: more would mostly be useless, and each has a cache."""


class Region(Protocol):
    """A part of the output, from the current position on.

    Attributes:
        is_rest: whether the part ends exactly at the end of the output.
    """

    is_rest: bool

    def admits(self, data: bytes) -> bool:
        """Whether ``data`` is a prefix of a valid text of the part, or begins with a valid text."""

    def end(self, data: bytes) -> int | None:
        """The length of the part's text if it ends within ``data``, which ``admits`` accepts; else None."""


@final
@dataclass(frozen=True, slots=True)
class FoundRegion:
    """The most probable text of a part.

    Attributes:
        steps: the steps that write it; the last may write further bytes, and may be EOS.
        data: the bytes of the part.
        logprob: the model's log-probability of the tokens before the last, and of any token that ends the part there.
        followed: number of prefixes that were run through the model.
        forwards: number of forward passes, besides those that the context counts.
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
    """Find the most probable token sequence that writes a part of the output; ``generation`` stays where it is.

    All token sequences that the constraint, the budget and the potentials allow and that write such a part are
    compared, in any spelling.  Their probability is the model's own, at temperature 1 and not renormalised over the
    mask.  Tokens that end the part at the same byte count together; the sampler chooses one of them.  Ties go to the
    lower token ids.

    Args:
        generation: at the start of the part.
        region: the part.
        limit: maximum number of prefixes that are run through the model.
        excluded: texts of the part that are skipped.

    Returns:
        None if every text is excluded or blocked.

    Raises:
        LimitExceeded: more than ``limit`` prefixes are more probable than the best complete text so far.
        GenerationError: the model gives all texts probability zero, or the logits contain NaN or infinity.

    Complexity: one run for each prefix at least as probable as the result, and for few others; for a ``PackedModel``
        up to four share a forward pass.
    """
    search = _RegionSearch(generation, region, excluded)
    search.expand(_PrefixNode(0.0, (), b"", None), generation.logits())
    with closing(_PrefixSessions(generation)) as runner:
        while search.heap and not search.is_complete:
            nodes = search.best(len(runner.sessions))
            if not nodes:  # the potentials forbid those that were left
                continue
            search.followed += len(nodes)
            if search.followed > limit:
                generation.plan((), forwards=runner.forwards, time_model_s=runner.time_model_s)  # its cost
                raise search.too_far(limit)
            for node, logits in zip(nodes, runner.run([node.tokens for node in nodes]), strict=True):
                search.expand(node, logits)
    return search.result(runner.forwards, runner.time_model_s)


@final
@dataclass(eq=False, slots=True)
class _PrefixNode:
    """A prefix of the part.

    Attributes:
        score: its log-probability under the model.
        tokens: its tokens.
        data: their bytes.
        parent: the prefix without the last token.
        distribution: the next-token distribution, once it is expanded.
    """

    score: float
    tokens: tuple[int, ...]
    data: bytes
    parent: _PrefixNode | None
    distribution: Projection | None = None


@final
@dataclass(eq=False, slots=True)
class _CompleteRegion:
    """A complete text: the tokens of ``node``, and one of ``lasts``, indices into its distribution.

    Without ``lasts`` the output ends there without EOS.  ``tokens`` ends with the first of ``lasts``.
    """

    score: float
    tokens: tuple[int, ...]
    data: bytes
    node: _PrefixNode
    lasts: list[int]


@final
class _RegionSearch:
    """The state of the search."""

    def __init__(self, generation: Generation, region: Region, excluded: Set[bytes]) -> None:
        # By falling score, open prefixes before complete texts, then by tokens.
        self.heap: list[tuple[float, bool, tuple[int, ...], _PrefixNode | _CompleteRegion]] = []
        self.followed = 0
        self._generation = generation
        self._region = region
        self._excluded = excluded
        self._matcher = generation.matcher.fork()
        self._tokens = generation.vocabulary.tokens
        self._eos = frozenset(generation.vocabulary.eos)
        self._mask: NDArray[np.int32] = empty_masks(generation.vocabulary)
        self._best_score = -math.inf  # of the complete texts
        self._is_impossible = False  # whether a text was dropped because its probability is zero

    @property
    def is_complete(self) -> bool:
        """Whether the best entry is a complete text."""
        return self.heap[0][1]

    def best(self, max_count: int) -> list[_PrefixNode]:
        """Pop the most probable prefixes, up to the best complete text."""
        nodes: list[_PrefixNode] = []
        while self.heap and len(nodes) < max_count and isinstance(node := self.heap[0][3], _PrefixNode):
            heappop(self.heap)
            if self._generation.admits(node.tokens[:-1], node.tokens[-1]):
                nodes.append(node)
        return nodes

    def expand(self, node: _PrefixNode, logits: Logits) -> None:
        """Push the continuations of a prefix."""
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
        for data, indices in ends.items():
            lasts = [index for index in indices if self._admits(node, int(ids[index]))]
            if lasts:
                self._push_complete(node, data, lasts, log_mass(log_p[lasts]))

    def _admits(self, node: _PrefixNode, token: int) -> bool:
        return self._generation.admits(node.tokens, None if token in self._eos else token)

    def result(self, forwards: int, time_model_s: float) -> FoundRegion | None:
        """The most probable text; None if there is none."""
        if not self.heap:
            if self._is_impossible:
                raise GenerationError(
                    "logits",
                    "the model gives probability zero to every text that is allowed here",
                    remedy="check for another logits processor before the grammar's mask",
                )
            return None
        best = self.heap[0][3]
        if not isinstance(best, _CompleteRegion):
            raise RuntimeError("the search ended before its end")
        steps = tuple(self._steps(best))
        return FoundRegion(steps, best.data, best.score, self.followed, forwards, time_model_s)

    def too_far(self, limit: int) -> LimitExceeded:
        """The error of a search that exceeds its limit."""
        return LimitExceeded(
            "the most probable quotation",
            limit="search_limit",
            maximum=limit,
            evidence=f"{len(self.heap)} prefixes are left; the best complete one so far has probability "
            f"{math.exp(self._best_score):.3g}",
            remedy="raise search_limit, shorten the document, or take evidence=True",
        )

    def _push_complete(self, node: _PrefixNode, data: bytes, lasts: list[int], log_p: float) -> None:
        if data not in self._excluded:
            last = () if node.distribution is None or not lasts else (int(node.distribution.ids[lasts[0]]),)
            self._push(_CompleteRegion(node.score + log_p, (*node.tokens, *last), data, node, lasts))

    def _push(self, item: _PrefixNode | _CompleteRegion) -> None:
        if item.score == -math.inf:
            self._is_impossible = True
        elif item.score >= self._best_score:
            is_complete = isinstance(item, _CompleteRegion)
            if is_complete:
                self._best_score = item.score
            heappush(self.heap, (-item.score, is_complete, item.tokens, item))

    def _allowed(self, tokens: tuple[int, ...]) -> tuple[NDArray[np.intp], bool]:
        """The allowed tokens after ``tokens``, and whether the output may end there."""
        matcher, mask = self._matcher, self._mask
        remaining = self._generation.remaining - len(tokens)
        for token in tokens:
            if not matcher.accept(token):
                raise GenerationError("matcher", f"it refuses token {token}, which its own mask allows")
        matcher.fill_mask(mask, budget=remaining)
        self._generation.restrict(mask[0], tokens)
        accepts = matcher.is_accepting
        matcher.rollback(len(tokens))
        blocked = self._generation.blocked_after(tokens)
        ids = allowed_ids(mask[0], self._generation.vocabulary.size)
        if blocked:
            ids = ids[~np.isin(ids, list(blocked))]
        return ids, accepts

    def _steps(self, best: _CompleteRegion) -> Iterator[Step]:
        """The steps of a complete text; the sampler chooses among the tokens that end it."""
        path: list[tuple[Projection, int]] = []  # each distribution with the token taken from it
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
            distribution.runners_up(index, self._generation.alternatives),
        )


@final
class _PrefixSessions:
    """The generation's session and forks of it, which run prefixes from the start of the part.

    Each prefix goes to the session that shares most tokens with it, so that mostly one token is run.
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
        """Number of forward passes, less those that the generation's own session counts."""
        return self._passes - (self.sessions[0].forwards - self._own_before)

    def run(self, paths: Sequence[tuple[int, ...]]) -> list[Logits]:
        """Return the logits after each of at most as many sequences as there are sessions."""
        began = perf_counter()
        extensions = [Extension(*self._placed(path, taken), all_positions=False) for path, taken in self._places(paths)]
        if self._packed is not None and len(extensions) > 1:
            logits = self._packed.extend_many(extensions)
            self._passes += 1
        else:
            logits = [each.session.extend(each.token_ids) for each in extensions]
            self._passes += len(extensions)
        self.time_model_s += perf_counter() - began
        return logits

    def close(self) -> None:
        """Free the forks, and truncate the generation's own session to the start of the part."""
        self.sessions[0].truncate(self._base)
        for session in self.sessions[1:]:
            session.close()

    def _places(self, paths: Sequence[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield each sequence with the index of the free session that shares most tokens with it."""
        free = set(range(len(self.sessions)))
        for path in paths:
            index = max(sorted(free), key=lambda at: shared_length(self._held[at], path))
            free.remove(index)
            yield path, index

    def _placed(self, path: tuple[int, ...], index: int) -> tuple[Session, tuple[int, ...]]:
        """The session, truncated to the tokens that it shares with the sequence, and the rest of the sequence."""
        shared = min(shared_length(self._held[index], path), len(path) - 1)
        self.sessions[index].truncate(self._base + shared)
        self._held[index] = path
        return self.sessions[index], path[shared:]
