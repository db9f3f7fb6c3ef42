"""Grammar files of any notation, told by their suffix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from structgen.errors import GrammarError
from structgen.frontends.grammar_source import read_source
from structgen.frontends.lark import load as load_lark
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar

__all__ = ["SUFFIXES", "load"]

SUFFIXES: Final = (".lark", ".gbnf", ".ebnf", ".json")
"""What files are called: Lark grammars, GBNF (llama.cpp), EBNF (xgrammar) and JSON Schemas."""
_DEFAULT_LIMITS: Final = Limits()


def load(path: str | Path, *, start: str | None = None, limits: Limits = _DEFAULT_LIMITS, **options: Any) -> Grammar:
    """The texts of the grammar in a file, which is read by its suffix.

    Args:
        path: of a Lark grammar (``.lark``), one in GBNF (``.gbnf``) or EBNF (``.ebnf``), or a JSON Schema (``.json``).
        start: the rule to start from: ``"start"`` by default in Lark, ``"root"`` in GBNF and EBNF.
        limits: bounds on the size of the grammar.
        options: further arguments of the front end, ``indentation`` of ``lark`` or ``policy`` of ``json_schema``.

    Raises:
        GrammarError: the suffix is not known, the file cannot be read, or what the front end says of it.
        LimitExceeded: it is too large.
        TypeError: the front end has no such argument.
    """
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix == ".lark":
        return load_lark(file, start="start" if start is None else start, limits=limits, **options)
    if suffix not in SUFFIXES:
        raise GrammarError(
            f"grammar {path}",
            "its name does not tell what it is",
            evidence=f"the suffix is {file.suffix!r}" if file.suffix else "it has no suffix",
            remedy=f"call it *{', *'.join(SUFFIXES)}, or read it yourself and call the front end",
        )
    text = read_source(file, limits, is_imported=False, kind="grammar").text
    if suffix == ".json":
        from structgen.frontends.json_schema import json_schema

        if start is not None:
            raise GrammarError(f"grammar {path}", "a JSON Schema has no rules to start from", remedy="leave out start")
        return json_schema(text, limits=limits, **options)
    root = "root" if start is None else start
    if suffix == ".gbnf":
        from structgen.frontends.bnf import gbnf

        return gbnf(text, root=root, path=path, limits=limits, **options)
    from structgen.frontends.bnf import ebnf

    return ebnf(text, root=root, path=path, limits=limits, **options)
