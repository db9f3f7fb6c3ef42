"""The cost of a forward pass by its number of rows, and the part of a draft tree that saves more than it costs.

A pass reads the weights once for all rows, so further rows cost little (``CostModel``).  A node saves a forward pass if
it is accepted and the token after it is chosen.  A node with forced tokens after it saves the pass over all of them if
the tree has them up to the last.  Rows of accepted tokens cost nothing, since the saved pass would have run them; the
other rows are the price.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.errors import ModelError
from structgen.models.pass_times import Company

if TYPE_CHECKING:
    from structgen.models.protocol import LanguageModel

__all__ = ["CostModel", "company_of", "expected_saving", "pruned_tree"]

_ROWS: Final = (1, 2, 4, 8, 16, 32)
_USUAL_RATE: Final = 0.7
_ROUNDING: Final = 1e-12
_ALONE: Final = Company(0, 0, 1 << 30)


@final
@dataclass(frozen=True, slots=True)
class CostModel:
    """The time of a forward pass relative to a pass over one row: linear between the points of a table.

    Attributes:
        row: the time that each row adds after the last point of the table.
        table: numbers of rows, ascending and above 1, each with the relative time of a pass; times must not decrease.
        seconds: the time of a pass over one row, if it was measured.

    Raises:
        ValueError: a number is out of range, or the table is not ascending.

    Example:
        >>> cost = CostModel(0.1, ((8, 1.2),))
        >>> [round(cost.relative(rows), 2) for rows in (1, 8, 10)]
        [1.0, 1.2, 1.4]
    """

    row: float
    table: tuple[tuple[int, float], ...] = ()
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.row) and self.row >= 0):
            raise ValueError(f"CostModel: row must be finite and not negative; found {self.row!r}")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"CostModel: seconds must be positive and finite, or None; found {self.seconds!r}")
        for (rows, time), (more, longer) in pairwise(((1, 1.0), *self.table)):
            if not (isinstance(more, int) and more > rows and math.isfinite(longer) and longer >= time):
                raise ValueError(
                    f"CostModel: table must ascend from 1 row, whose time is 1; found {(more, longer)!r} after "
                    f"{(rows, time)!r}"
                )

    @classmethod
    def assumed(cls, model: LanguageModel) -> Self:
        """Return the usual cost of passes of such a model, the same on every machine.

        A model may provide it (``pass_times``, a table as here).  Otherwise it depends on the device: rows are nearly
        free except on a CPU, and cost most on an unknown device.
        """
        table = _table(model)
        if table is not None:
            (rows, time), (more, longer) = table[-2:]
            return cls((longer - time) / (more - rows), table)
        device = _device(model)
        if device is None:
            return cls(_UNKNOWN_ROW, _UNKNOWN_TABLE)
        return cls(_CPU_ROW, _CPU_TABLE) if device == "cpu" else cls(_GPU_ROW)

    @classmethod
    def measured(
        cls,
        model: LanguageModel,
        *,
        rows: Sequence[int] = _ROWS,
        context: int = 256,
        repeats: int = 5,
        clock: Callable[[], float] = perf_counter,
    ) -> Self:
        """Measure the cost on this machine.

        Each number of rows is run after the same tokens, and the shortest time counts.

        Args:
            model: the language model.
            rows: numbers of rows to measure, ascending from 1; at least two.
            context: the number of tokens before them; fewer if the context of the model is shorter.
            repeats: how often each pass is run.
            clock: returns seconds.

        Raises:
            ValueError: an argument is out of range.
            ModelError: the context of the model is too short for the largest number of rows, or its passes take no
                time.
        """
        if len(rows) < 2 or rows[0] != 1 or any(more <= less for less, more in pairwise(rows)):
            raise ValueError(f"CostModel: rows must ascend from 1, two of them or more; found {tuple(rows)!r}")
        if context < 1 or repeats < 1:
            raise ValueError(f"CostModel: context and repeats must be at least 1; found {context!r} and {repeats!r}")
        times = _times(model, rows, context, repeats, clock)
        one = times[0]
        if not one > 0:
            raise ModelError(f"model {model.name!r}", "a pass over one token takes no time", evidence=f"found {one} s")
        relative = np.maximum.accumulate(np.maximum(times / one, 1.0))
        table = tuple((count, float(time)) for count, time in zip(rows[1:], relative[1:], strict=True))
        last = float((relative[-1] - relative[-2]) / (rows[-1] - rows[-2]))
        return cls(last, table, float(one))

    def beside(self, company: Company) -> CostModel:
        """Return the cost for a sequence that shares its passes with others (``company_of``).

        A saved pass saves its share of the pass that all would run with one row each.  A further row makes the pass
        longer for all of them, by its cost in addition to the rows of the others.
        """
        return _beside(self, company.others, company.rows) if company.others else self

    def relative(self, rows: int) -> float:
        """Return the time of a pass over ``rows`` tokens relative to a pass over one; 0 for no rows."""
        if rows < 1:
            return 0.0
        before, time = 1, 1.0
        for more, longer in self.table:
            if rows <= more:
                return time + (longer - time) * (rows - before) / (more - before)
            before, time = more, longer
        return time + self.row * (rows - before)

    def may_pay(self, budget: int) -> bool:
        """Return whether up to ``budget`` draft tokens of a pass save time if 7 of 10 are accepted.

        Better drafts are rare, and drafting takes time; where rows cost nearly as much as passes, it would not pay.
        """
        return _may_pay(self, budget)

    def least(self, pending: int, budget: int) -> float:
        """Return the acceptance probability below which no draft token pays.

        If a draft token and all before it are accepted, it saves at most the largest cost of one row; it costs at least
        the smallest cost of one more row, among passes over ``pending`` rows and up to ``budget`` draft tokens.
        """
        return _least(self, pending, budget)

    def relatives(self, most: int) -> NDArray[np.float64]:
        """Return ``relative(0)`` to ``relative(most)``; the array is shared and must not be changed."""
        return _relatives(self, most)


# Measured with the embedded model on two cores.  The second row costs more than later ones: products of a matrix with
# one vector and with several use different kernels.
_CPU_ROW: Final = 0.08
_CPU_TABLE: Final = ((2, 1.3), (8, 1.9))
_GPU_ROW: Final = 0.004
_UNKNOWN_ROW: Final = 0.15
_UNKNOWN_TABLE: Final = ((2, 1.4),)


@lru_cache(maxsize=1024)
def _least(cost: CostModel, pending: int, budget: int) -> float:
    relatives = cost.relatives(pending + max(budget, 1))
    return float(np.diff(relatives[pending:]).min() / np.diff(relatives).max())


@lru_cache(maxsize=1024)
def _may_pay(cost: CostModel, budget: int) -> bool:
    extra = cost.relatives(1 + budget)[2:] - 1.0
    return bool((extra < _USUAL_RATE * np.arange(1, budget + 1)).any())


@lru_cache(maxsize=1024)
def _beside(cost: CostModel, others: int, rows: int) -> CostModel:
    scale = (1 + others) / cost.relative(1 + others)
    least = cost.relative(rows + 1)
    table = tuple((more - rows, 1 + scale * (time - least)) for more, time in cost.table if more > rows + 1)
    return CostModel(scale * cost.row, table, None if cost.seconds is None else cost.seconds / scale)


@lru_cache(maxsize=1024)
def _relatives(cost: CostModel, most: int) -> NDArray[np.float64]:
    table = np.array([cost.relative(rows) for rows in range(most + 1)])
    table.flags.writeable = False
    return table


def _table(model: object) -> tuple[tuple[int, float], ...] | None:
    """The pass times that a model, or a model inside it, provides."""
    return next((table for each in _layers(model) if (table := getattr(each, "pass_times", None)) is not None), None)


def company_of(model: object) -> Company:
    """Return what a sequence of a model shares the next pass with, in a ``Batch``; or that it is alone."""
    return next((found for each in _layers(model) if (found := getattr(each, "company", None)) is not None), _ALONE)


def _device(model: object) -> str | None:
    """The kind of device of a model, or of a model inside it."""
    kinds = (getattr(getattr(each, "device", None), "type", None) for each in _layers(model))
    return next((kind for kind in kinds if isinstance(kind, str)), None)


def _layers(model: object) -> Iterator[object]:
    """The model, and the models and networks inside it."""
    seen: set[int] = set()
    inner: list[object] = [model]
    while inner:
        each = inner.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            inner += (getattr(each, name, None) for name in ("model", "network"))


def _times(
    model: LanguageModel, rows: Sequence[int], context: int, repeats: int, clock: Callable[[], float]
) -> NDArray[np.float64]:
    """The shortest time of a pass over each number of rows."""
    longest = rows[-1]
    if model.max_context is not None:
        context = min(context, model.max_context - longest)
    if context < 1:
        raise ModelError(
            f"model {model.name!r}",
            f"its context is too short to measure passes over {longest} tokens",
            evidence=f"the context holds {model.max_context} tokens",
            remedy="measure fewer rows",
        )
    words = model.encode_prompt("The quick brown fox jumps over the lazy dog.", chat=False)
    tokens = (words * (-(-(context + longest) // len(words))))[: context + longest]
    times = np.full(len(rows), np.inf)
    session = model.start()
    try:
        session.extend(tokens[:context])
        for _ in range(repeats):
            for index, count in enumerate(rows):
                began = clock()
                session.extend_all(tokens[context : context + count])
                times[index] = min(times[index], clock() - began)
                session.truncate(context)
    finally:
        session.close()
    return times


def pruned_tree(tree: DraftTree, cost: CostModel, budget: int, *, pending: int = 1, branches: bool = True) -> DraftTree:
    """Return the rooted subtree that is expected to save the most time; an empty tree if none saves time.

    The optimum is exact for any cost.  If children were sampled, a choice among nodes must not depend on the samples,
    so the tree is only cut at the budget.

    Args:
        tree: the draft tokens and forced tokens (``FORCED``).
        cost: the cost of rows.
        budget: the largest number of nodes of the result.
        pending: rows that the pass needs without the tree.
        branches: whether a whole tree can be run; otherwise the result is the best chain.

    Complexity: O(n log n) without forced tokens, else O(n * budget); well under a millisecond for 100 nodes.
    """
    if tree.sampled:
        return tree if len(tree) <= budget else tree.kept(range(budget))
    budget = min(budget, len(tree))
    if budget < 1:
        return DraftTree()
    relatives = cost.relatives(pending + len(tree))
    price = relatives[pending : pending + budget + 1] - relatives[pending]
    least = float(np.diff(price).min())
    blocks = _blocks(tree, relatives, least)
    if not branches:
        chosen = _best_chain(blocks, price)
    else:
        blocks = _promising(blocks, least)
        select = _largest if FORCED not in tree.sources else _packed
        chosen = select(blocks, price)
    nodes = [node for block in chosen for node in block.nodes]
    return tree if len(nodes) == len(tree) else tree.kept(nodes)


def expected_saving(tree: DraftTree, cost: CostModel, *, pending: int = 1) -> float:
    """Return the time that running a whole tree is expected to save, in passes over one row; may be negative.

    ``pending`` is how many rows the pass needs without the tree.
    """
    relatives = cost.relatives(pending + len(tree))
    gain = sum(block.gain for block in _blocks(tree, relatives, math.inf))
    return float(gain - (relatives[pending + len(tree)] - relatives[pending]))


class _NodeBlock(NamedTuple):
    """Consecutive nodes that are useful together or not at all."""

    nodes: list[int]
    parent: int
    """Index of the block before it."""
    gain: float
    """Its expected saving, in passes over one row."""

    @property
    def size(self) -> int:
        return len(self.nodes)


def _blocks(tree: DraftTree, relatives: NDArray[np.float64], least: float) -> list[_NodeBlock]:
    """The blocks of a tree, each after its parent.

    A node and the forced tokens after it are one block, unless a part of them may pay: it takes rows over from the pass
    that the rest needs.  It cannot pay if a row costs no more in that pass than ``least``, the cost of a row in this
    one.
    """
    times = relatives.tolist()
    # the largest cost of one row, by rows of the pass
    steps = [0.0, 0.0, *np.maximum.accumulate(np.diff(relatives[1:])).tolist()]
    runs, parents, reach = _runs(tree)
    blocks: list[_NodeBlock] = []
    last = {ROOT: ROOT}  # the last block of each run
    for index, (run, parent, likely) in enumerate(zip(runs, parents, reach, strict=True)):
        above, length = last[parent], len(run)
        if likely * steps[length] <= least + _ROUNDING:
            blocks.append(_NodeBlock(run, above, likely * times[length]))
        else:
            for rows, node in zip(range(length, 0, -1), run, strict=True):
                blocks.append(_NodeBlock([node], above, likely * (times[rows] - times[rows - 1])))
                above = len(blocks) - 1
        last[index] = len(blocks) - 1
    return blocks


def _runs(tree: DraftTree) -> tuple[list[list[int]], list[int], list[float]]:
    """Each unforced node with the forced nodes after it, the run before it, and its acceptance probability."""
    runs: list[list[int]] = []
    parents: list[int] = []
    reach: list[float] = []
    of: list[int] = []  # the run of each node
    for node, (parent, confidence, source) in enumerate(zip(tree.parents, tree.confidences, tree.sources, strict=True)):
        above = ROOT if parent == ROOT else of[parent]
        if source == FORCED and above != ROOT:
            runs[above].append(node)
        else:
            likely = min(confidence, 1.0)
            reach.append(likely if above == ROOT else reach[above] * likely)
            parents.append(above)
            above = len(runs)
            runs.append([node])
        of.append(above)
    return runs, parents, reach


def _promising(blocks: list[_NodeBlock], least: float) -> list[_NodeBlock]:
    """Leave out blocks that cannot pay even if each row costs only ``least``; renumbered."""
    value = [block.gain - least * block.size for block in blocks]
    for index in range(len(blocks) - 1, -1, -1):
        parent = blocks[index].parent
        if value[index] > 0 and parent != ROOT:
            value[parent] += value[index]
    numbers = {ROOT: ROOT}
    retained: list[_NodeBlock] = []
    for index, block in enumerate(blocks):
        if value[index] > 0 and block.parent in numbers:
            numbers[index] = len(retained)
            retained.append(block._replace(parent=numbers[block.parent]))
    return retained


def _largest(blocks: list[_NodeBlock], price: NDArray[np.float64]) -> list[_NodeBlock]:
    """The best blocks if each is one node: for every size the likeliest nodes, which include their parents."""
    gains = np.array([block.gain for block in blocks])
    order = np.argsort(-gains, kind="stable")[: len(price) - 1]
    saved = np.concatenate(([0.0], np.cumsum(gains[order]))) - price[: len(order) + 1]
    return [blocks[index] for index in sorted(order[: int(saved.argmax())])]


def _packed(blocks: list[_NodeBlock], price: NDArray[np.float64]) -> list[_NodeBlock]:
    """The best blocks of any sizes and gains: the tree knapsack in depth-first order.

    ``best[i][b]`` is the largest gain from exactly ``b`` nodes of the blocks from the ``i``-th on; the descendants of a
    block that is left out are left out too.
    """
    order, after = _depth_first(blocks)
    count, width = len(order), len(price)
    best = np.full((count + 1, width), -np.inf)
    best[count, 0] = 0.0
    for at in range(count - 1, -1, -1):
        block = blocks[order[at]]
        row = best[at]
        row[:] = best[after[at]]
        if block.size < width:
            np.maximum(row[block.size :], best[at + 1, : width - block.size] + block.gain, out=row[block.size :])
    left = int((best[0] - price).argmax())
    chosen: list[int] = []
    at = 0
    while at < count:
        if best[at, left] == best[after[at], left]:
            at = after[at]
            continue
        chosen.append(order[at])
        left -= blocks[order[at]].size
        at += 1
    return [blocks[index] for index in sorted(chosen)]


def _depth_first(blocks: list[_NodeBlock]) -> tuple[list[int], list[int]]:
    """The blocks in depth-first order, and for each index in it the index after the descendants of that block."""
    children: dict[int, list[int]] = {}
    sizes = [1] * len(blocks)
    for index in range(len(blocks) - 1, -1, -1):
        parent = blocks[index].parent
        children.setdefault(parent, []).append(index)
        if parent != ROOT:
            sizes[parent] += sizes[index]
    order: list[int] = []
    stack = children.get(ROOT, [])
    while stack:
        index = stack.pop()
        order.append(index)
        stack += children.get(index, [])
    return order, [at + sizes[index] for at, index in enumerate(order)]


def _best_chain(blocks: list[_NodeBlock], price: NDArray[np.float64]) -> list[_NodeBlock]:
    """The chain from a root that saves the most."""
    best, end = 0.0, ROOT
    gains: list[float] = []
    sizes: list[int] = []
    for index, block in enumerate(blocks):
        above = block.parent
        gains.append(block.gain + (0.0 if above == ROOT else gains[above]))
        sizes.append(block.size + (0 if above == ROOT else sizes[above]))
        if sizes[index] < len(price) and gains[index] - price[sizes[index]] > best:
            best, end = float(gains[index] - price[sizes[index]]), index
    chain: list[_NodeBlock] = []
    while end != ROOT:
        chain.append(blocks[end])
        end = blocks[end].parent
    return chain[::-1]
