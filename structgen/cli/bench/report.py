"""The figures of a comparison: percentiles, ratios between engines, and the tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import numpy as np

from structgen.cli.bench.measurement import Tally

__all__ = ["SLOW_US", "markdown", "ratios_of", "spread_of", "times_of"]

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


_POINTS: Final = ("p50", "p90", "p99", "p99.9", "mean", "max")


def markdown(summary: Mapping[str, Any]) -> str:
    """Return the tables of a comparison."""
    parts = [_about(summary["about"]), _wrong_results(summary["engines"])]
    for title, field in (("Time to first mask", "ttfm_us"), ("Time between masks", "tbm_us")):
        times = _times(summary["engines"], field)
        parts.append(f"{title}, microseconds, over all that the engine compiled:\n\n{times}")
    if summary["ratios"]:
        parts.append(
            "Ratios: the peer's figure over that of structgen, over the schemas that both compiled "
            f"(above 1: structgen is faster):\n\n{_ratios(summary['ratios'])}"
        )
    if summary.get("batch", {}).get("schemas"):
        parts.append(_batch(summary["batch"]))
    return "\n\n".join(parts)


def _about(about: Mapping[str, Any]) -> str:
    return (
        f"{about['schemas']} schemas of {about['data']} (seed {about['seed']}), {about['tokenizer']}, "
        f"instances up to {about['max_tokens']} tokens, one process, engines in turn, {about['machine']}, "
        f"Python {about['python']}."
    )


def _wrong_results(engines: Mapping[str, Any]) -> str:
    head = ["engine", "compiled", "refused", "valid rejected as given", "valid rejected in declared order"]
    head += ["invalid accepted", "undecided", "loaded, MiB", "peak beyond, MiB"]
    rows = []
    for name, found in engines.items():
        memory = found.get("memory") or {}
        sizes = [f"{memory[key]:.0f}" if key in memory else "-" for key in ("loaded", "peak")]
        rows.append(
            [
                f"{name} {found['version']}",
                str(found["compiled"]),
                str(found["refused"]),
                f"{found['valid_rejected']}/{found['valid']}",
                f"{found['valid_rejected_in_declared_order']}/{found['valid']} ({found['reordered']} reordered)",
                f"{found['invalid_accepted']}/{found['invalid']}",
                str(found["undecided"]),
                *sizes,
            ]
        )
    return _table(head, rows)


def _times(engines: Mapping[str, Any], field: str) -> str:
    rows = []
    for name, found in engines.items():
        spread = found[field]
        points = [f"{spread[point]:,.1f}" if point in spread else "-" for point in _POINTS]
        share = f"{100 * spread['over_3ms']:.3f} %" if "over_3ms" in spread else "-"
        rows.append([name, f"{spread['count']:,}", *points, share])
    return _table(["engine", "samples", *_POINTS, "over 3 ms"], rows)


def _ratios(ratios: Mapping[str, Any]) -> str:
    rows = []
    for name, found in ratios.items():
        for title in ("ttfm", "tbm"):
            points = [f"{found[title][point]:.2f}" if point in found[title] else "-" for point in _POINTS]
            rows.append([name, title.upper(), str(found["schemas"]), *points])
    return _table(["peer", "figure", "schemas", *_POINTS], rows)


def _batch(batch: Mapping[str, Any]) -> str:
    rows = []
    for run in batch["runs"]:
        for name, spread in run["fill_us"].items():
            ratio = run["ratios_p50"].get(name)
            points = [f"{spread[point]:,.0f}" for point in _POINTS]
            a_row = spread["p50"] / batch["sequences"]
            calls = str(run["in_a_row"])
            rows.append([name, calls, *points, f"{a_row:.2f}", "" if ratio is None else f"{ratio:.2f}"])
    title = (
        f"Masks of {batch['sequences']} sequences over {batch['schemas']} schemas filled by one call, at steady state, "
        "on all processors, microseconds a call; engines take turns of the given number of calls:"
    )
    return f"{title}\n\n{_table(['engine', 'in a row', *_POINTS, 'p50 a row', 'over structgen'], rows)}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
