"""Formats that are not regular: regular expressions, internationalised names and mail addresses."""

from __future__ import annotations

import json
import random
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from mask_walks import walk

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import UnsupportedFeature
from structgen.frontends.json_schema import json_schema
from structgen.frontends.json_schema.formats import ASSERTED, format_admits
from structgen.frontends.json_schema.formats.hostname import _WINDOWS
from structgen.frontends.json_schema.formats.identifier import is_valid_name

Numbers = npt.NDArray[np.int64]
VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
DRAFT_6 = "http://json-schema.org/draft-06/schema#"


def accepts(constraint: Constraint, text: str) -> bool:
    """Whether the JSON string of ``text`` is accepted."""
    matcher, data = constraint.matcher(), json.dumps(text, ensure_ascii=False).encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


GOOD_PATTERNS = [
    "", "a|b", "^a$", r"([abc])+\s+$", "(?<name>x)", r"(?<n>a)\k<n>", "(?<=a+)b", "(?!x)y", "[]", "[^]", r"\cA",
    r"^[\u4e00-\u9fa5]+$", r"(a)(b)\2+", r"(a)(?:\1)", "[a-z0-9-.]", "x{2,12}?", "[-a]", "[a-]", r"[\w\-]",
    r"\p{L}\P{Script=Greek}", r"\u{1F600}", r"\ud83d\ude00", "^[^#]*#?$", "((((((a))))))", "a/b", r"[\b]", ".", r"\/",
    "()", "(?:)*",
]  # fmt: skip
BAD_PATTERNS = [
    "^(abc]", "(a", "a)", r"\a", r"\Z", "(?P<n>x)", "(?i)x", "(?#c)a", "[z-a]", "a**", "(?=a)*", r"\d{2,1}", "{", "}",
    "]", r"[\d-z]", r"\p{Nope}", r"\u{110000}", r"\1", r"\-", "a{,3}", "*", "|*", "(?<n>a)(?<n>b)", r"\k<n>",
    "(?<1>a)", "[", "(", "(?:",
]  # fmt: skip


@pytest.mark.parametrize("text", GOOD_PATTERNS)
def test_regular_expressions_of_ecma_262(text: str) -> None:
    """Valid patterns are accepted in every spelling."""
    constraint = compile(json_schema({"type": "string", "format": "regex"}), VOCABULARY)
    assert accepts(constraint, text)
    matcher, data = constraint.matcher(), json.dumps(text).replace("(", "\\u0028").encode()
    assert matcher.accept_bytes(data) == len(data)
    assert matcher.is_accepting


@pytest.mark.parametrize("text", BAD_PATTERNS)
def test_what_is_no_regular_expression(text: str) -> None:
    """Invalid patterns are rejected, alone and with a length."""
    for schema in ({"format": "regex"}, {"format": "regex", "maxLength": 50}):
        assert not accepts(compile(json_schema({"type": "string", **schema}), VOCABULARY), text)


def test_regular_expressions_with_other_keywords() -> None:
    """With a length or as a name, groups nest at most three deep."""
    constraint = compile(json_schema({"type": "string", "format": "regex", "minLength": 3}), VOCABULARY)
    assert accepts(constraint, "(((a)))")
    assert not accepts(constraint, "((((a))))")
    assert not accepts(constraint, "a")


def test_constants_are_judged_by_all_of_a_format() -> None:
    """A valid constant stays even if the language omits it; one that cannot be decided is refused."""
    valid, invalid = "xn--9n2bp8q.xn--9t4b11yi5a", "xn--X"
    constraint = compile(json_schema({"enum": [valid, invalid], "format": "hostname"}), VOCABULARY)
    assert accepts(constraint, valid)
    assert not accepts(constraint, invalid)
    with pytest.raises(UnsupportedFeature) as caught:
        json_schema({"const": "(?<n>a)(?<m>b)", "format": "regex"})
    assert caught.value.feature == "format"


