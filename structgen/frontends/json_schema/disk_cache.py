"""Programs of schemas that took long to plan, kept on disk for the next process."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from structgen_kernels import _native

from structgen.disk_cache import fetch as fetch_entry, keep as keep_entry
from structgen.frontends.json_schema.source.dialect import Dialect
from structgen.grammar.flattening import flatten

if TYPE_CHECKING:
    from structgen.frontends.json_schema.translation import Setting
    from structgen.grammar.nodes import Grammar

__all__ = ["WORTH_KEEPING_S", "fetch", "keep", "key_of"]

WORTH_KEEPING_S: Final = 0.01
"""Seconds of planning from which a file saves time: reading one takes less than a tenth of that."""
_KIND: Final = "grammar"


def key_of(content: str | bytes, setting: Setting, draft: str | None) -> str:
    """The name of a schema's file: a hash of all that its grammar depends on, the code that makes it included."""
    inner = hashlib.blake2b(_code(), digest_size=20)
    inner.update(repr((type(content).__name__, draft, setting.policy, setting.limits)).encode())
    inner.update(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return inner.hexdigest()


def fetch(key: str) -> tuple[_native.FlatGrammar, Dialect] | None:
    """The program and the dialect that were kept under a key."""
    kept = fetch_entry(_KIND, key)
    if kept is None:
        return None
    head, _, program = kept.partition(b"\n")
    try:
        draft, declared, vocabularies = json.loads(head)
        dialect = Dialect(draft, declared, None if vocabularies is None else frozenset(vocabularies))
        return _native.FlatGrammar.from_bytes(program), dialect
    except (TypeError, ValueError):  # not what this code wrote: plan it again
        return None


def keep(key: str, term: Grammar, dialect: Dialect, max_nodes: int) -> bool:
    """Keep the program of a term; false where it could not be kept."""
    vocabularies = None if dialect.vocabularies is None else sorted(dialect.vocabularies)
    head = json.dumps((dialect.draft, dialect.declared, vocabularies)).encode()
    return keep_entry(_KIND, key, head + b"\n" + flatten(term, {}, None, max_nodes).to_bytes())


@cache
def _code() -> bytes:
    """What tells one state of the code from another: sizes and times of change of its files."""
    package = Path(__file__).parents[2]
    files = sorted([*(package / "frontends").rglob("*.py"), *(package / "grammar").rglob("*.py")])
    stats = [(file.name, file.stat()) for file in (*files, Path(_native.__file__))]
    text = repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])
    return hashlib.blake2b(text.encode(), digest_size=20).digest()
