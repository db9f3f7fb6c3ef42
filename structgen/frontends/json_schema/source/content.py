"""A schema as it is given: text, or a dictionary with a dump of it as its identity."""

from __future__ import annotations

import marshal
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarSyntaxError, LimitExceeded

if TYPE_CHECKING:
    from structgen.grammar.limits import Limits

__all__ = ["SUBJECT", "SchemaDump", "content_of", "schema_text"]

SUBJECT: Final = "json schema"
"""The subject of errors that have no location."""


class SchemaDump(bytes):
    """A dictionary as ``marshal`` dumps it; never bytes from outside, which are not safe to load."""

    __slots__ = ()


def content_of(schema: object, limits: Limits) -> str | SchemaDump | None:
    """What equal schemas share: their text, or a dump of a dictionary; ``None`` for other values.

    A dictionary is dumped because it may change later, and the grammar's description is read from the dump on demand.
    Equal dumps have equal contents; the converse need not hold, because parts that are one object are dumped once.
    """
    if isinstance(schema, (str, bytes, bytearray)):
        return schema_text(schema, limits)
    if isinstance(schema, dict):
        try:
            return SchemaDump(marshal.dumps(schema))
        except ValueError:  # decimals, objects of other classes, or very deep nesting
            return None
    return None


def schema_text(source: str | bytes | bytearray, limits: Limits) -> str:
    """The text of a schema.

    Raises:
        GrammarSyntaxError: it is not UTF-8.
        LimitExceeded: it is too long.
    """
    if len(source) > limits.source_bytes:
        raise LimitExceeded(
            SUBJECT, limit="source_bytes", maximum=limits.source_bytes, evidence=f"the text has {len(source)}"
        )
    if isinstance(source, str):
        return source
    try:
        return bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = source[: error.start].decode() + source[error.start :].decode("utf-8", "replace")
        start = len(source[: error.start].decode())
        raise GrammarSyntaxError(
            SUBJECT,
            f"byte 0x{source[error.start]:02x} is not UTF-8",
            text=text,
            span=(start, start + 1),
            remedy="give JSON text in UTF-8",
        ) from None
