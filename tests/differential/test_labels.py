"""Labels, checked while they are written, against Python's Punycode, the package idna and every single token."""

from __future__ import annotations

import json
import random
import unicodedata

import pytest
from label_characters import PATH, table
from schema_as_written import as_written as json_schema
from structgen_kernels import _native

from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.engine.mask import empty_masks
from structgen.errors import GrammarError
from structgen.frontends.json_schema.formats import format_admits, identifier as idna
from structgen.grammar.nodes import CharClass, Grammar, Label, LabelKind, choice, repeat, sequence
from structgen.grammar.printer import to_text
from structgen.grammar.reader import parse
from structgen.testing.node_semantics import is_refused_label, resolve
from structgen.testing.small_scope import _valid_strings
from structgen.testing.state_walk import allowed_tokens, ids_of

LDH = "abcdefghijklmnopqrstuvwxyz0123456789-"
FREE, LONGEST, REST = 52, 59, 7
"""The octets after ``xn--`` up to which everything can be completed, the most of all, and the most that complete it."""
CONTEXTUAL = ("l·lal", "αβͅ͵0", "אב׳״a0", "けカ漢・a", "بيةا\u200c٠۰0", "कष्\u200d\u200ca", "ß་〇a-")
EVERY = [code for low, high in idna.valid_characters() for code in range(low, high + 1)]
NAMES = (
    *(
        "www.example.com",
        "a",
        "a-b.c",
        "XN--LL-0EA.com",
        "xn--9n2bp8q.xn--9t4b11yi5a",
        "xn--4dbc5h",
        "xn--4dbc5h.a",
        "xn--4dbc5h.1",
    ),
    *(
        "xn--ngba5hb2804a",
        "xn--ihqwcrb4cv8a8dqg056pqjye",
        "xn--ll-0ea",
        "xn--ll-0eb",
        "xn--ll-0e",
        "xn--a",
        "xn--",
        "a.xn--zca.b.c.d",
    ),
    *(
        "a.b.c.xn--zca",
        "a.b.xn--zca",
        "xn--0-gyc.1a",
        "xn--X",
        "x",
        "xn",
        "xn-",
        "xn--" + "a" * 56,
        "xn--" + "a-" * 26 + "b-5fa",
    ),
)


def random_text(rng: random.Random) -> str:
    """What may follow ``xn--``: Punycode of random characters, often with a fault, or any letters."""
    if rng.random() < 0.3:
        return "".join(rng.choice(LDH) for _ in range(rng.randint(1, 14)))
    pool = rng.choice([EVERY, EVERY[:600], [ord(c) for c in rng.choice(CONTEXTUAL)], range(0x900, 0x980)])
    name = "".join(
        chr(rng.choice(pool)) if rng.random() < 0.8 else rng.choice("la-0") for _ in range(rng.randint(1, 9))
    )
    text = name.encode("punycode", "surrogatepass").decode()
    if rng.random() < 0.2:
        place = rng.randrange(len(text))
        text = text[:place] + rng.choice(LDH) + text[place + 1 :]
    return text if set(text) <= set(LDH) else "a"


def test_labels_are_judged_as_punycode_and_the_rules_say() -> None:
    peer = pytest.importorskip("idna")
    rng = random.Random(5891)
    valid = 0
    for _ in range(4_000):
        text = random_text(rng)
        if len(text) > LONGEST:
            continue
        for bidi in (False, True):
            judged = _native.is_a_label(text, bidi)
            assert judged == idna.is_a_label("xn--" + text, bidi=bidi), text
            if judged:
                valid += 1
                name = peer.decode("xn--" + text)
                assert peer.encode(name).decode() == "xn--" + text
    assert valid > 1_000


