"""The grammar that a command works on: from a file, standard input or a regular expression; and files of Python."""

from __future__ import annotations

import codecs
import functools
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar, get_args

import click

from structgen.cli.terminal import Failure, noted
from structgen.errors import GrammarSyntaxError, KeywordWarning, StructgenError
from structgen.progress import watched

if TYPE_CHECKING:
    from structgen.engine import Constraint, Vocabulary
    from structgen.frontends.json_schema import JsonPolicy
    from structgen.grammar.nodes import Grammar

__all__ = [
    "STANDARD_INPUT",
    "GrammarSource",
    "SourceOptions",
    "SourceRefused",
    "compile_source",
    "read_source",
    "read_text",
    "run_file",
    "source_options",
    "unreadable",
]

STANDARD_INPUT: Final = "-"
_PROBED: Final = 1024
"""Bytes of a file in which a zero byte tells that it is no text."""

Whitespace: TypeAlias = Literal["compact", "single", "flexible", "runs", "any", "indented"]
Order: TypeAlias = Literal["declared", "any"]
Additional: TypeAlias = Literal["written", "forbidden"]
Required: TypeAlias = Literal["written", "all"]
Dialect: TypeAlias = Literal["python", "ecma", "rust"]
Notation: TypeAlias = Literal["json-schema", "structural_tag", "lark", "gbnf", "ebnf"]
LexerName: TypeAlias = Literal["any", "contextual"]
_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How the description is to be read.

    Attributes:
        regex: the description itself, as a regular expression; there is no file then.
        dialect: of the regular expression.
        notation: the notation of the file; None: by the suffix of its name.
        start: the rule that a grammar begins with; None: ``start`` in Lark, ``root`` in GBNF and EBNF.
        lexer: which divisions into the terminals of a Lark grammar count.
        whitespace: what may stand between the tokens of JSON.
        indent: the bound of that, or the indentation.
        around: whether white space may also stand before and after a JSON document.
        order: in which order the members of a JSON object may come.
        additional: whether objects may have members that the schema does not name, where it says nothing of them.
        required: which members objects must have.
        bounds: the bounds of ``JsonPolicy`` by name.
    """

    regex: str | None
    dialect: Dialect
    notation: Notation | None
    start: str | None
    lexer: LexerName
    whitespace: Whitespace
    indent: int | None
    around: bool
    order: Order
    additional: Additional
    required: Required
    bounds: dict[str, int | None]

    def take_path(self, paths: tuple[str, ...], *names: str, others: str = "") -> tuple[str | None, ...]:
        """Distribute the positional arguments over ``names``; ``--regex`` replaces the first.

        Args:
            paths: the positional arguments.
            *names: what they are, for messages.
            others: how to give what users take for another positional argument.

        Raises:
            click.UsageError: there are too few or too many.
        """
        expected = names[1:] if self.regex is not None else names
        if len(paths) != len(expected):
            listed = " ".join(expected) or "no file beside --regex"
            found = " ".join(paths) or "nothing"
            hint = "" if self.regex is not None else "; --regex R may stand in place of the file"
            if others and len(paths) > len(expected):
                hint = f"; {others}"
            raise click.UsageError(f"expected {listed}, found {found}{hint}")
        return (None, *paths) if self.regex is not None else paths


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A description that was read.

    Attributes:
        grammar: what it means.
        label: what messages call it; empty for --regex, whose messages say what they are about.
        text: the description itself.
        policy: how a JSON Schema was read; None for all else.
    """

    grammar: Grammar
    label: str
    text: str
    policy: JsonPolicy | None = None

    @property
    def is_json(self) -> bool:
        """Whether the strings are JSON texts."""
        from structgen.grammar.nodes.description import Described

        return isinstance(self.grammar, Described) and self.grammar.description.value == "json"


def source_options(*, reads: bool = False, several: bool = False) -> Callable[[_Command], _Command]:
    """Give a command the options of :class:`SourceOptions`, which it receives as ``source``.

    Args:
        several: whether the command takes several descriptions, so that the help leaves ``--regex`` out.
        reads: whether the command reads documents that others have written: by default it takes JSON with any white
            space, also around the document, and undeclared members as the schema says.
    """

    def decorate(command: _Command) -> _Command:
        @functools.wraps(command)
        def wrapper(**given: Any) -> Any:
            notation = given.pop("notation")
            named: dict[str, Any] = {"notation": "lark" if given.pop("lark") else notation}
            named |= {name: given.pop(name) for name in _SAME_NAMES}
            bounds = {name: given.pop(name) for name in _BOUNDS}
            named["around"] = reads and named["whitespace"] not in _FIXED
            return command(source=SourceOptions(**named, bounds=bounds), **given)

        decorated: Any = wrapper
        for option in reversed(_options(reads=reads, several=several)):
            decorated = option(decorated)
        made: _Command = decorated
        return made

    return decorate


