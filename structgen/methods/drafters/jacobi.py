"""Jacobi decoding: a window of draft tokens, each replaced in every pass by the prediction after those before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np

from structgen.decode.speculative.acceptance import Calibration
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GrammarPosition, Verified
from structgen.decode.step.sampler import GumbelMax, Multinomial
from structgen.engine.mask import allowed_ids, contains

if TYPE_CHECKING:
    from structgen.decode.step.context import Context
    from structgen.models.protocol import Logits

__all__ = ["ChooseToken", "Jacobi", "jacobi_sweep", "most_probable", "rows_along", "with_noise"]

ChooseToken: TypeAlias = Callable[["Logits", GrammarPosition, int], int]
"""Chooses a token by the logits ``[V]`` at a position; the number counts the choices before it, from 0."""

_PRIOR: Final = 0.4
_STABLE_PRIOR: Final = 0.7


def most_probable(row: Logits, position: GrammarPosition, number: int) -> int:
    """Return the most probable allowed token; of equally probable ones the lowest id.

    Complexity: one pass over the row; a second one if the most probable token is refused.
    """
    del number
    best = int(row.argmax())
    if contains(position.mask, best):
        return best
    ids = allowed_ids(position.mask, len(row))
    return int(ids[row[ids].argmax()])


def with_noise(sampler: Multinomial | GumbelMax, seed: int) -> ChooseToken:
    """Return a chooser of the tokens that ``sampler`` samples for an output with this seed.

    With fixed random numbers, sampling maps the tokens before a position to a token, as taking the most probable one
    does; so the fixed point is found in the same way (Y. Song et al., "Accelerating Feedforward Computation via
    Parallel Nonlinear Equation Solving", 2021, arXiv 2002.03629).  Both samplers use one random number for each choice.
    """

    def choose(row: Logits, position: GrammarPosition, number: int) -> int:
        numbers = np.random.PCG64(seed)
        numbers.advance(number)
        ids = allowed_ids(position.mask, len(row))
        return int(ids[sampler.draw(row[ids].astype(np.float64), np.random.Generator(numbers))])

    return choose


def jacobi_sweep(
    position: GrammarPosition,
    rows: Sequence[Logits],
    first: int,
    count: int,
    choose: ChooseToken = most_probable,
    number: int = 0,
) -> DraftTree:
    """Return one sweep of Jacobi iteration: a chain that the grammar allows, with the forced tokens.

    The token at each position is chosen by the logits row of the last pass there, under the mask after the *new* tokens
    before it.  If these are the tokens that the row was computed after, the token is that of sequential decoding.  So
    each pass makes at least one more token final, and a chain that does not change is that of sequential decoding.

    Args:
        position: the position of the output.
        rows: logits ``[V]`` along the draft tokens of the last pass; at least one.
        first: the index of the row for ``position``.  The last row is repeated beyond the end.
        count: how many draft tokens; forced tokens are extra.
        choose: chooses a token.
        number: how many choices are before ``position``.
    """
    tree = DraftTree()
    node, at = ROOT, first
    for index in range(count):
        row = rows[min(at, len(rows) - 1)]
        token = choose(row, position, number + index)
        after = position.then(token)
        if after is None:
            break
        node = tree.extend(tree.add(node, token), after.forced, source=FORCED)
        at += 1 + len(after.forced)
        position = after
    return tree


def rows_along(verified: Verified, tokens: Sequence[int]) -> list[Logits]:
    """Return the rows after the sequence and after each of ``tokens``, up to the first that was not run."""
    rows: list[Logits] = [verified.rows[0]]
    for node in verified.tree.follow(tokens):
        if np.isnan(verified.rows[node + 1, 0]):
            break
        rows.append(verified.rows[node + 1])
    return rows


@final
@dataclass(frozen=True)
class Jacobi(Drafter):
    """Drafts a window of tokens that the model corrects from pass to pass, without a store or a second model.

    Each pass runs the whole window; after a wrong draft token, the later ones are drafted again from the rows of that
    pass.  Draft tokens beyond the rows use the last row.

    A draft token is run for its logits row as well as for its acceptance.  So use it without a cost model
    (``Speculation(Jacobi())``), which would prune unlikely tokens.

    Source: A. Santilli et al., "Accelerating Transformer Inference for Translation via Parallel Decoding" (2023, arXiv
    2305.10427), algorithm 1; masks, and states of the grammar from left to right, are new here.

    Attributes:
        window: how many tokens are drafted; at least 1.
        seed: the seed of an output that ``Multinomial`` or ``GumbelMax`` samples: draft tokens are then sampled with
            the random numbers of the output, at a few passes over the row for each.  Without it, and for any other
            sampler, the most probable tokens are drafted.
        calibration: how often draft tokens were right, by distance and by whether the last pass changed them.

    Raises:
        ValueError: ``window`` is below 1.
    """

    window: int = 8
    seed: int | None = None
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"Jacobi: window must be at least 1; found {self.window!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "jacobi"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        choose: ChooseToken = most_probable
        if self.seed is not None and isinstance(task.sampler, Multinomial | GumbelMax):
            choose = with_noise(task.sampler, self.seed)
        return _JacobiDrafting(self, len(context), choose)


@final
class _JacobiDrafting(Drafting):
    def __init__(self, drafter: Jacobi, start: int, choose: ChooseToken) -> None:
        self._drafter = drafter
        self._choose = choose
        self._start = start
        self._number = 0  # choices before the start
        self._position: GrammarPosition | None = None  # at the start
        self._rows: list[Logits] = []
        self._chain: list[int] = []
        self._tree = DraftTree()
        self._keys: list[tuple[int, bool] | None] = []

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        came = context.tokens[self._start :]
        self._learn(came)
        self._number += _choices(self._position, came)
        self._position = GrammarPosition.of(state)
        chain, self._chain = self._chain[len(came) :], []
        self._start = len(context)
        self._tree = DraftTree()
        if self._rows:
            swept_tree = jacobi_sweep(
                self._position, self._rows, len(came), min(self._drafter.window, budget), self._choose, self._number
            )
            self._tree = swept_tree.kept(range(budget))
            self._rate(chain)
        return self._tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        if verified.start != self._start:  # a pass without these draft tokens
            return
        self._chain = list(self._tree.tokens)
        self._rows = rows_along(verified, self._chain)

    def _rate(self, before: Sequence[int]) -> None:
        """Set the confidences of the draft tokens.

        Args:
            before: the draft tokens of the last pass at these positions.
        """
        tree, distance = self._tree, 0
        self._keys = []
        for node, (token, source) in enumerate(zip(tree.tokens, tree.sources, strict=True)):
            if source == FORCED:
                self._keys.append(None)
                continue
            key = (distance, node < len(before) and before[node] == token)
            self._keys.append(key)
            prior = _STABLE_PRIOR if key[1] else _PRIOR
            tree.confidences[node] = self._drafter.calibration.probability(key, prior)
            distance += 1

    def _learn(self, came: Sequence[int]) -> None:
        for key, draft, token in zip(self._keys, self._tree.tokens, came, strict=False):
            if key is not None:
                self._drafter.calibration.record(key, taken=draft == token)
            if draft != token:
                break
        self._keys = []


def _choices(position: GrammarPosition | None, came: Sequence[int]) -> int:
    """The number of tokens after a position that were chosen, not forced."""
    chosen = index = 0
    while position is not None and index < len(came):
        chosen += 1
        position = position.then(came[index])
        index += 1 + (0 if position is None else len(position.forced))
    return chosen
