"""The entry point: runs one command and turns every expected error into one clear message."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from structgen.cli.bench import bench
from structgen.cli.explain import explain
from structgen.cli.language_commands import check, convert, diff, match, sample, show
from structgen.cli.run import run
from structgen.cli.terminal import DONE, FAILED, INTERRUPTED, PIPE_CLOSED, Failure, status_of
from structgen.cli.trace import trace
from structgen.errors import StructgenError

__all__ = ["cli", "main"]


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        """Run the command; click would take a closed pipe for an ordinary failure."""
        try:
            status = super().invoke(context)
            sys.stdout.flush()
        except BrokenPipeError as error:
            # The interpreter flushes standard output once more when it ends; that must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise Failure("", PIPE_CLOSED) from error
        return status


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="structgen-lm", prog_name="structgen")
def cli() -> None:
    """Say what a language model may write.

    The description is a JSON Schema, a Lark grammar or a regular expression.

    Exit status: 0 done, 1 the input does not match or generation failed, 2 the arguments or the input cannot be
    used. Standard output holds the result and nothing else.
    """


_COMMANDS: tuple[click.Command, ...] = (run, check, convert, match, explain, sample, diff, show, trace, bench)
for command in _COMMANDS:
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        # Commands return their status; click itself returns one for --help and --version.
        status: Any = cli.main(args=arguments, prog_name="structgen", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", INTERRUPTED)
    except Failure as failure:
        return _fail(failure.message, failure.status)
    except StructgenError as error:
        return _fail(str(error), status_of(error))
    except OSError as error:
        return _fail(str(error), FAILED)
    except MemoryError:
        return _fail("out of memory", FAILED)
    return status if isinstance(status, int) else DONE


def _fail(message: str, status: int) -> int:
    if message:
        click.echo(message if status == INTERRUPTED else f"error: {message}", err=True)
    return status
