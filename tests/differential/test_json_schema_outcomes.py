"""Real schemas and the official suite against their labels: no wrong answer, and nothing worse than the record."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import Counter
from pathlib import Path

import pytest
from outcome_record import FILES, Record, read_keywords, record_of
from schema_as_written import as_written as json_schema
from schema_outcomes import (
    ANYHOW,
    PASS,
    REAL,
    SUITE,
    Judged,
    Kind,
    Outcome,
    data_file,
    judge_all,
    judge_real,
    keywords_of,
    real_names,
)

from structgen.errors import GrammarError, LimitExceeded
from structgen.frontends.json_schema.report import KEYWORDS
from structgen.grammar.nodes.description import Described

REAL_STEP = 5
"""Every fifth real schema is judged in an ordinary run; the official suite is judged whole."""
SAMPLE_STEP = 11
"""Every eleventh schema is a sample of about 620."""

_SPELT = "constants are spelt as in the schema"
# Valid instances of the suite that no policy of ours writes, by part of their names.
NOT_WRITTEN = {
    "const with object | same object with different property order": "members of a constant keep their order",
    "const.json | const with 0 does not match other zero-like types | float zero": _SPELT,
    "const.json | const with 1 does not match true | float one": _SPELT,
    "const.json | float and integers are equal up to 64-bit": _SPELT,
    "enum.json | enum with 0 does not match false | float zero": _SPELT,
    "enum.json | enum with 1 does not match true | float one": _SPELT,
    "does not match [false] | [0.0] is valid": _SPELT,
    "does not match [true] | [1.0] is valid": _SPELT,
    "type.json | integer type matches integers | a float with zero fractional part": "integers have no point",
    "format.json | ": "formats are asserted, here they are annotations",
    "optional/bignum.json | integer | a ": "integers have at most 40 digits",
    "optional/bignum.json | number | a ": "integers have at most 40 digits",
    "optional/float-overflow.json | ": "numbers are finite in double precision",
}
# Invalid instances that we accept, since these keywords are annotations: optional in draft 7, so in later drafts.
NOT_ASSERTED = {"draft7/optional/content.json | ": "contentMediaType and contentEncoding"}


# The same where every spelling of a value is allowed.
NOT_ANSWERED = {
    "multipleOf.json | float division = inf": "multiples of 123456789 need too large an automaton",
    **NOT_ASSERTED,
}


@pytest.fixture(scope="session", params=[REAL_STEP, pytest.param(1, marks=pytest.mark.nightly)])
def judged(shared_data: Path, request: pytest.FixtureRequest) -> dict[str, list[Judged]]:
    """The outcomes of schemas and tests, by file of the data; nightly those of all real schemas."""
    return {source: _judged(source, shared_data, request.param if source == REAL else 1) for source in FILES}


def _judged(source: str, folder: Path, step: int) -> list[Judged]:
    return judge_all(source, _with_file(source, folder), step)


def _with_file(source: str, folder: Path) -> Path:
    if not (folder / data_file(source)).is_file():
        pytest.skip(f"no file {folder / data_file(source)}")
    return folder


@pytest.mark.parametrize("source", FILES)
def test_no_step_back(source: str, judged: dict[str, list[Judged]]) -> None:
    """No outcome is worse than in the record; ``make outcomes`` writes the records again."""
    assert Record.read(FILES[source]).worse(judged[source]) == []


@pytest.mark.parametrize("source", FILES)
def test_records_are_of_the_data(source: str, shared_data: Path, judged: dict[str, list[Judged]]) -> None:
    """A record names what is in the data, so that a schema can neither be left out nor be renamed."""
    names = [one.name for one in judged[source]]
    if source == REAL:
        every = real_names(_with_file(REAL, shared_data) / REAL)
        assert names in (every, every[::REAL_STEP])
        names = every
    assert Record.read(FILES[source]).is_of(names), "the record is of other data, or was edited: make outcomes"


def test_no_real_schema_is_misread(judged: dict[str, list[Judged]]) -> None:
    """A real schema may be refused by name; a compiled one accepts no invalid instance and rejects no valid one."""
    wrong = [one for one in judged[REAL] if one.outcome.kind > Kind.REFUSED]
    assert wrong == []
    assert len(judged[REAL]) > 6_000 // REAL_STEP


def test_official_suite(judged: dict[str, list[Judged]]) -> None:
    """A test of the suite is refused by name or answered as labelled, except for named spellings and annotations."""
    wrong = []
    for one in judged[SUITE]:
        named = {Kind.REJECTS_VALID: NOT_WRITTEN, Kind.ACCEPTS_INVALID: NOT_ASSERTED}.get(one.outcome.kind, {})
        if one.outcome.kind > Kind.REFUSED and not any(part in one.name for part in named):
            wrong.append(one)
    assert wrong == []
    assert Counter(one.outcome.kind for one in judged[SUITE])[Kind.PASS] > 4_000


def test_official_suite_in_every_spelling(judged: dict[str, list[Judged]]) -> None:
    """Where the policy allows every spelling of a value, all answers except the named ones agree with the suite."""
    others = [one for one in judged[ANYHOW] if one.outcome != PASS]
    assert [one for one in others if not any(part in one.name for part in NOT_ANSWERED)] == []


def test_every_keyword_is_reported(shared_data: Path) -> None:
    """Each occurrence of a keyword in a real schema that compiles is in its report once."""
    reported = 0
    with gzip.open(shared_data / REAL, "rt", encoding="utf-8") as lines:
        for line in itertools.islice(lines, 0, None, SAMPLE_STEP):
            schema = json.loads(line)["schema"]
            try:
                grammar = json_schema(schema)
            except (GrammarError, LimitExceeded):
                continue
            assert isinstance(grammar, Described)
            entries = grammar.description.entries
            assert Counter(entry.keyword for entry in entries) == keywords_of(schema)
            assert len({entry.where for entry in entries}) == len(entries)
            reported += len(entries)
    assert reported > 5_000


@pytest.mark.nightly
@pytest.mark.parametrize("judged", [1], indirect=True)
def test_counts_of_keywords(judged: dict[str, list[Judged]]) -> None:
    """The counts of keywords in the documentation are those of the data."""
    found = sum((one.keywords for one in judged[REAL]), Counter[tuple[str, str]]())
    assert _totals(read_keywords()) == {name: count for name, count in _totals(found).items() if name in KEYWORDS}


def _totals(counts: Counter[tuple[str, str]]) -> Counter[str]:
    total = Counter[str]()
    for (keyword, _), count in counts.items():
        total[keyword] += count
    return total


def test_records_can_be_read_back(tmp_path: Path) -> None:
    """A record is unchanged when it is written and read, and listing a whole group loses nothing."""
    for path in FILES.values():
        record = Record.read(path)
        copy = tmp_path / path.name
        copy.write_text(record.to_text(), encoding="utf-8")
        assert Record.read(copy) == record
        assert copy.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_a_step_back_is_found() -> None:
    """Refused after passed counts as worse, passed after refused does not; a record of other names is detected."""
    refused, wrong = Outcome(Kind.REFUSED, "unsupported not"), Outcome(Kind.ACCEPTS_INVALID)
    before = [Judged("a", PASS), Judged("f | g | 1", refused), Judged("f | g | 2", refused), Judged("f | h | 1", wrong)]
    record = record_of(REAL, before)
    assert record.worse(before) == []
    assert set(record.others) == {"f | g | *", "f | h | 1"}
    assert record.worse([Judged("a", refused)]) == ["a: pass -> refused: unsupported not"]
    assert len(record.worse([Judged("f | g | 2", wrong), Judged("f | g | 1", PASS)])) == 1
    assert record.is_of(one.name for one in before)
    assert not record.is_of(["a", "b"])


def test_labels_are_looked_at(tmp_path: Path) -> None:
    """With inverted labels a schema is reported as misread, so the judge can fail."""
    schema = {"properties": {"a": {"type": "integer"}, "é": {"type": "string"}}, "required": ["a"]}
    for valid, data, kind in (
        (True, {"é": "ö", "a": 1}, Kind.PASS),
        (False, {"é": "ö", "a": 1}, Kind.ACCEPTS_INVALID),
        (True, {"a": "1"}, Kind.REJECTS_VALID),
        (False, {"a": "1"}, Kind.PASS),
    ):
        path = tmp_path / REAL
        case = {"name": "one", "schema": schema, "tests": [{"valid": valid, "data": data}]}
        with gzip.open(path, "wt", encoding="utf-8") as file:
            file.write(json.dumps(case))
        assert [one.outcome.kind for (one,) in judge_real(path)] == [kind]
