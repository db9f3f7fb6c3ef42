"""A trie of prefixes with learned success probabilities, and walks down it: shared by ``ASAp`` and ``RejectionTrie``.

The success ``s`` of a prefix is an upper bound of the probability that the model completes it to an allowed output,
times the potentials relative to ``score_bound``.  It starts at 1.  A walk samples the next token by the model's
probability times ``s`` of the child, and updates ``s`` on the way back.  With ``rejects`` a walk is rejected with the
probability that the children's successes fall short of ``s``.

Source: K. Park et al., "Grammar-Aligned Decoding" (NeurIPS 2024, arXiv 2405.21047) for expected futures; P. Parys et
al., "Constrained Adaptive Rejection Sampling" (2025, arXiv 2510.01902) for their use in rejection sampling.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampling.protocol import Sample, check_score
from structgen.decode.step.distribution import log_mass
from structgen.decode.step.sampler import inverse_cdf

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.sampling.protocol import Problem
    from structgen.decode.step.distribution import Distribution

__all__ = ["PrefixTrie", "TrieNode", "TrieWalks", "check_trie_sampler", "merged", "without"]

_MAX_NODES: Final = 1 << 18
_MAX_BYTES: Final = 1 << 28


@final
class TrieNode:
    """A prefix, or after EOS a complete output.

    Attributes:
        log_p: the model's log-probability of its last step, given those before.
        log_success: log of ``s``, see the module.
        distribution: the next-token distribution without its tokens (``blank``); None if it was not computed.
        log_rest: log of the probability of all allowed next tokens without a node.
        children: the nodes after next tokens; that after EOS is a complete output.
    """

    __slots__ = ("children", "distribution", "log_p", "log_rest", "log_success")

    def __init__(self, log_p: float) -> None:
        self.log_p = log_p
        self.log_success = 0.0
        self.log_rest = 0.0
        self.children: dict[int, TrieNode] = {}
        self.distribution: Distribution | None = None

    @property
    def is_seen(self) -> bool:
        """Whether its next-token distribution was computed."""
        return self.distribution is not None

    def see(self, distribution: Distribution) -> None:
        """Set the next-token distribution; the success stays until ``update``."""
        if self.distribution is None:
            self.distribution = distribution.blank()
            self.log_rest = distribution.log_z

    def update(self) -> None:
        """Compute the success from those of the children; it never rises."""
        logs = np.array([self.log_rest, *(child.log_p + child.log_success for child in self.children.values())])
        self.log_success = min(self.log_success, log_mass(logs))

    def __repr__(self) -> str:
        return f"<TrieNode, success {math.exp(self.log_success):.3g}, {len(self.children)} children>"


@final
class PrefixTrie:
    """A trie of visited prefixes, which calls can share.

    It belongs to one problem: a model, a prompt, a constraint, potentials and ``max_tokens``.  The first call binds it.
    Its size is bounded: no nodes are added beyond ``max_nodes``, and the least recently used distributions are evicted
    beyond ``max_bytes`` and computed again when needed.  Results stay correct.

    Attributes:
        root: the empty prefix.
        size: number of nodes.

    Args:
        max_nodes: see above; a node takes about 300 bytes.
        max_bytes: see above.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, *, max_nodes: int = _MAX_NODES, max_bytes: int = _MAX_BYTES) -> None:
        if max_nodes < 1:
            raise ValueError(f"PrefixTrie: max_nodes must be at least 1; found {max_nodes!r}")
        if max_bytes < 0:
            raise ValueError(f"PrefixTrie: max_bytes must not be negative; found {max_bytes!r}")
        self.root = TrieNode(0.0)
        self.size = 1
        self._max_nodes = max_nodes
        self._max_bytes = max_bytes
        self._bytes = 0
        self._distributions: OrderedDict[TrieNode, Distribution] = OrderedDict()
        self._problem: Problem | None = None
        self._bound = 0.0

    def bind(self, problem: Problem, score_bound: float) -> None:
        """Bind the trie to a problem.

        Raises:
            ValueError: it is bound to another one.
        """
        if self._problem is None:
            self._problem, self._bound = problem, score_bound
            return
        different = _difference(self._problem, problem)
        if not different and self._bound != score_bound:
            different = "score_bound"
        if different:
            raise ValueError(
                f"PrefixTrie: it was used with another {different}, and its probabilities would be wrong here; "
                "use a trie for each problem, with the same potentials (made once, by structgen.potential)"
            )

    def recall(self, node: TrieNode) -> Distribution | None:
        """Return the cached next-token distribution of a node."""
        cached = self._distributions.get(node)
        if cached is not None:
            self._distributions.move_to_end(node)
        return cached

    def remember(self, node: TrieNode, distribution: Distribution) -> None:
        """Cache the next-token distribution of a node."""
        self._distributions[node] = distribution
        self._bytes += distribution.nbytes
        while self._bytes > self._max_bytes:
            _, evicted = self._distributions.popitem(last=False)
            self._bytes -= evicted.nbytes

    def child(self, node: TrieNode, token: int, distribution: Distribution) -> TrieNode | None:
        """Return the node after a next token of ``node``, made if necessary; None if the trie is full."""
        existing = node.children.get(token)
        if existing is not None or self.size >= self._max_nodes:
            return existing
        self.size += 1
        child = TrieNode(float(distribution.log_p[distribution.index(token)]))
        node.children[token] = child
        node.log_rest = min(log_mass(without(distribution, node.children)), 0.0)  # summed again, against cancellation
        return child

    def __repr__(self) -> str:
        return f"<PrefixTrie of {self.size} nodes, success at most {math.exp(self.root.log_success):.3g}>"


