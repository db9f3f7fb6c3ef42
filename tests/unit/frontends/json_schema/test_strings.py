"""Strings: lengths count code points, patterns and formats act on the decoded text."""

from __future__ import annotations

import calendar
import datetime
import ipaddress
import json
import re
import tarfile
import uuid
from pathlib import Path

import jsonschema
import pytest
from hypothesis import example, given, settings, strategies as st

from structgen.engine import Vocabulary, compile
from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.json_schema import json_schema
from structgen.frontends.json_schema.formats import ASSERTED, format_admits, format_language
from structgen.frontends.json_schema.term import belongs, matching_strings
from structgen.grammar.nodes import (
    ANY_CHAR,
    CharClass,
    Complement,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    choice,
    sequence,
)
from structgen.testing.reference import ReferenceMatcher

BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is accepted, by the reference implementation."""
    matcher = ReferenceMatcher(grammar)
    data = text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


def test_length_counts_decoded_code_points() -> None:
    """A character beyond the basic plane and an escape each count as one."""
    grammar = json_schema({"type": "string", "minLength": 2, "maxLength": 2})
    for text in ('"ab"', '"😀😀"', '"\\ud83d\\ude00x"', '"\\n\\u00e9"', '"é日"'):
        assert accepts(grammar, text)
    for text in ('"a"', '"abc"', '"\\u0061"', '"\\ud83d\\ude00"'):
        assert not accepts(grammar, text)


def test_pattern_sees_through_escapes() -> None:
    """A pattern is matched with the decoded text, however it is written."""
    grammar = json_schema({"type": "string", "pattern": "^a/b$"})
    assert [accepts(grammar, text) for text in ('"a/b"', '"a\\/b"', '"\\u0061/\\u0062"', '"a\\\\/b"')] == [True] * 3 + [
        False
    ]


@given(
    pattern=st.sampled_from(["^a", "b$", "a|b", "^[ab]*$", "ab?c", "^.{2}$", "^(a|bc)+$"]),
    shortest=st.integers(0, 3),
    longest=st.integers(0, 4),
    text=st.text("abc", max_size=5),
)
def test_pattern_and_lengths_together(pattern: str, shortest: int, longest: int, text: str) -> None:
    """All keywords hold at once."""
    schema = {"type": "string", "pattern": pattern, "minLength": shortest, "maxLength": max(shortest, longest)}
    expected = bool(re.search(pattern, text)) and shortest <= len(text) <= max(shortest, longest)
    assert accepts(json_schema(schema), json.dumps(text)) == expected


def test_faults_of_patterns_carry_the_pointer() -> None:
    """An error of the regex front end is raised again with its place in the schema."""
    with pytest.raises(GrammarSyntaxError) as syntax:
        json_schema({"properties": {"a/b": {"pattern": "(x"}}})
    assert syntax.value.subject == "json schema #/properties/a~1b/pattern"
    assert syntax.value.text == "(x"
    with pytest.raises(UnsupportedFeature) as refused:
        json_schema({"patternProperties": {"(a)\\1": {}}})
    assert refused.value.where == "#/patternProperties/(a)%5C1"


SCHEMAS = {
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft7": "http://json-schema.org/draft-07/schema#",
}

# Membership of a text in a regular term, which decides constants and names


TERMS = st.recursive(
    st.sampled_from(
        [Literal(b"a"), Literal(b"ab"), CharClass([(97, 98)]), ANY_CHAR, Literal("é".encode()), Literal(b"")]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: sequence(*items)),
        st.lists(inner, min_size=1, max_size=3).map(lambda items: choice(*items)),
        st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(lambda t: Repeat(t[0], t[1], t[1] + t[2])),
        inner.map(Repeat),
        st.lists(inner, min_size=1, max_size=2).map(Intersection),
        inner.map(Complement),
    ),
    max_leaves=6,
)


@given(term=TERMS, text=st.text("abé", max_size=4))
def test_membership_agrees_with_the_reference(term: Grammar, text: str) -> None:
    """Pushing sets of positions through a term decides the same as derivatives do."""
    assert belongs(text, term) == accepts(term, text)


# Formats


def test_dates_are_the_days_of_the_calendar() -> None:
    """For years around leap rules, every month and day number 0 to 32 is a date iff the calendar has it."""
    language = format_language("date")
    for year in (1600, 1900, 2000, 2019, 2020, 2100, 2104, 9996):
        for month in range(14):
            days = calendar.monthrange(year, month)[1] if 1 <= month <= 12 else 0
            for day in (0, 1, 9, 10, 27, 28, 29, 30, 31, 32):
                assert belongs(f"{year:04}-{month:02}-{day:02}", language) == (1 <= day <= days)


@given(moment=st.datetimes(), minutes=st.integers(-1439, 1439))
def test_moments_as_python_writes_them(moment: datetime.datetime, minutes: int) -> None:
    """``datetime.isoformat`` with an offset is a date-time, and its parts are date and time."""
    zone = datetime.timezone(datetime.timedelta(minutes=minutes))
    text = moment.replace(tzinfo=zone).isoformat()
    assert belongs(text, format_language("date-time"))
    assert belongs(text[:10], format_language("date"))
    assert belongs(text[11:], format_language("time"))


@given(local=st.integers(0, 1439), offset=st.integers(-1439, 1439))
def test_leap_second_only_at_the_end_of_a_day_in_utc(local: int, offset: int) -> None:
    """Second 60 is possible iff the local time minus the offset is 23:59."""
    sign = "-" if offset < 0 else "+"
    text = f"{local // 60:02}:{local % 60:02}:60{sign}{abs(offset) // 60:02}:{abs(offset) % 60:02}"
    assert belongs(text, format_language("time")) == ((local - offset) % 1440 == 1439)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.nightly)])
def test_leap_second_of_each_local_minute(step: int) -> None:
    """In each minute of the day second 60 is allowed with the two offsets that make it 23:59 in UTC, and ``Z``."""
    right, wrong = set(), set()
    for local in (*range(0, 1439, step), 1439):
        for sign, offset in (("+", (local + 1) % 1440), ("-", (1439 - local) % 1440)):
            for shift in (0, 1, 60):  # these have a minute and an hour too much
                clock = (offset + shift) % 1440
                text = f"{local // 60:02}:{local % 60:02}:60{sign}{clock // 60:02}:{clock % 60:02}"
                (wrong if shift else right).add(text)
        (right if local == 1439 else wrong).add(f"{local // 60:02}:{local % 60:02}:60.5z")
    assert matching_strings(frozenset(right | wrong), format_language("time")) == right


@given(number=st.integers(0, 2**128 - 1))
def test_addresses_as_python_writes_them(number: int) -> None:
    """Compressed and exploded addresses are accepted, and so is every UUID."""
    address = ipaddress.IPv6Address(number)
    assert belongs(address.compressed, format_language("ipv6"))
    assert belongs(address.exploded, format_language("ipv6"))
    assert belongs(str(ipaddress.IPv4Address(number >> 96)), format_language("ipv4"))
    assert belongs(str(uuid.UUID(int=number)), format_language("uuid"))


@pytest.mark.parametrize("name", ["ipv4", "ipv6"])
@given(text=st.text("0123f:.", max_size=12))
def test_addresses_agree_with_the_ipaddress_module(name: str, text: str) -> None:
    """Any text over the characters of addresses is accepted iff ``ipaddress`` reads it."""
    read = ipaddress.IPv4Address if name == "ipv4" else ipaddress.IPv6Address
    try:
        read(text)
    except ValueError:
        is_address = False
    else:
        is_address = True
    assert belongs(text, format_language(name)) == is_address


FORMATS: dict[str, tuple[list[str], list[str]]] = {
    "duration": (["P1Y2M3DT4H5M6S", "P2W", "PT36H", "P1M", "PT0S"], ["P", "PT", "P1Y2D", "P1W1D", "PT1.5S", "P1"]),
    "email": (
        ["a@b", "x.y+z@sub.example.org", '"a b"@c.d', "a@[127.0.0.1]", "a@[IPv6:::1]", "o'neil@x.ie"],
        ["a", "@b", "a@", "a..b@c.d", ".a@b.c", "a@-b.c", "a@b_c.d", "a b@c.d", "é@b.c", "x" * 65 + "@b.c"],
    ),
    "hostname": (
        ["localhost", "a-b.example.org", "1.2.3.4", "x" * 63, ".".join(["a" * 61] * 4) + ".b", "r3---sn.x"],
        ["", ".", "a.", "-a", "a-", "a_b", "x" * 64, ".".join(["a" * 63] * 4), "xn--zca", "a.XN--zca", "é.fr"],
    ),
    "uri": (
        [
            "http://a.b/c?d#e",
            "urn:x:y",
            "mailto:a@b.c",
            "file:///etc",
            "http://[::1]:80/",
            "a:",
            "x:%41",
            "http://u@h/",
        ],
        ["", "a", "//a/b", "http://a b", "http://é.fr", "http://a/%4", "1a:b", "http://[::1", "http://a:x/"],
    ),
    "uri-reference": (["", "a", "//a/b", "../c?d", "#e", "http://x"], ["a b", "\\", "%", ":a", "1a:b"]),
    "iri": (["http://é.fr/日本?q=ü"], ["é", "http://a b"]),
    "json-pointer": (["", "/", "/a/b~0~1", "/é"], ["a", "/~", "/~2"]),
    "relative-json-pointer": (["0", "1/a", "12#"], ["", "/a", "01", "-1", "0##"]),
    "uri-template": (["http://x/{a}{?b,c*}{/d:3}", "{+x}", ""], ["{", "}", "{a", "{}", "{a:0}", "a b"]),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_by_example(name: str) -> None:
    """Examples and counterexamples of each format, from its RFC."""
    good, bad = FORMATS[name]
    assert [text for text in good if not belongs(text, format_language(name))] == []
    assert [text for text in bad if belongs(text, format_language(name))] == []


SUITE = [
    (draft, name)
    for draft, names in {
        "draft2020-12": ASSERTED,
        "draft2019-09": ASSERTED,
        "draft7": ASSERTED.keys() - {"duration", "uuid"},
    }.items()
    for name in sorted(names)
]


@pytest.mark.parametrize(("draft", "name"), SUITE)
def test_formats_of_the_official_suite(draft: str, name: str, shared_data: Path) -> None:
    """Each string of the official suite is accepted iff the suite calls it valid; likewise constants."""
    with tarfile.open(shared_data / "json-schema-test-suite.tar.gz") as suite:
        path = next(m for m in suite.getmembers() if m.name.endswith(f"{draft}/optional/format/{name}.json"))
        stream = suite.extractfile(path)
        assert stream is not None
        tests = [test for group in json.load(stream) for test in group["tests"] if isinstance(test["data"], str)]
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    constraint = compile(json_schema({"$schema": SCHEMAS[draft], "type": "string", "format": name}), vocabulary)
    for test in tests:
        matcher, data = constraint.matcher(), json.dumps(test["data"], ensure_ascii=False).encode()
        is_member = matcher.accept_bytes(data) == len(data) and matcher.is_accepting
        assert is_member == test["valid"], test
        assert format_admits(name, test["data"]) in (test["valid"], None), test
    assert tests


def test_format_with_length_and_pattern() -> None:
    """A format, lengths and a pattern hold together."""
    grammar = json_schema({"type": "string", "format": "date", "pattern": "^20", "maxLength": 10})
    assert accepts(grammar, '"2020-02-29"')
    assert not accepts(grammar, '"1999-01-01"')
    assert not accepts(grammar, '"2021-02-29"')


def test_format_limits_strings_only() -> None:
    """Without a type, a format does not restrict other values."""
    assert accepts(json_schema({"format": "date"}), "12")


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"minLength": -1}, "'minLength' must be a non-negative integer"),
        ({"maxLength": 1.5}, "'maxLength' must be a non-negative integer"),
        ({"minLength": True}, "'minLength' must be a non-negative integer"),
        ({"pattern": 1}, "'pattern' must be a regular expression in a string"),
        ({"format": ["date"]}, "'format' must be a string"),
    ],
)
def test_malformed_string_keywords(schema: dict[str, object], problem: str) -> None:
    """A keyword of the wrong shape is an error that says what was found."""
    with pytest.raises(GrammarError) as caught:
        json_schema(schema)
    assert caught.value.problem == problem


def test_counts_beyond_memory() -> None:
    """A maximal length beyond all texts is no bound; such a minimal length is refused."""
    assert accepts(json_schema({"type": "string", "maxLength": 10**30}), '"a"')
    with pytest.raises(UnsupportedFeature):
        json_schema({"type": "string", "minLength": 10**30})


MATCHED = st.recursive(
    st.one_of(
        st.sampled_from(["a", "b", "^a", "b$", "^[^b]*$", "a.b", "^.a", "aa|bb", "^$"]).map(
            lambda one: {"pattern": one}
        ),
        st.sampled_from([{"type": "string", "pattern": "ab"}, {"maxLength": 2}, {"pattern": "a", "minLength": 2}]),
        st.sampled_from(
            [{"type": ["integer", "null"]}, {"enum": ["ab", 1]}, {"type": ["string", "null"], "pattern": "b"}]
        ),
    ),
    lambda inner: st.one_of(
        inner.map(lambda one: {"not": one}),
        st.builds(
            lambda keyword, some: {keyword: some},
            st.sampled_from(["allOf", "anyOf", "oneOf"]),
            st.lists(inner, min_size=2, max_size=3),
        ),
    ),
    max_leaves=5,
)
VALUES = [
    "",
    "a",
    "b",
    "c",
    "aa",
    "ab",
    "ba",
    "bb",
    "ac",
    "aab",
    "aba",
    "bab",
    "acb",
    "bbb",
    "cab",
    "abab",
    1,
    2,
    None,
    [],
]


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(MATCHED, min_size=2, max_size=3))
@example(parts=[{"type": "integer"}, {"oneOf": [{}, {"enum": ["ab", 1]}, {"allOf": [{"enum": ["ab", 1]}]}]}])
def test_patterns_under_logic(parts: list[dict[str, object]]) -> None:
    """Conjunctions of unions of patterns have the values that another validator accepts."""
    schema = {"allOf": parts}
    expected = [jsonschema.Draft202012Validator(schema).is_valid(value) for value in VALUES]
    try:
        constraint = compile(json_schema(schema), BYTES)
    except UnsatisfiableGrammar:
        assert not any(expected)
        return
    except LimitExceeded:  # of nested oneOf that overlap
        return
    found = []
    for value in VALUES:
        matcher, data = constraint.matcher(), json.dumps(value).encode()
        found.append(matcher.accept_bytes(data) == len(data) and matcher.is_accepting)
    assert found == expected


def test_conjunctions_of_unions_are_not_multiplied_out() -> None:
    """For eight unions of five patterns membership is right, though there are 390,625 combinations."""
    letters = "abcdefghijklmnopqrstuvwxyzabcdefghijklmn"
    unions = [[{"pattern": letter} for letter in letters[start : start + 5]] for start in range(0, 40, 5)]
    matcher = compile(json_schema({"type": "string", "allOf": [{"anyOf": one} for one in unions]}), BYTES).matcher()
    assert matcher.accept_bytes(b'"') == 1
    for text, is_member in (("ae", False), ("im", False), ("q", False), ("v", True)):
        assert matcher.accept_bytes(text.encode()) == len(text)
        fork = matcher.fork()
        assert (fork.accept_bytes(b'"') == 1 and fork.is_accepting) == is_member
