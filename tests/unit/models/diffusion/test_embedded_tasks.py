"""Tasks, tokenizer and slot filter of the embedded diffusion model; none of it needs torch."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from structgen.errors import ModelError
from structgen.methods.policies.stateful import FEATURES, SlotFilter, SlotView, load_slot_filter, slot_features
from structgen.models.diffusion import embedded
from structgen.models.diffusion.embedded.model import EOS, MASK, SPECIAL, Tokenizer
from training.embedded_diffusion.examples import Example, Split, examples
from training.embedded_diffusion.tasks import TASKS
from training.embedded_diffusion.values import POOLS, is_held_out

SPLITS: tuple[Split, ...] = get_args(Split)
FOLDER = Path(embedded.__file__).parent
PINNED = 602815534  # of the examples that the weights of the package were trained on


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """The tokenizer of the package."""
    return Tokenizer.load(FOLDER / "tokenizer.json")


def leaves(value: Any) -> list[tuple[str, Any]]:
    """Each value that is not a container, with the name of its field."""
    found = []
    stack = [("", value)]
    while stack:
        name, part = stack.pop()
        if isinstance(part, dict):
            stack += list(part.items())
        elif isinstance(part, list):
            stack += [(name, each) for each in part]
        else:
            found.append((name, part))
    return found


@pytest.mark.parametrize("split", SPLITS)
def test_documents_obey_their_schemas(split: Split) -> None:
    """jsonschema accepts them, with formats; properties come in the order of the schema, as a grammar needs."""
    validators = {
        name: jsonschema.Draft202012Validator(task.schema, format_checker=jsonschema.FormatChecker())
        for name, task in TASKS.items()
    }
    seen = set()
    for example in examples(split, 3, 600):
        value = json.loads(example.document)
        assert value == example.record
        validators[example.task].validate(value)
        order = list(TASKS[example.task].schema["properties"])
        assert list(value) == sorted(value, key=order.index)
        seen.add(example.task)
    assert seen == set(TASKS)
    assert len(TASKS) >= 20


def test_the_schemas_are_schemas() -> None:
    """They are schemas of draft 2020-12."""
    for task in TASKS.values():
        jsonschema.Draft202012Validator.check_schema(task.schema)


def test_optional_fields_come_and_go() -> None:
    """Every optional field is present in some documents and absent in others."""
    found = list(examples("train", 5, 3000))
    for name, task in TASKS.items():
        records = [example.record for example in found if example.task == name]
        for field in task.schema["properties"]:
            share = np.mean([field in record for record in records])
            assert (share == 1) == (field in task.schema["required"])
            assert share > 0.2


@pytest.mark.parametrize("split", SPLITS)
def test_prompts_tell_all_that_documents_say(split: Split) -> None:
    """A value is in the prompt as it is, or in one of its wordings."""
    for example in examples(split, 8, 600):
        wordings = TASKS[example.task].wordings
        assert example.prompt.startswith(f"{example.task}: ")
        for name, value in leaves(example.record):
            text = value if isinstance(value, str) else json.dumps(value)
            told = wordings[name][json.dumps(value)] if name in wordings else (text,)
            assert any(each in example.prompt for each in told), (example.prompt, name, value)


def test_the_same_arguments_give_the_same_examples() -> None:
    """This holds on every machine: the training data of the weights are pinned."""
    text = "\n".join(f"{example.prompt} {example.document}" for split in SPLITS for example in examples(split, 1, 200))
    assert zlib.crc32(text.encode()) == PINNED
    assert list(examples("train", 1, 20)) == list(examples("train", 1, 30))[:20]
    assert list(examples("train", 1, 20)) != list(examples("train", 2, 20))
    assert {example.task for example in examples("train", 1, 40, tasks=("pet", "bug"))} == {"pet", "bug"}


@pytest.mark.exhaustive
def test_what_is_kept_out_of_training_is_out() -> None:
    """Training draws no document of ``new_combinations``, and no name or number of ``new_values``."""
    trained = list(examples("train", 11, 20_000, tasks=("pet", "weather")))
    documents = {example.document for example in trained}
    assert not documents & {example.document for example in examples("new_combinations", 11, 3000, tasks=("weather",))}
    words: dict[str, set[Any]] = {}
    for example in trained:
        for name, value in leaves(example.record):
            words.setdefault(f"{example.task} {name}", set()).add(value)
    for example in examples("new_values", 11, 500, tasks=("pet", "weather")):
        for name, value in leaves(example.record):
            if name in {"name", "age", "owner", "city", "temperature", "wind"}:
                assert value not in words[f"{example.task} {name}"]


def test_pools_keep_some_words_out() -> None:
    """They are about a tenth of all words; no pool that excludes some words excludes all."""
    every = [word for words in POOLS.values() for word in words]
    assert 0.06 < np.mean([is_held_out(word) for word in every]) < 0.14
    for name in ("first", "surname", "city", "street", "noun", "good", "verb", "team"):
        assert 0 < sum(map(is_held_out, POOLS[name])) < len(POOLS[name])


@pytest.mark.parametrize(("split", "tasks"), [("test", None), ("train", ("person", "planet"))])
def test_unknown_splits_and_tasks_are_refused(split: Any, tasks: Any) -> None:
    """The error names them, before anything is sampled."""
    with pytest.raises(ValueError, match=r"'test'|'planet'"):
        examples(split, 0, 1, tasks=tasks)


@given(st.text())
@settings(max_examples=300, deadline=None)
def test_tokens_spell_every_text(text: str) -> None:
    """This includes texts of characters that training never showed."""
    tokenizer = Tokenizer.load(FOLDER / "tokenizer.json")
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text.encode()
    assert not set(ids) & set(range(len(SPECIAL)))


def test_a_lone_surrogate_is_refused(tokenizer: Tokenizer) -> None:
    """It has no bytes; the message says where it is."""
    with pytest.raises(ModelError, match="character 2 is a lone surrogate"):
        tokenizer.encode("ab\ud800")


def test_a_copied_word_has_the_same_tokens(tokenizer: Tokenizer) -> None:
    """This holds in a text, in quotes of JSON, at the end of a list, and as a number."""

    def contains(ids: list[int], part: list[int]) -> bool:
        return any(ids[start : start + len(part)] == part for start in range(len(ids)))

    for example in examples("new_values", 2, 300):
        prompt, document = tokenizer.encode(example.prompt), tokenizer.encode(example.document)
        for name, value in leaves(example.record):
            text = value if isinstance(value, str) else json.dumps(value)
            if name not in TASKS[example.task].wordings:
                for word in re.findall(r"[^\W\d]+|\d+", text):
                    part = tokenizer.encode(word)
                    assert contains(prompt, part), (example.prompt, word)
                    assert contains(document, part), (example.document, word)


def test_every_byte_is_a_token_and_no_two_tokens_are_alike(tokenizer: Tokenizer) -> None:
    """Some tokens join parts that a grammar of JSON separates."""
    spelled = [token for token in tokenizer.tokens if token]
    assert len(spelled) == len(set(spelled)) == len(tokenizer.tokens) - len(SPECIAL)
    assert {bytes([byte]) for byte in range(256)} <= set(spelled)
    assert {b'","', b'":["', b'"}],"', b'{"', b'":{"'} <= set(spelled)
    assert all(len(tokenizer.encode(task)) == 1 for task in TASKS)


def test_the_vocabulary_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    """Special tokens have no bytes, and the vocabulary tokenizes as the tokenizer does."""
    vocabulary = tokenizer.vocabulary(1008)
    assert vocabulary.size == 1008
    assert vocabulary.eos == (EOS,)
    assert vocabulary.special == dict(enumerate(SPECIAL))
    assert vocabulary.special[MASK] == "<mask>"
    for example in examples("train", 4, 50):
        assert vocabulary.tokenize(example.document) == tokenizer.encode(example.document)


@pytest.mark.parametrize("content", ["", "[]", '{"punctuation": [], "words": []}', '{"punctuation": 3}'])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    """The error names the file."""
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        Tokenizer.load(path)


def view(confidences: list[float], tokens: list[int], free: list[bool]) -> SlotView:
    """One step of a canvas."""
    first = np.array(confidences)
    return SlotView(np.array(tokens), first, (1 - first) / 2, np.array(free))


def test_the_filter_trusts_what_is_sure_and_steady() -> None:
    """It trusts such tokens more than unsure or changed ones; fixed slots are settled."""
    found = load_slot_filter()
    steps = [
        view([0.99, 0.3, 0.6, 1.0], [5, 6, 7, 8], [True, True, True, False]),
        view([0.995, 0.35, 0.5, 1.0], [5, 9, 7, 8], [True, True, True, False]),
        view([0.999, 0.4, 0.6, 1.0], [5, 6, 7, 8], [True, True, True, False]),
    ]
    sure, changed, between, fixed = found.settled(steps)
    assert fixed == 1
    assert 1 > sure > between > changed > 0


def test_features_of_a_slot() -> None:
    """For two steps of three slots they are worked out by hand; steps before the first are like the first."""
    steps = [
        view([0.5, 0.2, 1.0], [5, 6, 8], [True, True, False]),
        view([0.8, 0.4, 1.0], [5, 7, 8], [True, True, False]),
    ]
    rows = slot_features(steps)
    assert rows.shape == (3, len(FEATURES))
    log4, log1_5 = np.log(4), np.log(1.5)
    expected = [log4, 0, 0, 1, 1, 0.8 - 0.1, 1.0, 0.4, 2 / 3, 0.0]
    np.testing.assert_allclose(rows[0], expected, atol=1e-12)
    expected = [-log1_5, -log4, -log4, 0, 0, 0.4 - 0.3, 0.8, 1.0, 2 / 3, 1 / 3]
    np.testing.assert_allclose(rows[1], expected, atol=1e-12)


def test_a_filter_that_is_saved_is_the_same_filter(tmp_path: Path) -> None:
    """The numbers are equal up to rounding."""
    generator = np.random.default_rng(0)
    width = len(FEATURES)
    made = SlotFilter(
        generator.normal(size=width),
        generator.uniform(1, 2, width),
        generator.normal(size=(4, width + 1)),
        generator.normal(size=5),
    )
    made.save(tmp_path / "filter.json")
    steps = [view([0.5, 0.2, 0.9], [5, 6, 8], [True] * 3)]
    kept = load_slot_filter(tmp_path / "filter.json").settled(steps)
    np.testing.assert_allclose(kept, made.settled(steps), atol=1e-3)


@pytest.mark.parametrize("content", ["", "{}", '{"centre": [0], "scale": [1], "hidden": [[1, 1]], "out": [1, 1]}'])
def test_a_damaged_filter_is_refused(tmp_path: Path, content: str) -> None:
    """So is a filter for other features."""
    (tmp_path / "filter.json").write_text(content)
    with pytest.raises(ModelError, match=r"filter\.json"):
        load_slot_filter(tmp_path / "filter.json")


def test_a_filter_wants_views_of_one_canvas() -> None:
    """There must be at least one view."""
    short, long = view([0.5], [1], [True]), view([0.5, 0.5], [1, 1], [True, True])
    for views in ([], [short, long]):
        with pytest.raises(ValueError, match="views of one canvas"):
            load_slot_filter().settled(views)


def test_an_example_is_a_value() -> None:
    """It equals an example with the same content."""
    first, second = (next(iter(examples("train", 1, 1))) for _ in range(2))
    assert isinstance(first, Example)
    assert first == second
