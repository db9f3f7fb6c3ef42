"""Names imported on first use, listed once, in the stub beside a module.

A stub such as ``structgen/samplers.pyi`` says ``from structgen.decode.sampling.smc import SMC as SMC``.  Type checkers
and editors read it, and so does :func:`lazy_names` at run time.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

__all__ = ["lazy_names", "stub_names"]


def lazy_names(
    module: str, file: str, *, kept: Collection[str] | None = None, distribution: str = ""
) -> tuple[Any, Any]:
    """Return ``__getattr__`` and ``__dir__`` for a module whose names are listed in its stub.

    Args:
        module: its ``__name__``.
        file: its ``__file__``; the stub has the same path with the suffix ``.pyi``.
        kept: the names that belong here; None: all. The others have moved to the module that the stub names; they still
            work, with a ``DeprecationWarning``.
        distribution: the installed package whose version is ``__version__``; none if empty.
    """
    sources: dict[str, tuple[str, str]] = {}

    def read() -> dict[str, tuple[str, str]]:
        if not sources:
            sources.update(stub_names(Path(file).with_suffix(".pyi")))
        return sources

    def get(name: str) -> Any:
        """Import a name from the module in the stub, and cache it."""
        if distribution and name == "__version__":
            return _version(distribution)
        if name.startswith("__") or name not in read():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        source, original = read()[name]
        if source in (module, f"{module}.{name}"):  # a submodule: its import sets the attribute
            return importlib.import_module(f"{module}.{name}")
        value = getattr(importlib.import_module(source), original)
        if kept is not None and name not in kept:
            warnings.warn(f"{module}.{name} is now {source}.{name}", DeprecationWarning, stacklevel=2)
        else:
            setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted(read())

    return get, names


def _version(distribution: str) -> str:
    """The version of an installed package; ``"unknown"`` where it is imported without being installed."""
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def stub_names(stub: Path) -> dict[str, tuple[str, str]]:
    """Return the module of each name of a stub, and its name there."""
    import ast  # needed only for the first look-up

    return {
        alias.asname or alias.name: (statement.module or "", alias.name)
        for statement in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
