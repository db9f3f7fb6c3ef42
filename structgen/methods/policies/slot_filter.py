"""A learnt rule that says which slots are settled: the filter of Learn2PD for the embedded diffusion model.

In each step of decoding it reads, for every free slot, how probable its top token is and was, and answers with the
probability that this token is the one that slow decoding, one slot a step, would end with.  A decoder commits the
slots above a threshold, in one step.

Source: Learning to Parallel (2025, arXiv 2509.25188), whose filter reads the confidences of a block; this
one reads each slot by itself with what it was before, so it fits canvases of any length.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["FEATURES", "HISTORY", "SlotFilter", "SlotView", "load_slot_filter", "slot_features"]

HISTORY: Final = 3
"""Of how many steps, the current one among them, a filter reads the confidences."""

FEATURES: Final = (
    *(f"log odds of the confidence {age} steps ago" for age in range(HISTORY)),
    *(f"whether the top token was the same {age} steps ago" for age in range(1, HISTORY)),
    "confidence less that of the second token",
    "confidence of the left neighbour, 1 where it is fixed",
    "confidence of the right neighbour, likewise",
    "share of slots that are free",
    "place on the canvas, from 0 to 1",
)

_FILE = Path(__file__).parent / "slot_filter.json"
_SHARPEST: Final = 1e-4


@final
@dataclass(frozen=True, eq=False)
class SlotView:
    """What one step shows of a canvas.

    Attributes:
        tokens: the most probable token of each slot, ``[slots]``.
        confidences: its probability, ``[slots]``; 1 for fixed slots.
        seconds: the probability of the second token, ``[slots]``; 0 for fixed slots.
        free: which slots are free, bool ``[slots]``.
    """

    tokens: NDArray[np.integer]
    confidences: NDArray[np.floating]
    seconds: NDArray[np.floating]
    free: NDArray[np.bool_]


@final
@dataclass(frozen=True, eq=False)
class SlotFilter:
    """A network of one hidden layer over the features of one slot.

    Attributes:
        centre: what is taken off the features, ``[features]``.
        scale: what they are then divided by, ``[features]``.
        hidden: ``[width, features + 1]``; the last column is the bias.
        out: ``[width + 1]``; the last is the bias.
    """

    centre: NDArray[np.float64]
    scale: NDArray[np.float64]
    hidden: NDArray[np.float64]
    out: NDArray[np.float64]

    def settled(self, views: Sequence[SlotView], /) -> NDArray[np.float64]:
        """Return for each slot the probability that its top token is final, ``[slots]``; 1 for fixed slots.

        Args:
            views: of the steps so far, the current one last.

        Raises:
            ValueError: there is no view, or views are of different canvases.
        """
        inputs = (slot_features(views) - self.centre) / self.scale
        hidden = np.maximum(inputs @ self.hidden[:, :-1].T + self.hidden[:, -1], 0)
        probabilities: NDArray[np.float64] = 1 / (1 + np.exp(-(hidden @ self.out[:-1] + self.out[-1])))
        return np.where(views[-1].free, probabilities, 1.0)

    def save(self, path: Path) -> None:
        """Write the filter as JSON."""
        numbers = {name: np.round(getattr(self, name), 5).tolist() for name in ("centre", "scale", "hidden", "out")}
        path.write_text(json.dumps(numbers) + "\n", encoding="utf-8")


def slot_features(views: Sequence[SlotView]) -> NDArray[np.float64]:
    """Return what a filter reads of each slot, ``[slots, features]``; steps before the first are like the first.

    Raises:
        ValueError: there is no view, or views are of different canvases.
    """
    if not views or any(len(view.tokens) != len(views[-1].tokens) for view in views):
        raise ValueError(
            f"a filter reads one or more views of one canvas; found {[len(v.tokens) for v in views]} slots"
        )
    recent = [views[max(0, len(views) - 1 - age)] for age in range(HISTORY)]
    now, slots = recent[0], len(views[-1].tokens)
    edged = np.pad(np.where(now.free, now.confidences, 1.0), 1, constant_values=1.0)
    columns = [
        *(_log_odds(view.confidences) for view in recent),
        *(view.tokens == now.tokens for view in recent[1:]),
        now.confidences - now.seconds,
        edged[:-2],
        edged[2:],
        np.full(slots, now.free.mean()),
        np.arange(slots) / slots,
    ]
    return np.stack(columns, axis=1).astype(np.float64)


def load_slot_filter(path: Path | None = None) -> SlotFilter:
    """Read a filter that ``SlotFilter.save`` wrote; None for that of the embedded model.

    Raises:
        ModelError: the file is missing or malformed.
    """
    path = path or _FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = SlotFilter(**{name: np.array(numbers, dtype=np.float64) for name, numbers in content.items()})
        width = len(found.hidden)
        right = found.hidden.shape == (width, len(FEATURES) + 1) and found.out.shape == (width + 1,)
        if not right or found.centre.shape != found.scale.shape or found.centre.shape != (len(FEATURES),):
            raise ValueError(f"its arrays do not fit {len(FEATURES)} features")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ModelError(f"slot filter {path.name}", "it cannot be read", evidence=str(error)) from error
    return found


def _log_odds(confidences: NDArray[np.floating]) -> NDArray[np.floating]:
    bounded = np.clip(confidences, _SHARPEST, 1 - _SHARPEST)
    odds: NDArray[np.floating] = np.log(bounded / (1 - bounded))
    return odds
