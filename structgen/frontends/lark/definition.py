"""The statements of one grammar file: definitions, imports, ``%ignore`` and options.

Also what expressions of rules and terminals share: bounds of repetitions and the node budget.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lark import Tree

from structgen.errors import LimitExceeded
from structgen.frontends.grammar_source import GrammarSource
from structgen.frontends.lark.llguidance import Attributes, json_of, read_attributes
from structgen.frontends.lark.syntax import Node, Token, parse, span_of, tokens_of
from structgen.grammar.limits import Limits, spend
from structgen.grammar.nodes.description import ReportEntry, Status

__all__ = [
    "Definition",
    "DefinitionChange",
    "Import",
    "Module",
    "NodeBudget",
    "bounds_of",
    "module_of",
    "read_module",
]


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A rule or a terminal.

    Attributes:
        name: its name in its file.
        is_terminal: whether it is a terminal.
        parameters: the parameters of a template.
        tree: its expression.
        module: its file.
        position: offset of its name.
        attributes: llguidance's attributes, in brackets after its name.
        has_parameter: whether it takes a number (``name::_``).
        further: what ``%extend`` adds to it; each with its own alternatives.
    """

    name: str
    is_terminal: bool
    parameters: tuple[str, ...]
    tree: Node
    module: Module
    position: int
    attributes: Attributes | None = None
    has_parameter: bool = False
    further: tuple[Definition, ...] = ()

    @property
    def span(self) -> tuple[int, int]:
        """The span of its name."""
        return self.position, self.position + len(self.name)


class DefinitionChange(NamedTuple):
    """``%override`` or ``%extend`` of a definition."""

    definition: Definition
    is_extension: bool


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: ``name`` of the file ``path``, relative to the importing one or from Lark's own."""

    path: tuple[str, ...]
    is_relative: bool
    name: str
    position: int = field(compare=False)


@dataclass(slots=True, eq=False)
class Module:
    """One grammar file, or a grammar nested in one.

    Attributes:
        changes: ``%override`` and ``%extend``, by name, in their order.
        nested: offsets of nested grammars whose entries are in the report already.
        options: the options of ``%llguidance``; None if there is no such statement, and Lark's rules apply.
    """

    source: GrammarSource
    definitions: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, Import] = field(default_factory=dict)
    declared: dict[str, int] = field(default_factory=dict)
    ignored: list[Node] = field(default_factory=list)
    changes: dict[str, list[DefinitionChange]] = field(default_factory=dict)
    nested: set[int] = field(default_factory=set)
    options: dict[str, bool] | None = None
    entries: list[ReportEntry] = field(default_factory=list)

    def note(self, keyword: str, position: int, status: Status, detail: str = "") -> None:
        """Put one construct into the report."""
        self.entries.append(ReportEntry(keyword, self.source.where(position), status, detail))


_SAME_TEXTS = "changes the parse tree, not which texts belong to the language"
_OPTIONS = {
    "allow_initial_skip": (Status.ENFORCED, "ignored text may stand at the start"),
    "ignore_once": (Status.ENFORCED, "ignored text stands at most once between two terminals"),
    "no_forcing": (Status.ANNOTATION, "which tokens are taken without the model is said to the decoder: jump_forward"),
    "allow_invalid_utf8": (Status.ENFORCED, "texts are well-formed UTF-8"),
}


def read_module(source: GrammarSource, limits: Limits) -> Module:
    """Read the statements of a grammar file.

    Raises:
        GrammarSyntaxError: the text is no Lark grammar, or defines a name twice.
        UnsupportedFeature: a statement is not supported.
        LimitExceeded: it is nested too deeply.
    """
    return module_of(source, parse(source, limits).children)


def module_of(source: GrammarSource, statements: Iterable[Node | Token]) -> Module:
    """Read parsed statements; raises as ``read_module`` does, except for limits."""
    module = Module(source)
    for statement in statements:
        if not isinstance(statement, Token):
            _read_statement(module, statement)
        elif statement.type == "OPTIONS":
            _read_options(module, statement)
    return module


def _read_statement(module: Module, statement: Node) -> None:
    match statement.data:
        case "rule" | "terminal":
            _read_definition(module, statement)
        case "ignore":
            tree = _tree(statement.children[0])
            position = next((token.start_pos or 0 for token in tokens_of(tree)), len(module.source.text))
            module.ignored.append(tree)
            module.note("%ignore", position, Status.ENFORCED, "allowed before and after every terminal")
        case "declare":
            for name in map(_token, statement.children[1:]):
                module.declared.setdefault(str(name), name.start_pos or 0)
                module.note(f"%declare {name}", name.start_pos or 0, Status.ENFORCED)
        case "import_one" | "import_many":
            _read_import(module, statement)
        case _:
            is_extension = statement.data == "extend"
            definition = _definition(module, _tree(statement.children[1]))
            module.changes.setdefault(definition.name, []).append(DefinitionChange(definition, is_extension))


