"""Random trees of draft tokens for tests of kernels, and their paths by verifiers in double precision."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch
from kernel_mask_cases import mask_case
from structgen_kernels.choices.choice import CHOSEN, EMPTY
from structgen_kernels.masks.mask_rows import MaskRows
from structgen_kernels.philox import STREAMS, Noise, random_words
from structgen_kernels.trees.draft_forest import DraftForest
from structgen_kernels.trees.draft_paths import DraftPaths
from structgen_kernels.trees.tree_verification import DraftDistributions, verify_tree
from structgen_kernels.trees.verification_workspace import VerificationWorkspace

from structgen.decode.speculative.verifier import reject_recursively
from structgen.methods.verifiers.tree_verification import restricted

__all__ = ["BLOCK", "Case", "Language", "check_case", "random_case"]

WORD = 2**32
BLOCK = 32
"""Columns per block, few enough that small vocabularies have several blocks."""


def words_of(noise: Noise, request: int, stream: str, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the random numbers of some indices, as uniform and as exponential variates, float64."""
    words = random_words(noise.seeds[request], noise.offsets[request], STREAMS[stream], index)
    high, low = words[0].double(), words[1].double()
    rest = (WORD - 1 - high + (WORD - low - 0.5) / WORD) / WORD
    uniform = (high + (low + 0.5) / WORD) / WORD
    return uniform, torch.where(uniform < 0.5, -torch.log1p(-uniform), -torch.log(rest))


