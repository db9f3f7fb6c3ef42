"""Copies from the prompt: the longest suffix by brute force, values by their text, and known outputs pass by pass."""

from __future__ import annotations

import json

import numpy as np
import pytest
from drafter_replay import draft_for, replay
from word_vocabulary import draft_vocabulary

from structgen.decode import Greedy, generate
from structgen.decode.speculative.drafters.output_fields import OutputFields, structure_after
from structgen.decode.speculative.drafters.prompt_lookup import PromptLookup
from structgen.engine import Constraint, compile
from structgen.frontends.json_schema import json_schema
from structgen.frontends.json_schema.policy import Whitespace
from structgen.grammar.nodes import ByteClass, Repeat
from structgen.models import HashModel

VOCABULARY = draft_vocabulary()
ANYTHING = compile(Repeat(ByteClass([(0, 255)]), 0, None), VOCABULARY)
PROMPT = """Hello, my name is Ada Lovelace and I am 36 years old.
City: London
Write to ada@lace.org.
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "city": {"type": "string"},
        "email": {"type": "string"},
    },
    "required": ["name", "age", "city", "email"],
    "additionalProperties": False,
}
VALUE = {"name": "Ada Lovelace", "age": 36, "city": "London", "email": "ada@lace.org"}


def of(schema: object, whitespace: Whitespace = "single") -> Constraint:
    return compile(json_schema(schema, whitespace=whitespace), VOCABULARY)


def longest_suffix(tokens: list[int]) -> tuple[int, set[int]]:
    """The length of the longest earlier occurrence of the end, and the tokens that followed it."""
    best, following = 0, set[int]()
    for at in range(1, len(tokens)):
        length = 0
        while length < at and tokens[at - 1 - length] == tokens[-1 - length]:
            length += 1
        if length > best:
            best, following = length, set()
        if length == best > 0:
            following.add(tokens[at])
    return best, following


@pytest.mark.parametrize("seed", range(40))
def test_what_followed_the_longest_suffix_is_drafted(seed: int) -> None:
    generator = np.random.default_rng(seed)
    tokens = generator.integers(98, 104, size=int(generator.integers(2, 80))).tolist()
    drafting, context, state = draft_for(PromptLookup(values=False, places=64), ANYTHING, tokens)
    for _ in range(6):
        tree = drafting.propose(context, state, 64)
        _, following = longest_suffix(tokens)
        assert following <= {tree.tokens[node] for node in tree.children(-1)}
        assert all(0 <= confidence <= 1 for confidence in tree.confidences)
        if generator.random() < 0.3:
            length = int(generator.integers(1, len(tokens) + 1))
            context.truncate(length)
            del tokens[length:]
        more = generator.integers(98, 104, size=2).tolist()
        context.append(more)
        tokens += more


@pytest.mark.parametrize("whitespace", ["single", "flexible", "compact"])
def test_a_record_is_copied_from_its_source(whitespace: Whitespace) -> None:
    constraint = of(SCHEMA, whitespace)
    separators = (",", ":") if whitespace == "compact" else (", ", ": ")
    text = json.dumps(VALUE, separators=separators)
    written = generate(HashModel(VOCABULARY, writes=text), PROMPT, constraint, sampler=Greedy(), drafter=None)
    assert written.text == text
    prompt, output = VOCABULARY.tokenize(PROMPT), written.tokens
    without = replay(None, constraint, prompt, output)
    tokens = replay(PromptLookup(values=False), constraint, prompt, output)
    values = replay(PromptLookup(), constraint, prompt, output)
    # A prompt that forced tokens follow takes its own pass.
    assert written.stats.forwards - without.passes in (0, 1)
    assert values.passes < tokens.passes < without.passes
    assert values.tokens / values.passes >= 4


def test_a_value_is_matched_by_bytes_where_tokens_differ() -> None:
    """The prompt has " Ada", the string has "Ada"."""
    constraint = of({"type": "array", "items": {"type": "string"}})
    prompt = VOCABULARY.tokenize("was born in London, the Love of Ada Hopper")
    output = [*VOCABULARY.tokenize('["'), *VOCABULARY.tokenize("Ada")]
    assert output[-1] not in prompt
    drafting, context, state = draft_for(PromptLookup(), constraint, prompt)
    assert all(state.matcher.accept(token) for token in output)
    context.append(output)
    tree = drafting.propose(context, state, 24)
    assert b" Hopper" in {VOCABULARY.decode(tree.prefix(node)) for node in range(len(tree))}


@pytest.mark.parametrize("end", [" Ada", " Ada Love", " Ada Lovelace"])
def test_a_value_may_end_wherever_a_word_ends(end: str) -> None:
    constraint = of(SCHEMA)
    prefix = VOCABULARY.tokenize('{"name": "A')
    drafting, context, state = draft_for(PromptLookup(), constraint, VOCABULARY.tokenize("It is Ada Love lace, me"))
    assert all(state.matcher.accept(token) for token in prefix)
    context.append(prefix)
    tree = drafting.propose(context, state, 40)
    paths = [VOCABULARY.decode(tree.prefix(node)) for node in range(len(tree))]
    for ended in (b'da", "age": ', b'da Love", "age": ', b'da Love lace", "age": '):
        assert any(path.startswith(ended[:6]) for path in paths), (ended, paths)


def test_a_copy_is_taken_up_again_after_a_mismatch() -> None:
    constraint = of({"type": "string"})
    source = "The importer stops with a strange message in the reader of files"
    output = VOCABULARY.tokenize(json.dumps(source.replace("strange", "weird")))
    prompt = VOCABULARY.tokenize("Bug report: " + source + ".")
    found = replay(PromptLookup(), constraint, prompt, output)
    without = replay(None, constraint, prompt, output)
    assert found.passes <= without.passes / 4


@pytest.mark.parametrize("least", [0, 4])
def test_an_enumeration_is_copied_into_an_array(least: int) -> None:
    tags = {"type": "array", "items": {"type": "string"}, "minItems": least}
    constraint = of({"type": "object", "properties": {"tags": tags}, "required": ["tags"]})
    prompt = VOCABULARY.tokenize("We saw Ada, Grace Hopper, Love and London. Then it was open.")
    output = VOCABULARY.tokenize('{"tags": ["Ada", "Grace Hopper", "Love", "London"]}')
    found = replay(PromptLookup(), constraint, prompt, output)
    assert found.tokens / found.passes >= 3


def test_white_space_in_the_source_may_differ() -> None:
    constraint = of({"type": "string"})
    prompt = VOCABULARY.tokenize("born in\n   London and\nlives in Paris for me")
    output = VOCABULARY.tokenize('"born in London and lives in Paris for me"')
    assert replay(PromptLookup(), constraint, prompt, output).passes <= 4


def test_long_texts_without_spaces_are_copied_in_whole_characters() -> None:
    constraint = of({"type": "string"})
    text = "\u96f6\u4e00\u4e8c\u4e09\u56db\u4e94\u516d\u4e03\u516b\u4e5d" * 8
    prompt = [*VOCABULARY.tokenize(text), 0, *VOCABULARY.tokenize("\u00e9")[:1]]
    output = VOCABULARY.tokenize(json.dumps(text, ensure_ascii=False))
    for length in range(1, 12):  # most of them end within a character
        drafting, context, state = draft_for(PromptLookup(), constraint, prompt)
        assert all(state.matcher.accept(token) for token in output[:length])
        context.append(output[:length])
        drafting.propose(context, state, 24)
    found = replay(PromptLookup(), constraint, prompt, output)
    assert found.passes <= len(output) / 8


def test_quotation_marks_and_backslashes_end_a_copy() -> None:
    constraint = of({"type": "string"})
    prompt = VOCABULARY.tokenize('She said "London is open" and C:\\new was closed')
    for text in ("London is open", "said", "new was closed", 'said "London'):
        output = VOCABULARY.tokenize(json.dumps(text))
        assert replay(PromptLookup(), constraint, prompt, output).passes < len(output)


def test_an_edit_of_the_output_is_followed() -> None:
    constraint = of(SCHEMA)
    drafting, context, state = draft_for(PromptLookup(), constraint, VOCABULARY.tokenize(PROMPT))
    start = len(context)
    good = VOCABULARY.tokenize('{"name": "Ada Lo')
    context.append(VOCABULARY.tokenize('{"name": "Grace'))
    drafting.propose(context, state, 8)
    context.truncate(start)
    context.append(good)
    assert all(state.matcher.accept(token) for token in good)
    found = drafting.propose(context, state, 24)
    fresh, other, _ = draft_for(PromptLookup(), constraint, VOCABULARY.tokenize(PROMPT))
    other.append(good)
    expected = fresh.propose(other, state, 24)
    assert set(zip(found.tokens, found.parents, strict=True)) == set(
        zip(expected.tokens, expected.parents, strict=True)
    )


def test_confidences_come_true() -> None:
    """In ten groups of confidence, the acceptance rate is within sampling error of the confidence."""
    drafter = PromptLookup()
    generator = np.random.default_rng(3)
    words = [" Ada", " Grace", " Hopper", " London", " Paris", " works", " for", " Love", " lives", " at"]
    constraint = of({"type": "string"})
    reached: list[tuple[float, bool]] = []
    for number in range(60):
        text = "".join(generator.choice(words, size=40).tolist())
        first = int(generator.integers(len(text) // 2))
        value = text[first : first + 60].strip()
        run = replay(drafter, constraint, VOCABULARY.tokenize(text), VOCABULARY.tokenize(json.dumps(value)), budget=16)
        if number >= 20:
            reached += run.reached
    for group in range(10):
        some = [(said, came) for said, came in reached if group <= 10 * said < group + 1]
        if len(some) >= 40:
            said = sum(each for each, _ in some) / len(some)
            came = sum(each for _, each in some) / len(some)
            assert abs(said - came) < 0.2, (group, said, came, len(some))
    assert sum(said for said, _ in reached) == pytest.approx(sum(came for _, came in reached), rel=0.15)


@pytest.mark.parametrize(
    ("text", "expected", "label"),
    [
        ('{"name": "Ada', '", "age": ', b"age"),
        ('{"name": "Ada"', ', "age": ', b"age"),
        ('{"name": "Ada", "age": 3', ', "city": "', b"city"),
        ('{"name": "Ada", "age":', " ", b""),
        ('{"name":', ' "', b""),
        ('{"name": "Ada", "age": 3, "city": "x", "email": "y', '"}', b""),
    ],
)
def test_structure_leads_to_the_next_value(text: str, expected: str, label: bytes) -> None:
    matcher = of(SCHEMA).matcher()
    fields = OutputFields()
    assert matcher.accept_bytes(text.encode()) == len(text)
    fields.feed(text.encode())
    found = structure_after(matcher, fields.field.place, fields)
    assert found is not None
    assert (found.data.decode(), found.label) == (expected, label)
    assert found.quoted == expected.endswith(' "')
    assert found.ends == expected.endswith("}")


def test_structure_has_the_style_of_the_output() -> None:
    constraint = of(SCHEMA, "flexible")
    for comma, colon in ((", ", ": "), (",", ":"), (",\n  ", ": ")):
        text = f'{{"name"{colon}"Ada"{comma}"age"{colon}3{comma}"city"{colon}"x'
        matcher, fields = constraint.matcher(), OutputFields()
        assert matcher.accept_bytes(text.encode()) == len(text)
        fields.feed(text.encode())
        found = structure_after(matcher, "string", fields)
        assert found is not None
        assert found.data.decode() == f'"{comma}"email"{colon}"'


@pytest.mark.parametrize("settings", [{"places": 0}, {"shortest": 0}, {"shortest": 65}])
def test_numbers_out_of_range_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="PromptLookup: "):
        PromptLookup(**settings)  # type: ignore[arg-type]
