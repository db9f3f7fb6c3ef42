"""Lark grammars: https://lark-parser.readthedocs.io/en/stable/grammar.html, with or without files.

``docs/lark.md`` states the language that a grammar means, which part of Lark is supported, and where the texts
differ from those that one of Lark's parsers accepts.  Reading order: ``syntax`` (text to tree), ``definitions``,
``library`` (imports), ``terminals`` (with ``regexps`` and ``shortest``), ``rules``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.lark.expressions import Budget
from structgen.grammar.lark.library import Library
from structgen.grammar.lark.rules import RuleBuilder
from structgen.grammar.lark.source import Source, read_source
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Reference, Rules
from structgen.grammar.report import Described, Description

__all__ = ["lark", "load"]

_DEFAULT_LIMITS: Final = Limits()
_POLICIES: Final = (
    ("division into terminals", "any"),
    ("ignored terminals", "before and after every terminal"),
)


def lark(
    text: str,
    *,
    start: str = "start",
    path: str | Path | None = None,
    limits: Limits = _DEFAULT_LIMITS,
) -> Grammar:
    r"""The texts of a Lark grammar, however they are divided into terminals.

    Args:
        text: the grammar.
        start: the rule to start from.
        path: the file that ``text`` comes from, or its folder: where relative imports are looked for.
        limits: bounds on the size of the grammar (``source_bytes``, ``nesting``, ``grammar_nodes``).

    Returns:
        A grammar whose rules and terminals keep their names.  Left recursion stays in it: the engine rewrites it.

    Raises:
        GrammarSyntaxError: the text is malformed or uses a name that is not defined; the error points at the place.
        UnsupportedFeature: a construct that is refused by name.
        GrammarError: there is no rule called ``start``, or an imported file cannot be read.
        LimitExceeded: the grammar is too large.

    Complexity: linear in the text and in the instances of its templates.

    >>> from structgen.grammar.nodes import Rules
    >>> g = lark('start: start "+" N | N\nN: /[0-9]/')
    >>> print(g)
    rules {
      start = start "+" N | N;
      N = [0-9]
    } in start
    """
    if len(text) > limits.source_bytes or len(text.encode("utf-8", "surrogatepass")) > limits.source_bytes:
        raise LimitExceeded("lark grammar", limit="source_bytes", maximum=limits.source_bytes)
    folder = None if path is None else Path(path)
    if folder is not None and not folder.is_dir():
        folder = folder.parent
    return _built(Source(text, folder=folder), start, limits)


def load(path: str | Path, *, start: str = "start", limits: Limits = _DEFAULT_LIMITS) -> Grammar:
    """The texts of the Lark grammar in a file; arguments and errors are those of :func:`lark`.

    Raises:
        GrammarError: beside those, the file cannot be read or is not UTF-8.
    """
    return _built(read_source(Path(path), limits, is_imported=False), start, limits)


def _built(source: Source, start: str, limits: Limits) -> Grammar:
    library = Library(source, limits)
    definition = library.main.definitions.get(start) or library.find(library.main, start)
    if definition is None or definition.is_terminal or definition.parameters:
        rules = [name for name, known in library.main.definitions.items() if not known.is_terminal]
        raise GrammarError(
            source.subject,
            f"there is no rule called {start!r} to start from",
            evidence=f"it defines {', '.join(rules[:8]) or 'no rules'}{' ...' if len(rules) > 8 else ''}",
            remedy="name one of its rules: start=...",
        )
    builder = RuleBuilder(library, Budget(limits))
    body = builder.build(definition)
    grammar = Rules(_used(builder.rules, body), body)
    return Described(grammar, _description(library))


def _used(rules: Mapping[str, Grammar], body: Grammar) -> list[tuple[str, Grammar]]:
    """Return the rules that the body leads to, in the order in which it does."""
    found: dict[str, Grammar] = {}
    stack = [body]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if isinstance(node, Reference) and node.name not in found:
            found[node.name] = rules[node.name]
            stack.append(rules[node.name])
        elif id(node) not in seen:
            seen.add(id(node))
            stack.extend(reversed(node.children))
    return list(found.items())


def _description(library: Library) -> Description:
    entries = [entry for module in library.modules.values() if not module.source.is_builtin for entry in module.entries]
    return Description(source="lark", entries=tuple(entries), policies=_POLICIES)
