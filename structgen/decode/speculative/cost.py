"""The cost of a forward pass by its number of rows, and the part of a draft tree that saves more than it costs.

The weights are read once for all rows of a pass, so further rows cost little; how much depends on the model and the
machine (``CostModel``).  A node saves a forward pass if it is accepted and the model is asked what follows it.  Where
the grammar forces what follows, node and forced tokens together save the pass that would have run them, if their end is
reached in the tree.  Rows of accepted tokens cost nothing, since that pass would have had them; the others are the
price.
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

if TYPE_CHECKING:
    from structgen.models.protocol import LanguageModel

__all__ = ["CostModel", "expected_saving", "pruned_tree"]

_ROWS: Final = (1, 2, 4, 8, 16, 32)


@final
@dataclass(frozen=True, slots=True)
class CostModel:
    """The time of a forward pass relative to that of one over a single row: linear between the points of a table.

    Attributes:
        row: what each row adds after the last point of the table, relative to a pass over one row.
        table: numbers of rows, ascending and above 1, each with the time of a pass over so many; never falling.
        seconds: of a pass over one row, where it was measured.

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
        """Return what passes of such a model usually take, the same on every machine.

        A model may say it itself (``pass_times``, a table as here).  Else a model of torch on a CPU reads its weights
        for a part of the time, and computes for the rest; on another device rows are nearly free.  Of a model that does
        not tell where it runs, rows are taken to cost more.
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
        """Measure it on this machine.

        Each number of rows is run after the same tokens, and the shortest time counts: what else the machine does can
        only make a pass longer.

        Args:
            model: the language model.
            rows: numbers of rows to measure, ascending from 1; at least two.
            context: how many tokens stand before them, fewer where the model holds no more.
            repeats: how often each is run.
            clock: tells seconds.

        Raises:
            ValueError: an argument is out of range.
            ModelError: the model holds fewer tokens than the largest number of rows and one more, or its passes take
                no time.
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

    def relative(self, rows: int) -> float:
        """The time of a pass over ``rows`` tokens, where that over one is 1; none take no time."""
        if rows < 1:
            return 0.0
        before, time = 1, 1.0
        for more, longer in self.table:
            if rows <= more:
                return time + (longer - time) * (rows - before) / (more - before)
            before, time = more, longer
        return time + self.row * (rows - before)

    def relatives(self, most: int) -> NDArray[np.float64]:
        """``relative(0)`` to ``relative(most)``; the array is shared and must not be changed."""
        return _relatives(self, most)


# Of the embedded model on two cores.  The second row costs more than those after it: a matrix is multiplied by one
# vector in one way, by several in another.
_CPU_ROW: Final = 0.08
_CPU_TABLE: Final = ((2, 1.3), (8, 1.9))
_GPU_ROW: Final = 0.004
_UNKNOWN_ROW: Final = 0.15
_UNKNOWN_TABLE: Final = ((2, 1.4),)


@lru_cache(maxsize=256)
def _relatives(cost: CostModel, most: int) -> NDArray[np.float64]:
    table = np.array([cost.relative(rows) for rows in range(most + 1)])
    table.flags.writeable = False
    return table


def _table(model: object) -> tuple[tuple[int, float], ...] | None:
    """What a model, or what is inside it, says of its passes."""
    return next((table for each in _layers(model) if (table := getattr(each, "pass_times", None)) is not None), None)


def _device(model: object) -> str | None:
    """The kind of device that a model, or what is inside it, says it is on."""
    kinds = (getattr(getattr(each, "device", None), "type", None) for each in _layers(model))
    return next((kind for kind in kinds if isinstance(kind, str)), None)


