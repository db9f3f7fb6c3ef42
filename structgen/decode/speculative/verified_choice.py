"""The next token where guesses were drawn from a law of their own."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree, SampledChildren
from structgen.decode.speculative.verifier import ChainVerifier, GeneratorChance, Verifier
from structgen.decode.step.distribution import allowed_ids, project
from structgen.decode.step.logits_row import on_host
from structgen.decode.step.sampler import Multinomial

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.distribution import Projection
    from structgen.decode.step.logits_row import LookAhead
    from structgen.engine import Matcher

__all__ = ["VerifiedChoice", "VerifierPosition"]


class VerifierPosition(NamedTuple):
    """Where a token has to be chosen, behind a look ahead.

    Attributes:
        projection: the law of the next token under its mask.
        tree: what was looked at.
        node: of the tree, where the output stands.
        ahead: what was told of the tree.
        matcher: where the output stands in its grammar; it is not moved.
        remaining: tokens that are left of the budget.
        is_plain: whether nothing but grammar and budget decides what may come: no potentials, nothing withheld.
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
"""The law behind the last token of a chain where nobody will ask for it."""


@final
class VerifiedChoice:
    """Takes tokens by a verifier wherever some were drawn.

    A verifier of single positions is asked where the output stands.  One of chains decides on the whole chain at once
    and is remembered; where something besides the grammar has a say, which chains cannot foresee, each position is
    decided by itself.

    Args:
        verifier: see above.
        alone: decides single positions where the verifier is one of chains.
        sampler: of the target; only tokens of a ``Multinomial`` have a law that can be compared.
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
        # Once only: what was drawn is no news for a second draw, where the first was withheld.
        drawn = position.tree.drawn.pop(position.node, None)
        if drawn is None or self._sampler is None:
            return None
        if self._chains is not None and position.is_plain and len(drawn.tokens) == 1:
            return self._chain(self._chains, self._sampler, position, drawn, generator)
        if self._alone.replaced and not drawn.replaced:
            return None
        laws = _distribution_pair(self._sampler, position.projection, drawn)
        if laws is None:
            return None
        return self._alone.choose(laws.p, laws.q, laws.drafts, GeneratorChance(generator))

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
        mask = np.zeros((1, -(-matcher.constraint.vocabulary.size // 32)), dtype=np.int32)
        found: list[_DistributionPair] = []
        nodes = [node]
        last: tuple[NDArray[np.intp], NDArray[np.float64]]
        while True:
            laws = _distribution_pair(sampler, projection, drawn)
            if laws is None or not laws.drafts:
                last = projection.ids, _shaped_distribution(sampler, projection)
                break
            found.append(laws)
            child = tree.child(node, drawn.tokens[0])
            if child is None or not matcher.accept(drawn.tokens[0]) or matcher.is_terminated:
                last = _UNUSED_DISTRIBUTION  # the output ends there, or nothing was looked at behind it
                break
            node, remaining = child, remaining - 1
            while (forced := _forced_child(tree, node)) is not None and matcher.accept(tree.tokens[forced]):
                node, remaining = forced, remaining - 1
            if matcher.needs_budget_mask(remaining):
                matcher.fill_mask_within(mask, 0, remaining)
            else:
                matcher.fill_mask(mask)
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
        verdict = verifier.verify(
            [*(each.p for each in found), last[1]],
            [each.q for each in found],
            [each.drafts[0] for each in found],
            GeneratorChance(generator),
        )
        ids_of = [*(each.ids for each in found), last[0]]
        tokens = [int(each.ids[each.drafts[0]]) for each in found[: verdict.accepted]]
        tokens.append(int(ids_of[verdict.accepted][verdict.token]))
        # What stands for nothing comes last, at a node that the chain does not have.
        self._decided.extend((position.ahead, at, token) for at, token in zip(nodes[1:], tokens[1:], strict=False))
        return int(np.searchsorted(position.projection.ids, tokens[0]))


def _shaped_distribution(sampler: Multinomial, projection: Projection) -> NDArray[np.float64]:
    weights = sampler.shaped(projection.log_p)
    law: NDArray[np.float64] = weights / weights.sum()
    return law


def _distribution_pair(
    sampler: Multinomial, projection: Projection, drawn: SampledChildren
) -> _DistributionPair | None:
    """The laws at a position; None where the drafts' law gives nothing to what is allowed."""
    ids = projection.ids
    q = drawn.law[ids]
    mass = q.sum()
    if not mass > 0:
        return None
    inside = np.minimum(np.searchsorted(ids, drawn.tokens), len(ids) - 1)
    drafts = [int(index) for index in inside[ids[inside] == np.array(drawn.tokens)]]
    return _DistributionPair(ids, _shaped_distribution(sampler, projection), q / mass, drafts)


def _forced_child(tree: DraftTree, node: int) -> int | None:
    """The node that is forced behind ``node``."""
    children = tree.children(node)
    return children[0] if node != ROOT and len(children) == 1 and tree.sources[children[0]] == FORCED else None
