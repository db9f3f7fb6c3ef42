"""What :class:`~structgen.grammar.nodes.Label` excludes, stated on texts: labels that may not stand in a host name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema.idna import is_a_label

if TYPE_CHECKING:
    from structgen.grammar.nodes import LabelKind

__all__ = ["is_refused"]

_ASCII: Final = re.compile(rb"[a-zA-Z0-9-]*")
_LETTERS: Final = re.compile(rb"(?:[\xc2-\xdf][\x80-\xbf])*")
_MOST_OCTETS: Final = 59


def is_refused(data: bytes, kind: LabelKind) -> bool:
    """Whether the label that ``data`` begins with may not stand where it ends, or not go on so.

    >>> is_refused(b"xn--ll-0ea.", "a-label"), is_refused(b"xn--ll-0e.", "a-label"), is_refused(b"xn--ll-0e", "a-label")
    (False, True, False)
    """
    found = (_LETTERS if kind == "u-label" else _ASCII).match(data)
    label = b"" if found is None else found.group()
    if kind == "u-label":
        text = label.decode()
        return any(len(text[:end].encode("punycode")) > _MOST_OCTETS for end in range(len(text) + 1))
    return len(label) < len(data) and not is_a_label(label.decode("ascii"), bidi=kind == "bidi")
