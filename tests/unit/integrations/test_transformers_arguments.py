"""What a logits processor and the loop take for a constraint: a grammar, a JSON Schema, a type, with a tokenizer."""

from __future__ import annotations

import json
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
from structgen.errors import ArgumentError  # noqa: E402
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


def test_without_torch_the_import_says_how_to_get_it() -> None:
    """The error names the extra and its command, not only the module."""
    code = "import sys; sys.modules['torch'] = None; import structgen.integrations.transformers"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "ModelError" in done.stderr
    assert "pip install 'structgen-lm[models]'" in done.stderr
