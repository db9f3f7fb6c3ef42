"""Constraints in the continuous batching of transformers: tiny models with random weights, and the embedded model."""

from __future__ import annotations

import json
import queue
import re
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("transformers.generation.continuous_batching.cb_logits_processors")
jsonschema_rs = pytest.importorskip("jsonschema_rs")

from tiny_llama import EOS, WIDTH, tiny_llama  # noqa: E402
from transformers import ContinuousBatchingConfig, GenerationConfig  # noqa: E402

from structgen import compile, json_schema, regex, select  # noqa: E402
from structgen.engine import Constraint, Vocabulary  # noqa: E402
from structgen.errors import ArgumentError, BudgetError, CutWarning, GenerationError, VocabularyError  # noqa: E402
from structgen.grammar.limits import Limits  # noqa: E402
from structgen.grammar.nodes import CharClass, Tempered  # noqa: E402
from structgen.integrations.transformers import ConstraintLogitsProcessor  # noqa: E402
from structgen.integrations.transformers_batching import continuous_batching, generate_batch  # noqa: E402

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ITEMS = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 50}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Use one thread: such small models lose more by waiting for threads than they gain."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama(5)


@pytest.fixture(scope="module")
def vocabulary(json_vocabulary: Vocabulary) -> Vocabulary:
    """A vocabulary as wide as the model's head."""
    return json_vocabulary.with_size(WIDTH)


def sizes(**changes: Any) -> Any:
    """A configuration with little memory."""
    return ContinuousBatchingConfig(**{"num_blocks": 32, "page_size": 16, "max_batch_tokens": 64, **changes})


def greedy(**changes: Any) -> Any:
    return GenerationConfig(**{"do_sample": False, "eos_token_id": EOS, **changes})


def text_of(vocabulary: Vocabulary, output: Any) -> str:
    """The text of an output that has no error, without EOS."""
    assert output.error is None
    return vocabulary.decode([token for token in output.generated_tokens if token != EOS]).decode()


def alone(model: Any, prompt: list[int], constraint: Constraint | None, most: int) -> list[int]:
    """The tokens of ``model.generate`` for one prompt."""
    processors = [] if constraint is None else [ConstraintLogitsProcessor(constraint, max_new_tokens=most)]
    found = model.generate(
        input_ids=torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=most,
        do_sample=False,
        logits_processor=processors,
    )
    tokens: list[int] = found[0, len(prompt) :].tolist()
    return tokens


def test_outputs_are_those_of_generate(model: Any, vocabulary: Vocabulary) -> None:
    """Seven requests with different constraints, one of them none, three in a batch: each is what it is alone."""
    grammars = [json_schema(PERSON), regex("[a-z]{3,30}!"), None, select(["yes", "no"]), json_schema(ITEMS)]
    constraints = [None if each is None else compile(each, vocabulary) for each in (*grammars, *grammars[:2])]
    inputs = [[40 + at, 50, 60][: 1 + at % 3] for at in range(len(constraints))]
    outputs = generate_batch(
        model,
        inputs,
        constraints,
        max_new_tokens=24,
        generation_config=greedy(),
        continuous_batching_config=sizes(max_requests_per_batch=3),
    )
    assert list(outputs) == [f"req_{at}" for at in range(len(inputs))]
    for output, prompt, constraint in zip(outputs.values(), inputs, constraints, strict=True):
        assert output.error is None
        assert output.generated_tokens == alone(model, prompt, constraint, 24)
    texts = [None if at == 2 else text_of(vocabulary, each) for at, each in enumerate(outputs.values())]
    jsonschema_rs.validator_for(PERSON).validate(json.loads(texts[0] or ""))
    jsonschema_rs.validator_for(ITEMS).validate(json.loads(texts[4] or ""))
    assert re.fullmatch("[a-z]{3,30}!", texts[1] or "")
    assert texts[3] in {"yes", "no"}


def test_each_request_is_complete_within_its_own_limit(model: Any, vocabulary: Vocabulary) -> None:
    """Lists of up to fifty numbers end where their requests say, EOS counted only where there is room for it."""
    constraint = compile(json_schema(ITEMS), vocabulary)
    limits = [3, 4, 7, 12, 31]
    with continuous_batching(
        model, generation_config=greedy(), continuous_batching_config=sizes(), workload_hints=None
    ) as batching:
        ids = [batching.add_request([90, 91], constraint, max_new_tokens=most) for most in limits]
        found = {output.request_id: output for output in batching.results()}
    for request_id, most in zip(ids, limits, strict=True):
        tokens = found[request_id].generated_tokens
        assert len(tokens) <= most
        jsonschema_rs.validator_for(ITEMS).validate(json.loads(text_of(vocabulary, found[request_id])))


