"""Monitors against a definition on finished texts, by enumeration of all token sequences."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

import numpy as np
import pytest
from docs_run import run_page

import structgen
from structgen.decode.potentials import Hypothesis, Potential
from structgen.decode.sampling import AWRS, SMC, sample
from structgen.engine import Vocabulary, compile as compile_grammar
from structgen.errors import GenerationError, GrammarError
from structgen.frontends.regex import regex
from structgen.grammar.nodes import literal
from structgen.methods.monitors import monitor
from structgen.models import HashModel
from structgen.testing import check_potential

GRAMMAR = literal("x")  # potentials of bytes do not use it

Provider = Callable[[str], Iterable[str] | None]


def is_right(text: str, trigger: str, provider: Provider, identifier: str = r"\w*") -> bool:
    """The definition: every identifier after a trigger is, in order, one of those that the provider names."""
    at = 0
    while at <= len(text):
        options = provider(text[:at]) if re.search(f"(?:{trigger})\\Z", text[:at]) else None
        if options is not None:
            written = re.match(identifier, text[at:])
            assert written is not None
            if written[0] not in set(options):
                return False
            at += len(written[0])
        at += 1
    return True


def hypotheses(vocabulary: Vocabulary, most: int) -> Iterator[Hypothesis]:
    ids = [token for token, piece in enumerate(vocabulary.tokens) if piece]
    for count in range(most + 1):
        for tokens in itertools.product(ids, repeat=count):
            yield Hypothesis(GRAMMAR, vocabulary, tokens)


def has_bit(row: np.ndarray, token: int) -> bool:
    return bool(row[token >> 5] >> (token & 31) & 1)


def check_rows(potential: Potential, found: Iterable[Hypothesis]) -> tuple[int, int]:
    """Check that rows have all allowed tokens; return the number of rows and of forbidden bits in them."""
    rows = loose = 0
    for hypothesis in found:
        if potential.prefix(hypothesis) == -math.inf:
            continue
        row = potential.allowed(hypothesis)
        if row is None:
            continue
        rows += 1
        vocabulary = hypothesis.vocabulary
        for token in range(vocabulary.size):
            if token in vocabulary.eos:
                score = potential.complete(hypothesis)
            else:
                score = potential.prefix(hypothesis.extended(token))
            assert has_bit(row, token) or score == -math.inf, (hypothesis, vocabulary.tokens[token])
            loose += has_bit(row, token) and score == -math.inf
        assert len(row) == (vocabulary.size + 31) // 32
        assert not any(has_bit(row, token) for token in range(vocabulary.size, 32 * len(row)))
    return rows, loose


def members(text: str) -> list[str] | None:
    """The identifiers after a dot: one set after ``a``, another after ``é``, none after ``b``, no opinion elsewhere."""
    receiver = text[:-1][-1:]
    return {"a": ["a", "ab", "éa"], "é": ["b", "é"], "b": [], "(": ["", "b"]}.get(receiver)


E_ACUTE = "é".encode()
PIECES = [
    b"",
    b"a",
    b"b",
    b".",
    b"(",
    E_ACUTE,
    E_ACUTE[:1],
    E_ACUTE[1:],
    b"a.",
    b".ab(",
    b"b).",
    b".a.a",
    b"a",
    b"\xe2",
]
ARROW = [
    b"",
    b"a",
    b".",
    "→".encode()[:1],
    "→".encode()[1:],
    "é".encode()[:1],
    b"\xa9",
    b"\xe5",
    b"a\xe5",
    b"\x86",
    b"b",
]
QUOTED = ['"a.a"', '""', "a", '"a""a"']
CASES: list[tuple[list[bytes], str, Provider, list[str], str, str]] = [
    (PIECES, r"\.", members, ["a", "ab", "éa", "b", "é"], r"\w+", r"\w*"),
    (PIECES, r"(a|b|é)\.", members, ["a", "ab", "éa", "b", "é"], r"\w+", r"\w*"),
    (ARROW, r"\.", lambda text: ["a", "aa"], ["a", "aa"], r"\w+", r"\w*"),
    (ARROW, r"a\.|^", lambda text: ["a", "", "éa"], ["a", "éa"], r"\w+", r"\w*"),
    # the trigger is a word that may itself stand where another trigger wants one
    (
        [b"", b"a", b"b", b" ", b"ab ", b" a", b"b a"],
        r"(?:^|\W)ab ?",
        lambda text: ["ab", "b", "a"],
        ["ab", "b", "a"],
        r"\w+",
        r"\w*",
    ),
    # an identifier in quotes that holds the trigger
    (
        [b"", b'"', b"a", b".", b'."', b'a"', b'""', b'".'],
        r"\.",
        lambda text: QUOTED,
        QUOTED,
        r'"(?:[^"]|"")*"|\w+',
        r'(?:"(?:[^"]|"")*(?:"|\Z)|\w*|)',
    ),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("pieces", "trigger", "provider", "options", "identifier", "run"), CASES)
def test_exactly_what_can_be_finished_is_allowed(
    pieces: list[bytes], trigger: str, provider: Provider, options: list[str], identifier: str, run: str
) -> None:
    """By enumeration, prefix is 0 iff some token sequence with that prefix is right."""
    vocabulary = Vocabulary(pieces, eos=[0])
    long, short = (3, 2) if len(pieces) > 8 else (4, 3)
    starts = list(hypotheses(vocabulary, long))
    texts = {hypothesis.data for hypothesis in starts}
    # Any text that can be finished can be finished with the rest of an option, after the rest of a character.
    ends = sorted({option[at:].encode() for option in options for at in range(len(option) + 1)})
    found = monitor(trigger, provider, identifier=identifier)
    seen = {"allowed": 0, "forbidden": 0, "complete": 0}

    def right(data: bytes) -> bool:
        try:
            return is_right(data.decode(), trigger, provider, run)
        except UnicodeDecodeError:
            return False

    judged = {}
    for data in texts:
        finishes = finishes_of(half_character(data))
        judged[data] = any(right(data + finish) for finish in finishes) or (
            any(right(data + finish + end) for finish in finishes for end in ends)
        )
    for hypothesis in starts:
        data = hypothesis.data
        if not finishes_of(half_character(data)):
            assert not _is_text(data)
            continue
        wanted = judged[data]
        assert (found.prefix(hypothesis) == 0) == wanted, data
        seen["allowed" if wanted else "forbidden"] += 1
        if _is_text(data):
            assert (found.complete(hypothesis) == 0) == right(data), data
            seen["complete"] += right(data)
    assert min(seen.values()) > 20, seen
    rows, loose = check_rows(monitor(trigger, provider, identifier=identifier), hypotheses(vocabulary, short))
    assert rows
    assert loose < rows * vocabulary.size / 2


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def half_character(data: bytes) -> bytes:
    """The bytes after the last complete character, if the text is valid up to there."""
    for count in range(4):
        if count <= len(data) and _is_text(data[: len(data) - count]):
            return data[len(data) - count :]
    return b"\xff"


@lru_cache
def finishes_of(half: bytes) -> list[bytes]:
    """Bytes that complete the character: some for each kind that the patterns here distinguish."""
    if not half:
        return [b""]
    if half[0] < 0xC0 or any(not 0x80 <= byte < 0xC0 for byte in half[1:]):
        return []
    found = [character for character in characters() if character.encode().startswith(half)]
    kinds = [
        [character for character in found if character in "é→"],
        [character for character in found if re.match(r"\w", character)][:2],
        [character for character in found if re.match(r"\W", character)][:2],
    ]
    return [character.encode()[len(half) :] for kind in kinds for character in kind]


@lru_cache
def characters() -> str:
    return "".join(chr(point) for point in range(0x80, 0x110000) if not 0xD800 <= point <= 0xDFFF)


def test_the_answer_does_not_depend_on_how_the_bytes_are_split() -> None:
    text = "a.ab(é.b). a.éa→a.a"
    data = text.encode()
    vocabulary = Vocabulary([b"", *(data[i:j] for i in range(len(data)) for j in range(i + 1, len(data) + 1))], eos=[0])
    whole = monitor(r"\.", members)
    token = vocabulary.tokens.index(data)
    assert whole.complete(Hypothesis(GRAMMAR, vocabulary, (token,))) == 0
    for cut in range(1, len(data)):
        tokens = tuple(vocabulary.tokens.index(part) for part in (data[:cut], data[cut:]))
        fresh = monitor(r"\.", members)
        assert fresh.prefix(Hypothesis(GRAMMAR, vocabulary, tokens[:1])) == 0
        assert fresh.complete(Hypothesis(GRAMMAR, vocabulary, tokens)) == 0
        wrong = data[:cut] + b"q" + data[cut:]
        each_byte = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
        spelled = tuple(byte + 1 for byte in wrong)
        scores = [fresh.prefix(Hypothesis(GRAMMAR, each_byte, spelled[:n])) for n in range(len(spelled) + 1)]
        assert scores == sorted(scores, reverse=True)  # once forbidden, always forbidden
        if _is_text(wrong):
            expected = is_right(wrong.decode(), r"\.", members)
            assert (fresh.complete(Hypothesis(GRAMMAR, each_byte, spelled)) == 0) == expected


def test_a_function_may_be_the_trigger() -> None:
    """It is asked outside of identifiers alone, and works like a regex."""
    asked: list[str] = []

    def ends_with_dot(text: str) -> bool:
        asked.append(text)
        return text.endswith(".")

    vocabulary = Vocabulary(PIECES, eos=[0])
    by_function, by_regex = monitor(ends_with_dot, members), monitor(r"\.", members)
    for hypothesis in hypotheses(vocabulary, 3):
        assert by_function.prefix(hypothesis) == by_regex.prefix(hypothesis)
        assert by_function.complete(hypothesis) == by_regex.complete(hypothesis)
    assert "a.a" not in asked
    assert "a." in asked


def test_providers_are_asked_once_and_rows_are_kept() -> None:
    asked: list[str] = []

    def provider(text: str) -> list[str]:
        asked.append(text)
        return ["alpha", "beta"]

    vocabulary = Vocabulary([b"", b".", b"al", b"pha", b"be", b"x"], eos=[0])
    found = monitor(r"\.", provider)
    first = found.allowed(Hypothesis(GRAMMAR, vocabulary, (1,)))
    for tokens in ((1,), (1, 2), (1, 2, 3), (1, 4)):
        found.prefix(Hypothesis(GRAMMAR, vocabulary, tokens))
    assert asked == ["."]
    # another place with the same options shares the row
    assert found.allowed(Hypothesis(GRAMMAR, vocabulary, (5, 1))) is first
    assert asked == [".", "x."]


def test_work_a_token_does_not_grow_with_the_text() -> None:
    """States of one text's prefixes are computed once, each byte once."""
    vocabulary = Vocabulary([b"", b"a", b".", b"ab "], eos=[0])
    found = monitor(r"zz\.", lambda text: [])
    read: list[int] = []
    inner = found._read
    found._read = lambda state, data, start: (read.append(len(data) - start), inner(state, data, start))[1]  # type: ignore[method-assign]
    hypothesis = Hypothesis(GRAMMAR, vocabulary)
    for step in range(2000):
        hypothesis = hypothesis.extended(1 + step % 3)
        assert found.prefix(hypothesis) == 0
    assert max(read) <= 3
    assert sum(read) == len(hypothesis.data)


