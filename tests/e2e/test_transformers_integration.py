"""Constraints inside ``transformers.generate``, on tiny models with random weights."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_llama import EOS, PAD, WIDTH, tiny_llama  # noqa: E402

from structgen import json_schema  # noqa: E402
from structgen.decode import Greedy, Multinomial, Result, generate  # noqa: E402
from structgen.drafters import DraftModel  # noqa: E402
from structgen.engine import Constraint, Vocabulary, compile  # noqa: E402
from structgen.errors import BudgetError, GenerationError, VocabularyError  # noqa: E402
from structgen.grammar.nodes import ByteClass, Repeat, choice, literal, sequence  # noqa: E402
from structgen.integrations import transformers as module  # noqa: E402
from structgen.integrations.transformers import ConstraintLogitsProcessor, constrained_generate  # noqa: E402
from structgen.models import from_transformers  # noqa: E402

LETTER = ByteClass([(ord("a"), ord("z"))])
GRAMMAR = sequence('{"name": "', Repeat(LETTER, 1, 6).named("name"), '", "ab": ', choice("true", "null", "12"), "}")
PATTERN = re.compile(r'\{"name": "[a-z]{1,6}", "ab": (?:true|null|12)\}')


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: such small models lose more by waiting for threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["host", "pool"])
def where_masks_are(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test as on a CPU, and as on a GPU except for where the pool is."""
    if request.param == "pool":
        monkeypatch.setattr(module, "_POOLED", {"cpu"})


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(1)


@pytest.fixture(scope="module")
def constraint(json_vocabulary: Vocabulary) -> Constraint:
    return compile(GRAMMAR, json_vocabulary)


@pytest.fixture(scope="module")
def wide(json_vocabulary: Vocabulary) -> Constraint:
    """The same for a vocabulary as wide as the model's head."""
    return compile(GRAMMAR, json_vocabulary.with_size(WIDTH))


def prompts(*lengths: int) -> dict[str, Any]:
    """Prompts of some lengths, padded on the left."""
    longest = max(lengths)
    rng = np.random.default_rng(len(lengths))
    rows = [[PAD] * (longest - n) + rng.integers(1, 250, n).tolist() for n in lengths]
    kept = [[0] * (longest - n) + [1] * n for n in lengths]
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(kept)}


def texts(constraint: Constraint, sequences: Any, prompt_length: int) -> list[str]:
    return [
        constraint.vocabulary.decode([t for t in row if t < 304]).decode()
        for row in sequences[:, prompt_length:].tolist()
    ]


def run(model: Any, constraint: Constraint, inputs: dict[str, Any], **options: Any) -> list[str]:
    """Generate with the processor; return the outputs as texts."""
    processor = options.pop("processor", None) or ConstraintLogitsProcessor(constraint)
    sequences = model.generate(
        **inputs, **{"max_new_tokens": 40, "do_sample": False, **options}, logits_processor=[processor]
    )
    return texts(constraint, sequences, inputs["input_ids"].shape[1])