def _layers(model: object) -> Iterator[object]:
    """The model, and what is inside it."""
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
    most = rows[-1]
    if model.max_context is not None:
        context = min(context, model.max_context - most)
    if context < 1:
        raise ModelError(
            f"model {model.name!r}",
            f"it is too short to measure passes over {most} tokens",
            evidence=f"it holds {model.max_context}",
            remedy="measure fewer rows",
        )
    words = model.encode_prompt("The quick brown fox jumps over the lazy dog.", chat=False)
    tokens = (words * (-(-(context + most) // len(words))))[: context + most]
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


_ROUNDING: Final = 1e-12


def pruned_tree(tree: DraftTree, cost: CostModel, budget: int, *, pending: int = 1, branches: bool = True) -> DraftTree:
    """Return the part of a tree that is expected to save the most time; nothing where none is saved.

    The best of all parts that hold the parents of their nodes, exactly, for any cost.  Where children were drawn, no
    choice among nodes may depend on which ones were, so such a tree is only cut off at its end, at the budget.

    Args:
        tree: the draft tokens, forced tokens among them (``FORCED``).
        cost: of passes.
        budget: the most nodes of the part.
        pending: rows that the pass has in any case.
        branches: whether all of a tree is run, or only one chain of it: then the part is the best chain.

    Complexity: O(n log n) without forced tokens, else O(n * budget); well under a millisecond for 100 nodes.
    """
    if tree.drawn:
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
        rank = _largest if FORCED not in tree.sources else _packed
        chosen = rank(blocks, price)
    nodes = [node for block in chosen for node in block.nodes]
    return tree if len(nodes) == len(tree) else tree.kept(nodes)


def expected_saving(tree: DraftTree, cost: CostModel, *, pending: int = 1) -> float:
    """The time that a tree is expected to save if all of it is run, in passes over one row; negative where it does not.

    Args:
        tree: the draft tokens, forced tokens among them.
        cost: of passes.
        pending: rows that the pass has in any case.
    """
    relatives = cost.relatives(pending + len(tree))
    gain = sum(block.gain for block in _blocks(tree, relatives, math.inf))
    return float(gain - (relatives[pending + len(tree)] - relatives[pending]))


class _NodeBlock(NamedTuple):
    """Nodes one after the other that are of use together or not at all."""

    nodes: list[int]
    parent: int
    """Index of the block that it follows."""
    gain: float
    """How much of a pass over one row it is expected to save."""

    @property
    def size(self) -> int:
        return len(self.nodes)


def _blocks(tree: DraftTree, relatives: NDArray[np.float64], least: float) -> list[_NodeBlock]:
    """The blocks of a tree, each after its parent.

    A node and the forced tokens after it are one, unless a part of them might pay: rows that are taken over from the
    pass that the rest needs.  It cannot where they save no more in that pass than ``least``, which a row costs in this.
    """
    times = relatives.tolist()
    steps = [0.0, 0.0, *np.maximum.accumulate(np.diff(relatives[1:])).tolist()]  # the dearest row of a pass
    runs, parents, reach = _runs(tree)
    blocks: list[_NodeBlock] = []
    last = {ROOT: ROOT}  # of each run its last block
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
    """Each node that is not forced with what is forced after it, the run that it follows, and how likely it is."""
    runs: list[list[int]] = []
    parents: list[int] = []
    reach: list[float] = []
    of: list[int] = []  # of each node its run
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
    """Leave out what cannot pay even if each row costs only ``least``; renumbered."""
    worth = [block.gain - least * block.size for block in blocks]
    for index in range(len(blocks) - 1, -1, -1):
        parent = blocks[index].parent
        if worth[index] > 0 and parent != ROOT:
            worth[parent] += worth[index]
    numbers = {ROOT: ROOT}
    kept: list[_NodeBlock] = []
    for index, block in enumerate(blocks):
        if worth[index] > 0 and block.parent in numbers:
            numbers[index] = len(kept)
            kept.append(block._replace(parent=numbers[block.parent]))
    return kept


def _largest(blocks: list[_NodeBlock], price: NDArray[np.float64]) -> list[_NodeBlock]:
    """The best of blocks of one node each: of every number the likeliest ones, which hold their parents."""
    gains = np.array([block.gain for block in blocks])
    order = np.argsort(-gains, kind="stable")[: len(price) - 1]
    saved = np.concatenate(([0.0], np.cumsum(gains[order]))) - price[: len(order) + 1]
    return [blocks[index] for index in sorted(order[: int(saved.argmax())])]


def _packed(blocks: list[_NodeBlock], price: NDArray[np.float64]) -> list[_NodeBlock]:
    """The best of blocks of any sizes and gains, by the knapsack over a tree in depth-first order.

    ``best[i][b]`` is the largest gain from exactly ``b`` nodes of the blocks from the ``i``-th on; a block that is left
    out takes all that follow it along.
    """
    order, after = _depth_first(blocks)
    count, room = len(order), len(price)
    best = np.full((count + 1, room), -np.inf)
    best[count, 0] = 0.0
    for at in range(count - 1, -1, -1):
        block = blocks[order[at]]
        row = best[at]
        row[:] = best[after[at]]
        if block.size < room:
            np.maximum(row[block.size :], best[at + 1, : room - block.size] + block.gain, out=row[block.size :])
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
    """The blocks in depth-first order, and for each place in it the one after all that follow that block."""
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
