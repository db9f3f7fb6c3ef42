"""Why a token or a text may or may not come next."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Explanation", "describe_bytes"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What the constraint says about one continuation.

    Attributes:
        subject: the bytes that were asked about; of an EOS or special token, its text.
        allowed: whether all of it may come next.
        accepted: how many of its bytes may.
        expected: what may stand at the first refused byte (or next, where all is allowed), readable.
        rules: names of the open rules, outermost first.
        nearest: allowed tokens that share the longest beginning with the subject, as (id, bytes).
    """

    subject: bytes
    allowed: bool
    accepted: int
    expected: str
    rules: tuple[str, ...]
    nearest: tuple[tuple[int, bytes], ...]

    def __str__(self) -> str:
        if self.allowed:
            return f"{self.subject!r} is allowed; then {self.expected}"
        lines = [f"{self.subject!r} is not allowed: expected {self.expected} after {self.subject[: self.accepted]!r}"]
        if self.rules:
            lines.append("in rule " + " > ".join(self.rules))
        if self.nearest:
            lines.append("nearest allowed tokens: " + ", ".join(f"{token} {data!r}" for token, data in self.nearest))
        return "\n".join(lines)


def describe_bytes(live: bytes, *, accepting: bool, specials: tuple[str, ...] = (), most: int = 12) -> str:
    """Write a set of bytes as ranges, with the end of the text and special tokens where they are possible.

    >>> describe_bytes(b"012345", accepting=True)
    "'0'..'5' or the end"
    """
    runs: list[tuple[int, int]] = []
    for value in live:
        if runs and runs[-1][1] + 1 == value:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    parts: list[str] = []
    for low, high in runs:
        if high - low < 2:
            parts.extend(_byte(value) for value in range(low, high + 1))
        else:
            parts.append(f"{_byte(low)}..{_byte(high)}")
    if len(parts) > most:
        parts = [*parts[:most], f"{len(parts) - most} more ranges"]
    parts.extend(f"the token {text}" for text in specials)
    if accepting:
        parts.append("the end")
    if not parts:
        return "nothing"
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


def _byte(value: int) -> str:
    return repr(chr(value)) if value < 0x80 else f"byte 0x{value:02x}"
