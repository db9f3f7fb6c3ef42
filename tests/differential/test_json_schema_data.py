"""The JSON Schema front end on real schemas and the official suite: valid instances are members, invalid ones are not.

The data say of each instance whether it is valid; the grammar is asked for the three usual ways to write it.  A
schema may be refused, by name; it may never be misread.
"""

from __future__ import annotations

import gzip
import json
import random
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature
from structgen.grammar.json_schema import json_schema
from structgen.testing.instance_order import declared_order

STYLES: dict[str, dict[str, Any]] = {
    "single": {},
    "compact": {"separators": (",", ":")},
    "indented": {"indent": 2},
}
SAMPLE_STEP = 11
"""Every eleventh schema is tried in an ordinary run: about 620."""
LEAST_COMPILED = 0.89
"""The share of schemas that are not refused; a lower one is a step back."""

# The label is wrong by the specification: two validators (jsonschema and jsonschema-rs, formats on) say so.
MISLABELLED: frozenset[str] = frozenset()


@pytest.fixture(scope="session")
def byte_vocabulary() -> Vocabulary:
    """One token a byte."""
    return Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


@pytest.fixture(scope="session")
def schemas(shared_data: Path) -> list[dict[str, Any]]:
    """The schemas with their instances."""
    path = shared_data / "maskbench_dev.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def test_sample_of_real_schemas(schemas: list[dict[str, Any]], byte_vocabulary: Vocabulary) -> None:
    """Labels of the sample agree with the grammar in three whitespace styles."""
    _compare(schemas[::SAMPLE_STEP], byte_vocabulary)


@pytest.mark.nightly
def test_all_real_schemas(schemas: list[dict[str, Any]], byte_vocabulary: Vocabulary) -> None:
    """Labels of all schemas agree with the grammar in three whitespace styles."""
    _compare(schemas, byte_vocabulary)


def test_sample_of_real_schemas_in_any_order(schemas: list[dict[str, Any]], byte_vocabulary: Vocabulary) -> None:
    """With ``order="any"`` every valid instance is a member as it is written and shuffled, and no invalid one is."""
    _compare_shuffled(schemas[::SAMPLE_STEP], byte_vocabulary)


@pytest.mark.nightly
def test_all_real_schemas_in_any_order(schemas: list[dict[str, Any]], byte_vocabulary: Vocabulary) -> None:
    """The same for all schemas."""
    _compare_shuffled(schemas, byte_vocabulary)


def _compare_shuffled(schemas: list[dict[str, Any]], vocabulary: Vocabulary) -> None:
    rng = random.Random(9)
    outcomes = Counter[str]()
    wrong: list[tuple[str, str]] = []
    for case in schemas:
        try:
            constraint = compile(json_schema(case["schema"], order="any"), vocabulary)
        except (GrammarError, LimitExceeded):  # the test above says which errors are faults
            outcomes["refused"] += 1
            continue
        outcomes["compiled"] += 1
        for test in case["tests"]:
            for data in (test["data"], *(shuffled(test["data"], rng) for _ in range(3))):
                text = json.dumps(data, ensure_ascii=False)
                accepted = _accepts(constraint, text)
                outcomes[f"{'valid' if test['valid'] else 'invalid'} {'accepted' if accepted else 'rejected'}"] += 1
                if accepted != test["valid"] and case["name"] not in MISLABELLED:
                    wrong.append((case["name"], text[:300]))
    assert wrong == [], outcomes
    assert outcomes["compiled"] >= LEAST_COMPILED * (outcomes["compiled"] + outcomes["refused"]), outcomes


def _compare(schemas: list[dict[str, Any]], vocabulary: Vocabulary) -> None:
    outcomes = Counter[str]()
    wrong: list[tuple[str, str, str]] = []
    for case in schemas:
        try:
            grammar = json_schema(case["schema"])
        except UnsupportedFeature:
            outcomes["refused"] += 1
            continue
        except GrammarError as error:
            if any(test["valid"] for test in case["tests"]):
                wrong.append((case["name"], "schema is called faulty", str(error)))
            continue
        constraint = compile(grammar, vocabulary)
        outcomes["compiled"] += 1
        for test in case["tests"]:
            data = declared_order(test["data"], case["schema"]) if test["valid"] else test["data"]
            for style, options in STYLES.items():
                text = json.dumps(data, ensure_ascii=False, **options)
                accepted = _accepts(constraint, text)
                outcomes[f"{'valid' if test['valid'] else 'invalid'} {'accepted' if accepted else 'rejected'}"] += 1
                if accepted != test["valid"] and case["name"] not in MISLABELLED:
                    wrong.append((case["name"], style, text[:300]))
    assert wrong == [], outcomes
    assert outcomes["compiled"] >= LEAST_COMPILED * (outcomes["compiled"] + outcomes["refused"]), outcomes


SUITE_DRAFTS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}
# Valid instances that no policy of ours writes: file of the suite, and what its description says.
NOT_WRITTEN = [
    ("const.json", "same object with different property order"),  # members of a constant keep their order
    ("const.json", "float"),  # the constant 1 is not written as 1.0
    ("enum.json", "float"),
    ("enum.json", "[0.0] is valid"),
    ("enum.json", "[1.0] is valid"),
    ("type.json", "a float with zero fractional part is an integer"),  # integers have no point
    ("format.json", "string is only an annotation by default"),  # formats are asserted
    ("vocabulary.json", "no validation: invalid number"),  # metaschemas are not fetched
]


@pytest.mark.parametrize("draft", SUITE_DRAFTS)
def test_official_suite(draft: str, shared_data: Path, byte_vocabulary: Vocabulary) -> None:
    """No invalid instance of the suite is a member; valid ones are, but for named spellings."""
    outcomes = Counter[str]()
    wrong: list[tuple[str, str, str]] = []
    for name, group in _suite(shared_data / "json-schema-test-suite.tar.gz", draft):
        schema = group["schema"]
        if isinstance(schema, dict):
            schema.setdefault("$schema", SUITE_DRAFTS[draft])
        try:
            constraint: Constraint | None = compile(json_schema(schema), byte_vocabulary)
        except UnsupportedFeature:
            outcomes["refused"] += 1
            continue
        except UnsatisfiableGrammar:
            constraint = None
        for test in group["tests"]:
            data = declared_order(test["data"], schema) if test["valid"] else test["data"]
            text = json.dumps(data, ensure_ascii=False)
            accepted = constraint is not None and _accepts(constraint, text)
            is_named = test["valid"] and any(name == file and part in test["description"] for file, part in NOT_WRITTEN)
            outcomes["agrees"] += accepted == test["valid"]
            if accepted != test["valid"] and not is_named:
                wrong.append((name, group["description"], test["description"]))
    assert wrong == [], outcomes
    assert outcomes["agrees"] > 500, outcomes


def _suite(path: Path, draft: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if not path.is_file():
        pytest.skip(f"no file {path}")
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            folder, _, name = member.name.rpartition("/")
            stream = archive.extractfile(member) if folder.endswith(f"tests/{draft}") else None
            if stream is not None:
                for group in json.load(stream):
                    yield name, group


def _accepts(constraint: Constraint, text: str) -> bool:
    matcher, data = constraint.matcher(), text.encode("utf-8", "surrogatepass")
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting
