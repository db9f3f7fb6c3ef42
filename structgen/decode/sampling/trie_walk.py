"""Walks down a trie of beginnings and beyond it: what ``ASAp`` and ``RejectionTrie`` have in common.

A walk that stands at a beginning ``u`` goes on with ``t`` in proportion to ``p(t | u) s(ut)``.

The rejecting walk takes ``p(t | u) s(ut) / s(u)`` for the probability itself.  In the trie these sum to 1; where a mask
is seen for the first time they sum to less, and the walk is rejected with what is missing.  An output is accepted with
``exp(score - score_bound) / s``.  Along the way everything cancels: whatever the trie knows, a walk comes to ``x`` with
probability ``p(x) exp(score(x) - score_bound) / s(root)``.  What walks that are made together learn is carried back
when all of them are over, since it must not change on the way.

The other one rejects nothing but goes on within the mask; the trie then tells where that leads.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.decode.projection import log_mass
from structgen.decode.sampler import inverse_cdf
from structgen.decode.sampling.best_first import check_score
from structgen.decode.sampling.prefix_trie import PrefixTrie, TrieNode, without
from structgen.decode.sampling.samples import Sample

if TYPE_CHECKING:
    from structgen.decode.sampling.branches import Branch, Branches
    from structgen.decode.sampling.law import Law

__all__ = ["TrieWalks", "check_trie_sampler", "merged"]


@final
@dataclass(eq=False, slots=True)
class _Walk:
    """A walk.

    Attributes:
        branch: where it stands; at the end the output.
        node: the same in the trie, or a node of its own where the trie has no room.
        path: nodes from the root to there.
        law: what may follow; None where it was not asked for.
        passed: it goes on with something else than these, which have nodes; None for as long as that is not drawn.
        excluded: what the potentials were found to forbid here.
        is_apart: whether the node is not in the trie.
        is_over: whether it has come to an end.
        is_accepted: whether that is an output.
    """

    branch: Branch
    node: TrieNode
    path: list[TrieNode]
    law: Law | None = None
    passed: frozenset[int] | None = None
    excluded: set[int] = field(default_factory=set)
    is_apart: bool = False
    is_over: bool = False
    is_accepted: bool = False

    def end(self, *, is_accepted: bool) -> None:
        self.is_over, self.is_accepted = True, is_accepted

    def log_rest(self) -> float:
        """Log of the probability of what may follow and has no node yet."""
        if not self.excluded or self.law is None:
            return self.node.log_rest
        return log_mass(without(self.law, {*self.node.children, *self.excluded}))


@final
class TrieWalks:
    """Walks of one run.

    Args:
        branches: what is walked through.
        trie: what is known, and where what is learned is kept.
        generator: the randomness.
        score_bound: the most that the potentials give to any output.
        rejects: see the module.

    Raises:
        ValueError: the trie belongs to another problem.
        GenerationError: the potentials forbid every output from the start.
    """

    def __init__(
        self,
        branches: Branches,
        trie: PrefixTrie,
        generator: np.random.Generator,
        *,
        score_bound: float,
        rejects: bool,
    ) -> None:
        trie.bind(branches.problem, score_bound)
        self._branches = branches
        self._trie = trie
        self._generator = generator
        self._bound = score_bound
        self._rejects = rejects
        self._root = branches.root()
        branches.drop(self._root)
        self._learned: list[tuple[TrieNode, float]] = []

    def run(self, count: int) -> list[Branch | None]:
        """Make several walks; the outputs they came to, in order, None for those that came to none."""
        walks = [_Walk(self._root, self._trie.root, [self._trie.root]) for _ in range(count)]
        live = walks
        while live:
            for walk in live:
                self._move(walk)
            live = [walk for walk in live if not walk.is_over]
            self._look(live)
        for node, log_success in self._learned:
            node.log_success = log_success
        self._learned.clear()
        for walk in walks:
            for node in reversed(walk.path):
                if node.is_seen:
                    node.update()
        return [walk.branch if walk.is_accepted else None for walk in walks]

    def _look(self, walks: Sequence[_Walk]) -> None:
        """Find out what may follow where walks stand, of those together for which the model has to be asked."""
        waiting: dict[tuple[int, ...], list[_Walk]] = {}
        for walk in walks:
            walk.law = self._trie.recall(walk.node)
            if walk.law is None:
                waiting.setdefault(walk.branch.hypothesis.tokens, []).append(walk)
        firsts = [same[0] for same in waiting.values()]
        rows = self._branches.logits_at([walk.branch for walk in firsts])
        for first, logits, same in zip(firsts, rows, waiting.values(), strict=True):
            law = self._branches.law(first.branch, logits, tilted=False)
            for walk in same:
                walk.law = law
            if not first.is_apart:
                self._trie.remember(first.node, law)

    def _move(self, walk: _Walk) -> None:
        """Go on until it has to be known what may follow, or the walk is over."""
        while not walk.is_over:
            if not walk.node.is_seen:
                if walk.law is None:
                    return
                walk.node.see(walk.law)
            token = self._known(walk) if walk.passed is None else None
            if walk.is_over:
                return
            if token is None:
                if walk.passed is None:
                    # What other walks add in the meantime must not change what this one draws from.
                    walk.passed = frozenset((*walk.node.children, *walk.excluded))
                if walk.law is None:
                    return
                token = self._new(walk.law, walk.passed)
            self._take(walk, token)

    def _known(self, walk: _Walk) -> int | None:
        """Draw what follows among the children of the node; None is everything else."""
        node = walk.node
        tokens = [token for token in node.children if token not in walk.excluded]
        logs = [walk.log_rest(), *(node.children[token].log_p + node.children[token].log_success for token in tokens)]
        log_total = log_mass(np.array(logs))
        if log_total == -math.inf:
            walk.end(is_accepted=False)
            return None
        weights = np.exp(np.array([*logs, -np.inf]) - node.log_success)
        if self._rejects:
            weights[-1] = max(-math.expm1(log_total - node.log_success), 0.0)
        index = inverse_cdf(weights, self._generator.random())
        if index == len(logs):
            walk.end(is_accepted=False)
            return None
        return tokens[index - 1] if index else None

    def _new(self, law: Law, passed: Set[int]) -> int:
        """Draw what follows among that which had no node yet."""
        rest = without(law, passed)
        return int(law.ids[inverse_cdf(np.exp(rest - rest.max()), self._generator.random())])

    def _take(self, walk: _Walk, token: int) -> None:
        """Go on with a token."""
        node, blank = walk.node, walk.node.law
        if blank is None:
            raise RuntimeError("a walk went on from where no mask was seen")
        known = node.children.get(token)
        if known is None and walk.law is not None:
            known = self._trie.child(node, token, walk.law)
            if known is None:
                known, walk.is_apart = TrieNode(float(walk.law.log_p[walk.law.index(token)])), True
        if known is None:
            raise RuntimeError("a walk went on with what nobody knows")
        branch = self._branches.grown(walk.branch, blank, token, known.log_p)
        if branch.finish_reason is not None:
            check_score(self._branches, branch, self._bound)
        if branch.score == -math.inf:
            self._forbid(walk, token, known)
            return
        walk.branch = branch
        if branch.finish_reason is None:
            walk.node, walk.law, walk.passed = known, None, None
            walk.excluded.clear()
            walk.path.append(known)
            return
        log_success = branch.score - self._bound
        self._learned.append((known, log_success))
        walk.end(is_accepted=not self._rejects or self._accepts(math.exp(min(log_success - known.log_success, 0.0))))

    def _accepts(self, chance: float) -> bool:
        return chance == 1 or inverse_cdf(np.array([chance, 1 - chance]), self._generator.random()) == 0

    def _forbid(self, walk: _Walk, token: int, known: TrieNode) -> None:
        """Note what the potentials forbid, and draw again where nothing is rejected."""
        self._learned.append((known, -math.inf))
        if self._rejects:
            walk.end(is_accepted=False)
            return
        walk.excluded.add(token)
        walk.passed = None


def merged(branches: Branches, found: Sequence[Branch]) -> tuple[Sample, ...]:
    """Outputs of equal weight as samples: those that are the same are one."""
    counts = Counter(branch.hypothesis.tokens for branch in found)
    first = {branch.hypothesis.tokens: branch for branch in reversed(found)}
    heaviest_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Sample(branches.result(first[tokens]), math.log(count), count, first[tokens].score)
        for tokens, count in heaviest_first
    )


def check_trie_sampler(name: str, samples: int, batch: int, max_tries: int, score_bound: float) -> None:
    """Check the numbers that both samplers have.

    Raises:
        ValueError: one is out of range.
    """
    for field_name, value in (("samples", samples), ("batch", batch), ("max_tries", max_tries)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: {field_name} must be an integer of at least 1; found {value!r}")
    if not math.isfinite(score_bound):
        raise ValueError(f"{name}: score_bound must be finite; found {score_bound!r}")
