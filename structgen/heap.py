"""The allocator of the process: how much free memory a long-running one keeps.

All of this is for glibc, and does nothing elsewhere.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Final

__all__ = ["restart_with_malloc", "return_memory", "share_heaps"]

_M_ARENA_MAX: Final = -8  # malloc.h


@functools.cache
def _of_glibc(name: str) -> Callable[..., int] | None:
    """A function of glibc's allocator; None elsewhere."""
    if sys.platform == "linux":
        import ctypes  # slow to import

        try:
            found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
        except (OSError, AttributeError):  # another C library
            return None
        return found
    return None


def return_memory() -> None:
    """Give free memory back to the system: milliseconds, for each hundred megabytes."""
    if (trim := _of_glibc("malloc_trim")) is not None:
        trim(0)


def share_heaps() -> None:
    """Let the threads of this process share two heaps of glibc, unless ``$MALLOC_ARENA_MAX`` says how many.

    For a process that makes many threads, before it makes them: with heaps of their own, what one has freed is of no
    use to the others, and a little of each page is in use for long, so that it cannot be given back.
    """
    if "MALLOC_ARENA_MAX" not in os.environ and (mallopt := _of_glibc("mallopt")) is not None:
        mallopt(_M_ARENA_MAX, 2)


def restart_with_malloc() -> None:
    """Run the command of this process again, with Python's objects on the heaps of glibc.

    For a command that runs for hours, before it does anything: it does not return.  Python's own allocator gives memory
    back by the megabyte, so one object that lives on, of a cache for instance, keeps a megabyte in which a large
    request had its temporary objects.  From the heaps of glibc ``return_memory`` gives back single pages.

    Does nothing if ``$PYTHONMALLOC`` says which allocator to use, or if Python was told not to read the environment.
    """
    if "PYTHONMALLOC" in os.environ or sys.flags.ignore_environment or not sys.executable:
        return
    if _of_glibc("malloc_trim") is not None:
        os.environ["PYTHONMALLOC"] = "malloc"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