def _read_options(module: Module, token: Token) -> None:
    start = token.start_pos or 0
    name = "%grammar_options" if module.source.text[:start].rstrip().endswith("_options") else "%llguidance"
    given = json_of(module.source, token, name)
    if not isinstance(given, dict):
        raise module.source.syntax_error((start, start + len(token)), f"{name} takes an object", "write {}")
    module.options = module.options or {}
    if not given:
        module.note(name, start, Status.ENFORCED, "regexps and strings are read as llguidance reads them")
    for key, value in given.items():
        if key not in _OPTIONS:
            raise module.source.refused(
                start, f"{name} {key}", f"there is no option {key!r:.40}", f"the options are {', '.join(_OPTIONS)}"
            )
        if not isinstance(value, bool):
            raise module.source.syntax_error((start, start + len(token)), f"option {key!r} takes true or false")
        if key == "allow_invalid_utf8" and value:
            raise module.source.refused(
                start, f"{name} {key}", "strings are always well-formed UTF-8",
                "remove the option, and build a grammar over bytes with the algebra (ByteClass)",
            )  # fmt: skip
        status, detail = _OPTIONS[key]
        module.note(f"{name} {key}", start, status, detail if value or status is Status.ANNOTATION else "off")
        module.options[key] = value


def _read_definition(module: Module, statement: Node) -> None:
    definition = _definition(module, statement)
    start = definition.position
    _bind(module, Token("NAME", definition.name, start), definition)


def _definition(module: Module, statement: Node) -> Definition:
    is_terminal = statement.data == "terminal"
    if is_terminal:
        name, priority, body = statement.children
        modifiers = parameter = parameters = attributes = None
    else:
        modifiers, name, parameter, parameters, priority, attributes, body = statement.children
    name, tree = _token(name), _tree(body)
    position = name.start_pos or 0
    names = [] if parameters is None else [_token(child) for child in _tree(parameters).children]
    for index, each in enumerate(names):
        if each in names[:index]:
            raise module.source.syntax_error(span_of(each), f"parameter {str(each)!r} is given twice")
    module.note(f"{'terminal' if is_terminal else 'rule'} {name}", position, Status.ENFORCED)
    if modifiers is not None:
        module.note(f"modifier {modifiers}", _token(modifiers).start_pos or 0, Status.ANNOTATION, _SAME_TEXTS)
    if priority is not None:
        detail = "chooses between parse trees; does not affect which strings are valid"
        module.note(f"priority {priority}", _token(priority).start_pos or 0, Status.ANNOTATION, detail)
    for token in _noted(tree):
        if token.type != "RULE":
            module.note(*_structured_entry(token))
            continue
        if is_terminal:
            raise module.source.syntax_error(span_of(token), "an alias has no meaning inside a terminal", "remove it")
        module.note(f"alias {token}", token.start_pos or 0, Status.ANNOTATION, _SAME_TEXTS)
    if parameter is not None and _token(parameter)[2:].strip() != "_":
        raise module.source.syntax_error(span_of(_token(parameter)), "the parameter of a rule must be written ::_")
    read = None
    if attributes is not None:

        def note(keyword: str, where: int, detail: str) -> None:
            status = Status.ANNOTATION if keyword == "attribute temperature" else Status.ENFORCED
            module.note(keyword, where, status, detail)

        read = read_attributes(module.source, _tree(attributes), str(name), note)
    return Definition(
        str(name), is_terminal, tuple(map(str, names)), tree, module, position, read, parameter is not None
    )


def _read_import(module: Module, statement: Node) -> None:
    keyword, dot, path_tree, *names = statement.children
    path = [str(part) for part in _tree(path_tree).children]
    last = _token(_tree(path_tree).children[-1])
    if statement.data == "import_one":
        alias = names[0]
        if len(path) < 2:
            raise module.source.syntax_error(
                span_of(last), f"nothing is imported from {path[0]!r}", f"write %import {path[0]}.NAME"
            )
        pairs = [(path.pop(), last if alias is None else _token(alias))]
    else:
        pairs = [(str(name), _token(name)) for name in names]
    for name, local in pairs:
        if name.isupper() != local.isupper():
            raise module.source.syntax_error(
                span_of(local), "a rule cannot be imported as a terminal, nor a terminal as a rule"
            )
        position = _token(keyword).start_pos or 0
        _bind(module, local, Import(tuple(path), dot is not None, name, local.start_pos or 0))
        shown = ("." if dot is not None else "") + ".".join([*path, name])
        module.note(f"%import {shown}", position, Status.ENFORCED, "" if name == local else f"as {local}")


