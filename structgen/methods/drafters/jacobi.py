"""All tokens of a window at once: each is what the last pass said after the draft tokens before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np

from structgen.decode.speculative.acceptance import Calibration
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.grammar_position import GrammarPosition
from structgen.decode.step.sampler import GumbelMax, Multinomial
from structgen.engine.mask import allowed_ids, contains

if TYPE_CHECKING:
    from structgen.decode.step.context import Context
    from structgen.models.protocol import Logits

__all__ = ["Jacobi", "TokenChooser", "jacobi_sweep", "most_probable", "rows_along", "with_noise"]

TokenChooser: TypeAlias = Callable[["Logits", GrammarPosition, int], int]
"""Chooses a token by the logits ``[V]`` at a position; the number says how many choices lie before it, from 0."""

_PRIOR: Final = 0.4
_STABLE_PRIOR: Final = 0.7


def most_probable(row: Logits, choice: GrammarPosition, number: int) -> int:
    """The most probable token that the grammar allows; of equally probable ones that with the lowest id.

    Complexity: one pass over the row; a second one where the most probable token of all is refused.
    """
    del number
    best = int(row.argmax())
    if contains(choice.mask, best):
        return best
    ids = allowed_ids(choice.mask, len(row))
    return int(ids[row[ids].argmax()])


def with_noise(sampler: Multinomial | GumbelMax, seed: int) -> TokenChooser:
    """The tokens that ``sampler`` draws with the random numbers of an output with this seed.

    With its random numbers fixed, sampling is a map from the tokens before a position to the token there, as taking the
    most probable one is; so its fixed point can be found in the same way (Y. Song et al., "Accelerating Feedforward
    Computation via Parallel Nonlinear Equation Solving", 2021, arXiv 2002.03629).  Both samplers take one number of the
    generator for each choice.
    """

    def choose(row: Logits, choice: GrammarPosition, number: int) -> int:
        numbers = np.random.PCG64(seed)
        numbers.advance(number)
        ids = allowed_ids(choice.mask, len(row))
        return int(ids[sampler.draw(row[ids].astype(np.float64), np.random.Generator(numbers))])

    return choose


def jacobi_sweep(
    choice: GrammarPosition,
    rows: Sequence[Logits],
    place: int,
    count: int,
    choose: TokenChooser = most_probable,
    number: int = 0,
) -> DraftTree:
    """One sweep of Jacobi's iteration: a chain that the grammar allows, with what it forces in between.

    The token at each position is chosen by the row that the last pass told there, under the mask of the position after
    the *new* tokens before it.  Where these are what the row was told after, the token is that of sequential decoding.
    So each pass makes at least one more token final, and a chain that a pass confirms is sequential decoding's own.

    Args:
        choice: the position where the output stands.
        rows: logits ``[V]`` by position, along the draft tokens of the last pass; at least one.
        place: which of them belongs to ``choice``.  Beyond the last, that one is taken once more.
        count: how many draft tokens; forced tokens come on top.
        choose: chooses.
        number: how many choices lie before ``choice``.
    """
    tree = DraftTree()
    node, position = ROOT, place
    for index in range(count):
        row = rows[min(position, len(rows) - 1)]
        token = choose(row, choice, number + index)
        after = choice.then(token)
        if after is None:
            break
        node = tree.extend(tree.add(node, token), after.forced, source=FORCED)
        position += 1 + len(after.forced)
        choice = after
    return tree


def rows_along(verified: Verified, tokens: Sequence[int]) -> list[Logits]:
    """The rows after the sequence and after each of ``tokens``, up to the first that was not run."""
    rows: list[Logits] = [verified.rows[0]]
    node = ROOT
    for token in tokens:
        child = verified.tree.child(node, token)
        if child is None or np.isnan(verified.rows[child + 1, 0]):
            break
        node = child
        rows.append(verified.rows[node + 1])
    return rows


@final
@dataclass(frozen=True)
class Jacobi(Drafter):
    """Draft tokens a window of tokens that the model itself corrects from pass to pass.

    Without any store or second model.

    Each pass runs the whole window; where a draft token was wrong, those after it are drafted anew from the rows that
    the pass told there.  Draft tokens that no row tells yet repeat the last known row.

    A draft is run for what its row will say as much as for its chance to be taken, so hand it over without a cost model
    (``Speculation(Jacobi())``), which prunes what will probably be refused.

    Source: A. Santilli et al., "Accelerating Transformer Inference for Translation via Parallel Decoding" (2023, arXiv
    2305.10427), algorithm 1; masks, and states of the grammar from left to right, are new here.

    Attributes:
        window: how many tokens are drafted at a time; at least 1.
        seed: of the output, if its tokens are drawn by ``Multinomial`` or ``GumbelMax``: draft tokens are then made
            with the random numbers that will draw the tokens, and are right where the tokens before them are.  A few
            passes over the row for each draft token.  Without it, and for any other sampler, the most probable tokens
            are drafted.
        calibration: how often draft tokens came, by their distance and whether the last pass changed them.

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
        choose: TokenChooser = most_probable
        if self.seed is not None and isinstance(task.sampler, Multinomial | GumbelMax):
            choose = with_noise(task.sampler, self.seed)
        return _JacobiDrafting(self, len(context), choose)


@final
class _JacobiDrafting(Drafting):
    def __init__(self, drafter: Jacobi, start: int, choose: TokenChooser) -> None:
        self._drafter = drafter
        self._choose = choose
        self._start = start
        self._number = 0  # choices before the start
        self._choice: GrammarPosition | None = None  # at the start
        self._rows: list[Logits] = []
        self._chain: list[int] = []
        self._tree = DraftTree()
        self._keys: list[tuple[int, bool] | None] = []

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        came = context.tokens[self._start :]
        self._learn(came)
        self._number += _choices(self._choice, came)
        self._choice = GrammarPosition.of(state)
        chain, self._chain = self._chain[len(came) :], []
        self._start = len(context)
        self._tree = DraftTree()
        if self._rows:
            swept_tree = jacobi_sweep(
                self._choice, self._rows, len(came), min(self._drafter.window, budget), self._choose, self._number
            )
            self._tree = swept_tree.kept(range(budget))
            self._rate(chain)
        return self._tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        if verified.start != self._start:  # a pass without draft tokens, elsewhere
            return
        self._chain = list(self._tree.tokens)
        self._rows = rows_along(verified, self._chain)

    def _rate(self, before: Sequence[int]) -> None:
        """State how likely the draft tokens are.

        Args:
            before: what stood at these positions in the last pass.
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
        for key, token, found in zip(self._keys, self._tree.tokens, came, strict=False):
            if key is not None:
                self._drafter.calibration.record(key, taken=token == found)
            if token != found:
                break
        self._keys = []


def _choices(choice: GrammarPosition | None, came: Sequence[int]) -> int:
    """How many of the tokens that came after a position were chosen, not forced."""
    chosen = place = 0
    while choice is not None and place < len(came):
        chosen += 1
        choice = choice.then(came[place])
        place += 1 + (0 if choice is None else len(choice.forced))
    return chosen
