"""The outcomes of schemas with labelled instances: real ones, and those of the official suite.

An instance is written in several ways (``json_spellings``), with its members in the order in which the schema
declares them and as it stands.  Every text of a valid instance must be a string of the grammar in one of these orders,
no text of an invalid one may be in any.

The suite speaks of values, so it is judged a second time (``ANYHOW``) under the policy that allows every spelling of a
value: each text of a valid instance must be accepted, with its members in any order, and with any numbers and escapes.
"""

from __future__ import annotations

import gzip
import itertools
import json
import multiprocessing
import os
import tarfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache, partial
from pathlib import Path
from typing import Any

from json_spellings import all_spellings, spellings, strings_of
from schema_as_written import AS_WRITTEN, as_written

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import (
    GrammarError,
    GrammarSyntaxError,
    LimitExceeded,
    StructgenError,
    UnsatisfiableGrammar,
    UnsupportedFeature,
)
from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.json_schema.policy import Formats
from structgen.grammar.nodes.description import Described
from structgen.testing.instance_order import declared_orders

__all__ = [
    "ANYHOW",
    "REAL",
    "SUITE",
    "Judged",
    "Kind",
    "Outcome",
    "data_file",
    "judge_all",
    "judge_anyhow",
    "judge_real",
    "judge_suite",
    "keywords_of",
    "real_names",
]

REAL = "maskbench_dev.jsonl.gz"
SUITE = "json-schema-test-suite.tar.gz"
ANYHOW = f"{SUITE}, every spelling"
DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}
REMOTES = "http://localhost:1234/"
"""The address at which the suite expects the files of its folder ``remotes``."""
_CHUNKS = 16

# Where a keyword has one schema, several, and several by name.
_ONE = frozenset(
    (
        *("items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"),
        *("unevaluatedItems", "unevaluatedProperties", "contentSchema"),
    )
)
_SEVERAL = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"))


class Kind(IntEnum):
    """Outcomes, from best to worst."""

    PASS = 0
    REFUSED = 1
    REJECTS_VALID = 2
    ACCEPTS_INVALID = 3


@dataclass(frozen=True, order=True)
class Outcome:
    """The outcome of a schema or test; ``reason`` says why it was refused."""

    kind: Kind
    reason: str = ""


PASS = Outcome(Kind.PASS)


@dataclass(frozen=True)
class Judged:
    """The outcome of one schema or test, by its name in the data.

    ``keywords`` counts (keyword, status) over the report of a schema; that of a refused schema has the status
    ``refused`` for the keyword that the error names, and ``in a refused schema`` for all others.
    """

    name: str
    outcome: Outcome
    keywords: Counter[tuple[str, str]] = field(default_factory=Counter)


def data_file(source: str) -> str:
    """The name of the file that holds the data of ``REAL``, ``SUITE`` or ``ANYHOW``."""
    return source.partition(",")[0]


def judge_all(source: str, folder: Path, step: int = 1) -> list[Judged]:
    """Judge ``REAL``, ``SUITE`` or ``ANYHOW`` in ``folder``, on all processors; in the order of the data.

    Args:
        source: which data.
        folder: where they are.
        step: judge every so many schemas, or groups of the suite; 1 judges all.
    """
    context = multiprocessing.get_context("spawn")
    judge = {REAL: judge_real, SUITE: judge_suite, ANYHOW: judge_anyhow}[source]
    path = folder / data_file(source)
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        firsts = range(0, _CHUNKS * step, step)
        parts = list(pool.map(judge, itertools.repeat(path), firsts, itertools.repeat(_CHUNKS * step)))
    turns = itertools.zip_longest(*parts)
    return [judged for turn in turns for group in turn if group is not None for judged in group]