def without(distribution: Distribution, tokens: Iterable[int]) -> NDArray[np.float64]:
    """The log-probabilities of a distribution, with minus infinity for some of its tokens."""
    rest = distribution.log_p.copy()
    rest[[distribution.index(token) for token in tokens]] = -np.inf
    return rest


def _difference(first: Problem, second: Problem) -> str:
    """The name of an attribute in which two problems differ; empty if they are the same."""
    if first.model is not second.model:
        return "model"
    if first.prompt != second.prompt or first.begun != second.begun:
        return "prompt"
    if first.max_tokens != second.max_tokens:
        return "max_tokens"
    same_vocabulary = first.constraint.vocabulary.digest == second.constraint.vocabulary.digest
    if first.constraint is not second.constraint and not (
        same_vocabulary and first.constraint.grammar == second.constraint.grammar
    ):
        return "constraint"
    if len(first.potentials) != len(second.potentials) or any(
        one is not other for one, other in zip(first.potentials, second.potentials, strict=True)
    ):
        return "list of potentials"
    return ""


@final
@dataclass(eq=False, slots=True)
class _TrieWalk:
    """A walk from the root to an output.

    Attributes:
        branch: the prefix so far; at the end the output.
        node: its node in the trie, or a node of its own if the trie is full.
        path: the nodes from the root to ``node``.
        distribution: the next-token distribution; None if it is not computed.
        passed: tokens that the next one is not, because the rest was sampled; None if nothing was sampled yet.
        excluded: tokens that the potentials forbid here.
        is_apart: whether the node is not in the trie.
        is_over: whether the walk has ended.
        is_accepted: whether it ended with an output.
    """

    branch: Branch
    node: TrieNode
    path: list[TrieNode]
    distribution: Distribution | None = None
    passed: frozenset[int] | None = None
    excluded: set[int] = field(default_factory=set)
    is_apart: bool = False
    is_over: bool = False
    is_accepted: bool = False

    def end(self, *, is_accepted: bool) -> None:
        self.is_over, self.is_accepted = True, is_accepted

    def log_rest(self) -> float:
        """Log of the probability of all allowed next tokens without a node."""
        if not self.excluded or self.distribution is None:
            return self.node.log_rest
        return log_mass(without(self.distribution, {*self.node.children, *self.excluded}))


