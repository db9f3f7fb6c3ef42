"""What a logits processor and the loop take for a constraint: a grammar, a JSON Schema, a type, with a tokenizer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

from structgen import compile, json_schema, regex  # noqa: E402
from structgen.engine import Vocabulary  # noqa: E402
from structgen.engine.mask import allowed_ids, empty_masks  # noqa: E402
from structgen.errors import ArgumentError, CutWarning, LimitExceeded  # noqa: E402
from structgen.grammar.limits import Limits  # noqa: E402
from structgen.grammar.nodes import CharClass, Tempered, sequence  # noqa: E402
from structgen.integrations.transformers import ConstraintLogitsProcessor, constrained_generate  # noqa: E402

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["age"],
    "additionalProperties": False,
}
WIDTH = 264


@dataclass
class Person:
    age: int


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Bytes as tokens, and an EOS."""
    bytes_ = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({each: at for at, each in enumerate(bytes_)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<eos>"])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>")


@pytest.fixture(scope="module")
def model() -> Any:
    """A Llama with random weights whose head is wider than the tokenizer."""
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=None,
        eos_token_id=256,
        pad_token_id=256,
    )
    return transformers.LlamaForCausalLM(config).eval()


def _written(model: Any, tokenizer: Any, **options: Any) -> str:
    inputs = tokenizer("Ada is", return_tensors="pt")
    sequences = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=40,
        do_sample=False,
        **options,
    )
    return str(tokenizer.decode(sequences[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))


@pytest.mark.parametrize(
    "given", [SCHEMA, json_schema(SCHEMA), regex(r'\{"age": ?[0-9]\}')], ids=["schema", "json", "regex"]
)
@pytest.mark.parametrize("way", ["processor", "loop", "vocabulary"])
def test_a_description_is_compiled_for_the_tokenizer(model: Any, tokenizer: Any, given: Any, way: str) -> None:
    """The output is what json.loads reads as an age of one digit."""
    if way == "processor":
        options: dict[str, Any] = {"logits_processor": [ConstraintLogitsProcessor(given, tokenizer, max_new_tokens=40)]}
    else:
        source = tokenizer if way == "loop" else Vocabulary.load(tokenizer, size=WIDTH)
        options = {"custom_generate": constrained_generate, "constraint": given, "vocabulary": source}
    value = json.loads(_written(model, tokenizer, **options))
    assert list(value) == ["age"]
    assert value["age"] in range(10)


def test_a_type_is_written_as_json(model: Any, tokenizer: Any) -> None:
    """A dataclass is an object with at least its fields."""
    processor = ConstraintLogitsProcessor(Person, tokenizer, max_new_tokens=40)
    value = json.loads(_written(model, tokenizer, logits_processor=[processor]))
    assert isinstance(value["age"], int)


def test_the_vocabulary_of_a_tokenizer_is_read_once(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor for each call of generate does not read the tokenizer again."""
    ConstraintLogitsProcessor(SCHEMA, tokenizer)
    monkeypatch.setattr(Vocabulary, "load", pytest.fail)
    ConstraintLogitsProcessor(SCHEMA, tokenizer)


def test_without_a_tokenizer(tokenizer: Any) -> None:
    """A schema alone, a text, and a number where the tokenizer belongs are refused with what to pass."""
    with pytest.raises(ArgumentError, match=r"needs the model's tokenizer.*found a dict.*vocabulary=tokenizer"):
        ConstraintLogitsProcessor(SCHEMA)
    with pytest.raises(ArgumentError, match=r"found the text '\[a-z\]\+'; pass sg\.regex"):
        ConstraintLogitsProcessor("[a-z]+", tokenizer)  # type: ignore[arg-type]
    constraint = compile(regex("a"), Vocabulary.load(tokenizer))
    with pytest.raises(ArgumentError, match=r"found 2; write prompt_length=2"):
        ConstraintLogitsProcessor(constraint, 2)
    with pytest.raises(ArgumentError, match=r"found the text 'gpt2'; load it first: AutoTokenizer\.from_pretrained"):
        ConstraintLogitsProcessor(regex("a"), "gpt2")


def test_the_loop_without_a_tokenizer(model: Any, tokenizer: Any) -> None:
    """The same in the loop."""
    with pytest.raises(ArgumentError, match=r"constrained_generate: .*needs the model's tokenizer"):
        _written(model, tokenizer, custom_generate=constrained_generate, constraint=SCHEMA)


EXPLODING = "|".join(rf"(?:(?:[ab]{{1,{most}}}c?){{1,99}}d?){{1,99}}" for most in (63, 64, 65, 66))
HOSTILE = f"x[a-f]{{3}}|y(?:{EXPLODING})"
LATE = f"x[a-f]{{3}}|y[a-f]{{3}}(?:{EXPLODING})"
"""The shortest text does not lead there, so looking whether the tokens suffice costs little."""


def _limited(tokenizer: Any, steps: int = 1_400, pattern: str = HOSTILE) -> tuple[Any, Any]:
    """A constraint whose outputs meet a limit after the letter y."""
    vocabulary = Vocabulary.load(tokenizer, size=WIDTH)
    return compile(regex(pattern), vocabulary, limits=Limits(steps=steps)).alone(), vocabulary.tokenize


def _first(tokens: Any) -> Any:
    """A processor that makes a token the most probable at the start of each row."""

    def raised(ids: Any, scores: Any) -> Any:
        if ids.shape[1] == 2:
            scores[range(len(tokens)), tokens] += 50.0
        return scores

    return raised


def test_a_limit_ends_its_row_and_no_other(model: Any, tokenizer: Any) -> None:
    """The others are what they are alone; the row has its text, its error and a warning, and ends with EOS."""
    ids = torch.tensor([[7, 8], [9, 10], [11, 12]])
    constraint, tokens_of = _limited(tokenizer)
    processor = ConstraintLogitsProcessor(constraint)
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    with pytest.warns(CutWarning, match="row 1 ends before it is complete.*steps=1400"):
        found = model.generate(input_ids=ids, logits_processor=[_first(tokens_of("xyx")), processor], **options)
    ((tokens, error),) = processor.limited.items()
    assert re.fullmatch("y[ab]*", error.text or "")
    assert tokens == error.tokens == tuple(tokens_of(error.text or ""))
    assert found[1, 2 : 3 + len(tokens)].tolist() == [*tokens, 256]
    for row in (0, 2):
        alone = model.generate(
            input_ids=ids[row : row + 1],
            logits_processor=[_first(tokens_of("x")), ConstraintLogitsProcessor(constraint)],
            **{**options, "attention_mask": torch.ones(1, 2, dtype=torch.long)},
        )
        assert found[row, : alone.shape[1]].tolist() == alone[0].tolist()
    with pytest.raises(LimitExceeded) as caught:
        model.generate(
            input_ids=ids[:1],
            logits_processor=[_first(tokens_of("y")), ConstraintLogitsProcessor(constraint)],
            **{**options, "attention_mask": torch.ones(1, 2, dtype=torch.long)},
        )
    assert re.fullmatch("y[ab]*", caught.value.text or "")


def test_a_beam_that_meets_a_limit_loses(model: Any, tokenizer: Any) -> None:
    """Beams with the letter x are what is returned, although y is as probable."""
    constraint, _ = _limited(tokenizer)
    processor = ConstraintLogitsProcessor(constraint)
    found = model.generate(
        input_ids=torch.tensor([[7, 8]]),
        attention_mask=torch.ones(1, 2, dtype=torch.long),
        logits_processor=[processor],
        max_new_tokens=12,
        num_beams=3,
        num_return_sequences=2,
        do_sample=False,
    )
    assert processor.limited
    assert all(re.fullmatch("y[ab]*", error.text or "") for error in processor.limited.values())
    for row in found[:, 2:].tolist():
        assert re.fullmatch("x[a-f]{3}", tokenizer.decode(row, skip_special_tokens=True))


def test_the_loop_goes_on_with_the_rows_after_a_limit(model: Any, tokenizer: Any) -> None:
    constraint, tokens_of = _limited(tokenizer, 1_400, LATE)
    ids = torch.tensor([[7, 8], [9, 10], [11, 12]])
    masks = empty_masks(constraint.vocabulary)
    constraint.matcher().fill_mask(masks)
    assert set(allowed_ids(masks[0]).tolist()) == {*tokens_of("x"), *tokens_of("y")}
    with torch.no_grad():
        first = [max("xy", key=lambda letter: float(row[tokens_of(letter)[0]])) for row in model(ids).logits[:, -1]]
    assert {"x", "y"} == set(first)
    results: list[Any] = []
    with pytest.warns(CutWarning):
        found = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            custom_generate=constrained_generate,
            constraint=constraint,
            results=results,
            max_new_tokens=12,
            do_sample=False,
        )
    for letter, row, result in zip(first, found[:, 2:].tolist(), results, strict=True):
        assert isinstance(result, LimitExceeded) == (letter == "y")
        assert tuple(row[: len(result.tokens)]) == result.tokens
        assert result.text[0] == letter


def test_without_torch_the_import_says_how_to_get_it() -> None:
    """The error names the extra and its command, not only the module."""
    code = "import sys; sys.modules['torch'] = None; import structgen.integrations.transformers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "ModelError" in done.stderr
    assert "pip install 'structgen-lm[models]'" in done.stderr


def test_rows_have_the_temperature_of_their_state() -> None:
    """Rows inside a part with a temperature are divided by it, others not; 0 leaves the best token."""
    vocabulary = Vocabulary([b"a", b"b", b"c", b""], eos=[3])
    letters = CharClass([(97, 98)])
    constraint = compile(sequence(letters, Tempered(letters, 0.5), Tempered(letters, 0.0)), vocabulary)
    processor = ConstraintLogitsProcessor(constraint, prompt_length=1)
    scores = torch.tensor([[1.0, 3.0, 9.0, 9.0], [3.0, 1.0, 9.0, 9.0]])
    low = -torch.inf
    for outputs, expected in (
        ([[2], [2]], [[1.0, 3.0, low, low], [3.0, 1.0, low, low]]),
        ([[2, 0], [2, 1]], [[2.0, 6.0, low, low], [6.0, 2.0, low, low]]),
        ([[2, 0, 0], [2, 1, 1]], [[low, 3.0, low, low], [3.0, low, low, low]]),
        ([[2, 0, 0, 1], [2, 1, 1, 1]], [[low, low, low, 9.0], [low, low, low, 9.0]]),
    ):
        assert processor(torch.tensor(outputs), scores).tolist() == expected
