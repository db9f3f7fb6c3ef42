"""Percentiles of times, and their ratios over the schemas that two engines both compiled."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import numpy as np

from structgen.cli.bench.measure import Tally

__all__ = ["SLOW_US", "ratios_of", "spread_of", "times_of"]

SLOW_US: Final = 3_000.0
_QUANTILES: Final = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9}


def spread_of(samples: Collection[float]) -> dict[str, Any]:
    """Return count, percentiles, mean, max, and the share above 3 ms, of times in microseconds."""
    if not samples:
        return {"count": 0}
    data = np.fromiter(samples, dtype=np.float64)
    quantiles = {name: float(np.percentile(data, q)) for name, q in _QUANTILES.items()}
    slow = float(np.mean(data > SLOW_US))
    return {"count": data.size, **quantiles, "mean": float(data.mean()), "max": float(data.max()), "over_3ms": slow}


def times_of(tally: Tally, schemas: Collection[str] | None = None) -> tuple[list[float], list[float]]:
    """Return all TTFM and all TBM, of ``schemas`` or of all that were compiled."""
    names = tally.first_mask if schemas is None else schemas
    return [tally.first_mask[name] for name in names], [time for name in names for time in tally.between[name]]


def ratios_of(ours: Tally, peer: Tally) -> dict[str, Any]:
    """Return the peer's figures over ours, over the schemas that both compiled; above 1, ours is the faster."""
    both = [name for name in ours.first_mask if name in peer.first_mask]
    answer: dict[str, Any] = {"schemas": len(both)}
    for title, mine, theirs in zip(("ttfm", "tbm"), times_of(ours, both), times_of(peer, both), strict=True):
        small, large = spread_of(mine), spread_of(theirs)
        names = [*_QUANTILES, "mean", "max"] if mine and theirs else []
        answer[title] = {name: large[name] / small[name] for name in names}
    return answer