def test_whatever_a_label_begins_with_can_be_completed() -> None:
    """A start of up to 52 octets can always be completed; a longer one can where a completion is known."""
    rng = random.Random(3492)
    for _ in range(1_500):
        letters = rng.choice([LDH, "a-", "-", "a1-", "abc"])
        text = "".join(rng.choice(letters) for _ in range(rng.randint(0, LONGEST)))
        for bidi in (False, True):
            rest = _native.a_label_rest(text, bidi)
            assert rest is not None or len(text) > FREE
            if rest is None:
                continue
            assert len(rest) <= REST
            assert len(text + rest) <= LONGEST
            assert idna.is_a_label("xn--" + text + rest, bidi=bidi)
            for end in range(1, len(rest)):
                assert _native.a_label_rest(text + rest[:end], bidi) is not None


def test_the_native_table_is_that_of_the_rules() -> None:
    if f"Unicode {unicodedata.unidata_version};" not in PATH.read_text():
        pytest.skip("this Python has another version of Unicode")
    assert PATH.read_text() == table()


def vocabulary() -> Vocabulary:
    """Every byte, and tokens that start, complete and leave labels in all ways."""
    tokens = [
        "xn--",
        "n--",
        "--",
        "-0ea",
        "ll",
        'll-0ea"',
        "ll-0ea.",
        "ll-0eb.",
        "0ea.x",
        '0ea"',
        'a"',
        "a.",
        '"xn',
        '"xn--zca"',
    ]
    tokens += [
        "xn--zca.xn--",
        "xn--zcb.xn--",
        "4dbc5h.1",
        "4dbc5h.a",
        "zca",
        '.a"',
        '-"',
        "-zca",
        "-5fa",
        "-5f",
        "aa",
        "aaaaaaaa",
        "--a",
    ]
    tokens += ["\\u", "\\u00", "\\u002e", "\\u002e\\u0061", "a\\u002", "2d", "u002", "61", "e", "E.", "a\\"]
    tokens += ["πα", "ράδ", "α.", 'α"', "α。", "γμα" * 5, "жы", "Ж", "ь" * 30, "ʒ"]
    return Vocabulary([b"", *(bytes([byte]) for byte in range(256)), *(token.encode() for token in tokens)], eos=[0])


@pytest.fixture(scope="module")
def labels_vocabulary() -> Vocabulary:
    return vocabulary()


def compiled(name: str, vocabulary: Vocabulary, **others: object) -> Constraint:
    return compile(json_schema({"type": "string", "format": name, **others}), vocabulary)


def begun(constraint: Constraint, text: str) -> Matcher:
    matcher = constraint.matcher()
    assert matcher.accept_bytes(text.encode()) == len(text.encode())
    return matcher


def accepts(constraint: Constraint, value: object) -> bool:
    data = json.dumps(value, ensure_ascii=False).encode()
    matcher = constraint.matcher()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


def check_mask(matcher: Matcher, vocabulary: Vocabulary) -> list[int]:
    """The mask allows the tokens that are accepted, and after each of them the text can be completed."""
    allowed = allowed_tokens(matcher, vocabulary.size)
    for token in range(1, vocabulary.size):
        fork = matcher.fork()
        assert fork.accept(token) == (token in allowed), vocabulary.tokens[token]
        if token in allowed:
            rest = b"".join(bytes([symbol]) for symbol in fork.shortest_completion())
            assert fork.accept_bytes(rest) == len(rest)
            assert fork.is_accepting
    return sorted(allowed - {0})


@pytest.mark.parametrize("name", ["hostname", "idn-hostname"])
def test_names_are_those_of_the_format(name: str, labels_vocabulary: Vocabulary) -> None:
    constraint = compiled(name, labels_vocabulary)
    rng = random.Random(63)
    others = [".".join(("xn--" + random_text(rng))[:63] for _ in range(rng.randint(1, 2))) for _ in range(150)]
    written = 0
    for text in (*NAMES, *others):
        is_written = accepts(constraint, text)
        written += is_written
        assert format_admits(name, text) or not is_written, text
        if max(map(len, text.split("."))) <= 4 + FREE and text.count(".") < 3 and format_admits(name, text):
            composing = any(ord(c) in idna.composing_characters() for c in decoded(text))
            assert is_written != composing, text
    assert written > 40


def decoded(name: str) -> str:
    """The characters of all labels."""
    return "".join(
        label[4:].lower().encode().decode("punycode") if label[:4].lower() == "xn--" else label
        for label in name.split(".")
    )


