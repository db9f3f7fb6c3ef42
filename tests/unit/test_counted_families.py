"""Inputs of many families: their counted work grows like n log n, or ends at a limit with its name and place."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from importlib import import_module
from math import log2
from pathlib import Path
from typing import Any

import pytest
from data_folder import sampled_schemas

import structgen as sg
from structgen.errors import LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
try:
    limits: Any = import_module("limits")
finally:
    sys.path.pop(0)

STEP = 1.25
"""Limits of steps that are tried differ by this factor."""
WORDS = (b"ab", b"abc", b'"p', b"aa")
PLACES = ("json schema #", "regex", "lark grammar", "gbnf grammar", "ebnf grammar", "grammar", "tool t", "engine")


@pytest.fixture(scope="module")
def vocabulary() -> sg.Vocabulary:
    """All bytes and a few longer tokens."""
    return sg.Vocabulary([b"<e>", *(bytes([byte]) for byte in range(256)), *WORDS], eos=[0])


GROWING = [name for name, family in limits.FAMILIES.items() if family.small]


@pytest.mark.parametrize("name", GROWING)
def test_work_grows_like_n_log_n(name: str, vocabulary: sg.Vocabulary) -> None:
    """Four times the input takes four times the steps at most, and a little for the logarithm; half is an error."""
    family, maximum = limits.FAMILIES[name], sg.Limits().steps
    size = family.small
    few, many = (limits.least_steps(family.make(n)[1], vocabulary, maximum) for n in (size, 4 * size))
    assert many <= 4 * few * log2(4 * size) / log2(size) * STEP
    with pytest.raises(LimitExceeded) as caught:
        limits.run(family.make(size)[1], vocabulary, sg.Limits(steps=few // 2))
    assert caught.value.limit == "steps"
    assert caught.value.subject.startswith(PLACES)


@pytest.mark.parametrize("name", [name for name in limits.FAMILIES if name not in GROWING])
def test_other_work_ends_at_a_limit(name: str, vocabulary: sg.Vocabulary) -> None:
    """What grows faster ends with the limit and the place, and the same input passes with more steps."""
    family = limits.FAMILIES[name]
    _, read = family.make(max(family.size // 4, 2))
    few = limits.least_steps(read, vocabulary, sg.Limits().steps)
    with pytest.raises(LimitExceeded) as caught:
        limits.run(family.make(4 * family.size)[1], vocabulary, sg.Limits(steps=few))
    assert caught.value.limit == "steps"
    assert caught.value.subject.startswith(PLACES)
    assert f"more than steps={few} would be needed" in str(caught.value)


def test_strict_limits_are_small_and_one_object() -> None:
    """Each bound is at most the default, and caches that look limits up by identity find them."""
    strict, default = sg.Limits.strict(), sg.Limits()
    assert strict is sg.Limits.strict()
    assert all(getattr(strict, name) <= getattr(default, name) for name in ("source_bytes", "nesting", "cache_bytes"))
    assert 8 * strict.steps <= default.steps
    assert strict.grammar_nodes < default.grammar_nodes
    assert strict.distance_steps < default.distance_steps


STRICT = sg.Limits.strict()
LARGE = "python/"


@pytest.mark.parametrize("name", [name for name in limits.EVERYDAY if not name.startswith(LARGE)])
def test_strict_limits_admit_everyday_descriptions(name: str, deepseek_vocabulary: sg.Vocabulary) -> None:
    """Each compiles and has a first mask on an engine that has compiled nothing."""
    limits.run(limits.EVERYDAY[name], deepseek_vocabulary, STRICT)


def test_strict_limits_admit_real_schemas(shared_data: Path, deepseek_vocabulary: sg.Vocabulary) -> None:
    """The same of some real schemas below 4 kB."""
    texts = [json.dumps(case["schema"]) for case in sampled_schemas(shared_data, seed=1, count=20)]
    small = [text for text in texts if len(text) < 4096]
    assert len(small) > 12
    for text in small:
        with suppress(UnsupportedFeature, UnsatisfiableGrammar):  # with any limits
            limits.run(lambda bounds, text=text: sg.json_schema(text, limits=bounds), deepseek_vocabulary, STRICT)


def test_strict_limits_admit_what_clients_send(vocabulary: sg.Vocabulary) -> None:
    """Tools, an ordinary schema and a grammar compile; thousands of members do not."""
    strict = sg.Limits.strict()
    for name, size in (("tools", 20), ("JSON Schema: optional properties", 50), ("GBNF: rules", 100)):
        limits.run(limits.FAMILIES[name].make(size)[1], vocabulary, strict)
    for name, size in (("JSON Schema: integers with bounds", 4_000), ("GBNF: rules", 10_000)):
        with pytest.raises(LimitExceeded):
            limits.run(limits.FAMILIES[name].make(size)[1], vocabulary, strict)