@pytest.mark.usefixtures("where_masks_are")
def test_greedy_search_is_that_of_our_loop(model: Any, constraint: Constraint, wide: Constraint) -> None:
    """Greedy search with the processor gives the tokens of masking step by step."""
    inputs = prompts(5)
    (text,) = run(model, constraint, inputs)
    assert PATTERN.fullmatch(text)
    with torch.no_grad():
        ids = inputs["input_ids"]
        matcher = constraint.matcher()
        mask = np.zeros((1, (constraint.vocabulary.size + 31) // 32), dtype=np.int32)
        while not matcher.is_terminated:
            logits = model(ids).logits[0, -1]
            matcher.fill_mask(mask)
            allowed = [t for t in range(304) if int(mask[0, t >> 5]) >> (t & 31) & 1]
            token = max(allowed, key=lambda t: float(logits[t]))
            assert matcher.accept(token)
            ids = torch.cat((ids, torch.tensor([[token]])), dim=1)
    assert text == texts(constraint, ids, 5)[0]


@pytest.mark.usefixtures("where_masks_are")
@pytest.mark.parametrize("num_beams", [2, 4])
def test_beams(model: Any, constraint: Constraint, num_beams: int) -> None:
    """Beam search reorders rows and explores several continuations; all its outputs are in the language."""
    inputs = prompts(5, 3)
    found = run(model, constraint, inputs, num_beams=num_beams, num_return_sequences=2)
    assert len(found) == 4
    assert all(PATTERN.fullmatch(text) for text in found)


def test_more_beams_than_continuations(model: Any, json_vocabulary: Vocabulary) -> None:
    """Beams without a continuation in the grammar are dropped, and the only string is found."""
    constraint = compile(literal("[12, null]"), json_vocabulary)
    assert run(model, constraint, prompts(4), num_beams=5) == ["[12, null]"]


@pytest.mark.usefixtures("where_masks_are")
def test_sampling_in_batches(model: Any, constraint: Constraint) -> None:
    """Rows of different lengths, padded on the left and ending at different times, all give strings of the language."""
    torch.manual_seed(0)
    inputs = prompts(7, 2, 4)
    found = run(model, constraint, inputs, do_sample=True, num_return_sequences=5, top_k=0)
    assert len(found) == 15
    assert all(PATTERN.fullmatch(text) for text in found)
    assert len(set(found)) > 5


def test_rows_of_a_batch_do_not_influence_each_other(model: Any, constraint: Constraint) -> None:
    """Greedy search gives each row of a batch what it gives the row alone."""
    inputs = prompts(6, 6, 6)
    alone = [run(model, constraint, {name: value[i : i + 1] for name, value in inputs.items()})[0] for i in range(3)]
    assert run(model, constraint, inputs) == alone


@pytest.mark.parametrize("do_sample", [False, True])
def test_assisted_decoding(model: Any, constraint: Constraint, do_sample: bool) -> None:
    """Drafts of another model are masked, rejected and rolled back; the output is still in the language."""
    torch.manual_seed(3)
    inputs = prompts(5)
    found = run(model, constraint, inputs, assistant_model=tiny_llama(2), do_sample=do_sample)
    assert PATTERN.fullmatch(found[0])
    if not do_sample:
        assert found == run(model, constraint, inputs)


def test_prompt_lookup(model: Any, constraint: Constraint) -> None:
    """Drafts copied from the prompt are checked against the grammar too."""
    copied = constraint.vocabulary.tokenize('{"name": "ab", "ab": null} {"name": "xy", "ab": true}')
    inputs = {"input_ids": torch.tensor([copied])}
    assert run(model, constraint, inputs, prompt_lookup_num_tokens=4) == run(model, constraint, inputs)


@pytest.mark.usefixtures("where_masks_are")
def test_after_the_end_only_eos_and_padding(constraint: Constraint) -> None:
    """A row that has ended allows EOS and the padding token, another row goes on."""
    processor = ConstraintLogitsProcessor(constraint, prompt_length=2, pad_token_id=303)
    ended = [5, 6, *constraint.vocabulary.tokenize('{"name": "a", "ab": 12}'), EOS, 303]
    begun = [5, 6, *constraint.vocabulary.tokenize('{"name": "zzzzzz", "ab": true}')][: len(ended)]
    rows = torch.tensor([ended, begun])
    scores = processor(rows, torch.zeros(2, WIDTH))
    assert torch.isfinite(scores[0]).nonzero().flatten().tolist() == [EOS, 303]
    assert torch.isfinite(scores[1]).any()
    assert not torch.isfinite(scores[:, 304:]).any()


def test_scores_are_not_changed_in_place(constraint: Constraint) -> None:
    """Callers can go on using the scores that they passed."""
    scores = torch.ones(1, WIDTH)
    masked = ConstraintLogitsProcessor(constraint)(torch.tensor([[1, 2]]), scores)
    assert (scores == 1).all()
    assert not torch.isfinite(masked).all()


def test_a_token_outside_the_grammar_is_an_error(constraint: Constraint) -> None:
    """An error names a token that the mask excluded, with the row, the position and the text before."""
    processor = ConstraintLogitsProcessor(constraint)
    start = torch.tensor([[1, 2], [1, 2]])
    processor(start, torch.zeros(2, WIDTH))
    good, bad = constraint.vocabulary.tokenize("{")[0], constraint.vocabulary.tokenize("!")[0]
    rows = torch.cat((start, torch.tensor([[good], [bad]])), dim=1)
    with pytest.raises(GenerationError, match=rf"token {bad} \(b'!'\) at position 0 of the output in row 1"):
        processor(rows, torch.zeros(2, WIDTH))
    lenient = ConstraintLogitsProcessor(constraint, prompt_length=2, strict=False)
    scores = lenient(rows, torch.zeros(2, WIDTH))
    assert torch.isfinite(scores[1]).nonzero().flatten().tolist() == [EOS]
    beams = ConstraintLogitsProcessor(constraint, prompt_length=2)
    beams(rows, torch.log_softmax(torch.randn(2, WIDTH), dim=-1))


def test_a_processor_serves_one_prompt(constraint: Constraint) -> None:
    """Using a processor for another prompt is an error, unless it is reset."""
    processor = ConstraintLogitsProcessor(constraint)
    processor(torch.tensor([[1, 2, 3]]), torch.zeros(1, WIDTH))
    for other in ([[9, 9, 9, 9]], [[1, 2]]):
        with pytest.raises(GenerationError, match="new ConstraintLogitsProcessor"):
            processor(torch.tensor(other), torch.zeros(1, WIDTH))
    processor.reset()
    assert torch.isfinite(processor(torch.tensor([[9, 9]]), torch.zeros(1, WIDTH))).any()


def test_text_after_the_end_is_an_error(constraint: Constraint) -> None:
    """A row that goes on after EOS with more than padding is an error: the text belongs to another turn."""
    processor = ConstraintLogitsProcessor(constraint, prompt_length=0)
    row = [*constraint.vocabulary.tokenize('{"name": "a", "ab": 12}'), EOS, 7, 8]
    with pytest.raises(GenerationError, match="token 8"):
        processor(torch.tensor([row]), torch.zeros(1, WIDTH))


def test_states_that_were_dropped_are_made_again(constraint: Constraint, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for only a few states, the masks stay the same."""
    monkeypatch.setattr(module, "_STATES", 2)
    monkeypatch.setattr(module, "_STATES_PER_ROW", 1)
    tokens = constraint.vocabulary.tokenize('{"name": "abc", "ab": 12}')
    processor = ConstraintLogitsProcessor(constraint, prompt_length=0)
    for size in [*range(len(tokens)), 3, 7, 0, len(tokens)]:
        matcher = constraint.matcher()
        for token in tokens[:size]:
            assert matcher.accept(token)
        row = np.zeros((1, (constraint.vocabulary.size + 31) // 32), dtype=np.int32)
        matcher.fill_mask(row)
        expected = [t for t in range(304) if int(row[0, t >> 5]) >> (t & 31) & 1]
        ids = torch.tensor([tokens[:size]], dtype=torch.int64)
        assert torch.isfinite(processor(ids, torch.zeros(1, WIDTH)))[0].nonzero().flatten().tolist() == expected
        assert len(processor._states) <= 2


@pytest.mark.usefixtures("where_masks_are")
def test_outputs_are_completed_within_max_new_tokens(model: Any, json_vocabulary: Vocabulary) -> None:
    """With a budget the processor closes an endless output in time; a budget that is too small is refused at once."""
    endless = compile(sequence("[", Repeat(LETTER, 1, None), "]"), json_vocabulary)
    for budget in (3, 5, 8):
        processor = ConstraintLogitsProcessor(endless, max_new_tokens=budget)
        found = run(model, endless, prompts(4, 6), processor=processor, max_new_tokens=budget, do_sample=True)
        assert all(re.fullmatch(r"\[[a-z]+\]", text) for text in found)
    with pytest.raises(BudgetError):
        ConstraintLogitsProcessor(endless, max_new_tokens=2)


def test_the_processor_says_that_it_does_not_batch_continuously() -> None:
    """Continuous batching gives a processor no rows to follow, so it must not be used there."""
    assert ConstraintLogitsProcessor.supports_continuous_batching is False


@pytest.mark.usefixtures("where_masks_are")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [40, 33, 303, 304, WIDTH])
def test_scores_of_any_width_and_type(constraint: Constraint, width: int, dtype: torch.dtype) -> None:
    """The mask decides about the columns of the vocabulary and excludes all others; allowed scores do not change."""
    begun = constraint.vocabulary.tokenize('{"name": "a')
    rows = torch.tensor([begun, begun])
    matcher = constraint.matcher()
    for token in begun:
        assert matcher.accept(token)
    mask = np.zeros((1, (constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(mask)
    scores = torch.randn(width, 2, generator=torch.Generator().manual_seed(0)).to(dtype).T
    before = scores.clone()
    masked = ConstraintLogitsProcessor(constraint, prompt_length=0)(rows, scores)
    assert masked.dtype == dtype
    for row in range(2):
        for column in range(width):
            is_allowed = column < 304 and int(mask[0, column >> 5]) >> (column & 31) & 1
            assert masked[row, column] == (before[row, column] if is_allowed else -torch.inf)
    assert torch.equal(scores, before)


def test_masks_in_a_pool_are_those_of_each_step(
    constraint: Constraint, json_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On random walks of rows that end at different times, with a budget and without, masks are those of the host."""
    unique = compile(
        json_schema({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, whitespace="compact"),
        json_vocabulary,
    )
    for tested, budget in ((constraint, None), (unique, None), (unique, 14)):
        torch.manual_seed(0)
        plain = ConstraintLogitsProcessor(tested, prompt_length=0, max_new_tokens=budget)
        pooled = ConstraintLogitsProcessor(tested, prompt_length=0, max_new_tokens=budget)
        rows = torch.zeros(6, 0, dtype=torch.int64)
        scores = torch.randn(6, WIDTH)
        for _ in range(24 if budget is None else budget):
            expected = plain(rows, scores)
            with monkeypatch.context() as patch:
                patch.setattr(module, "_POOLED", {"cpu"})
                assert torch.equal(pooled(rows, scores), expected)
            rows = torch.cat((rows, torch.multinomial(torch.softmax(expected, dim=-1), 1)), dim=1)
        assert plain._pool is None
        assert pooled._pool is not None


@pytest.mark.usefixtures("where_masks_are")
def test_rows_whose_matchers_have_the_same_state_id(json_vocabulary: Vocabulary) -> None:
    """The id does not cover items that must differ: masks differ in the quotation mark that would repeat an item."""
    unique = compile(
        json_schema({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, whitespace="compact"),
        json_vocabulary,
    )
    processor = ConstraintLogitsProcessor(unique, prompt_length=0)
    token = {text: index for index, text in enumerate(json_vocabulary.tokens)}
    rows = torch.tensor([[token[bytes([byte])] for byte in text] for text in (b'["a","a', b'["b","a')])
    one, two = (unique.matcher(), unique.matcher())
    assert all(one.accept(each) for each in rows[0].tolist())
    assert all(two.accept(each) for each in rows[1].tolist())
    assert one.state_id == two.state_id
    for _ in range(2):
        masked = processor(rows, torch.zeros(2, WIDTH))
        assert torch.isfinite(masked[:, token[b'"']]).tolist() == [False, True]


def test_masks_that_are_in_the_pool_are_not_sent_again(constraint: Constraint, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its masks are in the pool, a step of a batch sends four bytes per row."""
    monkeypatch.setattr(module, "_POOLED", {"cpu"})
    processor = ConstraintLogitsProcessor(constraint, prompt_length=0)
    output = torch.tensor(constraint.vocabulary.tokenize('{"name": "abc", "ab": null}'))
    uploaded = []
    for _ in range(2):
        for length in range(len(output) + 1):
            processor(output[:length].expand(8, -1), torch.zeros(8, WIDTH))
        assert processor._pool is not None
        uploaded.append(processor._pool.uploaded_bytes)
        processor.reset()
    assert uploaded[0] == uploaded[1] > 0
    assert processor._pool.step_bytes == 2 * (len(output) + 1) * 8 * 4


def loop(model: Any, constraint: Constraint, inputs: dict[str, Any], **options: Any) -> Any:
    return model.generate(
        **inputs,
        **{"max_new_tokens": 40, "do_sample": False, **options},
        custom_generate=constrained_generate,
        constraint=constraint,
    )


def test_the_loop_inside_transformers(model: Any, wide: Constraint) -> None:
    """``custom_generate`` gives every row of a padded batch the output of ``generate``, with fewer forward passes."""
    inputs = prompts(6, 3)
    results: list[Result] = []
    sequences = loop(model, wide, inputs, results=results, drafter=None)
    assert (sequences[:, :6] == inputs["input_ids"]).all()
    for row, result in enumerate(results):
        assert PATTERN.fullmatch(result.text)
        assert result.stats.forwards < result.stats.tokens
        output = sequences[row, 6:].tolist()
        assert output[: len(result.tokens) + 1] == [*result.tokens, EOS]
        assert set(output[len(result.tokens) + 1 :]) <= {PAD}
        assert result.captures["name"] in result.text


def test_the_loop_is_our_generate(model: Any, wide: Constraint) -> None:
    """The loop under ``custom_generate`` is ``structgen.decode.generate`` on the same model."""
    inputs = prompts(6)
    hosted = from_transformers(model, list(wide.vocabulary.tokens))

    class Prompted:
        name, max_context, start, vocabulary = "tiny", 256, staticmethod(hosted.start), wide.vocabulary

        def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
            return inputs["input_ids"][0].tolist()

    for sampler in (Greedy(), Multinomial()):
        expected = generate(Prompted(), "", wide, max_tokens=40, sampler=sampler, seed=4)
        found = loop(model, wide, inputs, sampler=sampler, seed=4)[0, 6:].tolist()
        assert found == [*expected.tokens, EOS]


def test_the_loop_takes_a_drafter(model: Any, wide: Constraint) -> None:
    """The outputs of a padded batch are the same with drafts and without.

    A draft model with the same weights saves forward passes.
    """
    inputs = prompts(6, 3)
    draft_model = from_transformers(tiny_llama(1), list(wide.vocabulary.tokens))
    both: tuple[dict[str, Any], ...] = ({}, {"sampler": Multinomial(), "seed": 4})
    for options in both:
        held: dict[str, list[Result]] = {}
        sequences = {}
        for name, drafter in {"plain": None, "auto": "auto", "reference": DraftModel(draft_model, draws=False)}.items():
            held[name] = []
            sequences[name] = loop(model, wide, inputs, drafter=drafter, results=held[name], **options)
        assert (sequences["auto"] == sequences["plain"]).all()
        assert (sequences["reference"] == sequences["plain"]).all()
        assert [result.stats.drafts is None for result in held["plain"]] == [True, True]
        if not options:  # a model with the same weights drafts the most probable tokens
            for plain, reference in zip(held["plain"], held["reference"], strict=True):
                assert reference.stats.accepted > 0
                assert reference.stats.forwards < plain.stats.forwards
    with pytest.raises(TypeError, match=r"a language model drafts through sg\.drafters\.DraftModel"):
        loop(model, wide, inputs, drafter=draft_model)


def test_the_loop_samples_as_transformers_was_asked(model: Any, wide: Constraint) -> None:
    """``do_sample`` with its shapes becomes a sampler; a seed fixes the output, and so does torch's generator."""
    inputs = prompts(6)
    shape = {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.95, "min_p": 0.01}
    first = loop(model, wide, inputs, num_return_sequences=6, seed=1, **shape)
    assert (first == loop(model, wide, inputs, num_return_sequences=6, seed=1, **shape)).all()
    assert len({tuple(row) for row in first.tolist()}) > 1
    torch.manual_seed(9)
    sampled = loop(model, wide, inputs, **shape)
    torch.manual_seed(9)
    assert (sampled == loop(model, wide, inputs, **shape)).all()


def test_the_loop_keeps_the_budget(model: Any, json_vocabulary: Vocabulary) -> None:
    """``max_new_tokens`` at the exact minimum gives a complete output, below it an error."""
    endless = compile(sequence("[", Repeat(LETTER, 1, None), "]"), json_vocabulary.with_size(WIDTH))
    least = endless.min_tokens()
    found = texts(endless, loop(model, endless, prompts(4), max_new_tokens=least), 4)
    assert re.fullmatch(r"\[[a-z]+\]", found[0])
    with pytest.raises(BudgetError):
        loop(model, endless, prompts(4), max_new_tokens=least - 1)


def test_the_loop_returns_a_dictionary_where_asked(model: Any, wide: Constraint) -> None:
    """``return_dict_in_generate`` wraps the same sequences."""
    inputs = prompts(6)
    wrapped = loop(model, wide, inputs, return_dict_in_generate=True)
    assert (wrapped.sequences == loop(model, wide, inputs)).all()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_beams": 2}, "beam_search"),
        ({"repetition_penalty": 1.3}, "RepetitionPenaltyLogitsProcessor"),
        ({"max_time": 9.0}, "MaxTimeCriteria"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
        ({"do_sample": True, "typical_p": 0.5}, "TypicalLogitsWarper"),
        ({"prompt_lookup_num_tokens": 3}, "assisted_generation"),
    ],
    ids=str,
)
def test_the_loop_refuses_what_it_does_not_do(
    model: Any, wide: Constraint, options: dict[str, Any], named: str
) -> None:
    """No argument of transformers is silently ignored."""
    with pytest.raises(GenerationError, match=named):
        loop(model, wide, prompts(5), **options)


def test_the_loop_refuses_a_narrower_vocabulary(model: Any, constraint: Constraint) -> None:
    """A vocabulary that is narrower than the head is an error that says which width to load."""
    with pytest.raises(VocabularyError, match=f"size={WIDTH}"):
        loop(model, constraint, prompts(5))