def test_sampled_children_are_in_the_language(model: Any, vocabulary: Vocabulary) -> None:
    """Requests for several outputs are copied inside transformers, and each copy is masked by its own state."""
    torch.manual_seed(1)
    outputs = generate_batch(
        model,
        [[70, 71], [72]],
        [compile(json_schema(PERSON), vocabulary), compile(regex("[a-z]{3,9}!"), vocabulary)],
        max_new_tokens=30,
        generation_config=greedy(do_sample=True, num_return_sequences=4, temperature=1.5),
        continuous_batching_config=sizes(),
    )
    assert [name.partition("__")[0] for name in outputs] == ["req_0"] * 4 + ["req_1"] * 4
    texts = [text_of(vocabulary, output) for output in outputs.values()]
    assert len(set(texts)) > 2
    for text in texts[:4]:
        jsonschema_rs.validator_for(PERSON).validate(json.loads(text))
    assert all(re.fullmatch("[a-z]{3,9}!", text) for text in texts[4:])


def test_requests_that_go_back_to_the_queue_go_on_in_their_state(model: Any, vocabulary: Vocabulary) -> None:
    """Where the cache is full, transformers drops requests and begins them again with their tokens in the prompt."""
    constraint = compile(regex("[a-z]{60}!"), vocabulary)
    inputs = [[40 + at] for at in range(4)]
    seen: set[int] = set()
    with continuous_batching(
        model,
        generation_config=greedy(),
        continuous_batching_config=sizes(num_blocks=10, allow_block_sharing=False, cpu_offload_space=0.0),
    ) as batching:
        ids = [batching.add_request(prompt, constraint, max_new_tokens=61) for prompt in inputs]
        manager = batching.manager.batch_processor
        prepared = manager.logit_processor.logits_processor[0].prepare_tensor_args

        def watched(requests: Any) -> Any:
            seen.update(len(each.state.initial_tokens) for each in requests)
            return prepared(requests)

        manager.logit_processor.logits_processor[0].prepare_tensor_args = watched
        found = {output.request_id: output for output in batching.results()}
    assert max(seen) > 1
    for request_id, prompt in zip(ids, inputs, strict=True):
        assert re.fullmatch("[a-z]{60}!", text_of(vocabulary, found[request_id]))
        assert found[request_id].generated_tokens == alone(model, prompt, constraint, 61)


EXPLODING = "|".join(rf"(?:(?:[ab]{{1,{most}}}c?){{1,99}}d?){{1,99}}" for most in (63, 64, 65, 66))


def test_a_limit_ends_its_request_and_no_other(model: Any, vocabulary: Vocabulary) -> None:
    """The output has the error and a warning says so; the others are what they are alone."""
    hostile = compile(regex(f"x[a-f]{{3}}|y(?:{EXPLODING})"), vocabulary, limits=Limits(steps=1_400)).alone()
    x, y = (vocabulary.tokenize(letter)[0] for letter in (b"x", b"y"))
    with torch.no_grad():
        logits = model(torch.arange(1, 250)[:, None]).logits[:, -1]
    prompt = 1 + int((logits[:, y] - logits[:, x]).argmax())
    tame = compile(json_schema(PERSON), vocabulary)
    with pytest.warns(CutWarning, match="request req_1 ends before it is complete.*steps=1400"):
        outputs = generate_batch(
            model,
            [[41], [prompt], [43]],
            [tame, hostile, tame],
            generation_config=greedy(),
            continuous_batching_config=sizes(),
        )
    first, cut, last = outputs.values()
    assert "steps=1400" in cut.error
    assert cut.generated_tokens[-1] == EOS
    assert vocabulary.decode(cut.generated_tokens[:-1]).startswith(b"y")
    assert first.generated_tokens == alone(model, [41], tame, 60)
    assert last.generated_tokens == alone(model, [43], tame, 60)


def test_an_output_that_another_processor_spoils_has_an_error(model: Any, vocabulary: Vocabulary) -> None:
    """Suppressed tokens that the grammar needs cannot be written, and the output does not pass for a valid one."""
    needed = compile(regex("[ab]{2}!"), vocabulary)
    with pytest.warns(CutWarning, match="outside the grammar"):
        outputs = generate_batch(
            model,
            [[41]],
            [needed],
            max_new_tokens=12,
            generation_config=greedy(suppress_tokens=list(vocabulary.tokenize(b"!"))),
            continuous_batching_config=sizes(),
        )
    (output,) = outputs.values()
    assert "let no other processor exclude" in output.error


