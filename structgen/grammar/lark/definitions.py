"""The statements of one grammar file: definitions, imports and what is ignored.  What Lark has beside is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lark import Tree

from structgen.grammar.lark.source import Source
from structgen.grammar.lark.syntax import Node, Token, parse
from structgen.grammar.limits import Limits
from structgen.grammar.report import ReportEntry, Status

__all__ = ["Definition", "Import", "Module", "read_module", "span_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """A rule or a terminal.

    Attributes:
        name: as its file calls it.
        is_terminal: whether it is a terminal.
        parameters: of a template.
        tree: its expression.
        module: the file that it stands in.
        position: offset of its name.
    """

    name: str
    is_terminal: bool
    parameters: tuple[str, ...]
    tree: Node
    module: Module
    position: int


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: ``name`` of the file ``path``, relative to the importing one or from Lark's own."""

    path: tuple[str, ...]
    is_relative: bool
    name: str
    position: int = field(compare=False)


@dataclass(slots=True, eq=False)
class Module:
    """One grammar file."""

    source: Source
    definitions: dict[str, Definition] = field(default_factory=dict)
    imports: dict[str, Import] = field(default_factory=dict)
    ignored: list[Node] = field(default_factory=list)
    entries: list[ReportEntry] = field(default_factory=list)

    def note(self, keyword: str, position: int, status: Status, detail: str = "") -> None:
        """Put one construct into the report."""
        self.entries.append(ReportEntry(keyword, self.source.where(position), status, detail))


_SAME_TEXTS = "changes the parse tree, not which texts belong to the language"
_REFUSED = {
    "%declare": "define the terminal: there is no other lexer that could supply it",
    "%override": "import the other parts and define the rule under its name yourself",
    "%extend": "write the alternatives into one definition",
}


def read_module(source: Source, limits: Limits) -> Module:
    """Read the statements of a grammar file.

    Raises:
        GrammarSyntaxError: the text is no Lark grammar, or defines a name twice.
        UnsupportedFeature: a statement is not supported yet.
        LimitExceeded: it is nested too deeply.
    """
    module = Module(source)
    for statement in parse(source, limits).children:
        if not isinstance(statement, Token):
            _read_statement(module, statement)
    return module


def _read_statement(module: Module, statement: Node) -> None:
    match statement.data:
        case "rule" | "terminal":
            _read_definition(module, statement)
        case "ignore":
            tree = _tree(statement.children[0])
            position = _first_position(tree, len(module.source.text))
            module.ignored.append(tree)
            module.note("%ignore", position, Status.ENFORCED, "may stand before and after every terminal")
        case "import_one" | "import_many":
            _read_import(module, statement)
        case _:
            keyword = _token(statement.children[0])
            raise module.source.refused(
                keyword.start_pos or 0, str(keyword), f"{keyword} is not supported", _REFUSED[str(keyword)]
            )


def _read_definition(module: Module, statement: Node) -> None:
    is_terminal = statement.data == "terminal"
    if is_terminal:
        name, priority, body = statement.children
        modifiers = parameters = None
    else:
        modifiers, name, parameters, priority, body = statement.children
    name, tree = _token(name), _tree(body)
    position = name.start_pos or 0
    names = [] if parameters is None else [_token(child) for child in _tree(parameters).children]
    for index, parameter in enumerate(names):
        if parameter in names[:index]:
            raise module.source.syntax_error(span_of(parameter), f"parameter {str(parameter)!r} stands twice")
    definition = Definition(str(name), is_terminal, tuple(map(str, names)), tree, module, position)
    _bind(module, name, definition)
    module.note(f"{'terminal' if is_terminal else 'rule'} {name}", position, Status.ENFORCED)
    if modifiers is not None:
        module.note(f"modifier {modifiers}", _token(modifiers).start_pos or 0, Status.ANNOTATION, _SAME_TEXTS)
    if priority is not None:
        detail = "chooses between parse trees, not which texts belong to the language"
        module.note(f"priority {priority}", _token(priority).start_pos or 0, Status.ANNOTATION, detail)
    for token in _aliases(tree):
        if is_terminal:
            raise module.source.syntax_error(span_of(token), "an alias has no meaning inside a terminal", "remove it")
        module.note(f"alias {token}", token.start_pos or 0, Status.ANNOTATION, _SAME_TEXTS)


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
            raise module.source.syntax_error(span_of(local), "a rule and a terminal cannot stand for each other")
        position = _token(keyword).start_pos or 0
        _bind(module, local, Import(tuple(path), dot is not None, name, local.start_pos or 0))
        shown = ("." if dot is not None else "") + ".".join([*path, name])
        module.note(f"%import {shown}", position, Status.ENFORCED, "" if name == local else f"as {local}")


def _bind(module: Module, name: Token, meaning: Definition | Import) -> None:
    known = module.definitions.get(name) or module.imports.get(name)
    if known is not None and known != meaning:  # one import may be written twice
        raise module.source.syntax_error(
            span_of(name),
            f"{str(name)!r} is defined more than once",
            f"it is first defined at {module.source.where(known.position)}",
        )
    if isinstance(meaning, Import):
        module.imports[str(name)] = meaning
    else:
        module.definitions[str(name)] = meaning


def _aliases(tree: Node) -> Iterator[Token]:
    stack = [tree]
    while stack:
        part = stack.pop()
        if part.data == "alias":
            yield _token(part.children[1])
        stack.extend(child for child in reversed(part.children) if isinstance(child, Tree))


def _first_position(tree: Node, default: int) -> int:
    """Return the offset of the first token below ``tree``, or ``default`` if there is none."""
    stack: list[object] = [tree]
    while stack:
        part = stack.pop()
        if isinstance(part, Token):
            return part.start_pos or 0
        if isinstance(part, Tree):
            stack.extend(reversed(part.children))
    return default


def span_of(token: Token) -> tuple[int, int]:
    """Return the offsets of a token in its file."""
    start = token.start_pos or 0
    return start, start + len(token)


def _token(part: object) -> Token:
    if not isinstance(part, Token):
        raise TypeError(f"expected a token in the tree of a grammar, found {part!r}")
    return part


def _tree(part: object) -> Node:
    if not isinstance(part, Tree):
        raise TypeError(f"expected a subtree in the tree of a grammar, found {part!r}")
    return part