_SAME_NAMES: Final = ("regex", "dialect", "start", "lexer", "whitespace", "indent", "order", "additional", "required")
"""The attributes of ``SourceOptions`` that are options of the same name."""
_FIXED: Final = ("compact", "single", "indented")
"""The kinds of white space that have one text."""


def _choice(name: str, kinds: Any, default: str, text: str, *, hidden: bool = False) -> Callable[[Any], Any]:
    choices = click.Choice(get_args(kinds))
    return click.option(name, type=choices, default=default, show_default=True, help=text, hidden=hidden)


def _options(*, reads: bool, several: bool) -> list[Callable[[Any], Any]]:
    return [
        click.option("--regex", metavar="R", help="A regular expression in place of the file.", hidden=several),
        _choice("--dialect", Dialect, "python", "How --regex is read.", hidden=several),
        click.option(
            "--from", "notation", type=click.Choice(get_args(Notation)), help="What the file is, whatever its name."
        ),
        click.option("--lark", is_flag=True, help="Short for --from lark."),
        click.option(
            "--start", metavar="RULE", help="First rule of a grammar; by default start in Lark, root in GBNF and EBNF."
        ),
        _choice("--lexer", LexerName, "any", "Which divisions into the terminals of a Lark grammar count."),
        _choice(
            "--whitespace",
            Whitespace,
            "any" if reads else "single",
            "White space in JSON: none; as json.dumps writes it; free within bounds; runs of up to --indent; any; or "
            "lines as json.dumps(indent=...) writes them.",
        ),
        click.option(
            "--indent",
            metavar="N",
            type=click.IntRange(0, 10_000),
            help="Spaces of a level of indented JSON, else 2; the bound on a run or an indentation, else 256.",
        ),
        _choice(
            "--order", Order, "declared", "Order of the members of a JSON object: as the schema declares them, or any."
        ),
        _choice(
            "--additional",
            Additional,
            "written" if reads else "forbidden",
            "Members that a JSON Schema neither names nor speaks of: allowed, as written; or forbidden.",
        ),
        _choice(
            "--required",
            Required,
            "written",
            "Which members a JSON object must have: those that the schema requires, or all that it declares.",
        ),
        *(
            click.option(f"--{name.replace('_', '-')}", metavar="N", type=click.IntRange(0, most), help=text)
            for name, (most, text) in _BOUNDS.items()
        ),
    ]


_BOUNDS: Final = {
    "max_depth": (500, "How deeply arrays and objects may nest."),
    "max_length": (1_000_000, "Most characters of a string where the schema has no smaller bound."),
    "max_items": (1_000_000, "Most items of an array, likewise."),
    "max_members": (1_000, "Most members of an object with undeclared names."),
}


def read_source(path: str | None, options: SourceOptions, *, is_linted: bool = False) -> GrammarSource:
    """Read the description from a file or standard input (``-``); from ``options.regex`` where ``path`` is None.

    Keywords that are likely misspelt are noted on standard error, unless the caller has the linter do so.

    Raises:
        Failure: the file cannot be read, is not UTF-8, or is of no known kind.
        SourceRefused: a front end refuses it.
    """
    if path is None:
        from structgen.frontends.regex import regex

        with refusals(""), watched("read the expression", always=True):
            return GrammarSource(regex(options.regex or "", dialect=options.dialect), "", options.regex or "")
    label = "standard input" if path == STANDARD_INPUT else path
    text = read_text(path)
    if not text.strip():
        raise Failure(f"{label}: it is empty; give a JSON Schema or a grammar")
    with refusals(label, text), watched("read the description", always=True):
        notation = options.notation or _notation(path, text)
        if notation not in ("json-schema", "structural_tag"):
            return GrammarSource(_grammar(path, text, notation, options), label, text)
        from structgen.frontends.json_schema import JsonPolicy, json_schema

        policy = JsonPolicy(
            whitespace=options.whitespace,
            indent=options.indent,
            around=options.around,
            order=options.order,
            additional=options.additional,
            required=options.required,
            max_depth=options.bounds["max_depth"],
            max_length=options.bounds["max_length"],
            max_items=options.bounds["max_items"],
            max_members=options.bounds["max_members"],
        )
        if notation == "structural_tag":
            from structgen.frontends.structural_tag import structural_tag

            return GrammarSource(structural_tag(text, policy=policy), label, text)
        with noted(KeywordWarning):
            if is_linted:
                warnings.simplefilter("ignore", KeywordWarning)
            return GrammarSource(json_schema(text, policy=policy, keep=True), label, text, policy)


