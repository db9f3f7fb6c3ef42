"""The committed outcomes, which must not become worse.

A record names every schema or test that does not pass, under its outcome; it holds nothing else of the data. Those that
pass are counted, with a digest of their names, so that a record cannot be compared with other data.

python tests/support/outcomes/outcome_record.py     (or: make outcomes)

judges everything again and writes the records, and the tables of docs/reference/json-schema.md.
"""

from __future__ import annotations

import hashlib
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from coverage_page import PAGE, page_with
from data_folder import data_folder
from schema_outcomes import ANYHOW, PASS, REAL, SUITE, Judged, Kind, Outcome, data_file, judge_all

__all__ = ["FILES", "KEYWORDS", "Record", "read_keywords", "record_of"]

FOLDER = Path(__file__).resolve().parents[2] / "record"
FILES = {
    REAL: FOLDER / "real_schemas.txt",
    SUITE: FOLDER / "official_suite.txt",
    ANYHOW: FOLDER / "official_suite_anyhow.txt",
}
KEYWORDS = FOLDER / "keywords.txt"
ALL_TESTS = "*"
_WORDS = {
    Kind.PASS: "pass",
    Kind.REFUSED: "refused",
    Kind.REJECTS_VALID: "rejects a valid instance",
    Kind.ACCEPTS_INVALID: "accepts an invalid instance",
}
_WIDTH = 120


@dataclass(frozen=True)
class Record:
    """Outcomes by name.

    Attributes:
        source: the file of the data.
        others: outcomes of what does not pass; the name ``file | group | *`` stands for all tests of a group.
        passing: how many pass.
        total: how many there are.
        digest: of the names that pass.
    """

    source: str
    others: dict[str, Outcome]
    passing: int
    total: int
    digest: str

    def outcome(self, name: str) -> Outcome:
        """Return the recorded outcome; a name that is not listed passes."""
        found = self.others.get(name)
        return found or self.others.get(f"{name.rpartition(' | ')[0]} | {ALL_TESTS}", PASS)

    def worse(self, judged: Iterable[Judged]) -> list[str]:
        """Return a line for each outcome that is worse than the recorded one."""
        pairs = ((one, self.outcome(one.name)) for one in judged)
        return [
            f"{one.name}: {_title(old)} -> {_title(one.outcome)}" for one, old in pairs if one.outcome.kind > old.kind
        ]

    def is_of(self, names: Iterable[str]) -> bool:
        """Whether the names that pass by this record are those that passed when it was made."""
        passing = [name for name in names if self.outcome(name) == PASS]
        return (len(passing), _digest(passing)) == (self.passing, self.digest)

    def to_text(self) -> str:
        """Return the file."""
        lines = [f"# Outcomes on {self.source} but for what passes; made by: make outcomes", ""]
        lines.append(f"pass {self.passing} of {self.total}, digest {self.digest}")
        by_outcome = sorted(self.others, key=lambda name: (self.others[name], name))
        for outcome, names in groupby(by_outcome, key=self.others.__getitem__):
            listed = list(names)
            lines += ["", f"{_title(outcome)} ({len(listed)})", *_lines(listed)]
        return "\n".join(lines) + "\n"

    @staticmethod
    def read(path: Path) -> Record:
        """Read what :meth:`to_text` wrote.

        Raises:
            ValueError: the file does not hold a record.
        """
        head, _, counts, *rest = path.read_text(encoding="utf-8").splitlines()
        source = re.match(r"# Outcomes on (.+?) but for what passes", head)
        found = re.fullmatch(r"pass (\d+) of (\d+), digest ([0-9a-f]+)", counts)
        if source is None or found is None:
            raise ValueError(f"{path}: not a record of outcomes")
        others: dict[str, Outcome] = {}
        outcome = PASS
        for line in filter(None, rest):
            if not line.startswith("  "):
                outcome = _outcome(line)
            elif line.startswith("  - "):
                others[line[4:]] = outcome
            else:
                prefix, _, names = line.strip().partition(": ")
                others |= {prefix + name: outcome for name in names.split(" ")}
        return Record(source[1], others, int(found[1]), int(found[2]), found[3])


