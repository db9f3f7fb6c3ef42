"""The work of reading a schema is counted: small schemas that need much end at a limit that is named."""

from __future__ import annotations

import gc
import random
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from schema_as_written import as_written as json_schema

from structgen.errors import LimitExceeded
from structgen.frontends.json_schema import translation
from structgen.frontends.json_schema.emit.decimal_interval import DecimalPlaces
from structgen.frontends.json_schema.emit.multiple_of import multiples, multiples_states
from structgen.frontends.json_schema.term import LanguageIndex, belongs
from structgen.frontends.regex import search_language
from structgen.grammar.limits import PYTHON_STEP, Limits

NAMES = ["".join(letters) for letters in product("pqrstu", repeat=3)]


def patterns(form: str, count: int) -> dict[str, Any]:
    """An object with that many patterns for its names."""
    return {"type": "object", "patternProperties": {form.format(name): {"type": "integer"} for name in NAMES[:count]}}


def few(steps: int) -> Limits:
    """Limits of so many steps of Python code."""
    return Limits(steps=steps * PYTHON_STEP)


@pytest.mark.parametrize("around", ["alone", "anyOf", "prefixItems"])
def test_patterns_with_different_beginnings_are_cheap(around: str) -> None:
    """190 patterns take some thirty steps each, wherever they are; all pairs would take 54,000."""
    schema = patterns("^{}", 190)
    if around != "alone":
        schema = {around: [schema, patterns("^x{}", 190)], "type": ["object", "array"]}
    json_schema(schema, limits=few(14_000))


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (patterns("^[a-z]{}", 100), "#/patternProperties"),
        ({"prefixItems": [{}, patterns("{}$|x", 100)], "type": "array"}, "#/prefixItems/1/patternProperties"),
        (
            {"properties": {name: {} for name in NAMES}, "patternProperties": {"^.*x.*y": {}, "z": {}}},
            "#/patternProperties",
        ),
        ({"properties": {"a" * 3000: {}}, "patternProperties": {"^(?=.*b).*c": {}}}, "#/patternProperties"),
        ({"items": {"allOf": [{"enum": NAMES}, {"pattern": "(q|rs)*t"}]}}, "#/items/allOf/0/pattern"),
        ({"anyOf": [{"type": "integer", "multipleOf": k} for k in (97, 101, 103)]}, "#/anyOf/1/multipleOf"),
        ({"items": {"type": "integer", "not": {"multipleOf": 1009}}}, "#/items/not/multipleOf"),
    ],
)
def test_much_work_ends_at_a_limit_with_its_place(schema: dict[str, Any], place: str) -> None:
    """The error names the schema and the limit, every time."""
    for _ in range(2):  # also when parts are cached
        with pytest.raises(LimitExceeded) as caught:
            json_schema(schema, limits=few(12_000 if "anyOf" in schema else 6_000))
        assert (caught.value.limit, caught.value.subject) == ("steps", f"json schema {place}")


def test_what_is_cached_counts_as_much() -> None:
    """Whether a schema passes does not depend on what was planned before."""
    schema = {"anyOf": [{"type": "integer", "multipleOf": k} for k in (89, 83, 79)]}
    for k in (89, 83, 79):
        json_schema({"type": "integer", "multipleOf": k}, limits=few(12_000))
    with pytest.raises(LimitExceeded):
        json_schema(schema, limits=few(12_000))
    json_schema(schema, limits=few(40_000))


@pytest.mark.parametrize("step", [7, 16, 64, 101, 250, 360])
def test_multiples_are_those_of_integers(step: int) -> None:
    """A number is a multiple iff its remainder is 0, for small and for long numbers."""
    places = DecimalPlaces(20, 0)
    term = multiples(Fraction(step), places)
    rng = random.Random(step)
    long = [rng.randrange(10**digits) for digits in range(4, 21) for _ in range(3)]
    for number in [*range(3 * step if step < 100 else 150), *long, *(number - number % step for number in long)]:
        assert belongs(str(number), term) == (number % step == 0), number
    assert not belongs(str(step * 10**20), term)
    assert multiples_states(Fraction(step), places) >= 20


def test_an_index_finds_what_each_language_says() -> None:
    """Names are looked up by the prefixes of the patterns, with the verdicts of the patterns one by one."""
    rng = random.Random(0)
    texts = ["", "p", "é", "éa", *NAMES[:40], *("x" + name for name in NAMES[:10])]
    forms = ["^{}", "^{}$", "{}", "^{}|q", "^[pq]{}", "é"]
    languages = [search_language(rng.choice(forms).format(rng.choice(texts)), dialect="ecma") for _ in range(60)]
    index = LanguageIndex(languages)
    for text in texts:
        expected = [number for number, language in enumerate(languages) if belongs(text, language)]
        assert index.containing(text, lambda steps: None) == expected


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_garbage_collector_is_as_it_was(is_enabled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What planning made goes to the oldest generation, which is collected where it was moved too often."""
    monkeypatch.setattr(translation, "_FEW_OBJECTS", -1)
    monkeypatch.setattr(translation, "_left", 0)
    monkeypatch.setattr(translation, "_moved", 0)
    monkeypatch.setattr(translation, "_has_frozen", False)
    gc.unfreeze()  # what was there before the first test: nothing is moved in a process that has frozen objects
    (gc.enable if is_enabled else gc.disable)()
    try:
        json_schema({"type": "integer", "not": {"const": 1_000_001 + is_enabled}, "contains": True})
        assert gc.isenabled() == is_enabled
        assert gc.get_freeze_count() == 0
        assert (translation._left > 0) == is_enabled
        assert translation._moved == 0
    finally:
        gc.enable()
        gc.freeze()


def test_frozen_objects_stay_frozen_and_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []

    def count() -> int:
        counted.append(1)
        return 1_000_000

    monkeypatch.setattr(translation, "_has_frozen", False)
    monkeypatch.setattr(gc, "get_freeze_count", count)
    monkeypatch.setattr(gc, "unfreeze", lambda: pytest.fail("what the application froze is thawed"))
    for number in range(3):
        json_schema({"type": "integer", "not": {"const": 2_000_001 + number}, "contains": True})
    assert len(counted) == 1
