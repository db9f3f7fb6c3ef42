"""A constraint in mlx-lm, with tiny models of random weights on mlx's CPU backend."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

mx = pytest.importorskip("mlx.core", reason="mlx is not installed: make engines-mlx")
mlx_lm = pytest.importorskip("mlx_lm", reason="mlx-lm is not installed: make engines-mlx")
jsonschema_rs = pytest.importorskip("jsonschema_rs")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

from mlx_lm.generate import BatchGenerator, batch_generate, generate_step, speculative_generate_step  # noqa: E402
from mlx_lm.models import llama  # noqa: E402
from mlx_lm.sample_utils import make_logits_processors, make_sampler  # noqa: E402
from mlx_lm.tokenizer_utils import TokenizerWrapper  # noqa: E402

from structgen import compile, json_schema, regex  # noqa: E402
from structgen.engine import Constraint, Vocabulary  # noqa: E402
from structgen.errors import ArgumentError, BudgetError, GenerationError  # noqa: E402
from structgen.grammar.nodes import CharClass, Tempered, sequence  # noqa: E402
from structgen.integrations.mlx_lm import ConstraintLogitsProcessor, vocabulary  # noqa: E402

pytestmark = [pytest.mark.mlx, pytest.mark.filterwarnings("ignore")]

EOS, WIDTH = 256, 272
LIST = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 40}
PROMPT = [40, 41, 42, 43]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    order = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({each: at for at, each in enumerate(order)}, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.add_special_tokens(["<eos>", "<|im_end|>"])
    return TokenizerWrapper(
        transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>"), eos_token_ids=[EOS, EOS + 1]
    )


def tiny(seed: int) -> Any:
    """A Llama whose head is wider than the vocabulary."""
    mx.random.seed(seed)
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=32,
            num_hidden_layers=2,
            intermediate_size=48,
            num_attention_heads=4,
            num_key_value_heads=2,
            rms_norm_eps=1e-5,
            vocab_size=WIDTH,
            tie_word_embeddings=False,
        )
    )
    model.lm_head.weight = mx.random.normal(model.lm_head.weight.shape)
    return model


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny(1)


@pytest.fixture(scope="module")
def words(tokenizer: Any) -> Vocabulary:
    found = vocabulary(tokenizer)
    assert set(found.eos) == {EOS, EOS + 1}
    return found


def written(tokens: list[int], words: Vocabulary) -> str:
    """The text up to the first EOS."""
    ends = [at for at, token in enumerate(tokens) if token >= EOS]
    return words.decode(tokens[: ends[0]] if ends else tokens).decode()


def reference(model: Any, constraint: Constraint, most: int) -> list[int]:
    """Greedy decoding without a cache and with masks by the bits of a fresh matcher."""
    import numpy as np

    from structgen.engine.mask import allowed_ids, empty_masks

    matcher, tokens = constraint.matcher(), []
    while not matcher.is_terminated and len(tokens) < most:
        row = np.array(model(mx.array([PROMPT + tokens]))[0, -1].astype(mx.float32))
        mask = empty_masks(constraint.vocabulary)
        matcher.fill_mask(mask, budget=most - len(tokens))
        ids = allowed_ids(mask[0])
        tokens.append(int(ids[row[ids].argmax()]))
        assert matcher.accept(tokens[-1])
    return tokens


@pytest.mark.parametrize("most", [2, 5, 24])
def test_greedy_output_is_that_of_masking_step_by_step(model: Any, words: Vocabulary, most: int) -> None:
    """And it is complete within the limit, also where the list need not end."""
    constraint = compile(json_schema(LIST), words) if most > 2 else compile(regex("[ab]{1,9}"), words)
    processor = ConstraintLogitsProcessor(constraint, max_tokens=most)
    tokens = [
        int(token)
        for token, _ in generate_step(mx.array(PROMPT), model, max_tokens=most, logits_processors=[processor])
    ]
    wanted = reference(model, constraint, most)
    assert tokens[: len(wanted)] == wanted
    assert all(token >= EOS for token in tokens[len(wanted) :])
    if most > 2:
        jsonschema_rs.validator_for(LIST).validate(json.loads(written(tokens, words)))


def test_generate_returns_the_text(model: Any, tokenizer: Any, words: Vocabulary) -> None:
    """``mlx_lm.generate`` stops at EOS, and its sampler chooses among what is allowed."""
    mx.random.seed(3)
    found = set()
    for _ in range(4):
        processor = ConstraintLogitsProcessor(compile(regex("[a-f]{3,9}!"), words), max_tokens=20)
        text = mlx_lm.generate(
            model,
            tokenizer,
            PROMPT,
            max_tokens=20,
            sampler=make_sampler(temp=1.5),
            logits_processors=[processor, *make_logits_processors(repetition_penalty=1.2)],
        )
        assert re.fullmatch("[a-f]{3,9}!", text)
        found.add(text)
    assert len(found) > 1


@pytest.mark.parametrize("other", [1, 2])
@pytest.mark.parametrize("drafts", [1, 3, 4])
def test_drafts_of_another_model(model: Any, words: Vocabulary, other: int, drafts: int) -> None:
    """With drafts, some of them rejected, the output is the same: the states follow the tokens."""
    constraint = compile(json_schema(LIST), words)
    processor = ConstraintLogitsProcessor(constraint, max_tokens=20)
    steps = speculative_generate_step(
        mx.array(PROMPT),
        model,
        model if other == 1 else tiny(other),
        num_draft_tokens=drafts,
        max_tokens=20,
        logits_processors=[processor],
    )
    tokens = [int(token) for token, _, _ in steps]
    wanted = reference(model, constraint, 20)
    assert tokens[: len(wanted)] == wanted
    assert all(token >= EOS for token in tokens[len(wanted) :])


def test_a_batch_has_a_processor_for_each_sequence(model: Any, tokenizer: Any, words: Vocabulary) -> None:
    """Sequences of a batch have constraints of their own, and some have none."""
    patterns = ["[a-c]{4}", "[0-9]{2,12}x", None]
    processors = [
        [] if each is None else [ConstraintLogitsProcessor(compile(regex(each), words), max_tokens=16)]
        for each in patterns
    ]
    batch = BatchGenerator(model, stop_tokens=[[EOS], [EOS + 1]], completion_batch_size=2)
    uids = batch.insert([PROMPT, PROMPT[:2], PROMPT[:3]], [16, 16, 16], logits_processors=processors)
    tokens: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := batch.next_generated():
        for each in responses:
            tokens[each.uid].append(each.token)
    batch.close()
    texts = [written(tokens[uid], words) for uid in uids[:2]]
    assert re.fullmatch("[a-c]{4}", texts[0])
    assert re.fullmatch("[0-9]{2,12}x", texts[1])
    assert tokens[uids[0]][:-1] == reference(model, compile(regex("[a-c]{4}"), words), 16)[:-1]
    shared = ConstraintLogitsProcessor(compile(regex("[a-c]{4}"), words))
    with pytest.raises(GenerationError, match="prompt tokens of its first call"):
        batch_generate(model, tokenizer, [PROMPT, PROMPT[:2]], max_tokens=16, logits_processors=[shared])


def test_temperatures_of_the_grammar(words: Vocabulary) -> None:
    """Logits are divided by the temperature of their state, and 0 leaves the best token."""
    letters = CharClass([(97, 98)])
    constraint = compile(sequence(letters, Tempered(letters, 0.5), Tempered(letters, 0.0)), words)
    processor = ConstraintLogitsProcessor(constraint, prompt_length=1)
    (a,), (b,) = words.tokenize(b"a"), words.tokenize(b"b")
    logits = mx.zeros((1, WIDTH))
    logits[0, a], logits[0, b] = 1.0, 3.0
    rows = [processor(mx.array([9, *[a] * count]), logits)[0] for count in range(3)]
    assert [(float(row[a]), float(row[b])) for row in rows] == [(1.0, 3.0), (2.0, 6.0), (-float("inf"), 3.0)]


def test_what_is_refused(model: Any, words: Vocabulary) -> None:
    """Limits that cannot be met, a second sequence, tokens outside the grammar, and what is no constraint."""
    constraint = compile(regex("[ab]{6}"), words)
    with pytest.raises(BudgetError):
        ConstraintLogitsProcessor(constraint, max_tokens=5)
    with pytest.raises(ArgumentError, match="expected a Constraint"):
        ConstraintLogitsProcessor(LIST)  # type: ignore[arg-type]
    processor = ConstraintLogitsProcessor(constraint)
    logits = mx.zeros((1, WIDTH))
    processor(mx.array([1, 2]), logits)
    with pytest.raises(GenerationError, match="prompt tokens of its first call"):
        processor(mx.array([1, 3]), logits)
    with pytest.raises(GenerationError, match="token 5 at position 0 is outside"):
        processor(mx.array([1, 2, 5]), logits)
    processor.reset()
    processor(mx.array([1, 3]), logits)
