"""Which layers of a network may be left out: a dynamic program over layers and the number of those left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.models.protocol import States

__all__ = ["closest_layers"]


def closest_layers(
    through: Callable[[int, States], States], state: States, *, layers: int, skipped: int
) -> tuple[int, ...]:
    r"""Return the layers that stay where ``skipped`` are left out, ascending, by the state of one token.

    ``h(i)`` is the token's state behind the first ``i`` layers of the whole network, ``g(i, j)`` one behind some of
    them, ``j`` of which are left out::

        g(0, 0) = h(0)
        g(i, j) = whichever is closer to h(i), by cosine:  layer i of g(i - 1, j)  or  g(i - 1, j - 1)

    of equally close ones the first; the answer is how ``g(layers, skipped)`` came about.  This is not the best set: a
    cell keeps one state, the closest to ``h(i)`` at that depth, though another might have ended closer to the last one,
    and the state of a single token is looked at.  (It is the best set where layers add what does not depend on their
    input, at right angles.)

    Source: Chen et al. 2025, CLaSp (arXiv 2505.24196).

    Args:
        through: what layer ``i`` makes of states ``[rows, width]``, of each by itself; it is called for all of a depth
            at once.
        state: ``h(0)``, float32 ``[width]``.
        layers: how many the network has.
        skipped: how many are left out; from 0 to ``layers``.

    Complexity: each layer once, on at most ``skipped + 1`` rows.
    """
    if not 0 <= skipped <= layers:
        raise ValueError(f"skipped must lie between 0 and {layers}; found {skipped}")
    if skipped == layers:
        return ()
    cells = state[None]  # g(i, j), a row for each j; the first is h(i)
    kept = np.zeros((layers, skipped + 1), dtype=np.bool_)
    for layer in range(layers):
        run = through(layer, cells)
        count = min(layer + 1, skipped) + 1
        # All rows may be kept but the one that left out every layer so far; all but the first may be skipped.
        stay = np.full(count, -np.inf)
        stay[: len(run)] = _cosines(run, run[0])
        leave = np.full(count, -np.inf)
        leave[1:] = _cosines(cells[: count - 1], run[0])
        kept[layer, :count] = stay >= leave
        chosen = np.empty((count, len(state)), dtype=np.float32)
        for row in range(count):
            chosen[row] = run[row] if kept[layer, row] else cells[row - 1]
        cells = chosen
    staying: list[int] = []
    left = skipped
    for layer in range(layers - 1, -1, -1):
        if kept[layer, left]:
            staying.append(layer)
        else:
            left -= 1
    return tuple(staying[::-1])


def _cosines(states: States, target: States) -> NDArray[np.float64]:
    """The cosines between states ``[rows, width]`` and ``target`` ``[width]``, times the length of the latter."""
    rows = states.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    cosines: NDArray[np.float64] = rows @ target.astype(np.float64) / np.maximum(lengths, np.finfo(np.float64).tiny)
    return cosines