def _bind(module: Module, name: Token, meaning: Definition | Import) -> None:
    first = module.definitions.get(name) or module.imports.get(name)
    if first is not None and first != meaning:  # one import may be written twice
        raise module.source.syntax_error(
            span_of(name),
            f"{str(name)!r} is defined more than once",
            f"it is first defined at {module.source.where(first.position)}",
        )
    if isinstance(meaning, Import):
        module.imports[str(name)] = meaning
    else:
        module.definitions[str(name)] = meaning


_STRUCTURED = {
    "JSON": ("%json", "its own keywords are reported by json_schema()"),
    "STRUCTURED": ("%regex", ""),
    "NESTED": ("%lark", "what it defines is reported after the rest"),
}


def _structured_entry(token: Token) -> tuple[str, int, Status, str]:
    keyword, detail = _STRUCTURED.get(token.type, (f"{'token' if token.type == 'SPECIAL' else 'grammar'} {token}", ""))
    return keyword, token.start_pos or 0, Status.ENFORCED, detail


def _noted(tree: Node) -> Iterator[Token]:
    """Yield the aliases of an expression and the other tokens that the report names, in order."""
    stack: list[object] = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, Token):
            if part.type in {"SPECIAL", "JSON", "STRUCTURED", "GRAMMAR", "NESTED"}:
                yield part
        elif isinstance(part, Tree):
            if part.data == "alias":
                yield _token(part.children[1])
                stack.append(part.children[0])
            elif part.data == "nested":  # a nested grammar notes its own
                stack.append(part.children[0])
            else:
                stack.extend(reversed(part.children))


def _token(part: object) -> Token:
    if not isinstance(part, Token):
        raise TypeError(f"expected a token in the tree of a grammar, found {part!r}")
    return part


def _tree(part: object) -> Node:
    if not isinstance(part, Tree):
        raise TypeError(f"expected a subtree in the tree of a grammar, found {part!r}")
    return part


_BOUNDS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_MAX_DIGITS: Final = 10


_STEPS_A_NODE: Final = 6
_MAX_NODES: Final = 10  # that one call makes: what counts as more does so for another reason


class NodeBudget:
    """Counts the nodes of a grammar."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._spent = 0

    def charge(self, count: int, subject: str) -> None:
        """Add nodes made for ``subject``.

        Raises:
            LimitExceeded: the sum exceeds ``grammar_nodes``, or making them ``steps``.
        """
        self._spent += count
        if self._spent > self.limits.grammar_nodes:
            raise LimitExceeded(subject, limit="grammar_nodes", maximum=self.limits.grammar_nodes)
        spend(_STEPS_A_NODE * min(count, _MAX_NODES), subject)


def bounds_of(module: Module, tree: Node) -> tuple[int, int | None]:
    """Return the counts of ``x?``, ``x*``, ``x+``, ``x~n``, ``x~n..m`` and ``x{n,m}``.

    Raises:
        GrammarSyntaxError: a count is negative or far too large, or the bounds are in the wrong order.
    """
    if tree.data == "repeat":
        return _BOUNDS[str(tree.children[1])]
    numbers: list[int] = []
    tokens = tree.children[2:]
    if tree.data == "counted":
        counts = tree.children[1]
        first, _, last = str(counts)[1:-1].partition(",")
        start = counts.start_pos if isinstance(counts, Token) else 0
        tokens = [Token("NUMBER", part, start) for part in (first.strip() or "0", last.strip()) if part]
    for token in tokens:
        if isinstance(token, Token):
            if len(token) > _MAX_DIGITS or int(token) < 0:
                problem = f"count {token[:_MAX_DIGITS]}{'...' * (len(token) > _MAX_DIGITS)} is out of range"
                raise module.source.syntax_error(span_of(token), problem, "give a count from 0 on")
            numbers.append(int(token))
            if numbers[-1] < numbers[0]:
                problem = f"the bounds {numbers[0]}..{numbers[-1]} contain no count"
                raise module.source.syntax_error(span_of(token), problem, "swap them")
    if tree.data == "counted" and str(tree.children[1]).rstrip(" \t}").endswith(","):
        return numbers[0], None
    return numbers[0], numbers[-1]
