"""Real documents: files of installed packages."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path


@cache
def _found(pattern: str) -> tuple[Path, ...]:
    roots = {sysconfig.get_path("purelib"), sysconfig.get_path("stdlib")}
    paths = (path for root in sorted(roots) for path in Path(root).rglob(pattern) if path.is_file())
    return tuple(sorted(paths, key=lambda path: (path.stat().st_size, path.name)))


def files(pattern: str, *, max_bytes: int = 30_000, count: int = 100) -> Iterator[str]:
    """The texts of files, small ones first, without duplicates and files that are not UTF-8."""
    seen = set()
    for path in _found(pattern):
        if len(seen) == count or path.stat().st_size > max_bytes:
            return
        try:
            text = path.read_bytes().decode()
        except (UnicodeDecodeError, OSError):
            continue
        if text not in seen:
            seen.add(text)
            yield text
