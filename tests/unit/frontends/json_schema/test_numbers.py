"""Numbers: intervals and multiples against exact arithmetic, digit by digit."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from structgen.engine import Vocabulary, compile
from structgen.errors import GrammarError, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.json_schema.normal.scalar_assertion import implies, not_multiples
from structgen.grammar.nodes import Grammar
from structgen.testing.reference import ReferenceMatcher

BOUNDS = st.sampled_from(
    [
        "0",
        "1",
        "-1",
        "5",
        "-5",
        "9",
        "10",
        "12",
        "-12",
        "99",
        "100",
        "-100",
        "0.5",
        "-0.5",
        "0.05",
        "1.5",
        "-9.9",
        "10.01",
    ]
)
STEPS = st.sampled_from(["1", "2", "3", "7", "5", "10", "50", "0.5", "0.01", "0.25", "2.5", "0.3"])
LIMITED = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": BOUNDS,
        "maximum": BOUNDS,
        "exclusiveMinimum": BOUNDS,
        "exclusiveMaximum": BOUNDS,
        "multipleOf": STEPS,
    },
)
TEXTS = st.one_of(
    st.integers(-130, 130).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,2})(\.[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["-0", "-0.0", "0.0", "00", "01", "1.", ".5", "+1", "5.00", "12.30"]),
)


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is accepted, by the reference implementation."""
    matcher = ReferenceMatcher(grammar)
    data = text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


def members(grammar: Grammar, texts: list[str]) -> list[bool]:
    """Whether each text is accepted."""
    start = ReferenceMatcher(grammar)
    found = []
    for text in texts:
        matcher = start.fork()
        found.append(matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting)
    return found


def satisfies(text: str, schema: dict[str, str]) -> bool:
    """The meaning of the keywords, by fractions."""
    number = Fraction(text)
    return (
        number >= Fraction(schema.get("minimum", "-1000000"))
        and number <= Fraction(schema.get("maximum", "1000000"))
        and number > Fraction(schema.get("exclusiveMinimum", "-1000000"))
        and number < Fraction(schema.get("exclusiveMaximum", "1000000"))
        and (number / Fraction(schema.get("multipleOf", number or 1))).denominator == 1
    )


@settings(max_examples=60)
@given(schema=LIMITED, texts=st.lists(TEXTS, min_size=20, max_size=20))
@example(schema={"type": "integer", "minimum": "0"}, texts=["-0", "0"])
@example(schema={"type": "number", "exclusiveMinimum": "0"}, texts=["-0", "0", "0.0", "-0.0", "0.001"])
def test_intervals_and_multiples_are_exact(schema: dict[str, str], texts: list[str]) -> None:
    """A text is accepted iff it is a JSON number that satisfies the keywords, computed with fractions."""
    pairs = ", ".join(f'"{key}": {value}' for key, value in schema.items() if key != "type")
    source = f'{{"type": "{schema["type"]}"{", " if pairs else ""}{pairs}}}'
    is_json = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?" if schema["type"] == "number" else r"-?(0|[1-9][0-9]*)")
    expected = [bool(is_json.fullmatch(text)) and satisfies(text, schema) for text in texts]
    try:
        grammar = json_schema(source)
    except UnsatisfiableGrammar:
        assert not any(expected)
        return
    assert members(grammar, texts) == expected


@settings(max_examples=40)
@given(
    low=st.floats(allow_nan=False, allow_infinity=False) | st.none(),
    high=st.floats(allow_nan=False, allow_infinity=False) | st.none(),
    values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=8, max_size=8),
)
@example(low=0.0, high=None, values=[1e-06, 5e-324, 1e22, -1e-06, 1.7976931348623157e308, 0.0, -0.0, 1e16])
def test_floats_as_python_writes_them(low: float | None, high: float | None, values: list[float]) -> None:
    """A float as ``json.dumps`` writes it, exponents included, is accepted iff it is within the bounds."""
    bounds = {"minimum": low, "maximum": high}
    schema = {"type": "number"} | {name: bound for name, bound in bounds.items() if bound is not None}
    expected = [(low is None or value >= low) and (high is None or value <= high) for value in values]
    try:
        grammar = json_schema(schema)
    except UnsatisfiableGrammar:
        assert low is not None
        assert high is not None
        assert low > high
        return
    assert members(grammar, [json.dumps(value) for value in values]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e2", True),
        ("1E+02", True),
        ("9.5e1", True),
        ("1.001e2", False),
        ("1e3", False),
        ("1e-3", False),
        ("10e1", False),
    ],
)
def test_bounded_numbers_with_exponent(text: str, expected: bool) -> None:
    """With bounds an exponent may follow one nonzero digit; the value decides."""
    assert accepts(json_schema({"type": "number", "minimum": 0.01, "maximum": 100}), text) == expected


