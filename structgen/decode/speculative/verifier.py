"""Verifiers accept or reject sampled draft tokens; the next token is chosen by one where drafts were sampled.

Recursive rejection is the default.

For one draft this is speculative sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv
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
]


class Chance(Protocol):
    """Answers what is left to chance."""

    def coin(self, probability: Any, /) -> bool:
        """Return True with ``probability``; one of 1 or more is True, one of 0 or less is False."""

    def draw(self, weights: NDArray[Any], /) -> int:
        """Return an index with a probability proportional to its weight ``[n]``; not all of them are 0."""


@final
class GeneratorChance:
    """One run, by a generator of random numbers."""

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
    """The draft tokens that are taken, and one token after them that is no draft token.

    Attributes:
        nodes: the nodes that are taken, one after the other; of a chain, the positions from 0 on.
        token: what follows them; an index into the distribution of that position.
    """

    nodes: tuple[int, ...]
    token: int

    @property
    def accepted(self) -> int:
        """How many draft tokens are taken."""
        return len(self.nodes)


DistributionRows: TypeAlias = Sequence[NDArray[Any]] | NDArray[Any]
"""The distributions of several positions.

They need not be over the same tokens, so they need not have the same length.
"""


class Verifier(ABC):
    """Chooses the next token where some were drawn from another distribution: a value.

    Where the tokens of a tree were chosen by a rule, not drawn, no verifier is needed: the sampler chooses as ever, and
    a token that was drafted is found to be so (``sample_and_match``).
    """

    lossless: ClassVar[bool]
    """Whether what is chosen has the target's distribution, whatever was drawn."""
    replaced: ClassVar[bool]
    """Whether tokens have to be drawn with replacement; else they may be."""

    @abstractmethod
    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """Return the index of the next token; never one whose ``p`` is zero.

        Drafts to which ``q`` gives no probability were not drawn from it, and are passed over.

        Args:
            p: the target's distribution over the allowed tokens, ``[n]``: the mask applied, the sampler's shaping done;
                sums to 1.
            q: the distribution that the drafts were drawn from, restricted to the same tokens, ``[n]``; sums to 1.  It
                is not looked at where there are no drafts.
            drafts: indices in the order in which they were drawn.
            chance: answers what is left to chance.
        """


class ChainVerifier(ABC):
    """Decides on all tokens of a drawn chain together: a value."""

    lossless: ClassVar[bool]
    """Whether what comes out has the target's distribution."""

    @abstractmethod
    def verify(
        self, p: DistributionRows, q: DistributionRows, drafts: Sequence[int], chance: Chance, /
    ) -> VerificationResult:
        """Return how much of a chain is taken, and what follows; nothing whose ``p`` is zero.

        Where the chain ends may depend on the tokens before its end and on the grammar, not on what the next token
        would have been.  So it may be cut before the first token that the grammar refuses.

        Args:
            p: the target's distributions before each draft and after the last, ``[1 + k]`` rows, each as in
                ``Verifier.choose``.
            q: the distributions that the drafts were drawn from, ``[k]`` rows, each restricted to the tokens of its row
                of ``p``.
            drafts: an index into each row of ``q``, ``[k]``.
            chance: answers what is left to chance.
        """


_CANCELS: Final = 0.01
_TINY: Final = 1e-290


@final
@dataclass(frozen=True, slots=True)
class RecursiveRejection(Verifier):
    """Drafts tried one after the other, each against what those before it left of their distribution.

    They may have been drawn with or without replacement.  Tokens that come again are passed over, and what is left of
    drafts with replacement is what drawing without would have given: only how many there are is left to chance.

    Complexity: O(1) where the first draft is taken, O(n) for each that is rejected.
    """

    lossless: ClassVar[bool] = True
    replaced: ClassVar[bool] = False

    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """See ``Verifier.choose``."""
        return reject_recursively(p, q, drafts, chance)