def compile_source(source: GrammarSource, vocabulary: Vocabulary | None = None) -> Constraint:
    """Compile a description, by default for single bytes.

    Raises:
        SourceRefused: it cannot be compiled.
    """
    from structgen.engine import compile as compile_grammar
    from structgen.engine.analysis.byte_graph import byte_vocabulary

    with refusals(source.label), watched("compile the grammar", always=True):
        return compile_grammar(source.grammar, vocabulary or byte_vocabulary(source.grammar))


class SourceRefused(Failure):
    """A front end or the compiler refuses the description; ``error`` is what it said."""

    def __init__(self, label: str, error: StructgenError) -> None:
        self.error = error
        super().__init__(f"{label}: {error}" if label else str(error))


@contextmanager
def refusals(label: str, text: str | None = None) -> Iterator[None]:
    """Put the name of the description before what the library says about it, with line and column in ``text``."""
    try:
        yield
    except GrammarSyntaxError as error:
        if error.text == text:
            before = text[: error.span[0]]
            line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
            if f"{line}:{column}" not in error.subject:
                label = f"{label}:{line}:{column}"
        raise SourceRefused(label, error) from error
    except StructgenError as error:
        raise SourceRefused(label, error) from error


def _grammar(path: str, text: str, notation: Notation, options: SourceOptions) -> Grammar:
    """Read a grammar that has rules."""
    start = options.start
    folder = None if path == STANDARD_INPUT else path  # where relative imports are looked for
    if notation == "lark":
        from structgen.frontends.lark import lark

        return lark(text, start=start or "start", lexer=options.lexer, path=folder)
    if notation == "gbnf":
        from structgen.frontends.bnf import gbnf

        return gbnf(text, root=start or "root")
    from structgen.frontends.bnf import ebnf

    return ebnf(text, root=start or "root")


_BY_SUFFIX: Final[dict[str, Notation]] = {".json": "json-schema", ".lark": "lark", ".gbnf": "gbnf", ".ebnf": "ebnf"}


def _notation(path: str, text: str) -> Notation:
    from structgen.frontends.grammar_source import holds_structural_tag

    known = _BY_SUFFIX.get(PurePath(path).suffix.lower())
    if known is None and (path == STANDARD_INPUT or text.lstrip()[:1] == "{"):
        known = "json-schema"
    if known is not None:
        return "structural_tag" if known == "json-schema" and holds_structural_tag(text) else known
    suffix = PurePath(path).suffix.lower()
    if suffix in (".yaml", ".yml"):
        raise Failure(f"{path}: it is YAML; convert it to JSON, or pass --from for another notation")
    if suffix == ".py":
        raise Failure(f"{path}: it is a Python file, not a grammar; a program is run: structgen run {path}")
    raise Failure(
        f"{path}: its notation is unknown; its name does not end in {', '.join(_BY_SUFFIX)}, and it begins with "
        f"{text.lstrip()[:1]!r}, not with '{{'; rename it, or pass --from {'|'.join(get_args(Notation))}"
    )


def read_text(path: str) -> str:
    """Read a UTF-8 file, or standard input for ``-``; a byte order mark is dropped.

    Raises:
        Failure: it cannot be read, is not UTF-8, or is longer than any source may be.
    """
    from structgen.grammar.limits import Limits

    label = "standard input" if path == STANDARD_INPUT else path
    most = Limits().source_bytes
    try:
        if path == STANDARD_INPUT:
            data = sys.stdin.buffer.read(most + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise unreadable(label, error) from error
    if len(data) > most:
        raise Failure(f"{label}: it is longer than {most} bytes (Limits.source_bytes)")
    return _decode(data, label)


def unreadable(label: str, error: OSError | ValueError) -> Failure:
    """Return what to say about a file that cannot be read."""
    return Failure(f"{label}: cannot be read: {getattr(error, 'strerror', None) or error}")


def _decode(data: bytes, label: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise Failure(f"{label}: it is UTF-16; save it as UTF-8") from error
        if b"\0" in data[:_PROBED]:
            raise Failure(f"{label}: it is not a text file; it begins with {data[:8]!r}") from error
        before = data[: error.start]
        line = before.count(b"\n") + 1
        raise Failure(
            f"{label}:{line}: it is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start}; save it as UTF-8"
        ) from error


def run_file(file: str) -> ModuleType:
    """Run a file as a module, which can import the modules in its folder.

    Raises:
        Failure: it cannot be read or run.
    """
    read_text(file)  # says what is wrong with the file in the words of the other commands
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise Failure(f"{file}: it is no module of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # annotations are resolved through it
    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Failure(f"{file}: it cannot be run; {type(error).__name__}: {error}") from error
    return module
