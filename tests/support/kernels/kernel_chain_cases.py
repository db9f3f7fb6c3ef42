"""Random automata with random weights, in the layouts of the host and of kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from structgen_kernels.canvases.canvas_tables import CanvasTables
from structgen_kernels.canvases.chain_edges import ChainEdges
from structgen_kernels.canvases.class_layout import ClassLayout
from structgen_kernels.canvases.label_scores import ClassLabels

from structgen.decode.diffusion.regular import Chain, Edges, RegularLanguage

__all__ = ["ChainCase", "a_chain_case", "canvas_tables", "runs_of"]


@dataclass(frozen=True)
class ChainCase:
    """An automaton and a batch of weights.

    Attributes:
        host: the edges in the layout of ``structgen.decode.diffusion``.
        edges: the edges in the layout of kernels.
        weights: float32 ``[batch, slots, labels]``; rows are strided.
    """

    host: Edges
    edges: ChainEdges
    weights: torch.Tensor

    def chains(self, *, is_max: bool) -> list[Chain]:
        """Return the messages of the host implementation for each canvas."""
        return [Chain(self.host, one.numpy().astype(np.float64), is_max=is_max) for one in self.weights]


def a_chain_case(
    seed: int, batch: int = 3, slots: int = 4, states: int = 9, labels: int = 5, edges: int = 30
) -> ChainCase:
    """A nondeterministic automaton with parallel edges, many to the last state, and few distinct weights, for ties."""
    rng = np.random.default_rng(seed)
    columns = [rng.integers(0, most, edges).astype(np.int32) for most in (states, states, labels)]
    columns[1][rng.random(edges) < 0.3] = states - 1
    final = rng.random(states) < 0.6
    host = Edges(states, labels, final, *columns)
    apart = np.log(rng.integers(1, 6, (batch, slots + 1, labels + 3)) / 8.0).astype(np.float32)
    apart[rng.random(apart.shape) < 0.1] = -np.inf
    weights = torch.from_numpy(apart)[:, :slots, :labels]
    return ChainCase(host, ChainEdges.of(states, labels, final, *columns), weights)


def runs_of(edges: Edges, weights: NDArray[np.float32]) -> dict[tuple[int, ...], Fraction]:
    """Return the weight of every run from the start to acceptance, by enumeration."""
    found: dict[tuple[int, ...], Fraction] = {}
    for run in product(range(len(edges.source)), repeat=len(weights)):
        states = [0, *(int(edges.target[edge]) for edge in run)]
        if (
            all(edges.source[edge] == state for edge, state in zip(run, states, strict=False))
            and edges.final[states[-1]]
        ):
            each = [float(weights[slot, edges.label[edge]]) for slot, edge in enumerate(run)]
            if min(each, default=0.0) > -math.inf:
                found[run] = math.prod((Fraction(math.exp(one)) for one in each), start=Fraction(1))
    return found


def canvas_tables(language: RegularLanguage) -> CanvasTables:
    """Return the kernel tables of a language."""
    edges, automaton = language.edges, language.automaton
    begin = np.append(automaton.label_begin, automaton.label_begin[-1] + [1, 2])
    held = np.append(automaton.label_class, [automaton.eos_class] * 2)
    return CanvasTables.of(
        ChainEdges.of(edges.states, edges.labels, edges.final, edges.source, edges.target, edges.label),
        ClassLayout.of(automaton.class_of, automaton.classes),
        ClassLabels.of(begin, held, automaton.classes),
        (*language.vocabulary.eos, -1)[0],
    )
