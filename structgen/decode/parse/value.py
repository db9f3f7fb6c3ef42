"""What a complete output means as a Python value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from structgen.errors import GenerationError
from structgen.grammar.nodes import Capture, Shared
from structgen.grammar.nodes.description import Described, Description

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = ["value_of"]


def value_of(grammar: Grammar, data: bytes) -> Any:
    """Return the value of ``data``, a member of ``grammar``.

    What JSON grammars made is parsed, and validated into the Python type that the grammar was made from, if any.  Other
    output is its text; bytes that are not UTF-8, which only a grammar over bytes allows, become U+FFFD.

    Raises:
        GenerationError: the value is nested more deeply than Python's parser can follow.
        pydantic.ValidationError: the type has a validator of its own that refuses the value.
    """
    description = _description(grammar)
    text = data.decode("utf-8", "replace")
    if description is None or description.value != "json":
        return text
    if description.python_type is not None:
        from pydantic import TypeAdapter  # imported only by those who use types

        kind: Any = description.python_type
        adapter: Any = TypeAdapter(kind)
        return adapter.validate_json(data)
    try:
        return json.loads(text)
    except RecursionError:
        raise GenerationError(
            "value", "it is nested too deeply for json.loads", remedy="use the text of the result"
        ) from None


def _description(grammar: Grammar) -> Description | None:
    while not isinstance(grammar, Described):
        if not isinstance(grammar, (Capture, Shared)):
            return None
        grammar = grammar.item
    return grammar.description
