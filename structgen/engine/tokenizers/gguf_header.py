"""The metadata at the start of a GGUF file, as a dictionary.

Only the key-value section is read: it lies before the tensors, so a model of many gigabytes costs a few
milliseconds.  ``gguf.GGUFReader`` reads the same and the tensors; it takes 2 s for 49,000 tokens, because it
makes a numpy view of every string.  The tests compare the two.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from structgen.errors import VocabularyError

__all__ = ["MAGIC", "read_gguf_header"]

MAGIC = b"GGUF"

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LENGTH_BYTES = {2: 8, 3: 8}  # by version; version 1 was gone within weeks


def read_gguf_header(path: Path) -> dict[str, object]:
    """Read the metadata of a GGUF file; strings stay bytes, for a token need not be valid UTF-8.

    Raises:
        VocabularyError: the file is cut short, or of a version that is not 2 or 3.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Reader(data).header()
        except (struct.error, KeyError, ValueError, UnicodeDecodeError) as error:
            raise VocabularyError(
                f"GGUF file {path.name!r}",
                "its metadata cannot be read",
                evidence=f"{type(error).__name__}: {error}",
                remedy="check that the file is complete and of GGUF version 2 or 3",
            ) from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC)
        self._order = "<"

    def header(self) -> dict[str, object]:
        version = self._scalar("I")
        if version == 3 << 24:
            self._order, version = ">", 3
        if version not in _LENGTH_BYTES:
            raise ValueError(f"GGUF version {version}")
        self._scalar("Q")  # number of tensors
        entries: dict[str, object] = {}
        for _ in range(self._length()):
            key = self._string().decode()
            entries[key] = self._value(self._length("I"))
        return entries

    def _scalar(self, code: str) -> int | float | bool:
        value: int | float | bool
        (value,) = struct.unpack_from(self._order + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _length(self, code: str = "Q") -> int:
        return int(self._scalar(code))

    def _string(self) -> bytes:
        length = self._length()
        end = self._at + length
        if end > len(self._data):
            raise ValueError(f"a string at byte {self._at} ends beyond the file")
        value = self._data[self._at : end]
        self._at = end
        return value

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        return self._scalar(_SCALARS[kind])

    def _array(self) -> list[object]:
        kind, count = self._length("I"), self._length()
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind == _ARRAY:
            raise ValueError("an array of arrays")
        code = _SCALARS[kind]
        end = self._at + count * struct.calcsize("<" + code)
        if end > len(self._data):
            raise ValueError(f"an array at byte {self._at} ends beyond the file")
        values = struct.unpack_from(f"{self._order}{count}{code}", self._data, self._at)
        self._at = end
        return list(values)
