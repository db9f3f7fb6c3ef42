"""The lexers and the LALR(1) table of a grammar, as Lark makes them.

Lark resolves imports, templates, priorities, names for strings and operators; the result is copied into the tables of
this module.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import lark
from lark.common import LexerConf
from lark.grammar import Rule, Terminal
from lark.lexer import BasicLexer, TerminalDef, _create_unless
from lark.load_grammar import load_grammar

from structgen.errors import GrammarError, LimitExceeded
from structgen.frontends.lark.contextual.lexer_automaton import Scanner
from structgen.frontends.lark.contextual.pattern import PatternRefusal, Tree, read_pattern
from structgen.frontends.lark.lalr import LalrTable, NumberedRules, bits, make_lalr, number_rules
from structgen.frontends.lark.library import Library
from structgen.frontends.lark.syntax import span_of, tokens_of
from structgen.grammar.limits import Limits

__all__ = ["END", "Production", "Tables", "make_tables"]

END: Final = "$END"
"""Lark's name for the end of the text."""

_load: Callable[..., Any] = load_grammar
_unless: Callable[..., Any] = _create_unless
_MIN_VERSION: Final = (1, 2)
_REMEDY: Final = 'use lexer="any", which accepts every division into terminals'
_SYMBOL_COST: Final = 80
"""Nodes that a symbol of a rule counts as: what Lark expands is large before the first limit of ours is met."""


@dataclass(frozen=True, slots=True)
class Production:
    """One alternative of a rule.

    Attributes:
        origin: the rule.
        symbols: (name, whether it is a terminal).
    """

    origin: str
    symbols: tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of Lark's parser and lexers.

    Attributes:
        productions: all alternatives.
        start: the start rule; the parser begins in state 0.
        goto: by state, the next state by symbol (name, whether it is a terminal).
        forbidden: by (state, production), the lookahead terminals before which the parser does not reduce the
            production, because it resolves a conflict otherwise.
        scanners: by state, the number of its lexer.
        lexers: the lexers.
        terminals: by lexer, the terminals that it may find; an ignored one may replace another with the same match.
        ignored: the ignored terminals.
        trees: by terminal, the regexp that Lark compiles.
    """

    productions: tuple[Production, ...]
    start: str
    goto: tuple[dict[tuple[str, bool], int], ...]
    forbidden: dict[tuple[int, int], frozenset[str]]
    scanners: tuple[int, ...]
    lexers: tuple[Scanner, ...]
    terminals: tuple[frozenset[str], ...]
    ignored: frozenset[str]
    trees: dict[str, Tree]


def make_tables(library: Library, start: str, limits: Limits) -> Tables:
    """Let Lark load the grammar and make its tables.

    Raises:
        GrammarError: Lark refuses the grammar, or it is not LALR(1).
        PatternRefusal: a regexp needs more than a finite automaton.
        LimitExceeded: it has too many symbols for Lark's analysis, or is nested too deeply for it.
    """
    _check_version(library)
    source = library.main.source
    try:
        return _make(library, start, limits)
    except lark.exceptions.LarkError as error:
        raise _refused(library, str(error)) from None
    except re.error as error:  # of the terminals in one regexp
        raise _refused(library, f"Python cannot compile the regexp of a lexer: {error}") from None
    except RecursionError:
        raise LimitExceeded(
            source.subject, limit="nesting", maximum=limits.nesting,
            evidence="Lark's own analysis recurses too deeply", remedy=_REMEDY,
        ) from None  # fmt: skip


def _check_version(library: Library) -> None:
    found = re.match(r"(\d+)\.(\d+)", lark.__version__)
    if found is None or not _MIN_VERSION <= (int(found[1]), int(found[2])) < (2, 0):
        raise GrammarError(
            library.main.source.subject,
            'lexer="contextual" supports lark 1.2 and 1.3',
            evidence=f"lark {lark.__version__} is installed",
            remedy=f"install another version of lark, or {_REMEDY}",
        )


def _refused(library: Library, message: str) -> GrammarError:
    """Make the error for a grammar that Lark's LALR parser refuses, at the rule that its message names."""
    source = library.main.source
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    first = next((index for index, line in enumerate(lines) if line.startswith("- ")), len(lines))
    shown = " ".join([*lines[:first], *sorted(lines[first:])])[:400]  # Lark's order of rules varies
    for pattern in (r"<(\w+)", r"\b([a-zA-Z_]\w*)\b"):
        names = {re.sub(r"^__(\w+?)_(?:star|plus|repeat)_.*", r"\1", name) for name in re.findall(pattern, message)}
        named = [definition for name, definition in library.main.definitions.items() if name in names]
        if named:
            definition = min(named, key=lambda each: each.position)
            span = definition.span
            return source.syntax_error(span, f"Lark's LALR parser refuses the grammar: {shown}", _REMEDY)
    ignored = re.search(r"__IGNORE_(\d+)", message)
    if ignored is not None and int(ignored[1]) < len(library.main.ignored):
        token = next(tokens_of(library.main.ignored[int(ignored[1])]), None)
        if token is not None:
            return source.syntax_error(span_of(token), f"Lark's LALR parser refuses the grammar: {shown}", _REMEDY)
    for definition in library.main.definitions.values() if "Empty terminals" in message else ():
        for token in tokens_of(definition.tree):
            if token in ('""', '""i'):
                return source.syntax_error(span_of(token), f"Lark's LALR parser refuses the grammar: {shown}", _REMEDY)
    return GrammarError(source.subject, "Lark's LALR parser refuses the grammar", evidence=shown, remedy=_REMEDY)


