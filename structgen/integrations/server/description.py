"""What a request asks for, as a grammar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from structgen.frontends.free_text import any_text
from structgen.frontends.json_schema import json_schema
from structgen.integrations.server.protocol import APIError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.integrations.server.protocol import ChatRequest

__all__ = ["Description", "described"]

ANY_OBJECT: Final = {"type": "object"}


@final
@dataclass(frozen=True, slots=True)
class Description:
    """What an answer may be.

    Attributes:
        grammar: all answers.
        kind: ``"text"``, ``"json"``, ``"grammar"`` or ``"tools"``.
        source: the field of the request that says so; None for free text.
    """

    grammar: Grammar
    kind: str
    source: str | None


def described(request: ChatRequest, limits: Limits) -> Description:
    """Return what the answer to a request may be.

    Raises:
        APIError: the description is malformed, or of a kind that is not known.
        StructgenError: the description cannot be enforced.
    """
    wanted = request.response_format
    if wanted is None or wanted.get("type") == "text":
        return Description(any_text(), "text", None)
    match wanted.get("type"):
        case "json_object":
            return Description(json_schema(ANY_OBJECT, additional="written", limits=limits), "json", "response_format")
        case "json_schema":
            return Description(json_schema(_schema_of(wanted), limits=limits), "json", "response_format")
    raise APIError(
        400,
        f"response_format.type: expected 'text', 'json_object' or 'json_schema'; found {wanted.get('type')!r:.60}",
        param="response_format.type",
        code="invalid_value",
    )


def _schema_of(wanted: Mapping[str, Any]) -> object:
    held = wanted.get("json_schema")
    if not isinstance(held, dict) or "schema" not in held:
        raise APIError(
            400,
            "response_format.json_schema: expected an object with 'name' and 'schema'",
            param="response_format.json_schema",
            code="invalid_value",
        )
    return held["schema"]