def real_names(path: Path) -> list[str]:
    """The names of all real schemas, in the order of the data; nothing is judged."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["name"] for line in lines]


def judge_real(path: Path, first: int = 0, step: int = 1) -> list[list[Judged]]:
    """Judge every ``step``-th real schema from ``first`` on; one outcome per schema, that of its worst instance."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [[_judge_schema(json.loads(line))] for line in itertools.islice(lines, first, None, step)]


def judge_suite(path: Path, first: int = 0, step: int = 1) -> list[list[Judged]]:
    """Judge every ``step``-th group of the suite from ``first`` on; one outcome per test."""
    return [_judge_group(path, *group) for group in itertools.islice(_groups(path), first, None, step)]


def judge_anyhow(path: Path, first: int = 0, step: int = 1) -> list[list[Judged]]:
    """Judge the suite with every spelling of a value, each group under the policy that its question needs."""
    groups = itertools.islice(_groups(path), first, None, step)
    return [_judge_group(path, *group, policy_of(group[0])) for group in groups]


def policy_of(file: str) -> JsonPolicy:
    """The policy for a file of the suite: its tests are about values, not about spellings.

    ``format.json`` asks whether ``format`` is an annotation, as it is by default; the folder ``optional/format`` and
    ``optional/content.json`` ask for assertions.
    """
    formats: Formats = "annotation" if file.endswith("/format.json") else "asserted"
    return JsonPolicy("flexible", order="any", numbers="all", escapes="all", formats=formats)


def _judge_schema(case: dict[str, Any]) -> Judged:
    schema = case["schema"]
    compiled = _compiled(schema)
    if isinstance(compiled, Constraint):
        fixed = strings_of(schema)
        worst = max((_judge(compiled, schema, test, fixed) for test in case["tests"]), default=PASS)
        return Judged(case["name"], worst, _keywords(compiled, schema))
    outcome = Outcome(Kind.REFUSED, _reason(compiled))
    if not isinstance(compiled, (UnsupportedFeature, LimitExceeded)) and any(test["valid"] for test in case["tests"]):
        outcome = Outcome(Kind.REJECTS_VALID, _reason(compiled))
    return Judged(case["name"], outcome, _keywords(compiled, schema))


def _judge_group(
    path: Path, file: str, draft: str, group: dict[str, Any], policy: JsonPolicy | None = None
) -> list[Judged]:
    """Judge the tests of a group; ``policy`` allows every spelling, None is the default policy."""
    schema, registry = group["schema"], _remotes(path)
    if isinstance(schema, dict):
        schema.setdefault("$schema", DRAFTS[draft])
    compiled = _compiled(schema, registry, policy)
    fixed = strings_of(schema) | strings_of(list(registry.values()))
    if "://json-schema.org/" in json.dumps(schema):  # the names of a metaschema may be meant, written as they are
        fixed |= strings_of([test["data"] for test in group["tests"]])
    judged = []
    for test in group["tests"]:
        if isinstance(compiled, Constraint) and policy is not None:
            outcome = _judge_anyhow(compiled, test, exponents="multipleOf" not in keywords_of(schema))
        elif isinstance(compiled, Constraint):
            outcome = _judge(compiled, schema, test, fixed)
        elif isinstance(compiled, UnsatisfiableGrammar):
            outcome = Outcome(Kind.REJECTS_VALID, _reason(compiled)) if test["valid"] else PASS
        else:
            outcome = Outcome(Kind.REFUSED, _reason(compiled))
        judged.append(Judged(f"{file} | {group['description']} | {test['description']}", outcome))
    return judged


def _judge(constraint: Constraint, schema: Any, test: dict[str, Any], fixed: frozenset[str]) -> Outcome:
    written = {json.dumps(data): data for data in (*declared_orders(test["data"], schema), test["data"])}
    orders = list(written.values())  # equality does not look at the order
    if test["valid"]:
        is_member = any(all(_accepts(constraint, text) for text in spellings(data, fixed)) for data in orders)
        return PASS if is_member else Outcome(Kind.REJECTS_VALID)
    texts = (text for data in orders for strings in (fixed, None) for text in spellings(data, strings))
    return Outcome(Kind.ACCEPTS_INVALID) if any(map(partial(_accepts, constraint), dict.fromkeys(texts))) else PASS