@pytest.mark.parametrize("text", ["1", "-0", "12.50", "1e5", "1E-5", "-1.5e+300", "0.0"])
def test_free_numbers_have_all_forms(text: str) -> None:
    """Without bounds every form of RFC 8259 is accepted."""
    assert accepts(json_schema({"type": "number"}), text)


def test_integers_have_their_canonical_form_only() -> None:
    """An integer is written without point and exponent."""
    grammar = json_schema({"type": "integer"})
    assert [accepts(grammar, text) for text in ("10", "-3", "1.0", "1e2", "01")] == [True, True, False, False, False]


def test_digits_are_bounded_by_policy() -> None:
    """Every number ends; a bound that needs more digits gets them."""
    grammar = json_schema({"type": "number"}, policy=JsonPolicy(digits=5))
    assert [accepts(grammar, text) for text in ("12345", "123456", "1.12345", "1.123456")] == [True, False] * 2
    large = json_schema({"type": "integer", "minimum": 10**8}, policy=JsonPolicy(digits=5))
    assert [accepts(large, str(10**8)), accepts(large, "99999")] == [True, False]


def test_bounds_beyond_all_numbers_exclude_nothing() -> None:
    """The largest double as a bound, in either direction, excludes no number that is written."""
    grammar = json_schema({"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308})
    assert [accepts(grammar, text) for text in ("0", "-1e5", "123456.5")] == [True] * 3
    assert accepts(json_schema('{"type": "integer", "maximum": 1e400}'), "7")


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ('{"type": "integer", "minimum": 1e400}', "minimum"),
        ('{"exclusiveMaximum": -1e400}', "exclusiveMaximum"),
        ('{"minimum": 1e-500}', "minimum"),
        ('{"type": "number", "multipleOf": 10007}', "multipleOf"),
        ('{"type": "number", "multipleOf": 1e-3000}', "multipleOf"),
    ],
)
def test_what_needs_too_many_states_is_refused_by_name(schema: str, keyword: str) -> None:
    """Bounds and steps with too many digits or remainders are refused with keyword and pointer."""
    with pytest.raises(UnsupportedFeature) as caught:
        json_schema(schema)
    assert (caught.value.feature, caught.value.where) == (keyword, f"#/{keyword}")


def test_few_multiples_are_listed_whatever_the_step() -> None:
    """A large step is accepted where an interval leaves few multiples."""
    grammar = json_schema({"type": "integer", "multipleOf": 1009, "minimum": 0, "maximum": 10_000})
    assert [accepts(grammar, text) for text in ("0", "-0", "1009", "9081", "1010", "10090")] == [True] * 4 + [False] * 2


MALFORMED: list[tuple[Any, str]] = [
    ({"minimum": "3"}, "'minimum' must be a number"),
    ({"maximum": True}, "'maximum' must be a number"),
    ({"multipleOf": 0}, "'multipleOf' must be greater than 0"),
    ({"multipleOf": -2}, "'multipleOf' must be greater than 0"),
    ({"minimum": float("inf")}, "'minimum' must be a finite number"),
    ({"exclusiveMinimum": None}, "'exclusiveMinimum' must be a number"),
]


@pytest.mark.parametrize(("schema", "problem"), MALFORMED)
def test_malformed_bounds(schema: Any, problem: str) -> None:
    """A bound of the wrong shape is an error that says what was found."""
    with pytest.raises(GrammarError) as caught:
        json_schema(schema)
    assert caught.value.problem == problem
    assert caught.value.evidence.startswith("found ")


