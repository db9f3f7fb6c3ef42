"""What the rules of a text define: a grammar with a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.analysis import Nullability, strongly_connected
from structgen.grammar.bnf.notation import Notation
from structgen.grammar.bnf.parser import Definition, Parser
from structgen.grammar.lark.source import Source
from structgen.grammar.left_splitting import LeftPositions
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Reference, Rules, postorder
from structgen.grammar.report import Described, Description, ReportEntry, Status

__all__ = ["read"]


def read(text: str, root: str, path: str | Path | None, limits: Limits, notation: Notation) -> Grammar:
    """Read a grammar; ``path`` is the file that it comes from, which errors name.

    Raises:
        GrammarSyntaxError: the text is malformed, or a name is not defined or defined twice.
        UnsupportedFeature: a construct that is refused by name.
        GrammarError: there is no rule called ``root``.
        LimitExceeded: the text is too large.
    """
    if len(text) > limits.source_bytes or len(text.encode("utf-8", "surrogatepass")) > limits.source_bytes:
        raise LimitExceeded(notation.subject, limit="source_bytes", maximum=limits.source_bytes)
    source = Source(text, "" if path is None else str(path), kind=notation.subject)
    parser = Parser(source, notation, limits)
    definitions = parser.definitions()
    for name, token in parser.references.items():
        if name not in definitions:
            raise source.syntax_error(token.span, f"no rule is called {name!r}", _similar(name, definitions))
    if root not in definitions:
        names = list(definitions)
        raise GrammarError(
            source.subject,
            f"there is no rule called {root!r} to start from",
            evidence=f"it defines {', '.join(names[:8]) or 'no rules'}{' ...' if len(names) > 8 else ''}",
            remedy="name one of its rules: root=...",
        )
    _check_regular(parser, definitions)
    rules = _used({name: definition.term for name, definition in definitions.items()}, root)
    flat = Rules(rules, Reference(root))
    entries = _remarked(parser.entries, definitions, flat)
    return Described(flat, Description(source=notation.source, entries=tuple(entries)))


def _check_regular(parser: Parser, definitions: Mapping[str, Definition]) -> None:
    """Refuse recursion where a text must have an automaton."""
    if not parser.regular:
        return
    below = {name: _references(definition.term) for name, definition in definitions.items()}
    components = strongly_connected(below)
    recursive = {name for each in components for name in each if len(each) > 1 or name in below[name]}
    for name, (token, option) in parser.regular.items():
        seen, stack = {name}, [name]
        while stack:
            used = stack.pop()
            if used in recursive:
                raise parser.source.syntax_error(
                    token.span,
                    f"{option!r} needs a rule without recursion, and {used!r} is recursive",
                    "take the recursion out of what it ends",
                )
            stack += below[used] - seen
            seen |= below[used]


def _references(term: Grammar) -> set[str]:
    return {node.name for node in postorder(term) if isinstance(node, Reference)}


def _used(rules: Mapping[str, Grammar], root: str) -> list[tuple[str, Grammar]]:
    """The rules that the root leads to, in the order of the text."""
    found = {root}
    seen: set[int] = set()
    stack = [rules[root]]
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Reference) and node.name not in found:
            found.add(node.name)
            stack.append(rules[node.name])
        stack.extend(node.children)
    return [(name, term) for name, term in rules.items() if name in found]


def _remarked(
    entries: Iterable[ReportEntry], definitions: Mapping[str, Definition], flat: Rules
) -> Iterable[ReportEntry]:
    """The entries, with what is worth knowing of a rule as a whole."""
    used = {name for name, _ in flat.rules}
    recursive = _left_recursive(flat)
    rules = {f"rule {name}": name for name in definitions}
    for entry in entries:
        name = rules.get(entry.keyword)
        if name is not None and name not in used:
            yield replace(entry, status=Status.ANNOTATION, detail="the root does not lead to it")
        elif name is not None and name in recursive:
            yield replace(entry, detail="left-recursive: llama.cpp refuses it, here it is rewritten")
        else:
            yield entry


def _left_recursive(flat: Rules) -> frozenset[str]:
    rules = dict(flat.rules)
    positions = LeftPositions(flat, Nullability(rules))
    graph = {name: positions.references(term) for name, term in rules.items()}
    found: set[str] = set()
    for component in strongly_connected(graph):
        if len(component) > 1 or component[0] in graph[component[0]]:
            found.update(component)
    return frozenset(found)


def _similar(name: str, definitions: Mapping[str, Definition]) -> str:
    lowered = name.lower().replace("_", "-")
    for known in definitions:
        if known.lower().replace("_", "-") == lowered:
            return f"write {known!r}: names are compared letter by letter"
    return f"define it: {name} ::= ..."
