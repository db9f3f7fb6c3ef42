"""Another drafter's guesses, made longer by phrases that the model has written or would have written."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.acceptance import Calibration
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.drafters.likely_tokens import node_top_tokens
from structgen.methods.drafters.lookahead import PhrasePool

if TYPE_CHECKING:
    from structgen.decode.step.context import Context
    from structgen.engine import Matcher

__all__ = ["Extended", "phrases_of_pass"]

_PRIOR: Final = 0.5
_DISTANCES: Final = 8


@final
@dataclass(frozen=True)
class Extended(Drafter):
    """The guesses of ``base``, and behind each path of them phrases that begin with its last token.

    Phrases come from what passes tell: wherever a guess was what the model would have said itself behind the guesses
    before it, the two belong to a phrase, whether the output got there or not; so what was refused is of use too.
    Where ``base`` guesses nothing, the phrases that begin with the last token of the output are guessed.

    Source: W. Zhao et al., "Ouroboros: Generating Longer Drafts Phrase by Phrase for Faster Speculative Decoding"
    (2024, arXiv 2402.13720).

    Attributes:
        base: the drafter.
        pool: where phrases are kept; outputs that share it find for each other.
        phrases: how many are added to a path at most; at least 1.
        calibration: how often tokens of phrases came, by the rank of the phrase and their distance in it.

    Raises:
        ValueError: ``phrases`` is below 1.
    """

    base: Drafter
    pool: PhrasePool = field(default_factory=PhrasePool)
    phrases: int = 2
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if self.phrases < 1:
            raise ValueError(f"Extended: phrases must be at least 1; found {self.phrases!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return f"{self.base.name} + phrases"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _ExtendedDrafting(self, self.base.start(context, task), context, task)


@final
class _ExtendedDrafting(Drafting):
    def __init__(self, drafter: Extended, base: Drafting, context: Context, task: DraftTask) -> None:
        self._drafter = drafter
        self._base = base
        self._context = context
        self._vocabulary = task.constraint.vocabulary
        self._matcher: Matcher | None = None
        self._start = 0
        self._tree = DraftTree()
        self._keys: dict[int, Hashable] = {}

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        tokens = context.tokens
        self._learn(tokens[self._start :])
        self._start, self._matcher, self._keys = len(tokens), state.matcher.fork(), {}
        proposed = self._base.propose(context, state, budget)
        self._tree = tree = proposed.kept(range(len(proposed)))  # the base may learn from its own
        for node, source in enumerate(tree.sources):
            tree.sources[node] = source or self._drafter.base.name
        reach = tree.reach()
        for leaf in sorted(tree.leaves(), key=lambda node: (-reach[node], node)) or [ROOT]:
            last = tokens[-1] if leaf == ROOT else tree.tokens[leaf]
            prefix = tree.prefix(leaf)
            for rank, phrase in enumerate(self._drafter.pool.after(self._vocabulary, last)[: self._drafter.phrases]):
                allowed = state.matcher.validate([*prefix, *phrase]) - len(prefix)
                self._extend(leaf, phrase[: max(allowed, 0)], rank, budget)
        return tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        self._base.observe(verified)
        matcher = self._matcher if verified.start == self._start else None
        last = self._context.tokens[verified.start - 1]
        pool = self._drafter.pool
        pool.add(self._vocabulary, phrases_of_pass(verified, last, pool.length, matcher))

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._base.close()

    def _extend(self, node: int, phrase: Sequence[int], rank: int, budget: int) -> None:
        tree = self._tree
        for distance, token in enumerate(phrase):
            child = tree.child(node, token)
            if child is None:
                if len(tree) >= budget:
                    return
                key = (rank, min(distance, _DISTANCES - 1))
                chance = self._drafter.calibration.probability(key, _PRIOR / (1 + rank))
                child = tree.add(node, token, chance, source=self._drafter.name)
                self._keys[child] = key
            node = child

    def _learn(self, came: Sequence[int]) -> None:
        tree, node = self._tree, ROOT
        for token in came:
            self._drafter.calibration.record_all(
                (self._keys[child], tree.tokens[child] == token) for child in tree.children(node) if child in self._keys
            )
            found = tree.child(node, token)
            if found is None:
                return
            node = found


def phrases_of_pass(
    verified: Verified, last: int, length: int, matcher: Matcher | None = None
) -> Iterator[tuple[int, ...]]:
    """The phrases that a pass tells: from each token that was run, the way that the model takes from there.

    The way follows the most probable tokens for as long as they are in the tree, and what is forced behind them; the
    last most probable token, which need not be in it, ends the phrase.

    Args:
        verified: the pass.
        last: the token before it.
        length: tokens of a phrase at most.
        matcher: where the output stood, to take the most probable tokens among those that are allowed.
    """
    tree = verified.tree
    best = {node: tokens[0] for node, tokens, _ in node_top_tokens(verified, 1, matcher) if tokens}
    for start in range(len(tree) - 1, ROOT - 1, -1):  # what follows the sequence itself comes last, as the latest
        node: int | None = start
        phrase = [last if start == ROOT else tree.tokens[start]]
        while node is not None and len(phrase) < length:
            forced = [child for child in tree.children(node) if tree.sources[child] == FORCED]
            token = tree.tokens[forced[0]] if forced else best.get(node)
            if token is None:
                break
            phrase.append(token)
            node = tree.child(node, token)
        if len(phrase) > 1:
            yield tuple(phrase)
