"""Grammar files of any notation, read by suffix."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, Final

from structgen.errors import ArgumentError, GrammarError, found
from structgen.frontends.grammar_source import holds_structural_tag, read_source
from structgen.frontends.lark import load as load_lark
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar

__all__ = ["SUFFIXES", "load"]

SUFFIXES: Final = (".lark", ".gbnf", ".ebnf", ".json")
"""The suffixes of Lark grammars, GBNF (llama.cpp), EBNF (xgrammar), and JSON Schemas and structural tags."""
_DEFAULT_LIMITS: Final = Limits()


def load(path: str | Path, *, start: str | None = None, limits: Limits = _DEFAULT_LIMITS, **options: Any) -> Grammar:
    """Load a grammar file; the suffix selects the front end.

    Args:
        path: a Lark grammar (``.lark``), GBNF (``.gbnf``), EBNF (``.ebnf``), a JSON Schema or a
            structural tag (``.json``).
        start: the start rule, by default ``"start"`` in Lark and ``"root"`` in GBNF and EBNF.
        limits: bounds on the size of the grammar.
        options: further arguments of the front end, ``indentation`` of ``lark`` or ``policy`` of ``json_schema``.

    Raises:
        GrammarError: the suffix is unknown, the file cannot be read, or the front end refuses it.
        LimitExceeded: it is too large.
        TypeError: the front end has no such argument.
        ArgumentError: ``path`` is no path.
    """
    if not isinstance(path, (str, PathLike)):
        raise ArgumentError(
            "load", "expected the path of a grammar", evidence=found(path), remedy="pass a str or a Path"
        )
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix == ".lark":
        return load_lark(file, start="start" if start is None else start, limits=limits, **options)
    if suffix not in SUFFIXES:
        raise GrammarError(
            f"grammar {path}",
            "the notation is unknown",
            evidence=f"the suffix is {file.suffix!r}" if file.suffix else "it has no suffix",
            remedy=f"call it *{', *'.join(SUFFIXES)}, or read it yourself and call the front end",
        )
    text = read_source(file, limits, is_imported=False, kind="grammar").text
    if suffix == ".json":
        from structgen.frontends.json_schema import json_schema

        if start is not None:
            raise GrammarError(f"grammar {path}", "a JSON Schema has no rules to start from", remedy="leave out start")
        if holds_structural_tag(text):
            from structgen.frontends.structural_tag import structural_tag

            return structural_tag(text, limits=limits, **options)
        return json_schema(text, limits=limits, **options)
    root = "root" if start is None else start
    if suffix == ".gbnf":
        from structgen.frontends.bnf import gbnf

        return gbnf(text, root=root, path=path, limits=limits, **options)
    from structgen.frontends.bnf import ebnf

    return ebnf(text, root=root, path=path, limits=limits, **options)