def _judge_anyhow(constraint: Constraint, test: dict[str, Any], *, exponents: bool) -> Outcome:
    accepted = [_accepts(constraint, text) for text in all_spellings(test["data"], exponents=exponents)]
    if test["valid"]:
        return PASS if all(accepted) else Outcome(Kind.REJECTS_VALID)
    return Outcome(Kind.ACCEPTS_INVALID) if any(accepted) else PASS


def _accepts(constraint: Constraint, text: bytes) -> bool:
    matcher = constraint.matcher()
    return matcher.accept_bytes(text) == len(text) and matcher.is_accepting


def _compiled(
    schema: Any, registry: dict[str, Any] | None = None, policy: JsonPolicy = AS_WRITTEN
) -> Constraint | StructgenError:
    try:
        return compile(as_written(schema, registry=registry, policy=policy), _bytes())
    except (GrammarError, LimitExceeded) as error:
        return error


@cache
def _bytes() -> Vocabulary:
    """One token per byte: how a text is split into tokens changes nothing."""
    return Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


def _reason(error: StructgenError) -> str:
    match error:
        case UnsatisfiableGrammar():
            return "unsatisfiable"
        case UnsupportedFeature(feature="$ref"):
            return "remote"
        case UnsupportedFeature():
            return f"unsupported {error.feature}"
        case LimitExceeded():
            return f"limit {error.limit}"
        case GrammarSyntaxError():
            return "malformed text"
        case _:
            return "malformed"


def _keywords(compiled: Constraint | StructgenError, schema: Any) -> Counter[tuple[str, str]]:
    if isinstance(compiled, Constraint):
        grammar = compiled.grammar
        entries = grammar.description.entries if isinstance(grammar, Described) else ()
        return Counter((entry.keyword, entry.status.value) for entry in entries)
    found = Counter[tuple[str, str]]()
    for keyword, count in keywords_of(schema).items():
        named = int(keyword == getattr(compiled, "feature", None))
        found[keyword, "refused"] += named
        found[keyword, "in a refused schema"] += count - named
    return +found


def keywords_of(schema: Any) -> Counter[str]:
    """Count the keywords of a schema and of all schemas in it, by the places where drafts have schemas."""
    found = Counter[str]()
    stack = [schema]
    while stack:
        inner = stack.pop()
        if isinstance(inner, dict):
            found.update(inner.keys())
            for keyword, value in inner.items():
                if keyword in _ONE and isinstance(value, dict):
                    stack.append(value)
                elif keyword in _SEVERAL and isinstance(value, list):
                    stack += value
                elif keyword in _NAMED and isinstance(value, dict):
                    stack += value.values()
    return found


def _groups(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (file, draft, group) for the tests of all drafts that have a place in ``DRAFTS``, optional ones too."""
    for name, text in _members(path):
        folder, _, file = name.partition("/")
        draft, _, rest = file.partition("/")
        if folder == "tests" and draft in DRAFTS and rest.endswith(".json"):
            for group in json.loads(text):
                yield file, draft, group


@cache
def _remotes(path: Path) -> dict[str, Any]:
    """The documents that references of the suite may point to, by address."""
    prefix = "remotes/"
    return {REMOTES + name.removeprefix(prefix): json.loads(text) for name, text in _members(path) if prefix in name}


@cache
def _members(path: Path) -> tuple[tuple[str, bytes], ...]:
    """The JSON files of the archive, sorted, by their path from ``tests`` or ``remotes`` on."""
    found = []
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            for root in ("tests/", "remotes/"):
                before, here, after = member.name.partition(root)
                stream = archive.extractfile(member) if here and before in ("", "./") else None
                if stream is not None and after.endswith(".json"):
                    found.append((root + after, stream.read()))
    return tuple(sorted(found))
