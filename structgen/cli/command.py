"""Base classes of the commands: help in sections with examples, ``-o OUT``, completion, imports on demand."""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click

from structgen.cli.terminal import PIPE_CLOSED, Failure, colours

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = [
    "COMPLETION_VARIABLE",
    "DESCRIPTIONS",
    "GROUPS",
    "Command",
    "CommandGroup",
    "complete_descriptions",
    "complete_device",
    "complete_files",
    "complete_models",
    "completes",
    "completes_files",
    "output_file",
    "output_option",
    "output_options",
    "unwritable",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "Grammar": ("regex", "dialect", "notation", "lark", "start", "lexer"),
    "JSON": (
        *("whitespace", "indent", "order", "required", "additional"),
        *("max_depth", "max_length", "max_items", "max_members"),
    ),
    "Output": ("output", "stream", "as_json", "trace", "help"),
}
"""Names of the parameters that several commands have, by the heading of the help that lists them."""
_REST: Final = "Options"


class _Formatter(click.HelpFormatter):
    """Help with bold headings; click drops the codes where the output is no terminal."""

    def write_heading(self, heading: str) -> None:
        super().write_heading(click.style(heading, bold=True))


class _Context(click.Context):
    formatter_class = _Formatter

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        wanted = colours()
        if wanted is not None:
            self.color = wanted


_FIRST_COLUMN: Final = 30
"""Most columns of the names of options; what is longer has a line of its own."""


def _write_sections(rows: Mapping[str, Sequence[tuple[str, str]]], formatter: click.HelpFormatter) -> None:
    """Write rows under their headings, with the second column at the same place in all."""
    width = min(max((len(first) for held in rows.values() for first, _ in held), default=0), _FIRST_COLUMN)
    for heading, held in rows.items():
        if held:
            with formatter.section(heading):
                formatter.write_dl([(f"{first:<{width}}", second) for first, second in held], col_max=_FIRST_COLUMN)


def _write_examples(examples: Sequence[str], formatter: click.HelpFormatter) -> None:
    if examples:
        with formatter.section("Examples"):
            for example in examples:  # not wrapped: they are copied
                formatter.write(f"{'':>{formatter.current_indent}}{example}\n")


class Command(click.Command):
    """A command whose help lists its options under headings, and ends with examples.

    Args:
        *arguments, **settings: as of ``click.Command``.
        groups: the names of parameters by heading, listed first; then come those in no group, then ``GROUPS``.
        examples: command lines.
    """

    context_class = _Context

    def __init__(
        self,
        *arguments: Any,
        groups: Mapping[str, Sequence[str]] | None = None,
        examples: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self.groups = {**(groups or {}), _REST: (), **GROUPS}
        self.examples = examples

    def get_short_help_str(self, limit: int = 1000) -> str:
        """Return the first sentence of the help, whole: completions show it too."""
        return super().get_short_help_str(limit)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, each under its heading."""
        heading_of = {name: heading for heading, names in self.groups.items() for name in names}
        rows: dict[str, list[tuple[str, str]]] = {heading: [] for heading in self.groups}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                name = "help" if parameter is self.get_help_option(ctx) else parameter.name or ""
                rows[heading_of.get(name, _REST)].append(record)
        _write_sections(rows, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        _write_examples(self.examples, formatter)


class CommandGroup(click.Group):
    """A group of commands, which are imported when they are needed; its help shows their whole summaries.

    Args:
        *arguments, **settings: as of ``click.Group``.
        homes: the module of each command, which has the name of the command there, by heading.
        examples: command lines.
    """

    context_class = _Context
    command_class = Command

    def __init__(
        self,
        *arguments: Any,
        homes: Mapping[str, Mapping[str, str]] | None = None,
        examples: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        self._homes = homes or {}
        self._module_of = {name: module for held in self._homes.values() for name, module in held.items()}
        self.examples = examples

    def get_short_help_str(self, limit: int = 1000) -> str:
        """Return the first sentence of the help, whole."""
        return super().get_short_help_str(limit)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in the order of the help."""
        return [*self._module_of, *self._others(ctx)]

    def _others(self, ctx: click.Context) -> list[str]:
        return [name for name in super().list_commands(ctx) if name not in self._module_of]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, whose module is imported."""
        if cmd_name in self._module_of and cmd_name not in self.commands:
            self.commands[cmd_name] = getattr(importlib.import_module(self._module_of[cmd_name]), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; the error for an unknown one suggests others, which click looks for in ``commands``."""
        if self.get_command(ctx, args[0]) is None:
            for name in self._module_of:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summary of each command."""
        names = {heading: list(held) for heading, held in self._homes.items()}
        names["Commands"] = self._others(ctx)
        rows = {
            heading: [(name, _summary(self.get_command(ctx, name))) for name in held] for heading, held in names.items()
        }
        _write_sections(rows, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        _write_examples(self.examples, formatter)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would take a closed pipe for an ordinary failure."""
        try:
            status = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            # The interpreter flushes standard output once more when it ends; that must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise Failure("", PIPE_CLOSED) from error
        return status


def _summary(command: click.Command | None) -> str:
    """The first sentence of a command's help, whole."""
    return "" if command is None else command.get_short_help_str()


_Completion: TypeAlias = "Callable[[click.Context, click.Parameter, str], list[CompletionItem]]"


def completes(names: Iterable[str]) -> _Completion:
    """Return a completion of ``names``, for an option that takes ``NAME`` or ``NAME:KEY=VALUE,...``."""
    known = tuple(names)

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in known if name.startswith(incomplete)]

    return complete


