"""Models of transformers: tiny ones of several architectures, random weights, against passes without a cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from structgen.errors import GenerationError, ModelError
from structgen.models import LanguageModel, Session, from_transformers, load_model, location as hub

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SMALL = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
IDS = [5, 80, 3, 200, 99, 5, 17, 210, 42, 7, 7, 130, 9, 64]


def make(config_class: str, *, vocab_size: int = 264, **options: Any) -> Any:
    """Make a causal model with random weights."""
    torch.manual_seed(11)
    config = getattr(transformers, config_class)(vocab_size=vocab_size, eos_token_id=2, bos_token_id=1, **options)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def llama(**options: Any) -> Any:
    """Make the simplest model."""
    return make("LlamaConfig", **{**SMALL, "num_hidden_layers": 2, **options})


ARCHITECTURES = {
    "full attention": llama,
    "learned positions": lambda: make("GPT2Config", n_embd=24, n_layer=2, n_head=3, n_positions=128),
    "sliding window": lambda: make("MistralConfig", **SMALL, num_hidden_layers=2, sliding_window=4),
    "sliding and full": lambda: make(
        "Gemma3TextConfig", **SMALL, num_hidden_layers=7, sliding_window=4, query_pre_attn_scalar=8
    ),
    "convolution and attention": lambda: make(
        "Lfm2Config", **SMALL, num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"]
    ),
    "recurrent states": lambda: make("MambaConfig", hidden_size=24, num_hidden_layers=2, state_size=8, pad_token_id=0),
}


@pytest.fixture(scope="module")
def tokenizer(byte_tokenizer: Any) -> Any:
    """The byte-level tokenizer as an object of transformers."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer, eos_token=SPECIAL[2], bos_token=SPECIAL[1]
    )


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tokenizer: Any) -> Any:
    """One model of each architecture."""
    return from_transformers(ARCHITECTURES[request.param](), tokenizer, name=request.param)


def all_logits(model: Any, ids: list[int]) -> Any:
    """One pass over all tokens without a cache."""
    with torch.inference_mode():
        return model.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy()


def test_sessions_equal_passes_without_a_cache(model: Any) -> None:
    """For every architecture, splits, truncation and forks do not change the logits."""
    expected = all_logits(model, IDS)
    session = model.start()
    assert isinstance(model, LanguageModel)
    assert isinstance(session, Session)
    np.testing.assert_allclose(session.extend_all(IDS[:6]), expected[:6], atol=1e-4)
    reference = session.fork()
    session.extend([11, 12, 13])
    np.testing.assert_allclose(reference.extend(IDS[6:]), expected[-1], atol=1e-4)
    session.truncate(3)
    np.testing.assert_allclose(session.extend_all(IDS[3:]), expected[3:], atol=1e-4)
    assert (session.length, reference.length, reference.forwards) == (14, 14, 1)
    session.truncate(0)
    np.testing.assert_allclose(session.extend(IDS[:1]), expected[0], atol=1e-4)
    reference.truncate(13)
    np.testing.assert_allclose(reference.extend(IDS[13:]), expected[-1], atol=1e-4)
    session.close()
    assert session.length == 0


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_the_cache_has_either_name(name: str, tokenizer: Any) -> None:
    """transformers 5.24 renamed the argument of the forward pass; code that ships with a model keeps the old name."""
    network = llama()
    inner, received = network.forward, []

    def forward(input_ids: Any, attention_mask: Any, position_ids: Any, kept: Any, options: dict[str, Any]) -> Any:
        received.append(kept)
        return inner(input_ids, attention_mask, position_ids, kept, **options)

    if name == "cache":
        network.forward = lambda input_ids, attention_mask=None, position_ids=None, cache=None, **options: forward(
            input_ids, attention_mask, position_ids, cache, options
        )
    else:
        network.forward = lambda input_ids, attention_mask=None, position_ids=None, past_key_values=None, **options: (
            forward(input_ids, attention_mask, position_ids, past_key_values, options)
        )
    model = from_transformers(network, tokenizer, name=name)
    session = model.start()
    rows = np.stack([session.extend([token]) for token in IDS])
    assert len(received) == len(IDS)
    assert all(cache is not None for cache in received)
    np.testing.assert_allclose(rows, all_logits(model, IDS), atol=1e-4)