def test_number_constants_in_either_spelling() -> None:
    """A constant with zero fraction is written with or without it; the type integer keeps only the integer form."""
    assert [accepts(json_schema({"const": 1.0}), text) for text in ("1", "1.0", "1.00")] == [True, True, False]
    assert not accepts(json_schema({"const": 1.0, "type": "integer"}), "1.0")
    assert accepts(json_schema({"enum": [Decimal("1e400"), 2]}), "1E+400")
    assert accepts(json_schema({"enum": [1, 2], "const": 1.0}), "1")


# All forms of numbers and strings

FORMS = JsonPolicy(numbers="all", digits=12)
VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
SPELLINGS = [
    f"{sign}{whole}{fraction}{exponent}"
    for sign in ("", "-")
    for whole in ("0", "1", "5", "12", "100", "1000")
    for fraction in ("", ".0", ".5", ".05", ".120")
    for exponent in ("", "e0", "E1", "e+2", "e-1", "e-002", "E10")
]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer"},
        {"type": "number"},
        {"type": "integer", "multipleOf": "0.5"},
        {"type": "integer", "minimum": "5", "maximum": "10"},
        {"type": "integer", "multipleOf": "5", "minimum": "-100"},
        {"type": "number", "exclusiveMaximum": "0"},
        {"type": "number", "minimum": "-0.5", "exclusiveMaximum": "120"},
        {"type": "number", "multipleOf": "0.5", "maximum": "12"},
    ],
)
def test_all_forms_are_exact(schema: dict[str, str]) -> None:
    """With ``numbers="all"`` a number is accepted iff its value satisfies the keywords; multiples have no exponent."""
    pairs = ", ".join(f'"{key}": {value}' for key, value in schema.items() if key != "type")
    source = f'{{"type": "{schema["type"]}"{", " if pairs else ""}{pairs}}}'
    is_integer = schema["type"] == "integer"
    has_exponents = "multipleOf" not in schema or (is_integer and Fraction(schema["multipleOf"]).numerator == 1)
    constraint = compile(json_schema(source, policy=FORMS), VOCABULARY)
    bounds = {"minimum": "-1e15", "maximum": "1e15", "exclusiveMinimum": "-1e15", "exclusiveMaximum": "1e15"} | schema
    for text in SPELLINGS:
        expected = satisfies(text, bounds) and not (is_integer and Fraction(text) % 1)
        if has_exponents or "e" not in text.lower():
            matcher = constraint.matcher()
            assert (matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting) == expected, text


@pytest.mark.parametrize("value", [0, 5, -12, 0.5, 1e3, 12.5])
def test_constants_in_all_forms(value: float) -> None:
    """A constant is written as every number of its value, in arrays and objects too."""
    texts = [
        "0",
        "-0.0",
        "0e3",
        "5",
        "50e-1",
        "0.5e1",
        "-12",
        "-120e-1",
        "0.5",
        "5e-1",
        "1000.0",
        "1e3",
        "12.5",
        "125e-1",
    ]
    exact = Fraction(str(value))
    assert members(json_schema({"const": value}, policy=FORMS), texts) == [Fraction(text) == exact for text in texts]
    nested = [f'{{"a": [{text}]}}' for text in texts]
    grammar = json_schema({"const": {"a": [value]}}, policy=FORMS)
    assert members(grammar, nested) == [Fraction(text) == exact for text in texts]


