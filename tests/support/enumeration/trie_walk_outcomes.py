"""Every outcome of walks down a trie, with its probability."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pytest
from toy_outputs import STOP, Output, Toy

from structgen.decode.sampling import Samples
from structgen.methods.samplers import prefix_trie as trie_walk
from structgen.methods.samplers.prefix_trie import PrefixTrie, TrieNode, TrieWalks
from structgen.methods.samplers.trie_sampler import RejectionTrie

Outcome = list[Output | None]
Result = TypeVar("Result")


class Branching:
    """Decisions: first those of ``script``, then always the first possible one.

    Attributes:
        probability: of all decisions so far.
        others: scripts that decide otherwise somewhere.
    """

    def __init__(self, script: list[int]) -> None:
        self.probability = 1.0
        self.others: list[list[int]] = []
        self._script = script
        self._made: list[int] = []

    def choose(self, weights: np.ndarray) -> int:
        possible = np.flatnonzero(weights).tolist()
        if len(self._made) < len(self._script):
            chosen = self._script[len(self._made)]
        else:
            chosen = possible[0]
            self.others += [[*self._made, other] for other in possible[1:]]
        self._made.append(chosen)
        self.probability *= float(weights[chosen] / weights.sum())
        return int(chosen)


class NoRandomness:
    """Stands in for a generator: ``Branching`` makes all decisions."""

    def random(self) -> float:
        return 0.5


def walks_of(
    toy: Toy,
    batches: list[int],
    *,
    rejects: bool,
    score_bound: float = 0.0,
    trie: Callable[[], PrefixTrie] = PrefixTrie,
    look: Callable[[PrefixTrie], Any] = lambda trie: None,
) -> Iterator[tuple[float, list[Outcome], list[Any]]]:
    """All outcomes of batches of walks on a new trie.

    Yields:
        The probability (they sum to 1), the outputs of each batch, and the result of ``look`` before each.
    """

    def run() -> tuple[list[Outcome], list[Any]]:
        known, seen, found = trie(), [], []
        with toy.branches() as branches:
            generator: Any = NoRandomness()
            walks = TrieWalks(branches, known, generator, score_bound=score_bound, rejects=rejects)
            for count in batches:
                seen.append(look(known))
                found.append([None if each is None else each.hypothesis.tokens for each in walks.run(count)])
        return found, seen

    for probability, (found, seen) in enumerated(run):
        yield probability, found, seen


def runs_of(toy: Toy, sampler: RejectionTrie) -> Iterator[tuple[float, Samples]]:
    """All outcomes of whole runs of a sampler, which must have no trie of its own; the probabilities sum to 1."""

    def run() -> Samples:
        generator: Any = NoRandomness()
        with toy.branches() as branches:
            return sampler.run(branches, generator)

    yield from enumerated(run)


def enumerated(run: Callable[[], Result]) -> Iterator[tuple[float, Result]]:
    """All outcomes of a computation that walks down tries, each with its probability."""
    scripts: list[list[int]] = [[]]
    with pytest.MonkeyPatch.context() as patch:
        while scripts:
            branching = Branching(scripts.pop())
            patch.setattr(trie_walk, "inverse_cdf", lambda weights, uniform, b=branching: b.choose(weights))
            found = run()
            yield branching.probability, found
            scripts += branching.others


def nodes(toy: Toy, trie: PrefixTrie) -> Iterator[tuple[Output, TrieNode]]:
    """All nodes with the tokens that lead to them; an output ends with ``STOP``."""
    pending: list[tuple[Output, TrieNode]] = [((), trie.root)]
    while pending:
        tokens, node = pending.pop()
        yield tokens, node
        pending += [((*tokens, STOP if token == toy.stop else token), child) for token, child in node.children.items()]


def success(toy: Toy, tokens: Output, score_bound: float) -> float:
    """The limit of a node's success, by enumeration of all outputs."""
    if tokens[-1:] == (STOP,):
        return math.exp(toy.score_of(tokens[:-1]) - score_bound)
    return toy.future(tokens) * math.exp(-score_bound)


def next_distribution(toy: Toy, trie: PrefixTrie) -> dict[Output, float]:
    """The distribution of the next output if ``t`` follows ``u`` in proportion to ``p(t | u) s(ut)``."""
    found: dict[Output, float] = {}
    pending: list[tuple[Output, TrieNode | None, float]] = [((), trie.root, 1.0)]
    while pending:
        tokens, node, chance = pending.pop()
        weights: dict[int, float] = {}
        children = {} if node is None else node.children
        for token, log_p in toy.choices(tokens).items():
            child = children.get(toy.stop if token == STOP else token)
            # A token that the potentials forbid is detected when it is sampled, and then another one is sampled.
            admitted = toy.score_of(tokens) > -math.inf if token == STOP else toy.admits((*tokens, token))
            weights[token] = math.exp(log_p + (child.log_success if child else 0.0)) if admitted else 0.0
        total = sum(weights.values())
        for token, weight in weights.items():
            if token == STOP and weight:
                found[tokens] = chance * weight / total
            elif weight:
                pending.append(((*tokens, token), children.get(token), chance * weight / total))
    return found
