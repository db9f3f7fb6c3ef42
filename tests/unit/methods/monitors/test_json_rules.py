"""Rules of JSON documents, against plain Python on parsed documents."""

from __future__ import annotations

import datetime
import itertools
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from structgen.decode.potentials import Hypothesis, Potential
from structgen.decode.sampling import AWRS, SMC, sample
from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema
from structgen.grammar.nodes import literal
from structgen.methods.monitors import ordered, refers, unique
from structgen.methods.monitors.json_rules.value import digest_of, moment_of, moments_from, number_of, numbers_from
from structgen.models import HashModel
from structgen.testing import check_potential

GRAMMAR = literal("x")
BYTES = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], eos=[256])

Judge = Callable[[Any], bool]


def written(text: str) -> Hypothesis:
    data = text.encode()
    return Hypothesis(GRAMMAR, BYTES, tuple(data), data)


def scores(rule: Potential, text: str) -> list[float]:
    """The scores of every prefix of a text, byte by byte."""
    data = text.encode()
    return [
        rule.prefix(Hypothesis(GRAMMAR, BYTES, tuple(data[:count]), data[:count])) for count in range(len(data) + 1)
    ]


def death(rule: Potential, text: str) -> int | None:
    """How many bytes are read before the document is rejected; -1 if only its end is."""
    found = scores(rule, text)
    assert found == sorted(found, reverse=True)
    if found[-1] == -math.inf:
        return found.index(-math.inf)
    data = text.encode()
    return None if rule.complete(Hypothesis(GRAMMAR, BYTES, tuple(data), data)) == 0 else -1


def split(text: str, rng: random.Random) -> Hypothesis:
    """The text as tokens of several bytes."""
    data, pieces = text.encode(), []
    while data:
        count = rng.randint(1, 6)
        pieces.append(data[:count])
        data = data[count:]
    vocabulary = Vocabulary([*pieces, b"</s>"], eos=[len(pieces)])
    hypothesis = Hypothesis(GRAMMAR, vocabulary)
    for token in range(len(pieces)):
        hypothesis = hypothesis.extended(token)
    return hypothesis


# values at some paths, by plain Python