def test_going_back_costs_no_recomputation(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With attention only, the next pass after a truncation runs only the new tokens."""
    model = from_transformers(ARCHITECTURES["sliding and full"](), tokenizer)
    session = model.start()
    session.extend(IDS)
    session.truncate(5)
    sizes: list[int] = []
    run = model.run

    def counted(ids: list[int], *args: Any, **options: Any) -> Any:
        sizes.append(len(ids))
        return run(ids, *args, **options)

    monkeypatch.setattr(model, "run", counted)
    session.extend([1, 2])
    assert sizes == [2]


def test_a_failed_pass_leaves_no_trace(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pass that breaks off half way through the layers, the session answers as before."""
    model = from_transformers(llama(), tokenizer)
    session = model.start()
    session.extend(IDS[:5])
    last = model.model.model.layers[1]
    for error, expected in ((RuntimeError("out of memory"), GenerationError), (KeyboardInterrupt(), KeyboardInterrupt)):

        def fail(*args: Any, error: BaseException = error, **options: Any) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(last, "forward", fail)
            with pytest.raises(expected):
                session.extend([1, 2, 3])
        assert session.length == 5
    np.testing.assert_allclose(session.extend(IDS[5:]), all_logits(model, IDS)[-1], atol=1e-4)


def test_heads_of_another_width(tokenizer: Any) -> None:
    """The vocabulary is as wide as the head: wider with ids that are no tokens, narrower without the last tokens."""
    wide = from_transformers(llama(vocab_size=300), tokenizer)
    assert wide.vocabulary.size == wide.start().extend([5]).shape[0] == 300
    assert wide.vocabulary.tokens[299] == b""
    narrow = from_transformers(llama(vocab_size=260), tokenizer)
    assert narrow.vocabulary.size == narrow.start().extend([5]).shape[0] == 260
    assert b"the" in wide.vocabulary.tokens
    assert b"the" not in narrow.vocabulary.tokens
    with pytest.raises(GenerationError, match="no token has the id 260"):
        narrow.start().extend([260])


def test_end_tokens_come_from_all_that_name_them(tokenizer: Any) -> None:
    """Generation settings come first, then configuration and tokenizer; none at all is an error."""
    network = llama()
    network.generation_config.eos_token_id = [0, 9]
    assert from_transformers(network, tokenizer).vocabulary.eos == (0, 9, 2)
    bare = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    network = llama()
    network.generation_config.eos_token_id = network.config.eos_token_id = None
    with pytest.raises(ModelError, match="names an EOS"):
        from_transformers(network, bare)


def test_prompts(tokenizer: Any) -> None:
    """With a template a text is a message; without one it is taken as it is, and messages are refused."""
    plain = from_transformers(llama(), tokenizer)
    assert plain.encode_prompt("the") == tokenizer.encode("the")
    assert plain.encode_prompt("") == [1]
    with pytest.raises(ModelError, match="no chat template"):
        plain.encode_prompt([{"role": "user", "content": "x"}])
    chatty = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token=SPECIAL[2], bos_token=SPECIAL[1]
    )
    chatty.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "<|im_start|>{{ messages[0]['content'] }}<|im_end|>{% if add_generation_prompt %}>{% endif %}"
    )
    model = from_transformers(llama(), chatty)
    assert model.encode_prompt("the") == [1, *tokenizer.encode("the"), 2, *tokenizer.encode(">")]
    assert model.encode_prompt("the", chat=False) == tokenizer.encode("the")
    with pytest.raises(ModelError, match="no system"):
        model.encode_prompt([{"role": "system", "content": "x"}])


def test_models_without_a_cache_are_refused(tokenizer: Any) -> None:
    """The error names another kind of model."""
    encoder = transformers.BertModel(
        transformers.BertConfig(vocab_size=264, **{k: SMALL[k] for k in ("hidden_size", "num_attention_heads")})
    )
    encoder.forward = lambda input_ids: None
    with pytest.raises(ModelError, match="a BertModel keeps no key-value cache"):
        from_transformers(encoder, tokenizer)