# what providers may answer


def test_an_empty_answer_blocks_the_trigger_and_none_has_no_opinion() -> None:
    vocabulary = Vocabulary([b"", b"a", b".", b"x"], eos=[0])
    nothing, anything = monitor(r"\.", lambda text: []), monitor(r"\.", lambda text: None)
    dotted = Hypothesis(GRAMMAR, vocabulary, (1, 2))
    assert nothing.prefix(dotted) == nothing.complete(dotted) == -math.inf
    assert nothing.prefix(Hypothesis(GRAMMAR, vocabulary, (1, 3))) == 0
    assert anything.prefix(dotted) == anything.complete(dotted) == 0
    assert anything.allowed(dotted) is None
    with pytest.raises(GenerationError, match="forbid every output"):
        sample(HashModel(vocabulary), "a", regex("a*"), potentials=[monitor("^", lambda text: [])], max_tokens=3)


def test_errors_name_the_monitor_and_the_text() -> None:
    def broken(text: str) -> list[str]:
        raise KeyError(text)

    vocabulary = Vocabulary([b"", b"a", b"."], eos=[0])
    with pytest.raises(GenerationError, match=r"monitor broken: its provider raised KeyError.*'a\.'"):
        monitor(r"\.", broken).prefix(Hypothesis(GRAMMAR, vocabulary, (1, 2)))
    with pytest.raises(
        GenerationError, match=r"of mine: its provider returned 'a b', which does not match.*'a\.'.*widen"
    ):
        monitor(r"\.", lambda text: ["a b"], name="of mine").prefix(Hypothesis(GRAMMAR, vocabulary, (1, 2)))
    with pytest.raises(GenerationError, match=r"returned one string, not a list; 'ab' for 'a\.'"):
        monitor(r"\.", lambda text: "ab").prefix(Hypothesis(GRAMMAR, vocabulary, (1, 2)))
    with pytest.raises(GenerationError, match=r"provider returned 1, which is of type int; .*return a list of strings"):
        monitor(r"\.", lambda text: ["a", 1]).prefix(  # type: ignore[list-item]
            Hypothesis(GRAMMAR, vocabulary, (1, 2))
        )
    with pytest.raises(GenerationError, match=r"its provider returned 1, not a list; .*return a list of strings"):
        monitor(r"\.", lambda text: 1).prefix(  # type: ignore[arg-type, return-value]
            Hypothesis(GRAMMAR, vocabulary, (1, 2))
        )
    with pytest.raises(GenerationError, match="its provider raised ZeroDivisionError"):
        monitor(r"\.", lambda text: (str(1 / n) for n in (1, 0))).prefix(Hypothesis(GRAMMAR, vocabulary, (1, 2)))
    with pytest.raises(GenerationError, match=r"its provider returned '\\ud800', which has a lone surrogate"):
        monitor(r"\.", lambda text: ["\ud800"]).prefix(Hypothesis(GRAMMAR, vocabulary, (1, 2)))
    with pytest.raises(GenerationError, match="its trigger raised ZeroDivisionError"):
        monitor(lambda text: 1 / 0 > 1, lambda text: []).prefix(Hypothesis(GRAMMAR, vocabulary, (1,)))
    with pytest.raises(GrammarError):
        monitor("(", lambda text: [])


