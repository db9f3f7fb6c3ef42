"""Verifiers: they choose the next token where draft tokens for it were sampled; recursive rejection is the default.

For one draft token it is speculative sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv
2302.01318).  Without replacement: W. Jeon et al., "Recursive Speculative Decoding" (2024, arXiv 2402.14160); Z. Chen
et al., "Sequoia" (2024, arXiv 2402.12374); Y. Li et al., "EAGLE-2" (2024, arXiv 2406.16858).  With replacement:
X. Miao et al., "SpecInfer" (2023, arXiv 2305.09781).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree, SampledChildren
from structgen.decode.step.distribution import project
from structgen.decode.step.logits_row import on_host
from structgen.decode.step.sampler import Multinomial, inverse_cdf
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.decode.step.distribution import Projection
    from structgen.decode.step.logits_row import LookAhead
    from structgen.engine import Matcher

__all__ = [
    "ChainVerifier",
    "Chance",
    "DistributionRows",
    "GeneratorChance",
    "IndependentRejection",
    "RecursiveRejection",
    "VerificationResult",
    "VerifiedChoice",
    "Verifier",
    "VerifierPosition",
    "acceptance",
    "reject_recursively",
    "residual",
    "shaped_distribution",
]


class Chance(Protocol):
    """The random decisions of a verifier."""

    def coin(self, probability: Any, /) -> bool:
        """Return True with ``probability``; always True from 1 on, never at 0 or less."""

    def draw(self, weights: NDArray[Any], /) -> int:
        """Return an index with a probability proportional to its weight, ``[n]``; not all weights are 0."""


@final
class GeneratorChance:
    """Random decisions by a random number generator."""

    __slots__ = ("_generator",)

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def coin(self, probability: float, /) -> bool:
        """See ``Chance.coin``."""
        return bool(self._generator.random() < probability)

    def draw(self, weights: NDArray[np.float64], /) -> int:
        """See ``Chance.draw``."""
        return inverse_cdf(weights, self._generator.random())


@final
@dataclass(frozen=True, slots=True)
class VerificationResult:
    """The accepted draft tokens, and the token after them.

    Attributes:
        nodes: the accepted nodes, one after the other; for a chain, the indices from 0 on.
        token: the next token, an index into the distribution of its position.
    """

    nodes: tuple[int, ...]
    token: int

    @property
    def accepted(self) -> int:
        """The number of accepted draft tokens."""
        return len(self.nodes)


DistributionRows: TypeAlias = Sequence[NDArray[Any]] | NDArray[Any]
"""The distributions of several positions; they may be over different tokens and differ in length."""


class Verifier(ABC):
    """Chooses the next token where draft tokens were sampled from another distribution: a value.

    Draft tokens that were chosen by a rule need no verifier: the sampler chooses, and a draft token is accepted if it
    is the sampler's token (``sample_and_match``).
    """

    lossless: ClassVar[bool]
    """Whether the chosen token has the target's distribution, for any draft distribution."""
    replaced: ClassVar[bool]
    """Whether draft tokens must be sampled with replacement; otherwise they may be."""

    @abstractmethod
    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """Return the index of the next token; its ``p`` is never zero.

        Drafts of probability 0 under ``q`` were not sampled from it, and are skipped.

        Args:
            p: the target's distribution over the allowed tokens, masked and shaped by the sampler, ``[n]``; sums to 1.
            q: the draft distribution over the same tokens, ``[n]``; sums to 1.  It is not read without drafts.
            drafts: indices of the draft tokens in the order in which they were sampled.
            chance: makes the random decisions.
        """


class ChainVerifier(ABC):
    """Verifies all tokens of a sampled chain together: a value."""

    lossless: ClassVar[bool]
    """Whether the result has the target's distribution."""

    @abstractmethod
    def verify(
        self, p: DistributionRows, q: DistributionRows, drafts: Sequence[int], chance: Chance, /
    ) -> VerificationResult:
        """Return the accepted part of a chain and the token after it; no ``p`` of them is zero.

        The end of the chain may depend on its tokens and on the grammar, but not on the next sample.  So the chain may
        be cut before the first token that the grammar refuses.

        Args:
            p: the target's distributions before each draft token and after the last, ``[1 + k]`` rows as in
                ``Verifier.choose``.
            q: the draft distributions, ``[k]`` rows, each over the tokens of its row of ``p``.
            drafts: an index into each row of ``q``, ``[k]``.
            chance: makes the random decisions.
        """


_CANCELS: Final = 0.01
_TINY: Final = 1e-290


@final
@dataclass(frozen=True, slots=True)
class RecursiveRejection(Verifier):
    """Tries the drafts one after the other, each against the draft distribution without the rejected drafts.

    The drafts may be sampled with or without replacement: repeated tokens are skipped, and the remaining ones are a
    sample without replacement, of random size.

    Complexity: O(1) if the first draft is accepted, O(n) for each rejected draft.
    """

    lossless: ClassVar[bool] = True
    replaced: ClassVar[bool] = False

    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """See ``Verifier.choose``."""
        return reject_recursively(p, q, drafts, chance)