def test_the_context_is_a_bound(tokenizer: Any) -> None:
    """An overflow is refused before the pass, with the excess."""
    session = load_model((llama(), tokenizer)).start()
    with pytest.raises(GenerationError, match="2 tokens longer than the context"):
        session.extend([5] * 130)
    assert session.length == 0


def test_a_folder_loads_without_noise(
    tiny_folder: Path, byte_tokenizer: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """A path loads, with progress to the callback and no output on the terminal."""
    stages: list[str] = []
    model = load_model(tiny_folder, device="cpu", progress=lambda stage, done, total: stages.append(stage))
    assert stages == ["load the tokenizer", "load the model"]
    assert capfd.readouterr() == ("", "")
    assert model.vocabulary.eos == (2, 0)
    assert model.max_context == 640
    text = "<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n"
    assert model.encode_prompt("the") == byte_tokenizer.encode(text).ids


def test_the_dtype_may_be_chosen(tiny_folder: Path) -> None:
    """It is float32 by default on a CPU, whatever the checkpoint says."""
    kept: Any = load_model(tiny_folder, device="cpu")
    small: Any = load_model(str(tiny_folder), device="cpu", dtype="bfloat16")
    assert (kept.model.dtype, small.model.dtype) == (torch.float32, torch.bfloat16)
    assert small.start().extend([5]).dtype == np.float32


@pytest.mark.parametrize(
    ("damage", "evidence"),
    [
        (lambda folder: (folder / "config.json").write_text("{"), "JSON"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "no-such-type"}'), "no-such-type"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 100), "afetensor"),
    ],
)
def test_damaged_folders_are_explained(tiny_folder: Path, tmp_path: Path, damage: Any, evidence: str) -> None:
    """Any error of transformers becomes a ModelError with its first line."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny_folder, folder)
    damage(folder)
    with pytest.raises(ModelError, match="transformers cannot load it") as caught:
        load_model(folder, device="cpu")
    assert evidence in caught.value.evidence
    assert caught.value.remedy


def test_other_kinds_of_models_are_explained(tiny_folder: Path, tmp_path: Path) -> None:
    """A model that generates no text is refused by its kind."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny_folder, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(ModelError, match="use a model that writes text"):
        load_model(folder, device="cpu")


@pytest.mark.parametrize("reach", list(hub.Reach))
def test_ids_of_the_hub_load_through_its_cache(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, reach: hub.Reach
) -> None:
    """Online the weights are fetched first; offline transformers does not ask the hub."""
    from structgen.models.transformers import loader as transformers_loader

    calls: list[Any] = []
    monkeypatch.setattr(hub, "reach", lambda repository: reach)
    monkeypatch.setattr(hub, "fetch_weights", lambda repository, progress: calls.append(repository))
    for name in ("AutoTokenizer", "AutoModelForCausalLM"):
        real = getattr(transformers, name)

        def from_pretrained(location: str, *, local_files_only: bool, real: Any = real, **options: Any) -> Any:
            calls.append((location, local_files_only))
            return real.from_pretrained(tiny_folder, **options)

        monkeypatch.setattr(transformers_loader.transformers, name, SimpleNamespace(from_pretrained=from_pretrained))
    model = load_model("owner/tiny", device="cpu")
    assert model.name == "owner/tiny"
    offline = reach is hub.Reach.CACHED
    assert calls == ([] if offline else ["owner/tiny"]) + [("owner/tiny", offline)] * 2


def test_drafts_need_a_cache_that_can_be_cut(model: Any) -> None:
    """The output is the same with drafts; where a wrong draft token would cost the whole sequence, there are none."""
    from structgen.decode import generate
    from structgen.frontends.regex import regex

    grammar = regex("(ab|ba){6,12}c")
    plain = generate(model, "abbaab", grammar, max_tokens=40, drafter=None)
    drafted = generate(model, "abbaab", grammar, max_tokens=40)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.drafts is not None
    if model.start().cuts_freely:
        assert drafted.stats.forwards < plain.stats.forwards
    else:
        assert model.name in ("convolution and attention", "recurrent states")
        assert drafted.stats.drafts.passes == 0