def test_negation_of_a_format_that_is_not_regular() -> None:
    """The negation is what is certainly outside the format; it is refused for a format without an outer bound."""
    outside = compile(json_schema({"type": "string", "not": {"format": "hostname"}}), VOCABULARY)
    assert [accepts(outside, text) for text in ("a b", "a", "xn--9n2bp8q")] == [True, False, False]
    with pytest.raises(UnsupportedFeature):
        json_schema({"type": "string", "not": {"format": "regex"}})
    assert not accepts(compile(json_schema({"type": "string", "not": {"format": "ipv4"}}), VOCABULARY), "1.2.3.4")


def test_alternatives_are_disjoint_only_if_the_whole_formats_are() -> None:
    """A text that is valid for both alternatives of ``oneOf`` is rejected, even if one of them never writes it."""
    schema = {"type": "string", "oneOf": [{"format": "hostname"}, {"pattern": "^xn--"}]}
    try:
        constraint = compile(json_schema(schema), VOCABULARY)
    except UnsupportedFeature:
        return
    assert not accepts(constraint, "xn--9n2bp8q")


def test_host_names_of_old_drafts() -> None:
    """Up to draft 6, labels that begin with xn-- are ordinary labels."""
    schema = {"type": "string", "format": "hostname"}
    assert accepts(compile(json_schema(schema | {"$schema": DRAFT_6}), VOCABULARY), "xn--X")
    assert not accepts(compile(json_schema(schema), VOCABULARY), "xn--X")


def with_few_escapes(allowed: npt.NDArray[np.int64], _: Vocabulary, rng: random.Random) -> int:
    """Any of the allowed bytes, but a backslash only rarely."""
    plain = [token for token in allowed.tolist() if token != 1 + ord("\\")] or allowed.tolist()
    return int(rng.choice(plain if rng.random() < 0.97 else allowed.tolist()))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", sorted(ASSERTED))
def test_walks_belong_to_the_format(name: str) -> None:
    """What the masks allow is valid by the definition of the format; for exact formats they agree both ways."""
    constraint = compile(json_schema({"type": "string", "format": name}), VOCABULARY)
    rng = random.Random(name)
    for _ in range(60):
        text = str(json.loads(walk(constraint, rng, rng.randrange(40), with_few_escapes)))
        assert format_admits(name, text) is not False, text
        if name in ("hostname", "idn-hostname"):
            assert is_valid_name(text, international=name != "hostname"), text


def test_which_formats_are_exact() -> None:
    """For every inexact format the report says what is left out."""
    assert {name for name, one in ASSERTED.items() if one.left_out} == {
        name for name, one in ASSERTED.items() if one.outer
    }


# The lengths of internationalised labels