def complete_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the names of files."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="file")]


def completes_files(*endings: str) -> _Completion:
    """Return a completion of folders, and of files with these endings; of all files where there are none."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        paths = [CompletionItem(path, type="path") for path in _paths(incomplete, endings)]
        return [*complete_files(ctx, parameter, incomplete), *paths]

    return complete


def _paths(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    """The paths that begin with ``incomplete`` as it was typed; folders end with a slash."""
    folder, slash, start = incomplete.rpartition("/")
    try:
        with os.scandir(folder + slash or ".") as entries:
            shown = [entry for entry in entries if entry.name.startswith(start) and (start or entry.name[0] != ".")]
            names = [f"{each.name}/" if each.is_dir() else each.name for each in shown]
    except OSError:
        return []
    return sorted(folder + slash + name for name in names if name.endswith(("/", *endings)) and name.isprintable())


def complete_models(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of models: the embedded one, those of the hub's cache, GGUF files and folders."""
    hub = os.environ.get("HF_HUB_CACHE") or os.path.join(
        os.environ.get("HF_HOME") or os.path.expanduser("~/.cache/huggingface"), "hub"
    )
    try:
        cached = [name.removeprefix(_HUB_PREFIX).replace("--", "/") for name in os.listdir(hub) if _is_model(name)]
    except OSError:
        cached = []
    files = completes_files(".gguf")(ctx, parameter, incomplete)
    return [*files, *completes(["embedded", *sorted(cached)])(ctx, parameter, incomplete)]


_HUB_PREFIX: Final = "models--"


def _is_model(name: str) -> bool:
    return name.startswith(_HUB_PREFIX) and name.isprintable()


DESCRIPTIONS: Final = (".json", ".lark", ".gbnf", ".ebnf")
"""How the names of files end that say what may be written."""
complete_descriptions: Final = completes_files(*DESCRIPTIONS)
complete_device: Final = completes(("auto", "cpu", "cuda", "mps"))
COMPLETION_VARIABLE: Final = "_STRUCTGEN_COMPLETE"
"""The variable by which the script of a shell asks for completions."""


output_option: Final = click.option(
    "-o",
    "--output",
    metavar="OUT",
    shell_complete=complete_files,
    help="Write the result to OUT, which is replaced when the command ends, not to standard output.",
)
"""``-o OUT``, for a command that opens the file itself."""


def output_options(command: _Function) -> _Function:
    """Give a command ``-o OUT``, which takes all that it writes to standard output."""

    @functools.wraps(command)
    def wrapper(*, output: str | None, **given: Any) -> Any:
        with output_file(output):
            return command(**given)

    decorated: Any = output_option(wrapper)
    made: _Function = decorated
    return made


@contextlib.contextmanager
def output_file(path: str | None) -> Iterator[None]:
    """Let a file take what the block writes to standard output; None and ``-`` change nothing.

    A file is replaced as a whole when the block has ended, and is as it was if the block fails.  What is no file, such
    as ``/dev/stdout`` or a pipe, is written to directly.

    Raises:
        Failure: the file cannot be written.
    """
    if path is None or path == "-":
        yield
        return
    try:
        target = Path(os.path.realpath(path))  # a link stays a link
        new = target.with_name(f".{target.name}.{os.getpid()}.part")
        mode = target.stat().st_mode & 0o7777 if target.is_file() else None
        replaces = mode is not None or not target.exists()
        file = _open(new if replaces else target)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise unwritable(path, error) from error
    try:
        with file, contextlib.redirect_stdout(file):
            yield
        if mode is not None:
            new.chmod(mode)
        if replaces:
            new.replace(target)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise unwritable(path, error) from error
    finally:
        if replaces:
            new.unlink(missing_ok=True)


_FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))
"""What is wrong with the file that is written, and not with one that a command reads."""


def _open(path: Path) -> IO[str]:
    return open(path, "w", encoding="utf-8", newline="\n")


def unwritable(label: str, error: OSError | ValueError) -> Failure:
    """Return what to say about a file that cannot be written."""
    return Failure(f"{label}: cannot be written: {getattr(error, 'strerror', None) or error}")