def record_of(source: str, judged: list[Judged]) -> Record:
    """Make the record of a run; groups of the suite whose tests all have one outcome are listed once."""
    others = {one.name: one.outcome for one in judged if one.outcome != PASS}
    for group, tests in groupby(judged, key=lambda one: one.name.rpartition(" | ")[0]):
        members = list(tests)
        if group and len(members) > 1 and members[0].outcome != PASS and len({one.outcome for one in members}) == 1:
            others = {name: outcome for name, outcome in others.items() if name.rpartition(" | ")[0] != group}
            others[f"{group} | {ALL_TESTS}"] = members[0].outcome
    passing = [one.name for one in judged if one.outcome == PASS]
    return Record(source, others, len(passing), len(judged), _digest(passing))


def read_keywords() -> Counter[tuple[str, str]]:
    """Return how often each (keyword, status) occurs in the real schemas."""
    lines = KEYWORDS.read_text(encoding="utf-8").splitlines()
    fields = (line.split("\t") for line in lines if not line.startswith("#"))
    return Counter({(keyword, status): int(count) for keyword, status, count in fields})


def keywords_text(judged: list[Judged]) -> str:
    """Return the file that :func:`read_keywords` reads; names that no specification knows are left out."""
    from structgen.frontends.json_schema.report import KEYWORDS as TABLE

    total = sum((one.keywords for one in judged), Counter[tuple[str, str]]())
    lines = [f"{keyword}\t{status}\t{total[keyword, status]}" for keyword, status in sorted(total) if keyword in TABLE]
    return "\n".join([f"# Keywords in the reports of {REAL}; made by: make outcomes", *lines]) + "\n"


def _lines(names: list[str]) -> Iterator[str]:
    """Names with spaces, those of the suite, have their own lines; others are grouped by their common prefix."""
    for prefix, group in groupby(names, key=lambda name: name[: name.find("---") + 3] if "---" in name else ""):
        listed = list(group)
        if any(" " in name for name in listed):
            yield from (f"  - {name}" for name in listed)
        else:
            text = " ".join(name.removeprefix(prefix) for name in listed)
            indent = f"  {prefix}: "
            yield from textwrap.wrap(
                text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False,
                break_on_hyphens=False,
            )  # fmt: skip


def _title(outcome: Outcome) -> str:
    return _WORDS[outcome.kind] + (f": {outcome.reason}" if outcome.reason else "")


def _outcome(line: str) -> Outcome:
    title, _, reason = line.rpartition(" (")[0].partition(": ")
    return Outcome(next(kind for kind, words in _WORDS.items() if words == title), reason)


def _digest(names: Iterable[str]) -> str:
    return hashlib.blake2b("\n".join(sorted(names)).encode(), digest_size=8).hexdigest()


def main() -> None:
    """Judge everything and write the records."""
    missing = [path for path in (data_folder() / data_file(source) for source in FILES) if not path.is_file()]
    if missing:
        sys.exit(f"{missing[0]}: not found; name its folder in STRUCTGEN_DATA")
    FOLDER.mkdir(exist_ok=True)
    for source, path in FILES.items():
        judged = judge_all(source, data_folder())
        record = record_of(source, judged)
        before = Record.read(path) if path.exists() else record
        for line in before.worse(judged):
            sys.stderr.write(f"worse: {line}\n")
        path.write_text(record.to_text(), encoding="utf-8")
        if source == REAL:
            KEYWORDS.write_text(keywords_text(judged), encoding="utf-8")
            PAGE.write_text(page_with(PAGE.read_text(encoding="utf-8"), read_keywords()), encoding="utf-8")
        sys.stderr.write(f"{path.name}: {before.passing} -> {record.passing} of {record.total} pass\n")


if __name__ == "__main__":
    main()
