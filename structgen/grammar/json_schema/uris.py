"""URI references: resolution against a base after RFC 3986, section 5.2, for every scheme.

``urllib.parse.urljoin`` resolves only the schemes that it knows; identifiers of schemas have others too.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["absolute", "without_fragment"]

_PARTS: Final = re.compile(
    r"(?:([A-Za-z][A-Za-z0-9+.-]*):)?(?://([^/?#]*))?([^?#]*)(?:\?([^#]*))?(?:#(.*))?", re.DOTALL
)


def without_fragment(uri: str) -> str:
    """The part of a URI before ``#``."""
    return uri.partition("#")[0]


def absolute(base: str, reference: str) -> str:
    """The URI, without fragment, that ``reference`` means where the base URI is ``base``.

    >>> absolute("urn:example:a", ""), absolute("tag:x/a/b", "../c")
    ('urn:example:a', 'tag:x/c')
    """
    if not base or not reference:
        return without_fragment(reference or base)
    scheme, authority, path, query = _split(reference)
    if scheme is not None:
        return _joined(scheme, authority, _without_dots(path), query)
    base_scheme, base_authority, base_path, base_query = _split(base)
    if authority is None:
        authority = base_authority
        if not path:
            path, query = base_path, base_query if query is None else query
        elif path.startswith("/"):
            path = _without_dots(path)
        else:
            path = _without_dots(_merged(base_authority, base_path, path))
    else:
        path = _without_dots(path)
    return _joined(base_scheme, authority, path, query)


def _split(uri: str) -> tuple[str | None, str | None, str, str | None]:
    match = _PARTS.fullmatch(uri)
    if match is None:  # every text matches
        raise RuntimeError(f"{uri!r} cannot be split")
    return match[1], match[2], match[3], match[4]


def _joined(scheme: str | None, authority: str | None, path: str, query: str | None) -> str:
    start = "" if scheme is None else f"{scheme}:"
    return f"{start}{'' if authority is None else f'//{authority}'}{path}{'' if query is None else f'?{query}'}"


def _merged(authority: str | None, base: str, path: str) -> str:
    if authority is not None and not base:
        return f"/{path}"
    return base[: base.rfind("/") + 1] + path


def _without_dots(path: str) -> str:
    """The path without ``.`` and ``..`` (section 5.2.4)."""
    kept: list[str] = []
    steps = path.split("/")
    for index, step in enumerate(steps):
        is_last = index == len(steps) - 1
        if step == "..":
            if len(kept) > 1 or (kept and kept[0]):
                kept.pop()
            if is_last:
                kept.append("")
        elif step != ".":
            kept.append(step)
        elif is_last:
            kept.append("")
    return "/".join(kept)