def test_what_is_refused(model: Any, vocabulary: Vocabulary, json_vocabulary: Vocabulary) -> None:
    """Asynchronous batches, other vocabularies, budgets that cannot be met and parts with temperatures, by name."""
    fits = compile(select(["yes", "no"]), vocabulary)

    def ask(constraint: Any, most: int = 8, **changes: Any) -> None:
        generate_batch(
            model,
            [[41]],
            [constraint],
            max_new_tokens=most,
            generation_config=greedy(),
            continuous_batching_config=sizes(**changes),
        )

    with pytest.raises(GenerationError, match="use_async_batching is on"):
        ask(fits, use_async_batching=True)
    with pytest.raises(VocabularyError, match="304 tokens, and the model's head 320"):
        ask(compile(select(["yes", "no"]), json_vocabulary))
    with pytest.raises(VocabularyError, match="no token that ends an output"):
        ask(compile(select(["yes", "no"]), vocabulary.with_eos([])))
    with pytest.raises(BudgetError):
        ask(compile(regex("[xyz]{30}"), vocabulary))
    with pytest.raises(GenerationError, match="temperature of their own"):
        ask(compile(Tempered(CharClass([(97, 98)]), 0.5), vocabulary))
    with pytest.raises(ArgumentError, match="needs the model's tokenizer"):
        ask(PERSON)
    with pytest.raises(GenerationError, match="1 prompts and 0 constraints"):
        generate_batch(model, [[41]], [], max_new_tokens=8)
    assert generate_batch(model, [], []) == {}


def test_a_kept_manager_is_refused(model: Any, vocabulary: Vocabulary) -> None:
    """Its tensors have no place for the processor."""
    model.generate_batch(
        [[41]],
        generation_config=greedy(max_new_tokens=2),
        continuous_batching_config=sizes(),
        persistent_manager=True,
    )
    try:
        with pytest.raises(GenerationError, match="destroy_cached_continuous_batching_manager"):
            generate_batch(model, [[41]], [compile(regex("a"), vocabulary)], max_new_tokens=4)
    finally:
        model.destroy_cached_continuous_batching_manager()


def test_streams_and_cancelled_requests(model: Any, vocabulary: Vocabulary) -> None:
    """A stream shows prefixes of its output; of a cancelled request nothing comes; ids are not given twice."""
    constraint = compile(json_schema(PERSON), vocabulary)
    with continuous_batching(model, generation_config=greedy(), continuous_batching_config=sizes()) as batching:
        batching.add_request([44], constraint, max_new_tokens=30, streaming=True, request_id="seen")
        batching.add_request([45], compile(regex("[a-z]{400}"), vocabulary), max_new_tokens=400, request_id="gone")
        with pytest.raises(GenerationError, match="a request 'seen' already"):
            batching.add_request([44], constraint, max_new_tokens=30, request_id="seen")
        batching.cancel_request("gone")
        shown = list(batching.results())
    tokens = shown[-1].generated_tokens
    assert tokens == alone(model, [44], constraint, 30)
    for output in shown:
        assert output.request_id == "seen"
        assert output.generated_tokens == tokens[: len(output.generated_tokens)]


@pytest.mark.model
@pytest.mark.exhaustive
def test_the_embedded_model() -> None:
    """With schemas of its requests the embedded model gives in a batch what it gives alone."""
    from structgen.models import embedded_folder

    folder = embedded_folder()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    schemas = [PERSON, {"enum": ["Paris", "Lima"]}]
    questions = ["Who is Ada, aged 36? Answer as JSON: ", "The capital of Peru as JSON: "]
    inputs = [tokenizer(each)["input_ids"] for each in questions]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        outputs = generate_batch(
            model,
            inputs,
            schemas,
            tokenizer,
            max_new_tokens=20,
            generation_config=GenerationConfig(do_sample=False),
            continuous_batching_config=sizes(page_size=32),
        )
    for output, prompt, schema in zip(outputs.values(), inputs, schemas, strict=True):
        vocabulary = Vocabulary.load(tokenizer, size=model.config.vocab_size)
        constraint = compile(json_schema(schema), vocabulary)
        jsonschema_rs.validator_for(schema).validate(
            json.loads(tokenizer.decode(output.generated_tokens, skip_special_tokens=True))
        )
        assert output.generated_tokens == alone(model, prompt, constraint, 20)


def test_a_request_for_which_there_is_no_place_is_not_waited_for(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is that of transformers, and its id is free again."""
    with continuous_batching(model, generation_config=greedy(), continuous_batching_config=sizes()) as batching:
        with monkeypatch.context() as patched:
            patched.setattr(batching.manager, "add_request", mock.Mock(side_effect=queue.Full))
            with pytest.raises(queue.Full):
                batching.add_request([5, 6], max_new_tokens=2, request_id="a")
        assert list(batching.results()) == []
        batching.add_request([5, 6], max_new_tokens=2, request_id="a")
        assert [output.request_id for output in batching.results()] == ["a"]
