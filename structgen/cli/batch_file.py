"""The files of ``structgen batch``: lines that are read in two passes, and rows that are appended and never lost."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, final

from structgen.cli.command import unwritable
from structgen.cli.grammar_source import STANDARD_INPUT, unreadable
from structgen.cli.run_prompts import PromptLine, line_of
from structgen.cli.terminal import Failure

try:
    import fcntl
except ImportError:  # no POSIX
    fcntl = None  # type: ignore[assignment]

__all__ = ["Key", "LineFile", "RowLog", "request_line"]

Key: TypeAlias = "str | int"
"""The id of a line, or its index."""

Reader: TypeAlias = "Callable[[bytes, int, str], PromptLine]"
"""Reads a line, with its index and its place."""

_URLS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
_REQUEST: Final = ("custom_id", "method", "url", "body")
_MAX_SHOWN: Final = 60


@final
class LineFile:
    """A file of lines, which is read twice: its ids before anything runs, and its lines when there is room for them.

    Attributes:
        places: the line number of each id, in their order.

    Raises:
        Failure: it cannot be read, or two lines have the same id.
    """

    def __init__(self, path: str, read: Reader) -> None:
        if path == STANDARD_INPUT:
            raise Failure("IN is read twice, so it cannot be standard input; name a file")
        self._path = path
        self._read = read
        self.places: dict[Key, int] = {}
        for number, line in self._lines():
            key = key_of(line)
            before = self.places.setdefault(key, number)
            if before != number:
                raise Failure(f"{path}: lines {before} and {number} have the same id {key!r}; ids tell rows apart")

    def lines(self, finished: set[Key]) -> Iterator[PromptLine]:
        """The lines whose ids are not among those.

        Raises:
            Failure: the file cannot be read any more.
        """
        return (line for _, line in self._lines() if key_of(line) not in finished)

    def _lines(self) -> Iterator[tuple[int, PromptLine]]:
        index = 0
        try:
            with open(self._path, "rb") as file:
                for number, data in enumerate(file, 1):
                    if data.strip():
                        yield number, self._read(data, index, f"{self._path}:{number}")
                        index += 1
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
            raise unreadable(self._path, error) from error


def key_of(line: PromptLine) -> Key:
    """Return what tells a line from all others: its id, else its index."""
    return line.key[1]


def request_line(data: bytes, index: int, place: str) -> PromptLine:
    """Read a line of OpenAI's batch format; its ``custom_id`` is the id.

    Raises:
        Failure: it is no such line.
    """
    line = line_of(data, index, place, _REQUEST)
    if line.fault:
        raise Failure(
            f"{place}: {line.fault}; without FILE.py:NAME the lines are requests in OpenAI's format: name a program, "
            "or give prompts to structgen run --prompts"
        )
    given = line.values
    if not isinstance(given["custom_id"], str):
        raise Failure(f'{place}: "custom_id" must be a text; found {json.dumps(given["custom_id"])[:_MAX_SHOWN]}')
    if given["method"] != "POST" or given["url"] not in _URLS:
        found = f"{given['method']} {given['url']}"
        raise Failure(f"{place}: expected POST and one of {', '.join(_URLS)}; found {found[:_MAX_SHOWN]}")
    if not isinstance(given["body"], dict):
        raise Failure(f'{place}: "body" must be an object; found {json.dumps(given["body"])[:_MAX_SHOWN]}')
    return PromptLine(index, place, {"id": given["custom_id"], "url": given["url"], "body": given["body"]})


_SYNC_S: Final = 1.0
"""Seconds of rows that a failure of the whole machine may lose; the death of the process loses none."""
_BEGINS: Final = b'{"id": '


@final
class RowLog:
    """The file of rows.  Rows are appended, each by one call, and it is locked while it is open.

    Attributes:
        finished: the ids of the rows that it holds.
        errors: those of them that are errors.

    Args:
        path: the file.
        resume: go on with its rows; a torn last one is cut off.
        retry: take the rows that are errors out of it.
        key: names the member of a row that has its id.
        is_error: whether a row is an error.

    Raises:
        Failure: the file cannot be used, has other lines, is in use, or has rows and ``resume`` is not set.
    """

    def __init__(
        self, path: str, *, resume: bool, retry: bool, key: str, is_error: Callable[[dict[str, Any]], bool]
    ) -> None:
        self.finished: set[Key] = set()
        self.errors: set[Key] = set()
        self._path = path
        self._key = key
        self._is_error = is_error
        if path == STANDARD_INPUT:
            raise Failure("OUT is locked and taken up, so it cannot be standard output; name a file")
        try:
            self._file = _opened(path)
        except (OSError, ValueError) as error:
            raise unwritable(path, error) from error
        try:
            if os.fstat(self._file).st_size:
                if not resume:
                    raise Failure(f"{path}: it exists; add --resume to go on with it, or name another file")
                self._take_up(retry=retry)
            _sync_folder(path)
        except OSError as error:
            os.close(self._file)
            raise unwritable(path, error) from error
        except BaseException:
            os.close(self._file)
            raise
        self._synced = monotonic()

    def write(self, row: dict[str, Any]) -> None:
        """Append a row.

        Raises:
            Failure: the file cannot be written.
        """
        data = json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"
        try:
            while data:
                data = data[os.write(self._file, data) :]
            if monotonic() - self._synced >= _SYNC_S:
                os.fsync(self._file)
                self._synced = monotonic()
        except OSError as error:
            raise unwritable(self._path, error) from error
        self._note(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with contextlib.suppress(OSError):  # a pipe, or a terminal
                os.fsync(self._file)
        finally:
            os.close(self._file)

    def _note(self, row: dict[str, Any]) -> None:
        self.finished.add(row[self._key])
        if self._is_error(row):
            self.errors.add(row[self._key])

    def _take_up(self, *, retry: bool) -> None:
        """Note what is finished, and cut off what is not whole."""
        path = Path(os.path.realpath(self._path))
        new = path.with_name(f".{path.name}.{os.getpid()}.part")
        size = 0
        try:
            with path.open("rb") as old, new.open("wb") if retry else contextlib.nullcontext() as kept:
                for number, data in enumerate(old, 1):
                    if not data.endswith(b"\n") and _is_torn(data):
                        break
                    row = self._row(data, number)
                    size += len(data)
                    if retry and self._is_error(row):
                        continue
                    self._note(row)
                    if kept is not None:
                        kept.write(data)
                if kept is not None:
                    kept.flush()
                    os.fsync(kept.fileno())
            if not retry:
                os.ftruncate(self._file, size)
                os.fsync(self._file)
                return
            new.chmod(path.stat().st_mode & 0o7777)
            file = _opened(str(new))  # locked before anybody finds it
            new.replace(path)
            os.close(self._file)
            self._file = file
        finally:
            new.unlink(missing_ok=True)

    def _row(self, data: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(data)
            if isinstance(row, dict) and isinstance(row[self._key], (str, int)) and data.endswith(b"\n"):
                return row
        except (ValueError, RecursionError, KeyError):
            pass
        raise Failure(
            f"{self._path}:{number}: it is no row that structgen batch wrote for such lines, so --resume cannot go on "
            "with the file; name another file"
        )


def _is_torn(data: bytes) -> bool:
    """Whether these bytes without an end of line may be the start of a row; a machine may leave zeros after it."""
    data = data.rstrip(b"\0")
    return data.startswith(_BEGINS) or _BEGINS.startswith(data)


def _opened(path: str) -> int:
    """Open a file for appending, and lock it for as long as it is open.

    Raises:
        OSError: it cannot be opened.
        Failure: another process has locked it.
    """
    binary = getattr(os, "O_BINARY", 0)  # Windows would write line ends of two bytes
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | binary, 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise Failure(f"{path}: another process writes it; wait until it has ended") from None
    except OSError:  # a file system without locks
        pass
    return file


def _sync_folder(path: str) -> None:
    """Let the name of a new file last."""
    with contextlib.suppress(OSError):  # not everywhere can a folder be opened
        folder = os.open(Path(os.path.realpath(path)).parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