class SameNumbers:
    """``structgen.decode.speculative.verifier.Chance`` at one position, with the random numbers of kernels."""

    def __init__(self, noise: Noise, request: int, node: int, siblings: list[tuple[int, int]], *, again: bool) -> None:
        self._noise, self._request, self._node = noise, request, node
        self._siblings, self._again = iter(siblings), again
        self._met: set[int] = set()

    def coin(self, probability: float) -> bool:
        node, token = next(self._siblings)
        while token in self._met and not self._again:
            node, token = next(self._siblings)
        self._met.add(token)
        uniform, _ = words_of(self._noise, self._request, "accept", torch.tensor([node]))
        assert abs(float(uniform) - probability) > 1e-5  # rounding must not decide
        return float(uniform) < probability

    def draw(self, weights: np.ndarray) -> int:
        blocks = -(-len(weights) // BLOCK)
        padded = np.zeros(blocks * BLOCK)
        padded[: len(weights)] = weights
        block = self._race(padded.reshape(blocks, BLOCK).sum(1), "residual_block")
        return block * BLOCK + self._race(padded[block * BLOCK :][:BLOCK], "residual_token")

    def _race(self, weights: np.ndarray, stream: str) -> int:
        places = (self._node + 1) * len(weights) + torch.arange(len(weights))
        _, times = words_of(self._noise, self._request, stream, places)
        runs = np.flatnonzero(weights)
        return int(runs[(times.numpy()[runs] / weights[runs]).argmin()])


@dataclass
class Case:
    """A batch of trees of sampled draft tokens, with all arguments of verification."""

    logits: torch.Tensor
    trees: list[tuple[list[int], list[int]]]
    distributions: DraftDistributions
    noise: Noise
    masks: MaskRows
    allowed: torch.Tensor
    temperature: torch.Tensor

    @property
    def forest(self) -> DraftForest:
        return DraftForest.of(self.trees)

    def verify(self) -> DraftPaths:
        forest = self.forest
        workspace = VerificationWorkspace(
            len(forest.parents), forest.requests, self.masks.size, forest.device, block=BLOCK
        )
        return verify_tree(
            self.logits,
            forest,
            self.distributions,
            self.noise,
            masks=self.masks,
            temperature=self.temperature,
            workspace=workspace,
        )


def random_case(
    seed: int, size: int, requests: int, *, replaced: bool, dtype: torch.dtype = torch.float32, flat: bool = False
) -> Case:
    """Make trees; children are sampled from a distribution near the target's, or chosen; some positions are greedy.

    With ``flat``, each root has six children and there are no other nodes; all are sampled from a distribution far from
    the target's.
    """
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    shapes = [[rng.randint(-1, node - 1) for node in range(rng.randint(1, 7))] for _ in range(requests)]
    if flat:
        shapes = [[-1] * 6] * requests
    positions = sum(len(parents) + 1 for parents in shapes)
    logits = (2 * torch.randn(positions, size + 3, generator=generator)).to(dtype)[:, : size + 1]
    values = (logits[:, :size].float() + torch.randn(positions, size, generator=generator)).to(dtype)
    if flat:
        values = torch.randn(positions, size, generator=generator).to(dtype)
    case = mask_case(positions, size, seed, codes=2)
    rows = torch.arange(positions, dtype=torch.int32)
    rows[torch.rand(positions, generator=generator) < 0.2] = -1
    temperature = torch.full((positions,), 0.8)
    temperature[torch.rand(positions, generator=generator) < 0.1] = 0
    if flat:
        rows, temperature = torch.arange(positions, dtype=torch.int32), torch.full_like(temperature, 0.8)
    trees, row = [], 0
    for parents in shapes:
        tokens: list[int] = []
        for node, parent in enumerate(parents):
            distribution = values[row + parent + 1].float().softmax(0)
            earlier = [tokens[each] for each in range(node) if parents[each] == parent]
            if not replaced:
                distribution[earlier] = 0
            if not distribution.any():
                distribution[0] = 1  # all tokens have been sampled, so one is repeated
            # Most trees are sampled from the allowed tokens: others are rejected at once.
            if rng.random() < 0.8 and bool((distribution * case.allowed[row + parent + 1]).any()):
                distribution = distribution * case.allowed[row + parent + 1]
            tokens.append(int(torch.multinomial(distribution, 1, generator=generator)))
        trees.append((parents, tokens))
        row += len(parents) + 1
    noise = Noise.of(seed + 17, requests, offset=2**33 + seed)
    return Case(logits, trees, DraftDistributions(values, rows, replaced), noise, case.masks, case.allowed, temperature)


def expected_path(case: Case, request: int, row: int) -> tuple[list[int], int, int]:
    """Return nodes, token and status by the verifiers in double precision; ``row`` is the row of the root."""
    parents, tokens = case.trees[request]
    path: list[int] = []
    node = -1
    while True:
        position = row + node + 1
        allowed = case.allowed[position].numpy()
        if not allowed.any():
            return path, -1, EMPTY
        temperature = float(case.temperature[position])
        scaled = np.where(allowed, case.logits[position, : len(allowed)].double().numpy(), -np.inf)
        distribution = int(case.distributions.rows[position])
        siblings = [(each, tokens[each]) for each, parent in enumerate(parents) if parent == node]
        if temperature == 0:
            token = int(scaled.argmax())
        else:
            p = np.exp(scaled / temperature - scaled.max() / temperature)
            p /= p.sum()
            drafts: tuple[int, ...] = ()
            q = np.zeros_like(p)
            if distribution >= 0:
                q = case.distributions.values[distribution].double().softmax(0).numpy()
                q, drafts = restricted(q, [token for _, token in siblings], allowed)
            siblings = [(each, token) for each, token in siblings if token in drafts]
            chance = SameNumbers(case.noise, request, node, siblings, again=case.distributions.replaced)
            token = reject_recursively(p, q, drafts, chance, replaced=case.distributions.replaced)
        children = [each for each, parent in enumerate(parents) if parent == node and tokens[each] == token]
        if not children:
            return path, token, CHOSEN
        node = children[0]
        path.append(node)


def check_case(case: Case) -> int:
    """Compare all paths; return the number of accepted nodes."""
    paths = case.verify()
    begin = row = taken = 0
    for request, (parents, _) in enumerate(case.trees):
        path, token, status = expected_path(case, request, row)
        held = paths.nodes[begin : begin + len(parents)].tolist()
        assert held == path + [-1] * (len(parents) - len(path))
        assert int(paths.counts[request]) == len(path)
        assert (int(paths.tokens[request]), int(paths.status[request])) == (token, status)
        accepted = paths.accepted[begin : begin + len(parents)].nonzero()[:, 0].tolist()
        assert accepted == sorted(path)
        begin, row, taken = begin + len(parents), row + len(parents) + 1, taken + len(path)
    return taken


@dataclass
class Language:
    """A target model and a drafter of sequences of three tokens, first-order Markov chains under masks.

    Attributes:
        p: float64 ``[3, 5, 4]``, the masked target distributions by position and previous token (4 for none).
        q: float64 ``[3, 5, 4]``, the drafter's distributions, unmasked.
        allowed: bool ``[3, 5, 4]``, the masks.
    """

    p: torch.Tensor
    q: torch.Tensor
    allowed: torch.Tensor

    @classmethod
    def random(cls, seed: int) -> Language:
        generator = torch.Generator().manual_seed(seed)
        p, q = (2.5 * torch.randn(3, 5, 4, generator=generator, dtype=torch.float64) for _ in range(2))
        allowed = torch.rand(3, 5, 4, generator=generator) < 0.7
        allowed[..., 1] |= ~allowed.any(-1)
        return cls(torch.where(allowed, p, -torch.inf).softmax(-1), q.softmax(-1), allowed)

    def distribution(self) -> torch.Tensor:
        """Return the distribution of all sequences, float64 ``[4, 4, 4]``."""
        return self.p[0, 4][:, None, None] * self.p[1, :4][:, :, None] * self.p[2, :4][None]
