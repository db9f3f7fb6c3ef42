"""Base classes of objects that are pickled by name only, or not at all; others use pickle's default."""

from __future__ import annotations

import sys
from typing import Any, NoReturn, Self

from structgen.errors import ArgumentError

__all__ = ["ByName", "Live"]


class Live:
    """Base class of objects that hold a model, a sequence or a connection, and can't be pickled or copied."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Refuse.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            type(self).__name__,
            "it can't be pickled or copied",
            evidence="it holds a model, a running sequence or a connection of this process",
            remedy="make it where it is used, from what it was made of: a name or folder, a Constraint, settings",
        )


class ByName:
    """Base class of decorated functions: pickled by name, as functions are; a copy is the object itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> str:
        """Return the name by which pickle finds it again.

        Raises:
            ArgumentError: its module has something else, or nothing, under that name.
        """
        name: str = getattr(self, "__qualname__", "")
        module: str | None = getattr(self, "__module__", None)
        found: Any = sys.modules.get(module or "")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is self:
            return name
        raise ArgumentError(
            f"{type(self).__name__.lower()} {name}",
            "it can't be pickled",
            evidence=f"{module}.{name} is {'something else' if found else 'not there'}",
            remedy="define it at the top of a module, under the name of its function",
        )
