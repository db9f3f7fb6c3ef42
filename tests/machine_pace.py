"""How busy the machine is, for bounds on time."""

from __future__ import annotations

import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORK: Final = 600_000
_WORK_SECONDS: Final = 0.13  # that it takes on an idle machine


def slowness() -> float:
    """How many times longer a fixed piece of work takes than on an idle machine; at least 1.

    CPU time grows when others use the same caches and the other half of a core, by up to three times.
    """
    begun = time.process_time()
    places = {}
    for i in range(_WORK):
        places[i * 7919 % (_WORK + 3)] = i
    return max(1.0, (time.process_time() - begun) / _WORK_SECONDS)


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Fail where the body takes more CPU time than an idle machine takes in ``seconds``.

    The objects that other tests left behind are kept from the garbage collector meanwhile: to go over millions of them
    takes longer than what is measured.
    """
    gc.freeze()
    begun = time.process_time()
    try:
        yield
    finally:
        spent = time.process_time() - begun
        gc.unfreeze()
    if spent > seconds:
        times = slowness()
        assert spent <= seconds * times, f"took {spent:.3f} s, not {seconds} s, on a machine {times:.1f} times as slow"
