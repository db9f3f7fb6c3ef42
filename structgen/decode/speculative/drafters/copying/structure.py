"""What likely comes between one value and the next: the shortest that the grammar allows, in the output's own style."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple, SupportsIndex

from structgen.errors import StructgenError

if TYPE_CHECKING:
    from structgen.decode.speculative.drafters.copying.output_fields import OutputFields, Place
    from structgen.engine import Matcher

__all__ = ["Structure", "structure_after"]

_KEY: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"(?=\s*:)')
_SIGN: Final = re.compile(rb"(\s*)([,:{}\[\]])(\s*)")
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*"')
_SPACE: Final = re.compile(rb"\s+")
_LINE_END: Final = re.compile(rb"[^\n]*?(?:[:=][ \t]*|\n|$)")
_LONGEST: Final = 160


class Structure(NamedTuple):
    """Text up to the beginning of the next value.

    Attributes:
        data: the text.
        label: the key of that value; empty where there is none.
        quoted: whether it is a string; its quotation mark is part of the text.
        ends: whether the output is complete behind it.
    """

    data: bytes
    label: bytes
    quoted: bool
    ends: bool


def structure_after(matcher: Matcher, place: Place, fields: OutputFields) -> Structure | None:
    """Return what closes the value at which ``matcher`` stands and leads to the next one.

    This is the beginning of the shortest completion: it leaves out what may be left out, and names the next key that
    is required.  White space is as the output had it so far where the grammar allows that.

    Args:
        matcher: the state behind all that stands of the value.
        place: within what it stands.
        fields: of the output so far.

    Returns:
        None where the value cannot end here, or nothing follows.
    """
    try:
        completion = matcher.shortest_completion()
    except StructgenError:
        return None
    rest = bytes(takewhile(_is_byte, completion[:_LONGEST]))  # a special token is -1 - id
    if place == "line":
        found = _LINE_END.match(rest)
        data = found[0] if found else b""
        return (
            Structure(data, data.rstrip(b":= \t").rsplit(b"\n")[-1], False, len(data) == len(completion))
            if data
            else None
        )
    plain = _parse(rest, place, None, None)
    if plain is None or not plain.data:
        return None
    styled = _parse(rest, place, fields.comma or b", ", fields.colon or b": ")
    if styled is not None and styled.data != plain.data:
        probe = matcher.fork()
        if probe.accept_bytes(styled.data) == len(styled.data):
            return styled
    return plain


def _is_byte(symbol: SupportsIndex) -> bool:
    return symbol.__index__() >= 0


def _parse(rest: bytes, place: Place, comma: bytes | None, colon: bytes | None) -> Structure | None:
    """The beginning of a JSON text up to its next value, with other white space where that is given."""
    at, out, label = 0, bytearray(), b""
    if place in ("string", "key"):
        closing = _REST_OF_STRING.match(rest)
        if closing is None or (place == "string" and len(closing[0]) > 1):
            return None
        out += closing[0]
        at = closing.end()
    while at < len(rest):
        if key := _KEY.match(rest, at):
            out += key[0]
            label = key[1]
            at = key.end()
        elif sign := _SIGN.match(rest, at):
            at = sign.end()
            is_key_next = _KEY.match(rest, at) is not None
            if sign[2] == b"," and is_key_next and comma is not None:
                out += comma
            elif sign[2] == b":" and colon is not None:
                out += colon
            else:
                out += sign[0]
        elif at == 0 and (space := _SPACE.match(rest)):
            out += space[0]
            at = space.end()
        elif rest[at : at + 1] == b'"':
            return Structure(bytes(out + b'"'), label, True, False)
        else:
            return Structure(bytes(out), label, False, False)
    return Structure(bytes(out), label, False, True)