# with samplers


CATALOGUE = {"user": ["name", "email", "address"], "address": ["street", "city", "name"], "order": ["id", "user"]}


def attributes(text: str) -> list[str] | None:
    return CATALOGUE.get(re.findall(r"\w+", text)[-1], [])


PATHS = regex(r"(user|order)(\.[a-z]{1,8}){1,3}( = (user|order)\.[a-z]{1,8})?")


def exist(text: str) -> tuple[int, int]:
    """Dereferenced identifiers, and how many of them exist in the catalogue."""
    words = [re.findall(r"\w+", part) for part in text.split(" = ")]
    pairs = [pair for part in words for pair in itertools.pairwise(part)]
    return len(pairs), sum(member in CATALOGUE.get(owner, ()) for owner, member in pairs)


def code_vocabulary() -> Vocabulary:
    """Bytes, and tokens that span the boundaries."""
    words = sorted({*CATALOGUE, *itertools.chain(*CATALOGUE.values())})
    joints = [f".{word[:2]}" for word in words] + [f"{word}." for word in words] + [word[2:] + " = " for word in words]
    pieces = [*words, *joints, ".user.", " = ", "user.address.ci", "order.user.na", "me = order.id"]
    return Vocabulary(
        [b"", *(bytes([byte]) for byte in range(256)), *dict.fromkeys(p.encode() for p in pieces)], eos=[0]
    )


