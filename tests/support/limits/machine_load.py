"""How busy the machine is, for bounds on time."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENTRIES: Final = 600_000
_ENTRIES_SECONDS: Final = 0.13  # the times of the two pieces of work on an idle machine
_ROWS: Final = 200
_ROWS_SECONDS: Final = 0.025


def slowness() -> float:
    """How many times longer two fixed pieces of work take than on an idle machine, the slower of them; at least 1.

    CPU time grows by up to three times when others use the same caches and the other half of a core. Sums over arrays
    and dictionary look-ups slow down independently.
    """
    return max(1.0, _entries_seconds() / _ENTRIES_SECONDS, _rows_seconds() / _ROWS_SECONDS)


def _entries_seconds() -> float:
    begun = time.process_time()
    places = {}
    for i in range(_ENTRIES):
        places[i * 7919 % (_ENTRIES + 3)] = i
    return time.process_time() - begun


def _rows_seconds() -> float:
    row = np.linspace(-9, 9, 49_152, dtype=np.float32)
    begun = time.process_time()
    for _ in range(_ROWS):
        wide = row.astype(np.float64)
        np.exp(wide - wide.max()).sum()
    return time.process_time() - begun


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail if the body takes more CPU time than an idle machine takes in ``seconds``.

    Meanwhile the garbage collector looks at no old objects: a pass over the millions that other tests left takes longer
    than what is measured.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], 1_000_000)
    begun = time.process_time()
    try:
        yield
    finally:
        spent = time.process_time() - begun
        gc.set_threshold(*thresholds)
    if spent > seconds:
        times = slowness()
        assert spent <= seconds * times, f"took {spent:.3f} s, not {seconds} s, on a machine {times:.1f} times as slow"