@final
@dataclass(frozen=True, slots=True)
class IndependentRejection(Verifier):
    """Tries drafts that were sampled with replacement one after the other, each against the whole distribution.

    It may accept more or fewer drafts than ``RecursiveRejection``, depending on the distributions.

    Complexity: as ``RecursiveRejection``.
    """

    lossless: ClassVar[bool] = True
    replaced: ClassVar[bool] = True

    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """See ``Verifier.choose``."""
        return reject_recursively(p, q, drafts, chance, replaced=True)


def reject_recursively(
    p: NDArray[Any],
    q: NDArray[Any],
    drafts: Sequence[int],
    chance: Chance,
    *,
    replaced: bool = False,
    passes: Callable[[int], bool] | None = None,
) -> int:
    """Return the index of the next token.

    Args:
        p: the target's distribution, ``[n]``.
        q: the draft distribution, ``[n]``.
        drafts: indices in the order in which they were sampled.
        chance: makes the random decisions.
        replaced: whether each draft is tried against the whole draft distribution; they must be sampled with
            replacement.
        passes: accepts a draft at once if it returns True; called only for drafts of positive ``p``.  The result has
            the distribution ``p`` only if it is never True.
    """
    # Both distributions are weights with their sums.  The weights of ``q`` need no update: a rejected draft has weight
    # 0 in ``left``, so its ``q`` no longer matters.
    left = p
    p_total: Any = 1
    q_total: Any = 1
    scale: Any = 1  # q_total / p_total; an integer while both are 1, so that fractions stay fractions
    rejected: set[int] = set()
    for draft in drafts:
        if not q[draft] > 0 or (draft in rejected and not replaced):
            continue
        if passes is not None and p[draft] > 0 and passes(draft):
            return draft
        if chance.coin(acceptance(left[draft] * q_total, q[draft] * p_total)):
            return draft
        rest = residual(left, q, scale)
        rest[draft] = 0
        total = rest.sum()
        if not total > _TINY:
            break  # the distributions are equal up to rounding: a rejection had probability 0
        left, p_total = rest, total
        rejected.add(draft)
        if not replaced:
            q_total = _sum_without(q, q_total - q[draft], rejected)
            if not q_total > _TINY:
                break  # no draft token is left
        scale = q_total / p_total
    return chance.draw(left)


def residual(p: NDArray[Any], q: NDArray[Any], scale: Any) -> NDArray[Any]:
    """Return ``max(scale p - q, 0)``, ``[n]``."""
    rest: NDArray[Any] = p * scale
    np.subtract(rest, q, out=rest)
    np.maximum(rest, 0, out=rest)
    return rest


def acceptance(weight: Any, against: Any) -> Any:
    """Return ``min(1, weight / against)``; 0 if both are 0."""
    if not weight > 0:
        return 0
    return 1 if weight >= against else weight / against


def _sum_without(q: NDArray[Any], difference: Any, rejected: set[int]) -> Any:
    """The sum of the weights that are not rejected; by subtraction where little cancels."""
    if difference > _CANCELS:
        return difference
    rest = q.copy()
    rest[list(rejected)] = 0
    return rest.sum()


class VerifierPosition(NamedTuple):
    """A position at which a token is chosen, with the draft tree that was run after it.

    Attributes:
        projection: the distribution of the next token under its mask.
        tree: the draft tree.
        node: the last node of the output.
        ahead: the logits rows of the tree.
        matcher: the state of the output; it is not moved.
        remaining: tokens that are left of the budget.
        is_plain: whether only grammar and budget restrict the next tokens: no potentials, no blocked tokens.
    """

    projection: Projection
    tree: DraftTree
    node: int
    ahead: LookAhead
    matcher: Matcher
    remaining: int
    is_plain: bool


class _DistributionPair(NamedTuple):
    """The distributions of target and drafter over the allowed tokens of a position, and the indices of the drafts."""

    ids: NDArray[np.intp]
    p: NDArray[np.float64]
    q: NDArray[np.float64]
    drafts: list[int]


_UNUSED_DISTRIBUTION: Final = np.array([-1], dtype=np.intp), np.ones(1)
"""The distribution after the last token of a chain if the output ends there or no row was run."""