@final
@dataclass(frozen=True, slots=True)
class IndependentRejection(Verifier):
    """Drafts that were drawn with replacement, tried one after the other, each against their whole distribution.

    Of the same drafts it may take more than ``RecursiveRejection`` or less, depending on the distributions.

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
        q: the distribution of the drafts, ``[n]``.
        drafts: indices, in the order in which they were drawn.
        chance: answers what is left to chance.
        replaced: whether each is tried against the whole distribution of the drafts; they must have been drawn with
            replacement.
        passes: takes a draft at once where it is True; asked only about drafts to which ``p`` gives a probability.
            What is chosen has the distribution ``p`` only where it is never True.
    """
    # Both distributions are kept as weights with their sums.  Those of ``q`` need not be touched: of a draft that was
    # rejected nothing is left in ``p``, so that its ``q`` makes no difference any more.
    left = p
    p_total: Any = 1
    q_total: Any = 1
    scale: Any = 1  # of the two sums; an integer, not a float, as long as both are 1, so that fractions stay fractions
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
            break  # the distributions are equal but for rounding, so that rejection had no probability
        left, p_total = rest, total
        rejected.add(draft)
        if not replaced:
            q_total = _sum_without(q, q_total - q[draft], rejected)
            if not q_total > _TINY:
                break  # there is nothing left to draft
        scale = q_total / p_total
    return chance.draw(left)


def residual(p: NDArray[Any], q: NDArray[Any], scale: Any) -> NDArray[Any]:
    """``max(scale p - q, 0)``, ``[n]``."""
    rest: NDArray[Any] = p * scale
    np.subtract(rest, q, out=rest)
    np.maximum(rest, 0, out=rest)
    return rest


def acceptance(weight: Any, against: Any) -> Any:
    """``min(1, weight / against)``; zero where both are."""
    if not weight > 0:
        return 0
    return 1 if weight >= against else weight / against


def _sum_without(q: NDArray[Any], difference: Any, rejected: set[int]) -> Any:
    """The sum of what is not rejected; by subtraction where little cancels."""
    if difference > _CANCELS:
        return difference
    rest = q.copy()
    rest[list(rejected)] = 0
    return rest.sum()


class VerifierPosition(NamedTuple):
    """Where a token has to be chosen, after a look ahead.

    Attributes:
        projection: the distribution of the next token under its mask.
        tree: what was looked at.
        node: of the tree, where the output stands.
        ahead: what was told of the tree.
        matcher: where the output stands in its grammar; it is not moved.
        remaining: tokens that are left of the budget.
        is_plain: whether nothing but grammar and budget decides what may come: no potentials, nothing blocked.
    """

    projection: Projection
    tree: DraftTree
    node: int
    ahead: LookAhead
    matcher: Matcher
    remaining: int
    is_plain: bool


class _DistributionPair(NamedTuple):
    """Target and draft over the tokens that are allowed at one position, and the index of what was drawn there."""

    ids: NDArray[np.intp]
    p: NDArray[np.float64]
    q: NDArray[np.float64]
    drafts: list[int]


_UNUSED_DISTRIBUTION: Final = np.array([-1], dtype=np.intp), np.ones(1)
"""The distribution after the last token of a chain where nobody will ask for it."""


