"""Reading the opening of a group: its kind, name and flags."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from structgen.errors import GrammarError, GrammarSyntaxError
from structgen.frontends.regex.dialect import NO_REFERENCE, Dialect, Flag, malformed, refused
from structgen.frontends.regex.escape import skip_space

__all__ = ["GroupKind", "GroupOpening", "flags_of", "read_group"]


class GroupKind(Enum):
    """The kind of a group."""

    PLAIN = "group"
    NAMED = "named group"
    AHEAD = "look-ahead"
    NOT_AHEAD = "negative look-ahead"
    LOOK_BEHIND = "look-behind"
    NOT_BEHIND = "negative look-behind"
    FLAGS = "flags"
    COMMENT = "comment"


@dataclass(frozen=True, slots=True)
class GroupOpening:
    """The opening of a group.

    Attributes:
        kind: the kind of the group.
        end: the offset after the opening: the start of the body, or the text after flags and comments.
        flags: the flags inside it (``FLAGS``: from here on).
        name: the name of a named group.
    """

    kind: GroupKind
    end: int
    flags: Flag
    name: str = ""


_LOOKS: Final = {
    "=": GroupKind.AHEAD,
    "!": GroupKind.NOT_AHEAD,
    "<=": GroupKind.LOOK_BEHIND,
    "<!": GroupKind.NOT_BEHIND,
}
_NO_RECURSION: Final = "write a grammar with rules instead of a regular expression"
_REFUSED: Final[tuple[tuple[re.Pattern[str], str, str], ...]] = tuple(
    (re.compile(opening), feature, remedy)
    for opening, feature, remedy in (
        (r"\?>", "atomic group", "use (?:...); it also matches where an atomic group gives up early"),
        (r"\?P=\w*\)?", "back-reference", NO_REFERENCE),
        (r"\?P>\w*\)?", "recursion", _NO_RECURSION),
        (r"\?&\w*\)?", "recursion", _NO_RECURSION),
        (r"\?(?:R|[+-]?\d+)\)", "recursion", _NO_RECURSION),
        (r"\?\(", "conditional group", "write both cases as alternatives"),
        (r"\?\|", "branch reset group", "use (?:...|...)"),
        (r"\?C\d*\)", "callout", "leave it out"),
        (r"\?\??\{", "embedded code", "leave it out"),
        (r"\*[A-Za-z_:]+", "backtracking verb", "leave it out: every way to match is considered"),
    )
)
_NAMED: Final = re.compile(r"\?(?:P?<|')\w")
_OTHERS: Final = {"python": ", or use dialect='ecma' or dialect='rust'"}
_FLAG_GROUP: Final = re.compile(r"\?([A-Za-z]*)(-([A-Za-z]*))?([:)])")


def read_group(text: str, start: int, dialect: Dialect, flags: Flag) -> GroupOpening:
    """Read the group whose parenthesis is ``text[start]``, under ``flags``.

    Raises:
        GrammarSyntaxError: the dialect has no such group.
        UnsupportedFeature: a group that is not regular, or that changes which strings match.
    """
    mark = start + 1
    if flags & Flag.VERBOSE and dialect.verbose_everywhere:
        mark = skip_space(text, mark, dialect)
    return _GroupReader(text, start, mark, dialect, flags).read()


@dataclass(slots=True, eq=False)
class _GroupReader:
    """Reads one group; ``mark`` is the offset after its parenthesis."""

    text: str
    start: int
    mark: int
    dialect: Dialect
    flags: Flag

    def read(self) -> GroupOpening:
        text, mark = self.text, self.mark
        if not text.startswith("?", mark):
            self._refuse()
            return GroupOpening(GroupKind.PLAIN, mark, self.flags)
        kind = text[mark + 1 : mark + 2]
        if kind == ":":
            return GroupOpening(GroupKind.PLAIN, mark + 2, self.flags)
        look = _LOOKS.get(kind) or _LOOKS.get(text[mark + 1 : mark + 3])
        if look is not None:
            return self._look_around(look, mark + (2 if kind in _LOOKS else 3))
        if kind == "#" and self.dialect.has_comments:
            return self._comment()
        for opening in self.dialect.named_groups:
            name_start = mark + len(opening)
            if text.startswith(opening, mark):
                return self._named(name_start)
        self._refuse()
        return self._flags()

    def _look_around(self, kind: GroupKind, end: int) -> GroupOpening:
        if not self.dialect.has_lookaround:
            raise refused(
                self.text,
                (self.start, end),
                kind.value,
                "use dialect='python' or dialect='ecma'",
                reason=f"is not part of the {self.dialect.title} dialect",
            )
        return GroupOpening(kind, end, self.flags)

    def _comment(self) -> GroupOpening:
        end = self.text.find(")", self.mark)
        if end < 0:
            raise self._malformed(self.mark + 2, "unclosed comment", "add ')'")
        return GroupOpening(GroupKind.COMMENT, end + 1, self.flags)

    def _named(self, name_start: int) -> GroupOpening:
        end = self.text.find(">", name_start)
        name = self.text[name_start:end]
        if end < 0 or ")" in name:
            raise self._malformed(name_start, "the name of the group is not closed", "add '>' after it")
        if not self._is_name(name):
            raise self._malformed(end + 1, f"{name!r} is not a name of a group", "use letters, digits and '_'")
        return GroupOpening(GroupKind.NAMED, end + 1, self.flags, name)

    def _is_name(self, name: str) -> bool:
        extra = self.dialect.name_characters
        if extra.get(name[:1]) is False:
            return False
        return name.translate(dict.fromkeys(map(ord, extra), "_")).isidentifier()

    def _refuse(self) -> None:
        for opening, feature, remedy in _REFUSED:
            found = opening.match(self.text, self.mark)
            if found is not None:
                raise refused(self.text, (self.start, found.end()), feature, remedy, reason="is not supported")

    def _malformed(self, end: int, problem: str, remedy: str = "") -> GrammarSyntaxError:
        return malformed(self.text, (self.start, min(end, len(self.text))), problem, remedy)

    def _flags(self) -> GroupOpening:
        dialect = self.dialect
        found = _FLAG_GROUP.match(self.text, self.mark)
        if found is None or not (found.group(1) or found.group(2)):
            remedy = "escape the parenthesis to mean it: \\("
            if _NAMED.match(self.text, self.mark):
                *_, opening = dialect.named_groups
                remedy = f"write ({opening}name>...)" + _OTHERS.get(dialect.name, "")
            raise self._malformed(self.mark + 2, f"the {dialect.title} dialect has no such group", remedy)
        on, minus, off, closing = found.groups(default="")
        end, scoped = found.end(), closing == ":"
        if minus and not off:
            raise self._malformed(end, "no flag follows the hyphen")
        if not scoped and dialect.open_flags == "nowhere":
            problem = f"the {dialect.title} dialect sets flags for a group only"
            raise self._malformed(end, problem, "write (?i:...), or pass flags=")
        if off and not scoped and dialect.open_flags == "start":
            raise self._malformed(end, "flags can be turned off for a group only", "write (?-i:...)")
        return GroupOpening(GroupKind.PLAIN if scoped else GroupKind.FLAGS, end, self._changed(end, on, off))

    def _changed(self, end: int, on: str, off: str) -> Flag:
        """The flags with ``on`` added and ``off`` removed."""
        dialect = self.dialect
        for letter in on:
            if letter not in dialect.scoped_flags:
                raise self._malformed(end, f"{letter!r} is not a flag of the {dialect.title} dialect")
        for letter in off:
            if letter == "u" and letter in dialect.idle_flags and letter not in dialect.flags:
                raise refused(
                    self.text,
                    (self.start, end),
                    "flag -u",
                    "write ASCII classes such as [0-9A-Za-z_]",
                    reason="is not supported, since text is Unicode",
                )
            if letter not in dialect.unset_flags:
                raise self._malformed(end, f"{letter!r} cannot be turned off in the {dialect.title} dialect")
        letters = on + off
        twice = [letter for letter in letters if letters.count(letter) > 1]
        if twice and (not dialect.repeats_flags or set(on) & set(off)):
            raise self._malformed(end, f"the flag {twice[0]!r} is given twice")
        if "a" in on and "u" in on:
            raise self._malformed(end, "the flags 'a' and 'u' exclude each other")
        without = flags_of(off, dialect) | (Flag.ASCII if "u" in on else Flag.NONE)
        return (self.flags | flags_of(on, dialect)) & ~without


def flags_of(letters: str, dialect: Dialect) -> Flag:
    """The flags of ``letters``.

    Raises:
        GrammarError: the dialect has no such flag.
    """
    flags = Flag.NONE
    for letter in letters:
        if letter in dialect.flags:
            flags |= dialect.flags[letter]
        elif letter not in dialect.idle_flags:
            known = "".join(sorted({*dialect.flags, *dialect.idle_flags}))
            raise GrammarError(
                "regex",
                f"{letter!r} is not a flag of the {dialect.title} dialect",
                remedy=f"use flags out of {known!r}",
            )
    return flags