@final
class VerifiedChoice:
    """Chooses tokens by a verifier wherever draft tokens were sampled.

    A ``Verifier`` chooses one position at a time.  A ``ChainVerifier`` verifies the whole chain at once, and its result
    is remembered; if anything besides grammar and budget restricts the tokens, ``alone`` chooses each position.

    Args:
        verifier: the verifier.
        alone: the verifier of single positions if ``verifier`` is a ``ChainVerifier``.
        sampler: the sampler of the target; only a ``Multinomial`` has a distribution to verify against.
    """

    def __init__(self, verifier: Verifier | ChainVerifier, alone: Verifier, sampler: object) -> None:
        self._chains = verifier if isinstance(verifier, ChainVerifier) else None
        self._alone = alone if isinstance(verifier, ChainVerifier) else verifier
        self._sampler = sampler if isinstance(sampler, Multinomial) else None
        self._decided: deque[tuple[LookAhead, int, int]] = deque()  # look ahead, node, token

    def index(self, position: VerifierPosition, generator: np.random.Generator) -> int | None:
        """Return an index into the masked distribution; None if nothing was sampled or it cannot be verified."""
        while self._decided:
            ahead, node, token = self._decided.popleft()
            if ahead is position.ahead and node == position.node and position.is_plain:
                return int(np.searchsorted(position.projection.ids, token))
            self._decided.clear()
        # Once only: after a blocked choice the samples are used up.
        sampled = position.tree.sampled.pop(position.node, None)
        if sampled is None or self._sampler is None:
            return None
        if self._chains is not None and position.is_plain and len(sampled.tokens) == 1:
            return self._chain(self._chains, self._sampler, position, sampled, generator)
        if self._alone.replaced and not sampled.replaced:
            return None
        distributions = _distribution_pair(self._sampler, position.projection, sampled)
        if distributions is None:
            return None
        return self._alone.choose(distributions.p, distributions.q, distributions.drafts, GeneratorChance(generator))

    def _chain(
        self,
        verifier: ChainVerifier,
        sampler: Multinomial,
        position: VerifierPosition,
        sampled: SampledChildren,
        generator: np.random.Generator,
    ) -> int | None:
        """Verify all sampled tokens from here on, as long as they are a chain."""
        tree, matcher, node = position.tree, position.matcher.fork(), position.node
        projection, remaining = position.projection, position.remaining
        mask = empty_masks(matcher.constraint.vocabulary)
        pairs: list[_DistributionPair] = []
        nodes = [node]
        last: tuple[NDArray[np.intp], NDArray[np.float64]]
        while True:
            distributions = _distribution_pair(sampler, projection, sampled)
            if distributions is None or not distributions.drafts:
                last = projection.ids, shaped_distribution(sampler, projection)
                break
            pairs.append(distributions)
            child = tree.child(node, sampled.tokens[0])
            try:
                if child is None or not matcher.accept(sampled.tokens[0]) or matcher.is_terminated:
                    last = _UNUSED_DISTRIBUTION  # the output ends there, or no row was run after it
                    break
                node, remaining = child, remaining - 1
                while (forced := _forced_child(tree, node)) is not None and matcher.accept(tree.tokens[forced]):
                    node, remaining = forced, remaining - 1
                matcher.fill_mask(mask, budget=remaining)
            except LimitExceeded:  # it is met again if the output comes to it
                last = _UNUSED_DISTRIBUTION
                break
            ids = allowed_ids(mask[0], matcher.constraint.vocabulary.size)
            if not len(ids):
                last = _UNUSED_DISTRIBUTION
                break
            projection = project(on_host(position.ahead.logits[1 + node]), ids)
            nodes.append(node)
            following = tree.sampled.pop(node, None)
            if following is None or len(following.tokens) != 1:
                last = projection.ids, shaped_distribution(sampler, projection)
                break
            sampled = following
        if not pairs:
            return None
        verification = verifier.verify(
            [*(each.p for each in pairs), last[1]],
            [each.q for each in pairs],
            [each.drafts[0] for each in pairs],
            GeneratorChance(generator),
        )
        ids_of = [*(each.ids for each in pairs), last[0]]
        tokens = [int(each.ids[each.drafts[0]]) for each in pairs[: verification.accepted]]
        tokens.append(int(ids_of[verification.accepted][verification.token]))
        # The token of an unused distribution is last, at a node that the chain does not have.
        self._decided.extend((position.ahead, at, token) for at, token in zip(nodes[1:], tokens[1:], strict=False))
        return int(np.searchsorted(position.projection.ids, tokens[0]))


def shaped_distribution(sampler: Multinomial, projection: Projection) -> NDArray[np.float64]:
    """Return the distribution that ``sampler`` samples from, over the allowed tokens, ``[n]``."""
    weights = sampler.shaped(projection.log_p)
    distribution: NDArray[np.float64] = weights / weights.sum()
    return distribution


def _distribution_pair(
    sampler: Multinomial, projection: Projection, sampled: SampledChildren
) -> _DistributionPair | None:
    """The distributions at a position; None if the draft distribution gives no probability to an allowed token."""
    ids = projection.ids
    q = sampled.distribution[ids]
    mass = q.sum()
    if not mass > 0:
        return None
    inside = np.minimum(np.searchsorted(ids, sampled.tokens), len(ids) - 1)
    drafts = [int(index) for index in inside[ids[inside] == np.array(sampled.tokens)]]
    return _DistributionPair(ids, shaped_distribution(sampler, projection), q / mass, drafts)


def _forced_child(tree: DraftTree, node: int) -> int | None:
    """The forced node after ``node``."""
    children = tree.children(node)
    return children[0] if node != ROOT and len(children) == 1 and tree.sources[children[0]] == FORCED else None