@final
class VerifiedChoice:
    """Takes tokens by a verifier wherever some were drawn.

    A verifier of single positions is asked where the output stands.  One of chains decides on the whole chain at once
    and is remembered; where something besides the grammar has a say, which chains cannot foresee, each position is
    decided by itself.

    Args:
        verifier: see above.
        alone: decides single positions where the verifier is one of chains.
        sampler: of the target; only tokens of a ``Multinomial`` have a distribution that can be compared.
    """

    def __init__(self, verifier: Verifier | ChainVerifier, alone: Verifier, sampler: object) -> None:
        self._chains = verifier if isinstance(verifier, ChainVerifier) else None
        self._alone = alone if isinstance(verifier, ChainVerifier) else verifier
        self._sampler = sampler if isinstance(sampler, Multinomial) else None
        self._decided: deque[tuple[LookAhead, int, int]] = deque()  # at which node of what look ahead, which token

    def index(self, position: VerifierPosition, generator: np.random.Generator) -> int | None:
        """Return an index into the projection; None where nothing was drawn, or it cannot be compared."""
        while self._decided:
            ahead, node, token = self._decided.popleft()
            if ahead is position.ahead and node == position.node and position.is_plain:
                return int(np.searchsorted(position.projection.ids, token))
            self._decided.clear()
        # Once only: what was drawn is no news for a second draw, where the first was blocked.
        drawn = position.tree.drawn.pop(position.node, None)
        if drawn is None or self._sampler is None:
            return None
        if self._chains is not None and position.is_plain and len(drawn.tokens) == 1:
            return self._chain(self._chains, self._sampler, position, drawn, generator)
        if self._alone.replaced and not drawn.replaced:
            return None
        distributions = _distribution_pair(self._sampler, position.projection, drawn)
        if distributions is None:
            return None
        return self._alone.choose(distributions.p, distributions.q, distributions.drafts, GeneratorChance(generator))

    def _chain(
        self,
        verifier: ChainVerifier,
        sampler: Multinomial,
        position: VerifierPosition,
        drawn: SampledChildren,
        generator: np.random.Generator,
    ) -> int | None:
        """Decide on all that was drawn from here on, as long as it is a chain."""
        tree, matcher, node = position.tree, position.matcher.fork(), position.node
        projection, remaining = position.projection, position.remaining
        mask = empty_masks(matcher.constraint.vocabulary)
        found: list[_DistributionPair] = []
        nodes = [node]
        last: tuple[NDArray[np.intp], NDArray[np.float64]]
        while True:
            distributions = _distribution_pair(sampler, projection, drawn)
            if distributions is None or not distributions.drafts:
                last = projection.ids, _shaped_distribution(sampler, projection)
                break
            found.append(distributions)
            child = tree.child(node, drawn.tokens[0])
            if child is None or not matcher.accept(drawn.tokens[0]) or matcher.is_terminated:
                last = _UNUSED_DISTRIBUTION  # the output ends there, or nothing was looked at after it
                break
            node, remaining = child, remaining - 1
            while (forced := _forced_child(tree, node)) is not None and matcher.accept(tree.tokens[forced]):
                node, remaining = forced, remaining - 1
            matcher.fill_mask(mask, budget=remaining)
            ids = allowed_ids(mask[0], matcher.constraint.vocabulary.size)
            if not len(ids):
                last = _UNUSED_DISTRIBUTION
                break
            projection = project(on_host(position.ahead.told[1 + node]), ids)
            nodes.append(node)
            following = tree.drawn.pop(node, None)
            if following is None or len(following.tokens) != 1:
                last = projection.ids, _shaped_distribution(sampler, projection)
                break
            drawn = following
        if not found:
            return None
        verification = verifier.verify(
            [*(each.p for each in found), last[1]],
            [each.q for each in found],
            [each.drafts[0] for each in found],
            GeneratorChance(generator),
        )
        ids_of = [*(each.ids for each in found), last[0]]
        tokens = [int(each.ids[each.drafts[0]]) for each in found[: verification.accepted]]
        tokens.append(int(ids_of[verification.accepted][verification.token]))
        # What stands for nothing comes last, at a node that the chain does not have.
        self._decided.extend((position.ahead, at, token) for at, token in zip(nodes[1:], tokens[1:], strict=False))
        return int(np.searchsorted(position.projection.ids, tokens[0]))


def _shaped_distribution(sampler: Multinomial, projection: Projection) -> NDArray[np.float64]:
    weights = sampler.shaped(projection.log_p)
    distribution: NDArray[np.float64] = weights / weights.sum()
    return distribution


def _distribution_pair(
    sampler: Multinomial, projection: Projection, drawn: SampledChildren
) -> _DistributionPair | None:
    """The distributions at a position; None where the drafts' distribution gives nothing to what is allowed."""
    ids = projection.ids
    q = drawn.distribution[ids]
    mass = q.sum()
    if not mass > 0:
        return None
    inside = np.minimum(np.searchsorted(ids, drawn.tokens), len(ids) - 1)
    drafts = [int(index) for index in inside[ids[inside] == np.array(drawn.tokens)]]
    return _DistributionPair(ids, _shaped_distribution(sampler, projection), q / mass, drafts)


def _forced_child(tree: DraftTree, node: int) -> int | None:
    """The node that is forced after ``node``."""
    children = tree.children(node)
    return children[0] if node != ROOT and len(children) == 1 and tree.sources[children[0]] == FORCED else None
