"""Lark grammars, with the dialect of llguidance: rules, terminals, templates, imports and ``%ignore``.

Reading order: ``syntax`` (text to tree), ``definition``, ``library`` (imports), ``terminal`` (with ``regexp`` and
``lazy``), ``rule``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from structgen_kernels import _native

from structgen.errors import GrammarError, StructgenError
from structgen.frontends.grammar_source import GrammarSource, check_text, read_source
from structgen.frontends.indentation import line_end
from structgen.frontends.indentation.marks import (
    CLOSE,
    DEDENT,
    GAP,
    INDENT,
    NEWLINE,
    OPEN,
    Indentation,
    Unbalanced,
    nested,
)
from structgen.frontends.indentation.product import product
from structgen.frontends.lark.contextual import contextual
from structgen.frontends.lark.definition import Definition, NodeBudget
from structgen.frontends.lark.lazy import is_plain, plain
from structgen.frontends.lark.library import Library, builtin_texts
from structgen.frontends.lark.regexp import pattern_of
from structgen.frontends.lark.rule import RuleBuilder, built
from structgen.frontends.lark.syntax import Token, span_of, tokens_of
from structgen.grammar.analysis import Nullability
from structgen.grammar.flattening import flatten
from structgen.grammar.limits import Limits, counted
from structgen.grammar.nodes import EMPTY, Grammar, Rules, Shared, postorder
from structgen.grammar.nodes.description import Described, Description
from structgen.grammar.scopes import resolve, used_rules

if TYPE_CHECKING:
    from structgen_kernels._native import FlatGrammar

__all__ = ["LexerName", "lark", "load", "read_simple", "without_marks"]


def _with_flat_rules(
    rules: Mapping[str, Grammar], body: Grammar, limits: Limits
) -> tuple[Mapping[str, Grammar], Grammar]:
    """Return rules and a body without rules of their own inside, which those of ``%json`` have."""
    if not any(isinstance(node, Rules | Shared) for term in (*rules.values(), body) for node in postorder(term)):
        return rules, body
    marks = {mark.name: EMPTY for mark in (NEWLINE, INDENT, DEDENT, GAP, OPEN, CLOSE)}
    flat = resolve(Rules({**marks, **rules}, body), limits, through_shared=True)
    return {name: term for name, term in flat.rules if name not in marks}, flat.body


def without_marks(
    builder: RuleBuilder, body: Grammar, library: Library, indentation: Indentation | None, limits: Limits
) -> Rules:
    """Return the rules of ``builder``, and ``body``, with marks replaced by what they stand for.

    Raises:
        GrammarSyntaxError: a block or bracket begins in one rule and ends in another, or the newline terminal does not
            match line ends.
        GrammarError: there is no newline terminal, or a mark has no meaning at its position.
        LimitExceeded: the rules have too many variants.
    """
    rules: dict[str, Grammar] = {}
    made, body = _with_flat_rules(builder.rules, body, limits)
    for name, term in made.items():
        try:
            rules[name] = nested(term)
        except Unbalanced as error:
            raise _unbalanced(builder.definitions[name], error.mark, indentation) from None
    newline = None if indentation is None else _line_end(builder, library, indentation)
    ignored = builder.surroundings.ignored
    return product(rules, nested(body), indentation=indentation, newline=newline, ignored=ignored, limits=limits)


def _line_end(builder: RuleBuilder, library: Library, indentation: Indentation) -> Grammar:
    for name in indentation.newline:
        newline = library.find(library.main, name)
        if newline is not None:
            try:
                return line_end(builder.terminals.term(newline), indentation)
            except GrammarError as error:
                span = newline.span
                raise newline.module.source.syntax_error(span, error.problem, error.remedy) from None
    names = " or ".join(indentation.newline)
    raise GrammarError(
        library.main.source.subject,
        f"there is no terminal called {names} to end a line",
        remedy="define it, or give its name: Indentation(newline=...)",
    )


def _unbalanced(definition: Definition, mark: str, indentation: Indentation | None) -> GrammarError:
    source = definition.module.source
    what, partner = {
        INDENT.name: ("a block begins", "does not end"),
        DEDENT.name: ("a block ends", "does not begin"),
        CLOSE.name: ("a bracket closes", "does not open"),
    }.get(mark, ("a bracket opens", "does not close"))
    span = definition.span
    if indentation is not None and mark in (INDENT.name, DEDENT.name):
        name = indentation.indent if mark == INDENT.name else indentation.dedent
        span = next((span_of(token) for token in tokens_of(definition.tree) if token == name), span)
    return source.syntax_error(
        span,
        f"{what} here and {partner} in the same sequence of rule {definition.name!r}",
        "put both into one sequence",
    )


LexerName: TypeAlias = Literal["any", "contextual"]

_DEFAULT_LIMITS: Final = Limits()
_BLOCKS: Final = Indentation()
_POLICIES: Final = (
    ("division into terminals", "any"),
    ("ignored terminals", "before and after every terminal"),
)


def lark(  # noqa: PLR0913  # how a grammar is read, by name
    text: str,
    *,
    start: str = "start",
    lexer: LexerName = "any",
    indentation: Indentation | None = None,
    grammars: Mapping[str, Grammar] | None = None,
    path: str | Path | None = None,
    limits: Limits = _DEFAULT_LIMITS,
) -> Grammar:
    r"""Read a Lark grammar; by default a string is valid if any division into terminals fits the rules.

    Args:
        text: the grammar.
        start: the rule to start from.
        lexer: which divisions count: ``"any"``, or the one that Lark's LALR parser with its ``"contextual"`` lexer
            makes, by longest match and priority (``docs/reference/lexing.md``).
        indentation: for a grammar that declares terminals that begin and end blocks
            (``docs/reference/indentation.md``); None means ``Indentation()`` if the grammar declares ``_INDENT`` and
            ``_DEDENT``.
        grammars: other grammars by name; llguidance's dialect refers to them as ``@name``.
        path: the file of ``text``, or its folder, for relative imports.
        limits: bounds on the size of the grammar (``source_bytes``, ``nesting``, ``grammar_nodes``).

    Returns:
        A grammar whose rules and terminals keep their names.  Left recursion is kept too: the engine rewrites it.

    Raises:
        GrammarSyntaxError: the text is malformed or uses an undefined name; the error points at the position.
        UnsupportedFeature: an unsupported construct; the error names it.
        GrammarError: there is no rule called ``start``, or an imported file cannot be read.
        LimitExceeded: the grammar is too large.
        ArgumentError: ``text`` is no text, or the path of a file.

    Complexity: linear in the text and in the instances of its templates.

    >>> from structgen.grammar.nodes import Rules
    >>> g = lark('start: start "+" N | N\nN: /[0-9]/')
    >>> print(g)
    rules {
      start = start "+" N | N;
      N = [0-9]
    } in start
    """
    check_text(text, limits, "lark grammar")
    folder = None if path is None else Path(path)
    if folder is not None and not folder.is_dir():
        folder = folder.parent
    return _read(GrammarSource(text, folder=folder), start, lexer, indentation, grammars, limits)


def load(
    path: str | Path,
    *,
    start: str = "start",
    lexer: LexerName = "any",
    indentation: Indentation | None = None,
    grammars: Mapping[str, Grammar] | None = None,
    limits: Limits = _DEFAULT_LIMITS,
) -> Grammar:
    """Read a Lark grammar from a file; arguments and other errors as for :func:`lark`.

    Raises:
        GrammarError: the file cannot be read or is not UTF-8.
    """
    return _read(read_source(Path(path), limits, is_imported=False), start, lexer, indentation, grammars, limits)


def _read(
    source: GrammarSource,
    start: str,
    lexer: LexerName,
    indentation: Indentation | None,
    grammars: Mapping[str, Grammar] | None,
    limits: Limits,
) -> Grammar:
    make = partial(_built, source, start, lexer, indentation, grammars, limits)
    if lexer == "any" and indentation is None and not grammars:
        program = read_simple(source.text, start, limits)
        if program is not None:
            return Described.deferred(program, _Deferred(make))
    with counted(limits):
        return make()


def _built(
    source: GrammarSource,
    start: str,
    lexer: LexerName,
    indentation: Indentation | None,
    grammars: Mapping[str, Grammar] | None,
    limits: Limits,
) -> Grammar:
    if lexer not in ("any", "contextual"):
        raise GrammarError(source.subject, f"there is no lexer {lexer!r}", remedy='use "any" or "contextual"')
    library = Library(source, limits)
    definition = library.find(library.main, start)
    if definition is None or definition.is_terminal or definition.parameters:
        rules = [name for name, known in library.main.definitions.items() if not known.is_terminal]
        raise source.no_start(start, rules, "start", ":")
    if indentation is None and {_BLOCKS.indent, _BLOCKS.dedent} <= library.main.declared.keys():
        indentation = _BLOCKS
    if lexer == "contextual":
        return contextual(library, definition, start, indentation, limits)
    is_marked = indentation is not None
    builder, made, body = built(
        library, definition, NodeBudget(limits), is_marked=is_marked, indentation=indentation, grammars=grammars
    )
    if builder.terminals.has_guards and not is_marked:  # known only after building
        is_marked = True
        builder, made, body = built(library, definition, NodeBudget(limits), is_marked=True, grammars=grammars)
    if is_marked:
        builder.rules = made
        grammar = without_marks(builder, body, library, indentation, limits)
    else:
        grammar = Rules(used_rules(made, body), body)
    return Described(grammar, _description(library, indentation))


def _description(library: Library, indentation: Indentation | None) -> Description:
    entries = [entry for module in library.modules.values() if not module.source.is_builtin for entry in module.entries]
    policies: tuple[tuple[str, str], ...] = _POLICIES
    if indentation is not None:
        policies += (("indentation", f"by {indentation.step} up to {indentation.max_width} characters"),)
    return Description(source="lark", entries=tuple(entries), policies=policies)


_MAX_LEAF_LENGTH: Final = 2_000  # characters


def read_simple(text: str, start: str, limits: Limits) -> FlatGrammar | None:
    """Return the flat program of a grammar, left recursion removed; None if the grammar is not simple.

    Native code reads simple grammars (``docs/adr/0018-simple-lark-grammars-natively.md``): rules, terminals, templates,
    and imports from Lark's library.  Reference implementation: the Python reader of this package, which also reads all
    other grammars and reports errors.

    Complexity: linear in the text and the instances of templates.
    """
    return _READER.read(text, start, limits.grammar_nodes, limits.nesting)


class _Deferred:
    """The term and the report of a natively read grammar, made by the Python reader on first use."""

    def __init__(self, make: Callable[[], Grammar]) -> None:
        self._make = make

    def item(self) -> Grammar:
        """Return the term."""
        return self._described.item

    def description(self) -> Description:
        """Return the description, with the report."""
        return self._described.description

    @cached_property
    def _described(self) -> Described:
        made = self._make()
        if not isinstance(made, Described):
            raise TypeError("a Lark grammar comes without its description")
        return made


def _leaf(token: str) -> tuple[FlatGrammar, bool] | None:
    """Return the flat program of a string or regexp, and whether it may be empty; None if the reader must give up."""
    if len(token) > _MAX_LEAF_LENGTH:
        return None
    try:
        pattern = pattern_of(
            GrammarSource(token), Token("STRING" if token[0] == '"' else "REGEXP", token, 0), _DEFAULT_LIMITS
        )
        if not is_plain(pattern):
            return None  # a lazy repetition: the rest of its terminal decides where it ends
        term = plain(pattern)
        return flatten(term, {}, None, _DEFAULT_LIMITS.grammar_nodes), Nullability({})(term)
    except StructgenError:
        return None  # the Python reader reports the error


_READER: Final = _native.LarkReader(builtin_texts, _leaf)
