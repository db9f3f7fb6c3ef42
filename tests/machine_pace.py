"""How busy the machine is, for bounds on CPU time."""

from __future__ import annotations

import time
from typing import Final

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
