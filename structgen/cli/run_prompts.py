"""``structgen run --prompts``: many prompts or arguments, one a line, and a row of JSON for each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import IO, TYPE_CHECKING, Any, Final, Literal, TypeAlias, final

import click

from structgen.cli.command import unwritable
from structgen.cli.grammar_source import STANDARD_INPUT, unreadable
from structgen.cli.terminal import DONE, FAILED, INTERRUPTED, Failure, lines_told
from structgen.errors import LimitExceeded, StructgenError, meant
from structgen.progress import ProgressBar

if TYPE_CHECKING:
    from structgen.cli.run_option import Request
    from structgen.program.execution import AnyModel

__all__ = ["MEMBERS", "PromptLine", "RowWriter", "line_of", "prompt_of", "read_lines", "write_rows"]

_Key: TypeAlias = "tuple[str, str | int]"
_PLAIN: Final = ".txt"
_MAX_SHOWN: Final = 60


@final
@dataclass(frozen=True, slots=True)
class PromptLine:
    """One line of the file of prompts.

    Attributes:
        index: its number among the lines that are not blank, from 0.
        place: file and line, for messages.
        values: the members of its object.
        fault: why it cannot be used; empty if it can.
    """

    index: int
    place: str
    values: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""

    @property
    def key(self) -> _Key:
        """The identity of the line: its ``id``, else its index."""
        given = self.values.get("id")
        return ("index", self.index) if given is None else ("id", given)

    def row(self, members: Mapping[str, Any]) -> dict[str, Any]:
        """Return the row of the output with these members."""
        return {"index": self.index, **{name: self.values[name] for name in _COPIED if name in self.values}, **members}


RowWriter: TypeAlias = "Callable[[PromptLine, AnyModel, Event], dict[str, Any]]"
"""Runs a line on a model and returns the members of its row; called in a thread, and stops when the event is set."""

_COPIED: Final = ("id", "meta")
_SETTINGS: Final = ("id", "max_tokens", "seed", "meta")
MEMBERS: Final = {"prompt": ("prompt", "system", *_SETTINGS), "args": ("args", *_SETTINGS)}
"""The members that a line may have, where it holds a prompt, and where it holds the arguments of a program."""
_OPTIONAL: Final = ("system", *_SETTINGS)
_KINDS: Final[Mapping[str, tuple[tuple[type, ...], str]]] = {
    "id": ((str, int), "a text or an integer"),
    "prompt": ((str, list), "a text or a list of messages"),
    "system": ((str,), "a text"),
    "args": ((dict,), "an object"),
    "max_tokens": ((int,), "an integer from 0 on"),
    "seed": ((int,), "an integer from 0 on"),
}


def read_lines(path: str, holds: Literal["prompt", "args"], *, plain: Callable[[str], Any] | None) -> list[PromptLine]:
    """Read a file of JSON lines, or of plain lines (``*.txt``); blank lines are left out.

    A line that cannot be used has a ``fault``.

    Args:
        path: the file, or ``-`` for JSON lines on standard input.
        holds: what each line has to hold.
        plain: makes it of a plain line; None: plain lines are refused.

    Raises:
        Failure: the file cannot be read, or two lines have the same ``id``.
    """
    label = "standard input" if path == STANDARD_INPUT else path
    is_plain = Path(path).suffix.lower() == _PLAIN
    if is_plain and plain is None:
        raise Failure(f"{label}: a line of text is one argument, and the program takes several; write JSON lines")
    lines: list[PromptLine] = []
    places: dict[_Key, str] = {}
    try:
        with nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else open(path, "rb") as file:
            for number, data in enumerate(file, 1):
                if not data.strip():
                    continue
                known = MEMBERS[holds]
                line = line_of(data, len(lines), f"{label}:{number}", known, plain=plain if is_plain else None)
                before = places.setdefault(line.key, line.place)
                if before != line.place:
                    raise Failure(f"{line.place}: its id {line.key[1]!r} is also that of {before}; ids tell rows apart")
                lines.append(line)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
        raise unreadable(label, error) from error
    return lines


def line_of(
    data: bytes, index: int, place: str, known: Sequence[str], *, plain: Callable[[str], Any] | None = None
) -> PromptLine:
    """Read one line, which has a ``fault`` if it cannot be used.

    Args:
        data: the line.
        index: its number among the lines that are not blank.
        place: file and line.
        known: the members that it may have; it must have the first one, and all of the others that are no settings.
        plain: makes the first one of a plain line; None: it is JSON.
    """
    holds = known[0]
    try:
        text = data.decode("utf-8-sig" if index == 0 else "utf-8").rstrip("\r\n")
        values = json.loads(text) if plain is None else {holds: plain(text)}
    except UnicodeDecodeError as error:
        return PromptLine(index, place, fault=f"it is not UTF-8: byte 0x{data[error.start]:02x}; save it as UTF-8")
    except json.JSONDecodeError as error:
        return PromptLine(index, place, fault=f"not valid JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        return PromptLine(index, place, fault=f"not JSON that can be read: {error}")
    if not isinstance(values, dict):
        return PromptLine(index, place, fault=f'expected an object with "{holds}"; found {text[:_MAX_SHOWN]}')
    fault = _fault_of(values, known)
    if fault:  # what identifies the row is kept where it is sound
        values = {name: values[name] for name in _COPIED if name in values and _is_sound(name, values[name])}
    return PromptLine(index, place, values, fault)


def _is_sound(name: str, value: Any) -> bool:
    kinds = _KINDS.get(name)
    if kinds is None:
        return True
    is_negative = isinstance(value, int) and name != "id" and value < 0
    return isinstance(value, kinds[0]) and not isinstance(value, bool) and not is_negative


def _meant(name: str, known: Iterable[str]) -> str:
    asked = meant(name, known)
    return f"{asked} " if asked else ""


def _fault_of(values: dict[str, Any], known: Sequence[str]) -> str:
    for name, value in values.items():
        if name not in known:
            rest = '; all else goes into "meta"' if "meta" in known else ""
            rest = '; the arguments of the program go into "args"' if "args" in known else rest
            return f'there is no "{name}"; {_meant(name, known)}there are {", ".join(known)}{rest}'
        if not _is_sound(name, value):
            return f'"{name}" must be {_KINDS[name][1]}; found {json.dumps(value)[:_MAX_SHOWN]}'
    for name in known:
        if name not in values and name not in _OPTIONAL:
            return f'it has no "{name}"'
    if "system" in values and not isinstance(values["prompt"], str) and _has_system(values["prompt"]):
        return '"system" and a message of the system are given; leave one out'
    return ""


def _has_system(messages: list[Any]) -> bool:
    return any(isinstance(message, dict) and message.get("role") == "system" for message in messages)


def prompt_of(line: PromptLine, request: Request) -> Any:
    """Return the prompt of a line, with the turn of the system that the line or ``--system`` gives.

    Raises:
        Failure: the prompt has turns, and ``--no-chat`` says that there are none.
    """
    prompt = line.values["prompt"]
    system = line.values.get("system", request.system)
    if request.no_chat and (system is not None or not isinstance(prompt, str)):
        raise Failure("it has messages, and --no-chat takes a text; leave out --no-chat")
    if system is None or (not isinstance(prompt, str) and _has_system(prompt)):
        return prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return [{"role": "system", "content": system}, *messages]


def write_rows(request: Request, lines: list[PromptLine], prepare: Callable[[], tuple[AnyModel, RowWriter]]) -> int:
    """Run all lines, several in one forward pass, and write a row for each as soon as it is done.

    Args:
        request: the options.
        lines: what to run.
        prepare: loads the model; not called if no line is left to run.

    Returns:
        The exit status: 1 if a row is an error.

    Raises:
        Failure: the output cannot be used, or the user has interrupted.
    """
    from structgen.program.batch_map import run_batched

    rows = _RowFile(request.output, resume=request.resume)
    left = [line for line in lines if line.key not in rows.finished]
    skipped, done, failed = len(lines) - len(left), 0, 0

    def told() -> str:
        return lines_told(len(lines), done=skipped + done - failed, failed=failed, earlier=skipped)

    try:
        with rows:
            prepared = prepare() if any(not line.fault for line in left) else None
            with _progress(len(lines), skipped) as advance:

                def finished(index: int, row: dict[str, Any]) -> None:
                    nonlocal done, failed
                    rows.write(left[index].row(row))
                    done, failed = done + 1, failed + ("error" in row)
                    advance()

                if prepared is None:
                    for index, line in enumerate(left):
                        finished(index, _faulty(line))
                else:
                    model, write = prepared
                    run_batched(
                        range(len(left)),
                        lambda index, model, stopped: _row_of(left[index], model, stopped, write),
                        finished,
                        model=model,
                        batch_size=request.batch_size,
                    )
    except KeyboardInterrupt:
        more = "" if request.output is None else "; --resume goes on"
        raise Failure(f"interrupted: {told()}{more}", INTERRUPTED) from None
    click.echo(told(), err=True)
    return FAILED if failed else DONE


def _faulty(line: PromptLine) -> dict[str, Any]:
    return {"error": f"{line.place}: {line.fault}"}


def _row_of(line: PromptLine, model: AnyModel, stopped: Event, write: RowWriter) -> dict[str, Any]:
    """The members of a row; an error becomes the error of that row."""
    if line.fault:
        return _faulty(line)
    try:
        return write(line, model, stopped)
    except (StructgenError, Failure) as error:
        cut = error.text if isinstance(error, LimitExceeded) else None
        return {"error": f"{line.place}: {error}"} | ({} if cut is None else {"partial": cut})
    except Exception as error:
        return {"error": f"{line.place}: {type(error).__name__}: {error}"}


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error, if that is a terminal."""
    with ProgressBar() as bar:

        def advance() -> None:
            nonlocal done
            done += 1
            bar("write rows", done, total)

        bar("write rows", done, total)
        yield advance