def _make(library: Library, start: str, limits: Limits) -> Tables:
    source = library.main.source
    path = source.name or (str(source.folder / "<string>") if source.folder is not None else "<string>")
    with _SilentLogger():
        grammar, _ = _load(source.text, path, [], global_keep_all_tokens=False)
        terminals, rules, ignored = grammar.compile([start], set())
        trees = _read_terminals(library, terminals)
        symbols = sum(1 + len(rule.expansion) for rule in rules)
        if symbols * _SYMBOL_COST > limits.grammar_nodes:
            evidence = f"its rules have {symbols} symbols after Lark's expansion of operators"
            raise LimitExceeded(source.subject, limit="grammar_nodes", maximum=limits.grammar_nodes, evidence=evidence)
        _check_rules(rules)
    numbered = number_rules(rules, start)
    return _copied(numbered, make_lalr(numbered, source.subject), terminals, trees, rules, frozenset(map(str, ignored)))


def _check_rules(rules: list[Rule]) -> None:
    """Refuse, with Lark's words, what its analysis refuses."""
    twice = [str(rule) for rule, count in Counter(rules).items() if count > 1]
    if twice:
        raise lark.GrammarError(f"Rules defined twice: {', '.join(twice)}")
    defined = {rule.origin for rule in rules}
    for rule in rules:
        for symbol in rule.expansion:
            if not symbol.is_term and symbol not in defined:
                raise lark.GrammarError(f"Using an undefined rule: {symbol}")


