"""What was learned of beginnings: how much of the model's law after each of them can still come to something.

Every beginning ``u`` has a success

    s(u) >= h(u) = E[exp(score - score_bound) 1{member} | u],

where the expectation is over what the model alone goes on to write: the probability that the output is a member, if
there are no potentials but those that forbid.  It is 1 where nothing is known.  Where the mask after ``u`` was seen it
is the sum of ``p(t | u) s(ut)`` over what is allowed, for an output it is known, and what is learned of a beginning is
carried back to all before it.  So it only falls, and comes down to ``h`` in the end.

Source: K. Park et al., "Grammar-Aligned Decoding" (NeurIPS 2024, arXiv 2405.21047) for expected futures; P. Parys et
al., "Constrained Adaptive Rejection Sampling" (2025, arXiv 2510.01902) for what rejection sampling makes of them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.projection import log_mass

if TYPE_CHECKING:
    from structgen.decode.sampling.law import Law
    from structgen.decode.sampling.problem import Problem

__all__ = ["PrefixTrie", "TrieNode", "without"]

_MAX_NODES: Final = 1 << 18
_MAX_BYTES: Final = 1 << 28


@final
class TrieNode:
    """A beginning, or behind a stop an output.

    Attributes:
        log_p: the model's log-probability of its last step, given those before.
        log_success: log of ``s``.
        law: its mask was seen if this is not None: how it was, without what is allowed in particular.
        log_rest: log of the probability of all that is allowed and has no node yet.
        children: by token; behind that which stands for the stop there is an output.
    """

    __slots__ = ("children", "law", "log_p", "log_rest", "log_success")

    def __init__(self, log_p: float) -> None:
        self.log_p = log_p
        self.log_success = 0.0
        self.log_rest = 0.0
        self.children: dict[int, TrieNode] = {}
        self.law: Law | None = None

    @property
    def is_seen(self) -> bool:
        """Whether its mask was seen."""
        return self.law is not None

    def see(self, law: Law) -> None:
        """Note what may follow; the success stays until it is updated."""
        if self.law is None:
            self.law = law.blank()
            self.log_rest = law.log_z

    def update(self) -> None:
        """Work out the success from those of what follows; it never rises."""
        logs = np.array([self.log_rest, *(child.log_p + child.log_success for child in self.children.values())])
        self.log_success = min(self.log_success, log_mass(logs))

    def __repr__(self) -> str:
        return f"<TrieNode, success {math.exp(self.log_success):.3g}, {len(self.children)} children>"


@final
class PrefixTrie:
    """Beginnings that were visited, for samplers to share between calls.

    It belongs to one problem: a model, a prompt, a constraint, potentials and ``max_tokens``.  The first call binds it.
    What it takes up is bounded: no nodes are added where there are ``max_nodes``, and of the laws after beginnings,
    those of which nobody asked for long are forgotten beyond ``max_bytes``, and asked of the model again.  Neither
    makes anything wrong that it says.

    Attributes:
        root: the empty beginning.
        size: how many nodes there are.

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
        self._laws: OrderedDict[TrieNode, Law] = OrderedDict()
        self._problem: Problem | None = None
        self._bound = 0.0

    def bind(self, problem: Problem, score_bound: float) -> None:
        """Say what the trie is about.

        Raises:
            ValueError: it is about something else already.
        """
        if self._problem is None:
            self._problem, self._bound = problem, score_bound
            return
        different = _difference(self._problem, problem)
        if not different and self._bound != score_bound:
            different = "score_bound"
        if different:
            raise ValueError(
                f"PrefixTrie: it was made with another {different}, and what it learned would be wrong here; "
                "use a trie for each problem, with the same potentials (made once, by structgen.potential)"
            )

    def recall(self, node: TrieNode) -> Law | None:
        """Return what may follow a node, if that is remembered."""
        known = self._laws.get(node)
        if known is not None:
            self._laws.move_to_end(node)
        return known

    def remember(self, node: TrieNode, law: Law) -> None:
        """Keep what may follow a node for as long as there is room."""
        self._laws[node] = law
        self._bytes += law.nbytes
        while self._bytes > self._max_bytes:
            _, forgotten = self._laws.popitem(last=False)
            self._bytes -= forgotten.nbytes

    def child(self, node: TrieNode, token: int, law: Law) -> TrieNode | None:
        """Return the node behind a token that ``law`` allows after ``node``; None where there is no room for it."""
        known = node.children.get(token)
        if known is not None or self.size >= self._max_nodes:
            return known
        self.size += 1
        child = TrieNode(float(law.log_p[law.index(token)]))
        node.children[token] = child
        node.log_rest = min(log_mass(without(law, node.children)), 0.0)  # summed anew, so that nothing cancels
        return child

    def __repr__(self) -> str:
        return f"<PrefixTrie of {self.size} nodes, success at most {math.exp(self.root.log_success):.3g}>"


def without(law: Law, tokens: Iterable[int]) -> NDArray[np.float64]:
    """The log-probabilities of a law, with minus infinity for some of its tokens."""
    rest = law.log_p.copy()
    rest[[law.index(token) for token in tokens]] = -np.inf
    return rest


def _difference(first: Problem, second: Problem) -> str:
    """What two problems differ in; an empty word if they do not."""
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