@pytest.mark.parametrize("sampler", [SMC(4), SMC(4, proposal=AWRS(mask_after=None))])
def test_every_attribute_that_is_written_exists(sampler: SMC, record_property: Callable[[str, object], None]) -> None:
    vocabulary = code_vocabulary()
    counts = {}
    for name, potentials in (("free", []), ("monitored", [monitor(r"\.", attributes)])):
        total = right = 0
        for seed in range(12):
            model = HashModel(vocabulary, seed=seed)
            found = sample(model, "write", PATHS, sampler=sampler, potentials=potentials, max_tokens=20, seed=seed)
            assert found.samples or name == "monitored"
            for each in found.samples:
                assert re.fullmatch(r"(user|order)(\.[a-z]{1,8}){1,3}( = .*)?", each.result.text)
                pairs, known = exist(each.result.text)
                total, right = total + pairs, right + known
        counts[name] = (right, total)
        record_property(name, f"{right} of {total} identifiers exist")
    assert counts["monitored"][0] == counts["monitored"][1] > 20
    assert counts["free"][0] < counts["free"][1] / 2


def test_the_laws_of_potentials_hold() -> None:
    found = monitor(r"\.", attributes)
    check_potential(found, compile_grammar(PATHS, code_vocabulary()), random.Random(7))


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_rows_over_a_real_vocabulary(deepseek_vocabulary: Vocabulary, step: int) -> None:
    """Of 128k tokens, every token that a row excludes is forbidden, judged by the text alone."""
    options = ["name", "names", "été", "email", "print", "x"]
    found = monitor(r"\.", lambda text: options)
    for written in ("", "na", "name", "ét"):
        start = deepseek_vocabulary.tokenize("self." + written)
        hypothesis = Hypothesis(GRAMMAR, deepseek_vocabulary, tuple(start))
        assert hypothesis.data == ("self." + written).encode()
        row = found.allowed(hypothesis)
        assert row is not None
        bits = np.unpackbits(row.view(np.uint8), bitorder="little", count=deepseek_vocabulary.size).astype(bool)
        for token in range(0, deepseek_vocabulary.size, step):
            if piece := deepseek_vocabulary.tokens[token]:
                assert bits[token] == _goes_on(written.encode() + piece, options), piece
        assert bits[list(deepseek_vocabulary.eos)].all() == (written in options)