@final
class _RowFile:
    """The file of rows, or standard output; each row is flushed when it is written.

    Attributes:
        finished: the keys of the rows that the file holds already.

    Raises:
        Failure: the file cannot be used, or has rows and ``resume`` is not set.
    """

    def __init__(self, path: str | None, *, resume: bool) -> None:
        self.finished: set[_Key] = set()
        self._path = None if path == STANDARD_INPUT else path
        self._file: IO[bytes] | None = None
        if self._path is None:
            if resume:
                raise click.UsageError("--resume goes on with a file: give it with -o FILE")
            return
        try:
            if Path(self._path).is_file() and os.path.getsize(self._path):
                if not resume:
                    raise Failure(f"{self._path}: it exists; add --resume to go on with it, or name another file")
                self._keep_finished(Path(os.path.realpath(self._path)))
            self._file = _end_of(self._path)
        except (OSError, ValueError) as error:
            raise unwritable(self._path, error) from error

    def write(self, row: dict[str, Any]) -> None:
        """Write a row, so that an interruption loses nothing."""
        text = json.dumps(row, ensure_ascii=False)
        if self._file is None:
            click.echo(text.encode("utf-8", "backslashreplace"))
        else:
            self._file.write(text.encode("utf-8", "backslashreplace") + b"\n")
            self._file.flush()

    def __enter__(self) -> _RowFile:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            self._file.close()

    def _keep_finished(self, path: Path) -> None:
        """Leave only whole rows without errors in the file: the others are written again."""
        new = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with path.open("rb") as old, new.open("wb") as kept:
                for number, data in enumerate(old, 1):
                    try:
                        row = json.loads(data)
                        key: _Key = ("index", row["index"]) if row.get("id") is None else ("id", row["id"])
                        hash(key)
                    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
                        if not data.endswith(b"\n"):  # the last one, which an interruption tore
                            continue
                        raise Failure(
                            f"{self._path}:{number}: it is no row that structgen run --prompts wrote, "
                            "so --resume cannot go on with the file; name another file"
                        ) from error
                    if "error" not in row:
                        kept.write(data if data.endswith(b"\n") else data + b"\n")
                        self.finished.add(key)
            new.chmod(path.stat().st_mode & 0o7777)
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)


def _end_of(path: str) -> IO[bytes]:
    return open(path, "ab")
