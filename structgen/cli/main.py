"""The entry point: runs one command and turns every expected error into one clear message."""

from __future__ import annotations

import gc
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from structgen.cli.command import COMPLETION_VARIABLE, CommandGroup
from structgen.cli.terminal import DONE, FAILED, INTERRUPTED, Failure, say, status_of
from structgen.errors import StructgenError

__all__ = ["cli", "main"]

_HOMES: Final = {
    "Let a model write": {
        "run": "structgen.cli.run",
        "batch": "structgen.cli.batch",
        "serve": "structgen.cli.serve",
    },
    "Work on descriptions": {
        **dict.fromkeys(("check", "match"), "structgen.cli.language_commands"),
        "explain": "structgen.cli.explain",
        **dict.fromkeys(("show", "playground", "sample", "diff", "convert"), "structgen.cli.language_commands"),
    },
    "Look closer": {
        "trace": "structgen.cli.trace",
        "bench": "structgen.cli.bench",
        "doctor": "structgen.cli.doctor",
        "completion": "structgen.cli.completion",
    },
}
"""The module of each command, by the heading of the help; only the module of the command that runs is imported."""


@click.group(
    cls=CommandGroup,
    homes=_HOMES,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=(
        'structgen run person.schema.json --prompt "Ada Lovelace, 36"',
        "structgen check person.schema.json",
        "structgen run --help",
    ),
)
@click.version_option(package_name="structgen-lm", prog_name="structgen")
def cli() -> None:
    """Make a language model write valid JSON, code or text.

    FILE says what is valid: a JSON Schema, a grammar (Lark, GBNF, EBNF) or, with --regex, a regular expression.

    Exit status: 0 done, 1 the input does not match or generation failed, 2 the arguments or the input cannot be
    used. Standard output holds the result and nothing else.
    """


_OBJECTS: Final = 100_000
"""New objects before the garbage collector looks at them: more than the imports of a command make, which all stay."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        arguments: those of the process if None; the process is then expected to end.
    """
    if arguments is None:
        _write_all_characters()
    before = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, before[0]) if before[0] else 0, *before[1:])  # 0: it is off
    try:
        return _run(arguments)
    finally:
        gc.set_threshold(*before)
        if arguments is None:
            gc.freeze()  # Python looks for cycles among all objects before it ends; these need not be looked at


def _write_all_characters() -> None:
    """Write UTF-8 to pipes and files, and escapes to a terminal that has not all characters.

    A code page of Windows, or an old locale, would end the command at the first character that it lacks.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() not in ("utf-8", "utf8"):
            if stream.isatty():
                stream.reconfigure(errors="backslashreplace")
            else:
                stream.reconfigure(encoding="utf-8", errors=stream.errors)


def _run(arguments: Sequence[str] | None) -> int:
    if COMPLETION_VARIABLE in os.environ:  # a shell asks
        from structgen.cli.completion import register

        register()
    try:
        # Commands return their status; click itself returns one for --help and --version.
        # The context's object is whether the process runs nothing but the command.
        status: Any = cli.main(args=arguments, prog_name="structgen", standalone_mode=False, obj=arguments is None)
    except click.ClickException as error:
        if isinstance(error, click.BadParameter):  # click has no better name for a whole number with bounds
            error = click.UsageError(
                error.format_message().replace("a valid integer range", "a whole number"), error.ctx
            )
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except Failure as failure:
        return _fail(failure.message, failure.status)
    except StructgenError as error:
        return _fail(str(error), status_of(error))
    except OSError as error:
        subject = error.filename or "standard output"
        return _fail(f"{subject}: cannot be written: {error.strerror or error}", FAILED)
    except MemoryError:
        return _fail("out of memory", FAILED)
    return status if isinstance(status, int) else DONE


def _fail(message: str, status: int) -> int:
    if message and status == INTERRUPTED:
        click.echo(message, err=True)
    elif message:
        say("error", message)
    return status