def at(value: Any, path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The values at a path, each with its place, in the order of the text."""
    found: list[tuple[tuple[str, ...], Any]] = [((), value)]
    for step in path.split("/")[1:]:
        inner = []
        for place, each in found:
            items = each.items() if isinstance(each, dict) else enumerate(each) if isinstance(each, list) else ()
            inner += [((*place, str(key)), item) for key, item in items if step in ("*", str(key))]
        found = inner
    yield from found


def in_order(document: Any, left: str, strict: bool, right: str, shared: int) -> bool:
    for (place, small), (other, large) in itertools.product(at(document, left), at(document, right)):
        if place[:shared] != other[:shared] or small is None or large is None:
            continue
        try:
            one, two = comparable(small), comparable(large)
            if not (one < two or (not strict and one == two)):
                return False
        except (TypeError, ValueError):
            return False
    return True


def comparable(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("it is neither a number nor a text")
    if not isinstance(value, str):
        return Fraction(str(value))
    for parse in (datetime.date, datetime.time, datetime.datetime):
        if parse is datetime.datetime or len(value) == 10 or parse is datetime.time:
            try:
                found = parse.fromisoformat(value)
            except ValueError:
                continue
            return found
    raise ValueError("no date")


ORDER_VALUES = [
    "1",
    "12",
    "-3",
    "0.5",
    "1e2",
    "null",
    "true",
    '"x"',
    "[1]",
    '"2024-02-03"',
    '"2024-02-29"',
    '"2023-12-31"',
]
ORDER_VALUES += ['"10:00"', '"10:00:30"', '"2024-02-03T10:00:00Z"', '"2024-02-03T10:30:00+01:00"', '"2024-02-03T10:00"']


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "operator", ["<", *(pytest.param(each, marks=pytest.mark.nightly) for each in ("<=", ">", ">="))]
)
def test_values_in_order_are_let_through_and_no_others(operator: str) -> None:
    """All pairs of values are tested, in both orders of writing; rejection comes by the end of the second value."""
    kept = broken = 0
    rng = random.Random(5)
    for one, two in itertools.product(ORDER_VALUES, repeat=2):
        for first, second in (("a", "b"), ("b", "a")):
            head = f'{{"{first}": {one}, "z": [0], "{second}": '
            text = head + two + "}"
            document = json.loads(text)
            left, right = ("/a", "/b") if operator[0] == "<" else ("/b", "/a")
            right_order = in_order(document, left, len(operator) == 1, right, 0)
            rule = ordered("/a", operator, "/b")  # type: ignore[arg-type]
            where = death(rule, text)
            assert (where is None) == right_order, text
            assert (rule.complete(split(text, rng)) == 0) == right_order
            if where is not None:
                assert len(head) < where <= len(head + two) + 1
                assert where <= len(head + two) or two[-1] in "0123456789"
            kept, broken = kept + right_order, broken + (not right_order)
    assert min(kept, broken) > 90


NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def numbers_by_prefix(most: int) -> dict[str, list[tuple[str, Fraction]]]:
    """All numbers over a few characters, by their prefixes."""
    found: dict[str, list[tuple[str, Fraction]]] = {}
    for count in range(1, most + 1):
        for each in itertools.product("09.e-", repeat=count):
            text = "".join(each)
            if NUMBER.fullmatch(text):
                value = Fraction(text)
                for end in range(1, min(len(text), 3) + 1):
                    found.setdefault(text[:end], []).append((text, value))
    return found


def test_numbers_are_blocked_as_soon_as_digits_tell() -> None:
    """The hull of possible values agrees with all numbers of up to seven characters with that prefix."""
    numbers = numbers_by_prefix(7)
    edges = [Fraction(text) for text in ("0", "9", "-9", "90", "0.5", "900", "-90", "9.5", "-0.1")]
    assert len(numbers) > 30
    for text, spelled in numbers.items():
        for exponents in (True, False):
            reached = {v for t, v in spelled if exponents or "e" not in t}
            span = numbers_from(text.encode(), exponents=exponents)
            if not exponents and "e" in text:
                continue
            for edge in edges:
                key = number_of(str(float(edge)).encode())
                assert key is not None
                above = span.high is None or span.high > key
                below = span.low is None or span.low < key
                assert above == (max(reached) > edge), (text, edge, exponents)
                assert below == (min(reached) < edge), (text, edge, exponents)
                if key in (span.low, span.high):
                    touches = span.includes_low if key == span.low else span.includes_high
                    assert touches == (edge in reached), (text, edge, exponents)


@given(st.from_regex(NUMBER, fullmatch=True), st.from_regex(NUMBER, fullmatch=True))
def test_numbers_are_compared_exactly(one: str, two: str) -> None:
    if max(len(one), len(two)) > 12 or re.search(r"[eE][+-]?[0-9]{3}", one + " " + two):
        return
    left, right = number_of(one.encode()), number_of(two.encode())
    assert left is not None
    assert right is not None
    assert (left < right) == (Fraction(one) < Fraction(two))
    assert (left == right) == (Fraction(one) == Fraction(two))
    assert numbers_from(one.encode(), exponents=True).holds(left)


def test_exponents_of_any_size_neither_hang_nor_pass() -> None:
    rule = ordered("/a", "<", "/b")
    assert death(rule, '{"a": 1e999999999999999999, "b": 1e-5}') is not None
    assert death(rule, '{"a": 1e-999999999999999999, "b": 1e999999999999999999}') is None
    assert death(rule, '{"a": 1e' + "9" * 5000 + ', "b": 2}') is not None
    assert death(ordered("/a", "<", "/b", exponents=False), '{"a": 1e2, "b": 2000}') == len('{"a": 1e')
    assert death(ordered("/a", "<", "/b", exponents=False), '{"a": 50, "b": 49}') == len('{"a": 50, "b": 49}')
    assert death(ordered("/a", ">", "/b", exponents=False), '{"a": 50, "b": 61}') == len('{"a": 50, "b": 61')


def test_dates_are_blocked_as_soon_as_digits_tell() -> None:
    """Prefixes of dates agree with all dates of some years."""
    days = [datetime.date(2023, 12, 1) + datetime.timedelta(count) for count in range(500)]
    texts = [day.isoformat() for day in days]
    bound = datetime.date(2024, 2, 29)
    wrong = 0
    for text in ["2024-02-30", "2024-13", "2023-02-29", "2024-00", *random.Random(1).sample(texts, 24)]:
        for count in range(4, 11):
            begun = text[:count]
            fitting = [day for day, spelled in zip(days, texts, strict=True) if spelled.startswith(begun)]
            for name, is_right in (("<", [d for d in fitting if d < bound]), (">", [d for d in fitting if d > bound])):
                rule = ordered("/a", name, "/b")  # type: ignore[arg-type]
                document = f'{{"b": "{bound}", "a": "{begun}'
                if begun[:4] == "2024":
                    assert (rule.prefix(written(document)) == 0) == bool(is_right), (document, name)
                    wrong += not is_right
    assert wrong > 30


@given(st.datetimes(timezones=st.none() | st.just(datetime.UTC)), st.data())
def test_prefixes_of_moments_hold_the_moment(moment: datetime.datetime, data: st.DataObject) -> None:
    text = moment.isoformat()
    found = moment_of(text)
    assert found is not None
    begun = text[: data.draw(st.integers(0, len(text)))]
    span = moments_from(begun, found.kind)
    assert span is not None
    assert span[0] <= found.seconds <= span[1]


@given(st.datetimes(timezones=st.timezones()), st.datetimes(timezones=st.timezones()))
def test_moments_are_compared_as_instants(one: datetime.datetime, two: datetime.datetime) -> None:
    left, right = moment_of(one.isoformat()), moment_of(two.isoformat())
    if left is None or right is None:  # offsets with seconds, which the format does not have
        assert any(each.utcoffset().seconds % 60 for each in (one, two))  # type: ignore[union-attr]
        return
    assert (left < right) == (one.astimezone(datetime.UTC) < two.astimezone(datetime.UTC))


def test_wildcards_that_are_shared_stand_for_the_same() -> None:
    spans = '{"spans": [{"from": 3, "to": 5}, {"from": 1, "to": 2}]}'
    assert death(ordered("/spans/*/from", "<", "/spans/*/to"), spans) is None
    assert death(ordered("/spans/*/from", "<", "/spans/*/to", within=""), spans) is not None
    assert death(ordered("/low", "<", "/items/*/n"), '{"low": 2, "items": [{"n": 3}, {"n": 2}]}') is not None


# references

NAMES = ["ab", "abc", "é", 'a"b', "b\\", "😀x", "", "\x07"]


def test_references_are_let_through_if_their_target_stands_earlier() -> None:
    """All strings, in several spellings, agree with parsed documents; dead prefixes are blocked at once."""
    kept = broken = 0
    rng = random.Random(3)
    rule = refers("/edges/*/from", "/nodes/*/id")
    for targets in (["ab", "é"], ["abc", 'a"b'], ["😀x", "b\\"], ["", "\x07"], []):
        for name in NAMES:
            for spelled in {json.dumps(name), json.dumps(name, ensure_ascii=False), _escaped(name)}:
                nodes = ", ".join(json.dumps({"id": target}, ensure_ascii=False) for target in targets)
                head = f'{{"nodes": [{nodes}], "edges": [{{"from": '
                text = head + spelled + "}]}"
                ok = name in targets
                where = death(rule, text)
                assert (where is None) == ok, text
                assert (rule.complete(split(text, rng)) == 0) == ok
                kept, broken = kept + ok, broken + (not ok)
                if where is not None:
                    self_check = [end for end in range(1, len(spelled) + 1) if not _leads_to(spelled[:end], targets)]
                    assert where == len(head.encode()) + len(spelled[: self_check[0]].encode()) or not spelled.isascii()
                    assert where <= len((head + spelled).encode())
    assert min(kept, broken) > 10


def _escaped(text: str) -> str:
    codes = text.encode("utf-16-be")
    return '"' + "".join(f"\\u{codes[i]:02x}{codes[i + 1]:02X}" for i in range(0, len(codes), 2)) + '"'


def _leads_to(begun: str, targets: list[str]) -> bool:
    """Whether some spelling of a target has the prefix, by enumeration of all spellings."""
    return any(begun in _prefixes(target) for target in targets)


_PREFIXES: dict[str, set[str]] = {}


def _prefixes(target: str) -> set[str]:
    if target not in _PREFIXES:
        codes = target.encode("utf-16-be")
        spellings = ['"']
        found = {'"'}
        position = 0
        while position < len(codes):
            unit = codes[position : position + 2]
            wide = 0xD8 <= unit[0] <= 0xDB
            ways = [(2, f"\\u{way}") for way in _cases(unit.hex())]
            raw = codes[position : position + (4 if wide else 2)].decode("utf-16-be")
            if wide:
                low = codes[position + 2 : position + 4].hex()
                ways = [(4, one[1] + f"\\u{two}") for one in ways for two in _cases(low)]
            else:
                shorts = [short for short in '"\\/bfnrt' if json.loads(f'"\\{short}"') == raw]
                ways += [(2, f"\\{short}") for short in shorts]
            if ord(raw) >= 0x20 and raw not in '"\\':
                ways.append((len(raw.encode("utf-16-be")), raw))
            for _, way in ways:
                found |= {spelling + way[:end] for spelling in spellings for end in range(1, len(way) + 1)}
            spellings = [spelling + way for spelling in spellings for _, way in ways]
            position += 4 if wide else 2
        _PREFIXES[target] = found | {spelling + '"' for spelling in spellings}
    return _PREFIXES[target]


def _cases(digits: str) -> list[str]:
    return sorted({digits.lower(), digits.upper()})


def test_numbers_and_truth_values_may_be_targets() -> None:
    rule = refers("/of", "/ids/*")
    for text, ok in [
        ('{"ids": [1, 20], "of": 1.0}', True),
        ('{"ids": [1, 20], "of": 2e1}', True),
        ('{"ids": [1, 20], "of": 2}', False),
        ('{"ids": [1, "1"], "of": "1"}', True),
        ('{"ids": [1], "of": "1"}', False),
        ('{"ids": [true], "of": true}', True),
        ('{"ids": [1], "of": true}', False),
        ('{"ids": [0], "of": -0.0}', True),
        ('{"ids": [1], "of": null}', True),
        ('{"ids": [[1]], "of": [1]}', False),
        ('{"of": 1, "ids": [1]}', False),
    ]:
        assert (death(rule, text) is None) == ok, text
    assert death(rule, '{"ids": [12, -7], "of": 13}') == len('{"ids": [12, -7], "of": 13')
    assert death(rule, '{"ids": [12, -7], "of": -8}') == len('{"ids": [12, -7], "of": -8')
    assert death(rule, '{"ids": ["x"], "of": 1}') == len('{"ids": ["x"], "of": 1')
    assert death(rule, '{"of": "') == len('{"of": "')


def test_references_may_be_kept_within_a_part() -> None:
    text = '{"graphs": [{"ids": ["a"], "of": ["a"]}, {"ids": ["b"], "of": ["a"]}]}'
    assert death(refers("/graphs/*/of/*", "/graphs/*/ids/*"), text) is None
    assert death(refers("/graphs/*/of/*", "/graphs/*/ids/*", within="/graphs/*"), text) == text.rindex('"a"') + 2
    with pytest.raises(ValueError, match="prefix of every path"):
        refers("/a/x", "/b/y", within="/a")


# values that are all different

UNIQUE_VALUES = ['"a"', '"\\u0061"', '"ab"', "1", "1.0", "10e-1", "2", "null", "true", "[]", "[1, 2]", "[1.0,2]"]
UNIQUE_VALUES += ['{"a": 1, "b": [2]}', '{"b": [2.0], "a": 1}', '{"a": [1], "b": 2}', "[[1], 2]", "[[1, 2]]", "-0", "0"]


def test_values_are_all_different() -> None:
    rng = random.Random(2)
    kept = broken = 0
    rule = unique("/items/*/id")
    for one, two in itertools.product(UNIQUE_VALUES, repeat=2):
        head = f'{{"items": [{{"id": {one}, "x": 1}}, {{"x": 1, "id": '
        text = head + two + "}]}"
        first, second = (json.dumps(_plain(json.loads(each)), sort_keys=True) for each in (one, two))
        where = death(rule, text)
        assert (where is None) == (first != second), text
        assert (rule.complete(split(text, rng)) == 0) == (first != second)
        assert (digest_of(one.encode()) == digest_of(two.encode())) == (first == second)
        assert where is None or where <= len(head + two) + two[-1].isdigit()
        kept, broken = kept + (first != second), broken + (first == second)
    assert min(kept, broken) > 20
    by_order = '{"o": [{"n": [1, 2]}, {"n": [1]}]}'
    assert death(unique("/o/*/n/*"), by_order) is not None
    assert death(unique("/o/*/n/*", within="/o/*"), by_order) is None


def _plain(value: Any) -> Any:
    """Numbers as floats, booleans as texts that no other value here equals."""
    if isinstance(value, bool):
        return f"<{value}>"
    if isinstance(value, (int, float)):
        return float(value) + 0.0
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


# documents


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
)
NAMED = st.sampled_from(["a", "b", "*", "c/d"])
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMED, inner, max_size=3), max_leaves=6
)


@given(DOCUMENTS, st.data())
def test_documents_are_read_as_json_loads_reads_them(value: Any, data: st.DataObject) -> None:
    """A rule on a missing path lets every document through, and nothing else."""
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    rule = unique("/not/there")
    assert death(rule, text) is None
    place = data.draw(st.integers(0, len(text)))
    changed = text[:place] + data.draw(st.sampled_from('"]}{[,:0-e.t\\ ')) + text[place:]
    try:
        json.loads(changed)
        is_json = True
    except ValueError:
        is_json = False
    assert (death(rule, changed) is None) == is_json, changed


def test_deep_documents_do_not_recurse() -> None:
    deep = "[" * 50_000 + "]" * 50_000
    data = deep.encode()
    assert unique("/*").complete(Hypothesis(GRAMMAR, BYTES, tuple(data), data)) == 0
    assert unique("/x/*").complete(Hypothesis(GRAMMAR, BYTES, tuple(data), data)) == 0


def test_paths_are_json_pointers() -> None:
    assert death(unique("/a~1b/m~0n/*"), '{"a/b": {"m~n": [1, 1]}}') is not None
    assert death(unique("/1"), "[0, 1, 2]") is None
    for wrong in ("items", "/a~2b", "/~"):
        with pytest.raises(ValueError, match=r"JSON Pointer|followed by 0 or 1"):
            unique(wrong)
    with pytest.raises(ValueError, match="operator must be one of"):
        ordered("/a", "==", "/b")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name two paths"):
        ordered("/a", "<", "/a")


# rows and samplers

GRAPH = {
    "type": "object",
    "properties": {
        "nodes": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {"id": {"type": "string", "pattern": "^[a-cé]{1,2}$"}},
                "required": ["id"],
                "additionalProperties": False,
            },
        },
        "edges": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {
                "type": "object",
                "properties": {"from": {"type": "string", "maxLength": 4}, "to": {"type": "string", "maxLength": 4}},
                "required": ["from", "to"],
                "additionalProperties": False,
            },
        },
        "start": {"type": "integer", "minimum": 0, "maximum": 99},
        "end": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["nodes", "edges", "start", "end"],
    "additionalProperties": False,
}


def graph_is_right(document: Any) -> bool:
    ids = [node["id"] for node in document["nodes"]]
    ends = [edge[side] for edge in document["edges"] for side in ("from", "to")]
    return len(set(ids)) == len(ids) and set(ends) <= set(ids) and document["start"] < document["end"]


def rules() -> list[Potential]:
    return [
        unique("/nodes/*/id"),
        refers("/edges/*/from", "/nodes/*/id"),
        refers("/edges/*/to", "/nodes/*/id"),
        ordered("/start", "<", "/end"),
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", [SMC(4), SMC(4, proposal=AWRS(mask_after=None))])
def test_sampled_documents_keep_the_rules(
    sampler: SMC, json_vocabulary: Vocabulary, record_property: Callable[[str, object], None]
) -> None:
    counts = {}
    grammar = json_schema(GRAPH)
    for name, potentials in (("free", []), ("ruled", rules())):
        right = total = 0
        for seed in range(4):
            model = HashModel(json_vocabulary, seed=seed)
            found = sample(model, "graph", grammar, sampler=sampler, potentials=potentials, max_tokens=200, seed=seed)
            for each in found.samples:
                total += 1
                right += graph_is_right(json.loads(each.result.text))
        counts[name] = right, total
        record_property(name, f"{right} of {total} documents keep the rules")
    assert counts["ruled"][0] == counts["ruled"][1] >= 2, counts
    assert counts["free"][0] == 0 < counts["free"][1], counts


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.name)
def test_the_laws_of_potentials_hold(rule: Potential, json_vocabulary: Vocabulary) -> None:
    check_potential(rule, compile(json_schema(GRAPH), json_vocabulary), random.Random(7), walks=8, length=80)


def test_rows_leave_out_only_what_is_forbidden(json_vocabulary: Vocabulary) -> None:
    """A row excludes only forbidden tokens, special ones too, and most of the forbidden ones."""
    head = '{"nodes": [{"id": "ab"}, {"id": "aé"}, {"id": "a\\"name"}], "edges": [{"from": "'
    out = kept_forbidden = 0
    for rule, starts in (
        (refers("/edges/*/from", "/nodes/*/id"), ["", "a", "aé", 'a\\"', "\\u0061", "ab"]),
        (unique("/nodes/*/id"), []),
    ):
        for start in [head + each for each in starts] or [
            head[: head.index('"aé"') + 1] + each for each in ("", "a", "ab")
        ]:
            tokens = tuple(json_vocabulary.tokenize(start))
            hypothesis = Hypothesis(GRAMMAR, json_vocabulary, tokens)
            row = rule.allowed(hypothesis)
            assert row is not None, start
            bits = np.unpackbits(row.view(np.uint8), bitorder="little", count=json_vocabulary.size).astype(bool)
            for token in range(json_vocabulary.size):
                if token in json_vocabulary.eos:
                    continue
                fine = rule.prefix(hypothesis.extended(token)) == 0
                assert bits[token] or not fine, (start, json_vocabulary.tokens[token])
                out += not bits[token]
                kept_forbidden += bool(bits[token] and not fine)
    assert out > 1000
    assert kept_forbidden < out / 5
    assert (
        refers("/a", "/b").allowed(Hypothesis(GRAMMAR, json_vocabulary, tuple(json_vocabulary.tokenize('{"a": "\\u0'))))
        is None
    )