def _goes_on(data: bytes, options: Sequence[str]) -> bool:
    """Whether some option begins with the bytes, or the bytes with an option and the start of a boundary."""
    if any(option.encode().startswith(data) for option in options):
        return True
    for option in options:
        rest = data[len(option.encode()) :] if data.startswith(option.encode()) else b""
        if rest and _may_be_boundary(rest[:1]):
            return True
    return False


def _may_be_boundary(first: bytes) -> bool:
    if first < b"\x80":
        return not re.match(rb"\w", first)
    return first in boundary_leads()


@lru_cache
def boundary_leads() -> frozenset[bytes]:
    return frozenset(character.encode()[:1] for character in re.findall(r"\W", characters()))


def test_the_examples_of_the_page_run(json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of docs/guides/monitors.md runs by itself on a hash model; the results are checked here."""
    for library in ("jedi", "sqlalchemy"):
        pytest.importorskip(library, reason="the extra 'monitors' is not installed")
    monkeypatch.setattr(structgen, "load_model", lambda: HashModel(json_vocabulary, seed=4), raising=False)
    counts: list[int] = []
    names = run_page("guides/monitors.md", after=lambda names: counts.append(len(names["found"].samples)))
    assert min(counts) > 0, counts
    assert names.blocks == 4
    for graph in names["graphs"]:
        ids = [node["id"] for node in graph["nodes"]]
        assert len(set(ids)) == len(ids)
        assert {edge[side] for edge in graph["edges"] for side in ("from", "to")} <= set(ids)
