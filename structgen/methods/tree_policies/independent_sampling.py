"""Trees whose children are drawn independently of each other, for verifiers that need that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree, SampledChildren
from structgen.decode.speculative.tree_policy import Shape, check_budget, with_forced
from structgen.decode.step.sampler import inverse_cdf

if TYPE_CHECKING:
    from structgen.decode.speculative.tree_policy import Growth

__all__ = ["IndependentDraws"]


@final
@dataclass(frozen=True, slots=True)
class IndependentDraws(Shape):
    """At each depth so many draws behind each node, with replacement: equal ones are one child.

    For verifiers whose drafts are ``replaced`` (``KSequential``, ``IndependentRejection``).  Where tokens are chosen,
    not drawn, these are the most probable ones.

    Source: Z. Sun et al., "SpecTr" (NeurIPS 2023, arXiv 2310.15141), whose candidates are independent.

    Attributes:
        draws_by_depth: how many draws at each depth; no more is drawn than the budget has nodes for.

    Raises:
        ValueError: there are none, or one is no positive integer.
    """

    draws_by_depth: tuple[int, ...] = (2, 1, 1, 1)

    def __post_init__(self) -> None:
        counts = self.draws_by_depth
        if not counts or any(not isinstance(count, int) or count < 1 for count in counts):
            raise ValueError(f"IndependentDraws: expected positive integers, one for each depth; found {counts!r}")

    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """See ``Shape.grow``; what is drawn, is drawn with replacement."""
        check_budget(self, budget)
        tree = DraftTree()
        nodes = [ROOT]
        for count in self.draws_by_depth:
            if not nodes or len(tree) >= budget:
                break
            grown: list[int] = []
            for node, law in zip(nodes, growth.laws(tree, nodes), strict=True):
                last = None if law is None else with_forced(tree, node, law, budget)
                if law is None or last is None:
                    continue
                most = min(count, budget - len(tree))
                if generator is None:
                    chosen = [int(token) for token in law.tokens[:most]]
                    sure = law.probabilities.tolist()
                    grown += [tree.add(last, token, p) for token, p in zip(chosen, sure, strict=False)]
                elif law.dense is None:
                    raise ValueError("IndependentDraws: children can only be drawn from laws that are dense")
                elif most:
                    drawn = tuple(inverse_cdf(law.dense, generator.random()) for _ in range(most))
                    tree.drawn[last] = SampledChildren(law.dense, drawn, replaced=True)
                    grown += [tree.add(last, token, float(law.dense[token])) for token in dict.fromkeys(drawn)]
            nodes = grown
        return tree