@pytest.mark.parametrize(
    "text",
    [
        *(
            '"',
            '"x',
            '"xn',
            '"xn--',
            '"xn--ll',
            '"xn--ll-0e',
            '"xn--ll-0ea',
            '"xn--ll-0ea.',
            '"a.xn--4dbc5h',
            '"a.b.xn--zc',
        ),
        *(
            '"a.b.c.xn-',
            '"xn--' + "a" * 44,
            '"xn--' + "a-" * 25,
            '"xn--' + "a" * 55,
            '"xn--' + "ab-" * 18,
            '"xn--' + "-" * 52,
            '"\\',
            '"\\u0',
            '"x\\u006E--l',
            '"xn--ll-0e\\u00',
            '"xn--ll-0ea\\u002',
            '"xn--ll-0ea\\u002e',
            '"xn--ll-0e\\u006',
            '"xn--' + "a" * 54 + "\\u006",
            '"xn--' + "a-" * 27 + "\\u00",
            '"xn--' + "a-" * 27 + "\\u002",
            '"xn--' + "a-" * 27 + "\\u002d\\u006",
        ),
    ],
)
def test_masks_in_labels_are_what_is_accepted(text: str, labels_vocabulary: Vocabulary) -> None:
    check_mask(begun(compiled("hostname", labels_vocabulary), text), labels_vocabulary)


@pytest.mark.parametrize("count", [0, 1, 12, 21, 24, 26, 33, 48, 51, 52])
def test_masks_in_long_labels_of_letters(count: int, labels_vocabulary: Vocabulary) -> None:
    text = ("παράδειγμα" * 6)[:count]
    check_mask(begun(compiled("idn-hostname", labels_vocabulary), '"' + text), labels_vocabulary)


def test_masks_in_long_labels_with_escapes(labels_vocabulary: Vocabulary) -> None:
    for count, escape in ((3, ""), (22, "u03"), (30, "u"), (51, "u03"), (51, "u03b"), (51, "u0"), (52, "u3"), (52, "")):
        text = ("παράδειγμα" * 6)[:count]
        check_mask(begun(compiled("idn-hostname", labels_vocabulary), '"' + text + "\\" + escape), labels_vocabulary)


def test_labels_may_be_escaped(labels_vocabulary: Vocabulary) -> None:
    rng = random.Random(8259)
    for name, text in (
        ("hostname", "xn--LL-0ea.com"),
        ("hostname", "xn--ll-0eb.com"),
        ("idn-hostname", "παράδειγμα" * 5 + "πα。com"),
    ):
        constraint = compiled(name, labels_vocabulary)
        for share in (0.2, 0.5, 1.0):
            spelled = "".join(f"\\u{ord(c):04x}" if rng.random() < share else c for c in text).encode()
            matcher = constraint.matcher()
            is_written = matcher.accept_bytes(b'"' + spelled + b'"') == len(spelled) + 2
            assert is_written == format_admits(name, text), spelled


@pytest.mark.parametrize("letters", ["αβγδεζηθικλμνξοπρστυφχψω", "абвгдежзийклмнопрстуфхцчшщъыьэюя", "πα"])
def test_long_labels_are_those_whose_prefixes_fit(letters: str, labels_vocabulary: Vocabulary) -> None:
    constraint = compiled("idn-hostname", labels_vocabulary)
    rng = random.Random(len(letters))
    for _ in range(25):
        text = "".join(rng.choice(letters) for _ in range(rng.randint(24, 59)))
        fits = all(len(text[:end].encode("punycode")) <= LONGEST for end in range(len(text) + 1))
        assert accepts(constraint, text) == accepts(constraint, text + "。com") == fits


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2, 4, 5))])
def test_walks_under_masks_end_in_valid_names(seed: int, labels_vocabulary: Vocabulary) -> None:
    """Walks take any tokens of the masks; those within a budget take completing tokens as soon as they must."""
    rng = random.Random(seed)
    name = ("hostname", "idn-hostname")[seed % 2]
    matcher, text = begun(compiled(name, labels_vocabulary), '"xn--'), b'"xn--'
    budget = 12 + rng.randint(0, 25)
    while not matcher.is_accepting:
        allowed = check_mask(matcher, labels_vocabulary)
        if matcher.needs_budget_mask(budget):
            bitmask = empty_masks(labels_vocabulary.size)
            matcher.fill_mask_within(bitmask, 0, budget)
            within = ids_of(bitmask[0]) - {0}
            assert within <= set(allowed)
            allowed = sorted(within)
        token = rng.choice(allowed)
        assert matcher.accept(token)
        text += labels_vocabulary.tokens[token]
        budget -= 1
    assert budget >= 0
    assert format_admits(name, json.loads(text))