def test_integers_of_draft_4_are_a_matter_of_form() -> None:
    """In draft 4 an integer has no fraction or exponent part."""
    old = json_schema({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer"}, policy=FORMS)
    assert [accepts(old, text) for text in ("1", "1.0", "1e2")] == [True, False, False]
    closed = json_schema({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "enum": [1]})
    assert not accepts(closed, "1.0")


@pytest.mark.parametrize("order", ["declared", "any"])
def test_names_and_constants_with_escapes(order: Any) -> None:
    """With ``escapes="all"`` names and constants have every spelling, as free strings have."""
    schema: Any = {"type": "object", "properties": {"a/😀": {"const": "é\n"}}, "additionalProperties": False}
    texts = ['{"a/😀": "é\\n"}', '{"\\u0061\\/\\ud83d\\uDE00": "\\u00E9\\u000a"}', '{"a/\\ud83d": "é\\n"}']
    canonical = json_schema(schema, order=order)
    assert [accepts(canonical, text) for text in texts] == [True, False, False]
    every = json_schema(schema, policy=JsonPolicy(escapes="all"), order=order)
    assert [accepts(every, text) for text in texts] == [True, True, False]
    watched = json_schema(
        {"properties": {"a": True}, "required": ["a"], "dependentRequired": {"a": ["b"]}},
        policy=JsonPolicy(escapes="all"),
        order=order,
    )
    assert [accepts(watched, text) for text in ('{"\\u0061": 1, "\\u0062": 2}', '{"\\u0061": 1}')] == [True, False]
    nested = json_schema({"const": {"n": ["x"]}}, policy=JsonPolicy(escapes="all"), order=order)
    assert accepts(nested, '{"\\u006e": ["\\u0078"]}')


@pytest.mark.parametrize("step", ["441", "1024", "86400", "0.037"])
def test_multiples_of_larger_steps(step: str) -> None:
    """Multiples are exact where the number of remainders is large."""
    kind = "number" if "." in step else "integer"
    constraint = compile(json_schema(f'{{"type": "{kind}", "multipleOf": {step}}}'), VOCABULARY)
    places = len(step.partition(".")[2])
    for factor in (0, 1, 7, 12345, 999_999):
        for extra in (0, 1):
            number = factor * Fraction(step) + Fraction(extra, 10**places)
            text = f"{number.numerator * 10**places // number.denominator:0{places + 1}}"
            text = f"{text[:-places]}.{text[-places:]}" if places else text
            matcher = constraint.matcher()
            is_member = matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting
            assert is_member == (extra == 0), text


@pytest.mark.parametrize(
    ("schema", "probes"),
    [
        ({"type": "number", "multipleOf": 10007, "minimum": -30021, "exclusiveMaximum": 20014}, ["-20014.00", "0.0"]),
        ({"type": "number", "multipleOf": 1.2347, "minimum": -3, "maximum": 5}, ["-2.4694", "2.46940", "2.4695"]),
        (
            {"type": "number", "multipleOf": 1.2347, "not": {"multipleOf": 2.4694}, "minimum": 0, "maximum": 5},
            ["2.4694"],
        ),
        (
            {"type": "integer", "multipleOf": 10007, "not": {"multipleOf": 3}, "minimum": 0, "maximum": 90000},
            ["10007.0"],
        ),
    ],
)
@pytest.mark.parametrize("numbers", ["canonical", "all"])
def test_multiples_of_steps_with_many_remainders(schema: dict[str, Any], probes: list[str], numbers: Any) -> None:
    """In an interval with few multiples they are listed, without the excluded ones."""
    constraint = compile(json_schema(schema, policy=JsonPolicy(numbers=numbers)), VOCABULARY)
    step, excluded = Fraction(str(schema["multipleOf"])), schema.get("not", {}).get("multipleOf")
    places = len(str(schema["multipleOf"]).partition(".")[2])
    texts = probes + [f"{Decimal(str(schema['multipleOf'])) * number:.{places}f}" for number in range(-4, 10)]
    for text in texts:
        value = Fraction(text)
        is_valid = value % step == 0 and schema["minimum"] <= value
        is_valid &= value <= schema["maximum"] if "maximum" in schema else value < schema["exclusiveMaximum"]
        is_valid &= excluded is None or value % Fraction(str(excluded)) != 0
        is_valid &= schema["type"] == "number" or numbers == "all" or "." not in text
        matcher = constraint.matcher()
        assert (matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting) == is_valid, text


@pytest.mark.parametrize("bounds", [{}, {"minimum": 5}, {"exclusiveMaximum": -7}])
def test_multiples_that_no_automaton_holds(bounds: dict[str, int]) -> None:
    """They are refused, not truncated, where no interval leaves few of them."""
    with pytest.raises(UnsupportedFeature, match="multiples of 123456789"):
        json_schema({"type": "integer", "multipleOf": 123_456_789, **bounds})


FRACTIONS = st.sampled_from(
    [*map(Fraction, range(1, 25)), Fraction(1, 2), Fraction(3, 2), Fraction(5, 4), Fraction(1, 10)]
)


@settings(max_examples=300)
@given(
    step=FRACTIONS | st.none(),
    not_steps=st.lists(FRACTIONS, max_size=4),
    other=FRACTIONS,
    values=st.lists(st.fractions(max_denominator=20).map(abs) | st.integers(0, 5000), min_size=20, max_size=20),
)
def test_divisibility_is_simplified_exactly(
    step: Fraction | None, not_steps: list[Fraction], other: Fraction, values: list[Fraction | int]
) -> None:
    """The same numbers remain, and what is implied holds for each of them, checked one number at a time."""

    def remains(value: Fraction | int, divisors: tuple[Fraction, ...] | list[Fraction] | None) -> bool:
        if divisors is None or (step is not None and value % step != 0):
            return False
        return all(value % one != 0 for one in divisors)

    simplified = not_multiples(step, not_steps)
    is_implied = implies(step, not_steps, other)
    multiples = [] if step is None else [step * number for number in range(40)]
    for value in (*values, *multiples, *(one * number for one in (other, *not_steps) for number in range(20))):
        assert remains(value, simplified) == remains(value, not_steps)
        assert not (is_implied and remains(value, not_steps) and value % other == 0)
    assert simplified is not None or (step is not None and not remains(step, not_steps))


DIVISIBLE = st.recursive(
    st.builds(lambda step: {"multipleOf": step}, st.sampled_from([1, 2, 3, 4, 5, 6, 8, 9, 12, 0.5, 1.5])),
    lambda inner: st.one_of(
        st.builds(lambda one: {"not": one}, inner),
        st.builds(
            lambda keyword, some: {keyword: some},
            st.sampled_from(["allOf", "anyOf", "oneOf"]),
            st.lists(inner, min_size=2, max_size=3),
        ),
    ),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None)
@given(
    schema=DIVISIBLE,
    kind=st.sampled_from(["integer", "number"]),
    bounds=st.dictionaries(st.sampled_from(["minimum", "exclusiveMaximum"]), st.integers(-40, 40)),
    numbers=st.sampled_from(["canonical", "all"]),
)
def test_multiples_under_logic(schema: Any, kind: str, bounds: dict[str, int], numbers: Any) -> None:
    """Exactly the numbers that are multiples of some steps and not of others remain, by fractions."""

    def holds(value: Fraction, part: Any) -> bool:
        keyword, inner = next(iter(part.items()))
        if keyword == "multipleOf":
            return value % Fraction(str(inner)) == 0
        if keyword == "not":
            return not holds(value, inner)
        count = sum(holds(value, one) for one in inner)
        return count == len(inner) if keyword == "allOf" else count >= 1 if keyword == "anyOf" else count == 1

    values = [Fraction(number) for number in range(-60, 130)]
    if kind == "number":
        values += [Fraction(number, 2) for number in range(-31, 60, 2)] + [Fraction(1, 4), Fraction(-7, 10)]
    texts = [format(Decimal(value.numerator) / Decimal(value.denominator), "f") for value in values]
    low, high = bounds.get("minimum"), bounds.get("exclusiveMaximum")
    expected = [
        holds(value, schema) and (low is None or value >= low) and (high is None or value < high) for value in values
    ]
    try:
        grammar = json_schema({"type": kind, "allOf": [schema], **bounds}, policy=JsonPolicy(numbers=numbers))
    except UnsatisfiableGrammar:
        assert not any(expected)
        return
    except UnsupportedFeature as error:
        assert "automaton" in str(error)  # noqa: PT017
        return
    constraint = compile(grammar, VOCABULARY)
    found = []
    for text in texts:
        matcher = constraint.matcher()
        found.append(matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting)
    assert found == expected


def test_alternatives_that_hold_no_more_are_left_out() -> None:
    """Multiples of six are among those of three, and a contradiction leaves no number."""
    few = json_schema({"type": "integer", "multipleOf": 3})
    none = {"multipleOf": 9, "not": {"multipleOf": 3}}
    many = json_schema({"type": "integer", "anyOf": [{"multipleOf": 6}, {"multipleOf": 3}, none]})
    assert str(few) == str(many)
    with pytest.raises(UnsatisfiableGrammar, match="no number is left"):
        json_schema({"type": "number", "multipleOf": 120, "not": {"multipleOf": 8}})