def digits_of(deltas: Numbers, bias: int) -> Numbers:
    """How many digits RFC 3492 writes for each delta."""
    rest, digits, is_open = deltas.copy(), np.ones_like(deltas), np.ones(deltas.shape, dtype=bool)
    k = 36
    while True:
        threshold = min(max(k - bias, 1), 26)
        is_open &= rest >= threshold
        if not is_open.any():
            return digits
        rest = np.where(is_open, (rest - threshold) // (36 - threshold), rest)
        digits, k = digits + is_open, k + 36


def biases_after(deltas: Numbers, count: int, *, is_first: bool) -> Numbers:
    """The bias after each delta."""
    deltas = deltas // 700 if is_first else deltas // 2
    deltas = deltas + deltas // count
    k = np.zeros_like(deltas)
    while (is_large := deltas > 455).any():
        deltas, k = np.where(is_large, deltas // 35, deltas), np.where(is_large, k + 36, k)
    return k + 36 * deltas // (deltas + 38)


def longest_label(low: int, high: int, most: int) -> int:
    """The largest length at which all labels of ASCII and ``low`` to ``high`` fit in 63 octets.

    For each number of ASCII characters: the most digits after each number of others, by bias and by how far the code
    points have come at most.  A delta is a step of code points times the length, and at most twice the length on top.
    """
    width = high - low

    @cache
    def moves(count: int, bias: int, is_first: bool) -> list[tuple[int, int, int]]:
        """The digits and biases that one character can lead to, each with the smallest step for it."""
        deltas = np.arange((width + 2) * count, dtype=np.int64)
        steps = np.maximum(0, -((2 * count - 1 - deltas) // count))
        start = (low - 0x80) * count if is_first else 0
        keys = digits_of(deltas + start, bias) * 1000 + biases_after(deltas + start, count, is_first=is_first)
        found, places = np.unique(keys, return_index=True)
        least = [int(steps[place]) for place in places]
        return [(key // 1000, key % 1000, step) for key, step in zip(found.tolist(), least, strict=True)]

    for basic in range(most):
        best = {72: np.zeros(width + 1, dtype=np.int64)}
        for others in range(1, most + 1 - basic):
            after: dict[int, Numbers] = {}
            for bias, digits in best.items():
                for written, then, step in moves(basic + others, bias, others == 1):
                    if step <= width:
                        made = after.setdefault(then, np.full(width + 1, -1_000, dtype=np.int64))
                        np.maximum(made[step:], digits[: width + 1 - step] + written, out=made[step:])
            best = after
            if 4 + (basic + 1 if basic else 0) + max(int(digits.max()) for digits in best.values()) > 63:
                most = basic + others - 1
                break
    return most


@pytest.mark.nightly
def test_labels_of_one_range_always_fit() -> None:
    """The bound on the length of Greek labels is that of the worst label."""
    low, high, longest = next(window for window in _WINDOWS if window[0] == 0x370)
    assert longest_label(low, high, longest + 1) == longest


@pytest.mark.exhaustive
@pytest.mark.parametrize(("low", "high", "longest"), _WINDOWS)
def test_bad_labels_fit(low: int, high: int, longest: int) -> None:
    """Labels with many ASCII characters or with distant code points have at most 63 octets in Punycode."""
    rng = random.Random(low)
    worst = 0
    for _ in range(3_000):
        letters = [chr(rng.choice([low, high, rng.randint(low, high)])) for _ in range(longest)]
        letters = [c for c in letters if not 0xD800 <= ord(c) <= 0xDFFF]
        spread = [chr(low + (high - low) * place // longest) for place in range(longest)]
        label = letters if rng.random() < 0.5 else [c for c in spread if not 0xD800 <= ord(c) <= 0xDFFF]
        for place in range(rng.randrange(4)):
            label[place] = "a"
        rng.shuffle(label)
        worst = max(worst, len("xn--" + "".join(label).encode("punycode").decode()))
    assert worst <= 63


def test_what_is_certainly_no_mail_address() -> None:
    """``not`` with ``email`` allows the certain non-addresses; doubtful texts are in neither."""
    inside, outside = (
        compile(json_schema({"type": "string", **schema}), VOCABULARY)
        for schema in ({"format": "email"}, {"not": {"format": "email"}})
    )
    addresses = ["a@b", "a.b@c-d.example", '"a b"@c', "a@[1.2.3.4]", "a@[IPv6:::1]", f"{'a' * 64}@b"]
    others = [
        "",
        "a",
        "a@",
        "@b",
        "a b@c",
        "a.@b",
        "a@b@c",
        "a@-b",
        "a@[]",
        "a@[ ]",
        "a@[x",
        "a@x]",
        f"{'a' * 65}@b",
        "é@b",
    ]
    assert [(accepts(inside, text), accepts(outside, text)) for text in addresses] == [(True, False)] * len(addresses)
    assert [(accepts(inside, text), accepts(outside, text)) for text in others] == [(False, True)] * len(others)
    doubtful = ["a@[tag:any_thing]", "a@[1.2.3]"]
    assert [(accepts(inside, text), accepts(outside, text)) for text in doubtful] == [(False, False)] * len(doubtful)