def test_items_that_must_differ_may_be_names_with_such_labels(labels_vocabulary: Vocabulary) -> None:
    schema = {"type": "array", "items": {"type": "string", "format": "hostname"}, "uniqueItems": True}
    constraint = compile(json_schema(schema), labels_vocabulary)
    assert accepts(constraint, ["xn--zca", "xn--ll-0ea"])
    assert not accepts(constraint, ["xn--zca", "xn--zca"])
    for text in ('["xn--zca","xn--', '["xn--zca","xn--zc', '["xn--zca","xn--zca', '["xn--ll-0ea","xn--ll'):
        check_mask(begun(constraint, text), labels_vocabulary)


def test_without_all_characters_no_such_labels_are_written() -> None:
    poor = Vocabulary([b"", *(bytes([byte]) for byte in range(256) if byte != 0x71)], eos=[0])
    assert not accepts(compiled("hostname", poor), "xn--zca")
    assert accepts(compiled("hostname", poor), "zca")


def small_label(kind: LabelKind = "a-label") -> Grammar:
    ldh = CharClass([(0x2D, 0x2D), (0x30, 0x39), (0x61, 0x7A)])
    return Label(sequence("xn--", repeat(ldh, 1, 59), "."), kind)


def test_the_reference_judges_as_the_engine_does(labels_vocabulary: Vocabulary) -> None:
    grammar = choice("x", small_label(), sequence(small_label("bidi"), "!"), letters())
    constraint = compile(grammar, labels_vocabulary)
    for text in (
        "x",
        "xn--zca.",
        "xn--zca.!",
        "xn--4dbc5h.!",
        "xn--4dbc5h.",
        "xn--a.",
        "а" * 30 + ".",
        "аяю" * 15 + ".",
    ):
        matcher, data = constraint.matcher(), text.encode()
        is_member = matcher.accept_bytes(data) == len(data) and matcher.is_accepting
        refused = [
            is_refused_label(data, kind)
            for kind, fits in (
                ("a-label", text.startswith("xn--") and text.endswith(".")),
                ("bidi", text.endswith(".!")),
                ("u-label", text[0] == "а"),
            )
            if fits
        ]
        assert is_member == (text == "x" or not all(refused))
        assert is_member == (data in language_of(grammar, data))


def language_of(grammar: Grammar, data: bytes) -> set[bytes]:
    """The strings in the language, among the texts that ``data`` is made of."""
    parts = {data[begin:end] for begin in range(len(data) + 1) for end in range(begin, len(data) + 1)}
    return _valid_strings(resolve(grammar), 0, parts)


def letters() -> Grammar:
    return Label(sequence(repeat(CharClass([(0x430, 0x44F)]), 24, 59), "."), "u-label")


@pytest.mark.parametrize("kind", ["a-label", "bidi", "u-label"])
def test_a_label_is_read_as_it_is_printed(kind: LabelKind) -> None:
    grammar = small_label(kind)
    assert parse(to_text(grammar)) == grammar
    with pytest.raises(GrammarError, match="a label is used where the language must be regular"):
        compile(grammar & repeat("a"), vocabulary())


def test_only_three_kinds_are_known() -> None:
    with pytest.raises(ValueError, match="there is no kind 'b-label'"):
        small_label("b-label")  # type: ignore[arg-type]