@final
class TrieWalks:
    """The walks of one run.

    Args:
        branches: the branches of the problem.
        trie: the trie, which the walks update.
        generator: the random numbers.
        score_bound: upper bound of the potentials' score of an output.
        rejects: whether walks are rejected, see the module.

    Raises:
        ValueError: the trie belongs to another problem.
        GenerationError: the potentials forbid every output from the start.
    """

    def __init__(
        self, branches: Branches, trie: PrefixTrie, generator: np.random.Generator, *, score_bound: float, rejects: bool
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
        """Make several walks; return the output of each, None for a walk without output."""
        walks = [_TrieWalk(self._root, self._trie.root, [self._trie.root]) for _ in range(count)]
        live = walks
        while live:
            for walk in live:
                self._move(walk)
            live = [walk for walk in live if not walk.is_over]
            self._compute(live)
        for node, log_success in self._learned:
            node.log_success = log_success
        self._learned.clear()
        for walk in walks:
            for node in reversed(walk.path):
                if node.is_seen:
                    node.update()
        return [walk.branch if walk.is_accepted else None for walk in walks]

    def _compute(self, walks: Sequence[_TrieWalk]) -> None:
        """Set the next-token distributions of walks, from the cache or by shared forward passes."""
        waiting: dict[tuple[int, ...], list[_TrieWalk]] = {}
        for walk in walks:
            walk.distribution = self._trie.recall(walk.node)
            if walk.distribution is None:
                waiting.setdefault(walk.branch.hypothesis.tokens, []).append(walk)
        firsts = [same[0] for same in waiting.values()]
        rows = self._branches.logits_at([walk.branch for walk in firsts])
        for first, logits, same in zip(firsts, rows, waiting.values(), strict=True):
            distribution = self._branches.distribution(first.branch, logits, tilted=False)
            for walk in same:
                walk.distribution = distribution
            if not first.is_apart:
                self._trie.remember(first.node, distribution)

    def _move(self, walk: _TrieWalk) -> None:
        """Advance a walk until it needs a next-token distribution, or ends."""
        while not walk.is_over:
            if not walk.node.is_seen:
                if walk.distribution is None:
                    return
                walk.node.see(walk.distribution)
            token = self._sample_child(walk) if walk.passed is None else None
            if walk.is_over:
                return
            if token is None:
                if walk.passed is None:
                    # Nodes that other walks add in the meantime must not change this walk's distribution.
                    walk.passed = frozenset((*walk.node.children, *walk.excluded))
                if walk.distribution is None:
                    return
                token = self._sample_new(walk.distribution, walk.passed)
            self._take(walk, token)

    def _sample_child(self, walk: _TrieWalk) -> int | None:
        """Sample the next token among the children of the node; None is any other token, or the walk has ended."""
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

    def _sample_new(self, distribution: Distribution, passed: Set[int]) -> int:
        """Sample the next token among those without a node."""
        rest = without(distribution, passed)
        return int(distribution.ids[inverse_cdf(np.exp(rest - rest.max()), self._generator.random())])

    def _take(self, walk: _TrieWalk, token: int) -> None:
        """Advance a walk by a token."""
        node, blank = walk.node, walk.node.distribution
        if blank is None:
            raise RuntimeError("a walk advanced from a node without distribution")
        child = node.children.get(token)
        if child is None and walk.distribution is not None:
            child = self._trie.child(node, token, walk.distribution)
            if child is None:
                child, walk.is_apart = TrieNode(float(walk.distribution.log_p[walk.distribution.index(token)])), True
        if child is None:
            raise RuntimeError("a walk advanced by a token without probability")
        branch = self._branches.grown(walk.branch, blank, token, child.log_p)
        if branch.finish_reason is not None:
            check_score(branch, self._bound)
        if branch.score == -math.inf:
            self._forbid(walk, token, child)
            return
        walk.branch = branch
        if branch.finish_reason is None:
            walk.node, walk.distribution, walk.passed = child, None, None
            walk.excluded.clear()
            walk.path.append(child)
            return
        log_success = branch.score - self._bound
        self._learned.append((child, log_success))
        walk.end(is_accepted=not self._rejects or self._accepts(math.exp(min(log_success - child.log_success, 0.0))))

    def _accepts(self, probability: float) -> bool:
        return probability == 1 or inverse_cdf(np.array([probability, 1 - probability]), self._generator.random()) == 0

    def _forbid(self, walk: _TrieWalk, token: int, child: TrieNode) -> None:
        """Record a token that the potentials forbid; end the walk, or let it resample if nothing is rejected."""
        self._learned.append((child, -math.inf))
        if self._rejects:
            walk.end(is_accepted=False)
            return
        walk.excluded.add(token)
        walk.passed = None


def merged(branches: Branches, outputs: Sequence[Branch]) -> tuple[Sample, ...]:
    """Samples of outputs of equal weight; outputs with the same tokens are one sample."""
    counts = Counter(branch.hypothesis.tokens for branch in outputs)
    first = {branch.hypothesis.tokens: branch for branch in reversed(outputs)}
    heaviest_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        Sample(branches.result(first[tokens]), math.log(count), count, first[tokens].score)
        for tokens, count in heaviest_first
    )


def check_trie_sampler(name: str, samples: int, batch: int, max_tries: int, score_bound: float) -> None:
    """Check the settings that both samplers have.

    Raises:
        ValueError: one is out of range.
    """
    for field_name, value in (("samples", samples), ("batch", batch), ("max_tries", max_tries)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: {field_name} must be an integer of at least 1; found {value!r}")
    if not math.isfinite(score_bound):
        raise ValueError(f"{name}: score_bound must be finite; found {score_bound!r}")
