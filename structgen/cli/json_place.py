"""Which value of a JSON document a text breaks off in."""

from __future__ import annotations

import json
import re
from typing import Final

__all__ = ["pointer_at_end"]

_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*("?)|[{}\[\],]', re.DOTALL)


def pointer_at_end(beginning: bytes) -> str:
    """Return the JSON Pointer of the innermost value that is open at the end of ``beginning``; "" is the whole.

    Args:
        beginning: the beginning of a well-formed JSON text.

    Complexity: O(length).

    >>> pointer_at_end(b'{"tags": ["a", {"b')
    '/tags/1'
    """
    open_containers: list[str | int | None] = []  # name of a member (None before it), or index of an item
    for match in _TOKEN.finditer(beginning):
        mark = match[0]
        if mark in (b"{", b"["):
            open_containers.append(None if mark == b"{" else 0)
        elif mark in (b"}", b"]"):
            open_containers.pop()
        elif mark == b",":
            last = open_containers[-1]
            open_containers[-1] = last + 1 if isinstance(last, int) else None
        elif match[1] and open_containers and open_containers[-1] is None:
            open_containers[-1] = json.loads(mark)
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in open_containers if step is not None]
    return "".join(f"/{step}" for step in steps)