class _SilentLogger:
    """Silences Lark's log messages about conflicts."""

    def __enter__(self) -> None:
        self._level = lark.logger.level
        lark.logger.setLevel(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        lark.logger.setLevel(self._level)


def _read_terminals(library: Library, terminals: list[TerminalDef]) -> dict[str, Tree]:
    trees: dict[str, Tree] = {}
    for terminal in terminals:
        try:
            trees[str(terminal.name)] = read_pattern(terminal.pattern.to_regexp())
        except re.error as error:
            raise _refused(library, f"terminal {terminal.name} is not a valid Python regexp: {error}") from None
        except PatternRefusal as refusal:
            raise PatternRefusal(refusal.feature, refusal.problem, str(terminal.name)) from None
    return trees


def _copied(
    numbered: NumberedRules,
    table: LalrTable,
    terminals: list[TerminalDef],
    trees: dict[str, Tree],
    rules: list[Rule],
    ignored: frozenset[str],
) -> Tables:
    """Resolve conflicts as Lark does: reduce by the rule of the highest priority, but rather shift.

    Raises:
        lark.GrammarError: several rules have the highest priority, or a lexer looks for a terminal that may be empty.
    """
    names = [name for name, _ in numbered.symbols[numbered.first_terminal :]]
    forbidden: dict[tuple[int, int], set[str]] = {}
    accepts: list[frozenset[str]] = []
    collisions: list[str] = []
    for state, (row, reductions) in enumerate(zip(table.goto, table.reductions, strict=True)):
        seen = sum([1 << symbol - numbered.first_terminal for symbol in row if symbol >= numbered.first_terminal])
        twice = 0
        for mask in reductions.values():
            twice |= seen & mask
            seen |= mask
        for bit in bits(twice):
            found = [rule for rule, mask in reductions.items() if mask >> bit & 1]
            first, *others = sorted((rules[rule].options.priority or 0 for rule in found), reverse=True)
            best = max(found, key=lambda rule: rules[rule].options.priority or 0)
            if first in others:
                listed = "".join(f"\n\t- {rules[rule]}" for rule in sorted(found))
                collisions.append(
                    f"Reduce/Reduce collision in {Terminal(names[bit])} between the following rules: {listed}"
                )
            for rule in found:
                if rule != best or bit + numbered.first_terminal in row:
                    forbidden.setdefault((state, rule), set()).add(names[bit])
        accepts.append(frozenset([names[bit] for bit in bits(seen)]))
    if collisions:
        raise lark.GrammarError("\n\n".join(collisions))
    known = {terminal.name: terminal for terminal in terminals}
    lexers: dict[frozenset[str], int] = {}
    scanners = [lexers.setdefault((accepted | ignored).intersection(known), len(lexers)) for accepted in accepts]
    for name in sorted(frozenset().union(*lexers)):  # Lark allows it where no state looks for the terminal
        if known[name].pattern.min_width == 0:
            raise lark.GrammarError(f"terminal {name} matches the empty string, which its lexers do not allow")
    compiles = _compiles(terminals)
    return Tables(
        productions=tuple(
            Production(
                str(rule.origin.name), tuple((str(symbol.name), bool(symbol.is_term)) for symbol in rule.expansion)
            )
            for rule in rules
        ),
        start=numbered.symbols[numbered.start][0],
        goto=tuple([{numbered.symbols[symbol]: target for symbol, target in row.items()} for row in table.goto]),
        forbidden={key: frozenset(found) for key, found in forbidden.items()},
        scanners=tuple(scanners),
        lexers=tuple(_scanner([known[name] for name in sorted(found)], ignored, compiles=compiles) for found in lexers),
        terminals=tuple(lexers),
        ignored=ignored,
        trees=trees,
    )


def _compiles(terminals: list[TerminalDef]) -> bool:
    """Whether Python compiles the regexps of all terminals into one; then those of each lexer too."""
    try:
        return bool(_lexer(terminals, frozenset()).scanner)
    except re.error:
        return False


def _lexer(terminals: list[TerminalDef], ignored: frozenset[str]) -> Any:
    return BasicLexer(LexerConf(terminals, re, sorted(ignored), skip_validation=True))


def _scanner(terminals: list[TerminalDef], ignored: frozenset[str], *, compiles: bool) -> Scanner:
    """Return what Lark's lexer for these terminals tries, in its order.

    Raises:
        re.error: Python cannot compile its regexp, unless it is known that it ``compiles``, which takes longest.
    """
    lexer = _lexer(terminals, ignored)
    if not compiles:
        return Scanner(tuple(str(terminal.name) for terminal in lexer.scanner.terminals), _instead(lexer.callback))
    found, callbacks = _unless(lexer.terminals, 0, re, use_bytes=False)
    return Scanner(tuple(str(terminal.name) for terminal in found), _instead(callbacks))


def _instead(callbacks: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple(
        (str(name), tuple(str(terminal.name) for terminal in callback.scanner.terminals))
        for name, callback in callbacks.items()
    )
