"""Diffusion models of transformers: tiny checkpoints with their own code, against passes made by hand."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from structgen.errors import GenerationError, ModelError, VocabularyError
from structgen.models import load_diffusion_model
from structgen.models.diffusion import CachingDenoiser, Denoiser, DiffusionModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

CODE = Path(__file__).parents[3] / "fixtures" / "remote_code" / "modeling_tiny.py"
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
END, MASK, SIZE = 2, 261, 264
PROMPT = [7, 80, 3]
LLADA, DREAM, FAST_LLADA, FAST_DREAM = "TinyLLaDA", "TinyDream", "TinyFastLLaDA", "TinyFastDream"
SHIFTS = {LLADA: 0, DREAM: 1, FAST_LLADA: 0, FAST_DREAM: 1}

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the code of checkpoints into a separate folder, which the next test does not find."""
    folder = tmp_path_factory.mktemp("modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder))
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def make(tmp_path: Path, byte_tokenizer: Any) -> Make:
    """Write a checkpoint: code, configuration, tokenizer, random weights."""
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer

    def written(
        style: str,
        *,
        config: dict[str, Any] | None = None,
        generation: dict[str, Any] | None = None,
        tokenizer: dict[str, Any] | None = None,
        dtype: Any = torch.float32,
    ) -> Path:
        folder = tmp_path / f"{style}-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        shutil.copy(CODE, folder)
        names = {"AutoConfig": f"modeling_tiny.{family(style)}Config", "AutoModel": f"modeling_tiny.{style}"}
        settings = {
            "model_type": {"TinyDream": "Dream", "TinyLLaDA": "llada"}.get(family(style), "tiny-other"),
            "auto_map": names,
            "dtype": str(dtype).removeprefix("torch."),
            "vocab_size": SIZE,
            "max_position_embeddings": 40,
            "eos_token_id": END,
            **(config or {}),
        }
        (folder / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
        if generation:
            (folder / "generation_config.json").write_text(json.dumps(generation))
        spelled = Tokenizer.from_str(byte_tokenizer.to_str())
        spelled.add_special_tokens([AddedToken("<|mask|>", special=True, normalized=False)])
        spelled.save(str(folder / "tokenizer.json"))
        options = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", **(tokenizer or {})}
        (folder / "tokenizer_config.json").write_text(json.dumps(options))
        torch.manual_seed(4)
        model = raw(folder)
        save_file(
            {name: value.to(dtype).contiguous() for name, value in model.state_dict().items()},
            folder / "model.safetensors",
            metadata={"format": "pt"},
        )
        return folder

    return written


def family(style: str) -> str:
    """The family's style without the additions of Fast-dLLM."""
    return style.replace("Fast", "")


def raw(folder: Path) -> Any:
    """The network of a checkpoint, with its weights if it has some."""
    if (folder / "model.safetensors").exists():
        return transformers.AutoModel.from_pretrained(folder, trust_remote_code=True, dtype="auto")
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    return transformers.AutoModel.from_config(config, trust_remote_code=True)


def load(folder: Path, **options: Any) -> Any:
    """Load a checkpoint of the tests, whose code is trusted, with its MASK."""
    return load_diffusion_model(folder, **{"trust_remote_code": True, "mask_token": MASK, "device": "cpu", **options})


def by_hand(folder: Path, prompt: list[int], canvas: Any, shift: int) -> Any:
    """One pass over prompt and canvas; return the rows of the slots."""
    with torch.inference_mode():
        logits = raw(folder).eval()(input_ids=torch.tensor([[*prompt, *canvas.tolist()]])).logits[0].float().numpy()
    return logits[len(prompt) - shift : len(prompt) - shift + len(canvas)]


CANVASES = np.array([[MASK] * 6, [9, MASK, MASK, 40, MASK, 11], [9, 10, 11, 12, MASK, 2]], dtype=np.int32)


@pytest.mark.exhaustive
@pytest.mark.parametrize("style", SHIFTS)
def test_logits_are_those_of_a_pass_made_by_hand(make: Make, style: str) -> None:
    """This holds for every canvas, alone and with others, all slots and some, after two prompts."""
    folder = make(style)
    assert isinstance(load(folder), DiffusionModel)
    model = load(folder)
    assert (model.shift, model.mask_token, model.max_context) == (SHIFTS[style], MASK, 40)
    assert (model.vocabulary.size, model.vocabulary.special[MASK]) == (SIZE, "<|mask|>")
    denoiser = model.start(PROMPT)
    assert isinstance(denoiser, Denoiser)
    together = denoiser.denoise(CANVASES)
    assert together.dtype == np.float32
    assert together.shape == (3, 6, SIZE)
    for canvas, found in zip(CANVASES, together, strict=True):
        expected = by_hand(folder, PROMPT, canvas, SHIFTS[style])
        np.testing.assert_allclose(found, expected, atol=2e-5)
        np.testing.assert_allclose(denoiser.denoise(canvas[None])[0], expected, atol=2e-5)
        for start, stop in ((0, 1), (2, 5), (5, None)):
            some = denoiser.denoise(canvas[None], start=start, stop=stop)[0]
            np.testing.assert_allclose(some, expected[start:stop], atol=2e-5)
    assert denoiser.forwards == 1 + 3 * 4
    other = model.start(PROMPT[:2]).denoise(CANVASES)
    np.testing.assert_allclose(other[1], by_hand(folder, PROMPT[:2], CANVASES[1], SHIFTS[style]), atol=2e-5)
    assert np.abs(other - together).max() > 0.1
    denoiser.close()
    assert np.array_equal(denoiser.denoise(CANVASES), together)


@pytest.mark.parametrize("style", [LLADA, DREAM])
def test_rows_are_about_slots(make: Make, style: str) -> None:
    """A network that predicts the id after a position's own shows which position a row comes from."""
    folder = make(style, config={"echo": True})
    canvas = np.array([[20, MASK, 30, 40]], dtype=np.int32)
    own, before = [21, MASK + 1, 31, 41], [PROMPT[-1] + 1, 21, MASK + 1, 31]
    expected = own if style == LLADA else before
    denoiser = load(folder).start(PROMPT)
    assert denoiser.denoise(canvas)[0].argmax(axis=1).tolist() == expected
    assert denoiser.denoise(canvas, start=2, stop=4)[0].argmax(axis=1).tolist() == expected[2:]
    assert load(folder, shift=0).start(PROMPT).denoise(canvas)[0].argmax(axis=1).tolist() == own
    assert load(folder, shift=1).start(PROMPT).denoise(canvas)[0].argmax(axis=1).tolist() == before


@pytest.mark.parametrize("style", [LLADA, DREAM])
def test_an_empty_prompt(make: Make, style: str) -> None:
    """If the first slot has no position before it, BOS is put there, or else an end token."""
    folder = make(style)
    model = load(folder)
    assert model.encode_prompt("") == []
    canvas = CANVASES[1]
    ahead = [] if style == LLADA else [END]
    np.testing.assert_allclose(
        model.start([]).denoise(canvas[None])[0], by_hand(folder, ahead, canvas, SHIFTS[style]), atol=2e-5
    )
    if style == DREAM:
        folder = make(style, tokenizer={"bos_token": "<|endoftext|>"})
        found = load(folder).start([]).denoise(canvas[None])[0]
        np.testing.assert_allclose(found, by_hand(folder, [0], canvas, 1), atol=2e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_answers_in_float32(make: Make, dtype: str) -> None:
    """This holds if the files have that dtype or the caller asks for it; logits are near those of float32."""
    folder = make(DREAM)
    full = load(folder).start(PROMPT).denoise(CANVASES)
    asked = load(folder, dtype=dtype)
    assert str(asked.model.dtype) == f"torch.{dtype}"
    stored = make(DREAM, dtype=getattr(torch, dtype))
    assert load(stored).model.dtype == torch.float32  # a CPU computes in it
    for logits in (asked.start(PROMPT).denoise(CANVASES), load(stored).start(PROMPT).denoise(CANVASES)):
        assert logits.dtype == np.float32
        assert np.isfinite(logits).all()
        assert 0 < np.abs(logits - full).max() < 0.5  # logits lie between -20 and 20


def test_mask_is_found_where_the_files_name_it(make: Make) -> None:
    """It is in the configuration, else in the generation settings, else in the tokenizer; the caller comes first."""
    named: dict[str, dict[str, Any]] = {
        "config": {"config": {"mask_token_id": 260}},
        "generation": {"generation": {"mask_token_id": 259}},
        "tokenizer": {"tokenizer": {"mask_token": "<|mask|>"}},
    }
    for place, found in (("config", 260), ("generation", 259), ("tokenizer", MASK)):
        model = load(make(LLADA, **named[place]), mask_token=None)
        assert (model.mask_token, model.mask_token in model.vocabulary.special) == (found, True)
    both = make(DREAM, **named["config"], **named["generation"], **named["tokenizer"])
    assert load(both, mask_token=None).mask_token == 260
    assert load(both, mask_token=17).mask_token == 17
    assert load(both, mask_token="<|mask|>").mask_token == MASK
    assert load(both, mask_token=0).mask_token == 0


def test_without_mask_it_is_no_diffusion_model(make: Make) -> None:
    """The message says where it was looked for; a MASK that the model lacks is refused too."""
    folder = make(LLADA)
    with pytest.raises(ModelError, match=r"no MASK is known.*config, generation_config, tokenizer"):
        load(folder, mask_token=None)
    for wrong in (SIZE, -1):
        with pytest.raises(ModelError, match=f"MASK cannot be token {wrong}; .* tokens 0 to {SIZE - 1}"):
            load(folder, mask_token=wrong)
    with pytest.raises(ModelError, match=r"mask_token='<mask>': the tokenizer of model .* has no such token"):
        load(folder, mask_token="<mask>")
    with pytest.raises(ModelError, match="MASK cannot be token 999"):
        load(make(LLADA, config={"mask_token_id": 999}), mask_token=None)


def test_the_family_says_what_a_position_is_about(make: Make) -> None:
    """Nothing is inferred: for an unknown family the caller must say it."""
    other = make("TinyOther")
    with pytest.raises(ModelError, match="its logits are about is unknown; its model_type is 'tiny-other'"):
        load(other)
    assert load(other, shift=1).shift == 1
    assert load(make("TinyOther", config={"architectures": ["TinyForMaskedLM"]})).shift == 0
    with pytest.raises(ModelError, match="shift=2"):
        load(other, shift=2)


def test_ends_of_text(make: Make) -> None:
    """They are those of the files, then the tokenizer's ends of turns; MASK is not among them."""
    assert load(make(LLADA, config={"eos_token_id": 0})).vocabulary.eos == (0, 2)
    assert load(make(DREAM, config={"eos_token_id": None}, generation={"eos_token_id": [5, 2]})).vocabulary.eos == (
        5,
        2,
    )
    nothing = {"eos_token": None}
    assert load(make(LLADA, config={"eos_token_id": MASK}, tokenizer=nothing)).vocabulary.eos == (2,)
    with pytest.raises(ModelError, match="names an EOS"):
        load(make(LLADA, config={"eos_token_id": 999}, tokenizer=nothing), mask_token=2)


def test_prompts(make: Make) -> None:
    """A text is a user's message if there is a template and the caller does not say otherwise."""
    plain, chat = load(make(LLADA)), load(make(LLADA, tokenizer={"chat_template": CHAT_TEMPLATE}))
    spelled = plain.vocabulary.tokenize("hi")
    assert plain.encode_prompt("hi") == chat.encode_prompt("hi", chat=False) == spelled
    assert chat.encode_prompt("hi") == [1, *spelled, 2]
    assert chat.encode_prompt([{"role": "user", "content": "hi"}] * 2) == [1, *spelled, 2, 1, *spelled, 2]
    with pytest.raises(ModelError, match="no chat template"):
        plain.encode_prompt([{"role": "user", "content": "hi"}])
    with pytest.raises(ModelError, match="message 0 is malformed"):
        chat.encode_prompt([{"role": "user"}])
    broken = load(make(LLADA, tokenizer={"chat_template": "{{ raise_exception('no system') }}"}))
    with pytest.raises(ModelError, match="refuses the messages; no system"):
        broken.encode_prompt("hi")


def test_code_is_run_only_where_it_is_trusted(make: Make) -> None:
    """The message says how; nothing of the checkpoint was executed."""
    folder = make(LLADA)
    marker = folder / "ran"
    source = (folder / "modeling_tiny.py").read_text()
    (folder / "modeling_tiny.py").write_text(f"open({str(marker)!r}, 'w').close()\n{source}")
    for load_it in (load_diffusion_model, partial(load_diffusion_model, trust_remote_code=False)):
        with pytest.raises(ModelError, match=r"read that code, then pass trust_remote_code=True") as caught:
            load_it(folder, mask_token=MASK)
        assert "ValueError" in caught.value.evidence
    assert not marker.exists()
    load(folder)
    assert marker.exists()


def as_old_code(folder: Path, **config: Any) -> Path:
    """The same checkpoint with code of older versions."""
    settings = json.loads((folder / "config.json").read_text())
    settings["auto_map"]["AutoModel"] = "modeling_tiny.TinyOldDream"
    (folder / "config.json").write_text(json.dumps(settings | config))
    with (folder / "modeling_tiny.py").open("a") as file:
        file.write("\n")  # or else transformers would take the class that it has registered for this configuration
    return folder


def test_code_for_transformers_4_is_loaded_by_hand(make: Make) -> None:
    """Where the loader of transformers fails, the network is the same, with the weights of one file or of several."""
    from safetensors.torch import load_file, save_file

    folder = make(DREAM)
    expected = load(folder).start(PROMPT).denoise(CANVASES)
    as_old_code(folder)
    with pytest.raises((AttributeError, KeyError, TypeError)):
        raw(folder)
    model = load(folder)
    assert type(model.model).__name__ == "TinyOldDream"
    np.testing.assert_allclose(model.model.frequencies.tolist(), [100 ** (-i / 12) for i in range(0, 12, 2)], rtol=1e-6)
    assert np.array_equal(model.start(PROMPT).denoise(CANVASES), expected)
    half = load(folder, dtype="bfloat16")
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    assert half.model.frequencies.dtype == torch.float32
    assert torch.get_default_dtype() == torch.float32
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    places = {name: f"part-{i % 2}.safetensors" for i, name in enumerate(names)}
    for part in set(places.values()):
        save_file({name: weights[name] for name in names if places[name] == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert np.array_equal(load(folder).start(PROMPT).denoise(CANVASES), expected)


def test_weights_loaded_by_hand_are_complete(make: Make) -> None:
    """None is missing except a head that is tied to the embedding, and none is left over."""
    from safetensors.torch import load_file, save_file

    folder = as_old_code(make(DREAM))
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({**weights, "other.weight": torch.zeros(1)}, path)
    with pytest.raises(ModelError, match=r"0 are missing: none; 1 are unused: other\.weight"):
        load(folder)
    head = weights.pop("head.weight")
    save_file(weights, path)
    with pytest.raises(ModelError, match=r"1 are missing: head\.weight"):
        load(folder, shift=1)
    tied = load(as_old_code(folder, tie_word_embeddings=True)).model
    assert tied.head.weight is tied.tokens.weight
    assert not torch.equal(tied.head.weight, head)
    path.unlink()
    with pytest.raises(ModelError, match="contains no weights"):
        load(folder)


def test_tokenizers_written_in_python(byte_tokenizer: Any) -> None:
    """A slow tokenizer, read by the byte alphabet that it names, gives the vocabulary of its fast version."""
    from structgen.engine import Vocabulary
    from structgen.models.diffusion.transformers_model import load_vocabulary

    # An attribute of ``transformers`` with the module's name is a function once other parts are imported.
    bytes_to_unicode = importlib.import_module("transformers.convert_slow_tokenizer").bytes_to_unicode
    decoder = {character: byte for byte, character in bytes_to_unicode().items()}
    added = {
        **byte_tokenizer.get_added_tokens_decoder(),
        261: SimpleNamespace(content="<call>", special=False),
        262: SimpleNamespace(content="<|mask|>", special=True),
        900: SimpleNamespace(content="<|far|>", special=True),
    }
    slow = SimpleNamespace(
        byte_decoder=decoder,
        get_vocab=lambda: byte_tokenizer.get_vocab() | {token.content: number for number, token in added.items()},
        added_tokens_decoder=added,
        encode=lambda text, add_special_tokens: byte_tokenizer.encode(text, add_special_tokens=False).ids,
    )
    found = load_vocabulary(slow, size=SIZE, eos=[END], mask_token=262)
    fast = Vocabulary.load(byte_tokenizer, size=SIZE, eos=[END])
    assert found.tokens[:261] == fast.tokens[:261]
    assert (found.tokens[261:], found.eos) == ((b"<call>", b"", b""), (END,))
    assert found.special == {**fast.special, 262: "<|mask|>"}
    for text in ("the théâtre\n", "<|im_end|>", ""):
        assert found.tokenize(text) == fast.tokenize(text)
    assert found.tokenize("the") == [260]
    slow.get_vocab = lambda: {"a€": 5}
    with pytest.raises(VocabularyError, match="no byte is spelled '€'"):
        load_vocabulary(slow, size=SIZE, eos=[END], mask_token=262)


def test_what_does_not_fit_is_refused(make: Make) -> None:
    """Ids that the model lacks and too many positions are refused before a pass."""
    model = load(make(LLADA))
    denoiser = model.start(PROMPT)
    with pytest.raises(GenerationError, match=f"it has no token {SIZE}"):
        denoiser.denoise(np.array([[SIZE, MASK]], dtype=np.int32))
    with pytest.raises(GenerationError, match="it has no token -1"):
        model.start([-1])
    with pytest.raises(GenerationError, match="3 tokens and 38 slots; the context holds 40"):
        denoiser.denoise(np.full((1, 38), MASK, dtype=np.int32))
    assert denoiser.denoise(np.full((1, 37), MASK, dtype=np.int32)).shape == (1, 37, SIZE)
    named = load(make(LLADA, config={"max_position_embeddings": None, "max_sequence_length": 12}))
    assert named.max_context == 12
    assert denoiser.forwards == 1


@pytest.mark.exhaustive
def test_a_network_that_fails_or_lies_is_reported(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an error of decoding with the network's own message."""
    model = load(make(LLADA))
    denoiser = model.start(PROMPT)
    forward = model.model.forward
    monkeypatch.setattr(model.model, "answer", lambda ids: (torch.zeros(1, ids.shape[1] - 1, SIZE), None))
    with pytest.raises(GenerationError, match=r"another shape than its configuration states; found \[1, 8, 264\]"):
        denoiser.denoise(CANVASES[:1])
    monkeypatch.setattr(model.model, "answer", lambda ids: (torch.zeros(1, ids.shape[1], 5), None))
    with pytest.raises(GenerationError, match="another shape than its configuration states"):
        denoiser.denoise(CANVASES[:1])

    def fail(ids: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model.model, "answer", fail)
    with pytest.raises(GenerationError, match="RuntimeError: out of memory with 1 canvases of 9 positions"):
        denoiser.denoise(CANVASES[:1])
    assert (denoiser.forwards, forward.__self__ is model.model) == (0, True)


def test_files_that_are_no_diffusion_model(make: Make, tmp_path: Path, tiny_folder: Path) -> None:
    """Broken code, an autoregressive model, a GGUF file, and a wrong pair are refused."""
    broken = make(LLADA)
    (broken / "modeling_tiny.py").write_text("this is no Python")
    with pytest.raises(ModelError, match=r"SyntaxError.*pass load_diffusion_model\(\(model, tokenizer\)\)"):
        load(broken)
    with pytest.raises(ModelError, match="cannot load it as a masked diffusion model"):
        load(tiny_folder)
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(ModelError, match="not read from GGUF files"):
        load(gguf)
    with pytest.raises(ModelError, match="found 3 items"):
        load_diffusion_model((1, 2, 3))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="its MASK, shift and dtype float32 are fixed"):
        load_diffusion_model(mask_token=3)


def test_a_loaded_pair_and_a_model_of_the_library(make: Make, byte_tokenizer: Any) -> None:
    """The caller may load the model; a masked language model without its own code works too."""
    folder = make(DREAM)
    model = load(folder)
    pair = load_diffusion_model((model.model, model.tokenizer), mask_token=MASK)
    assert np.array_equal(pair.start(PROMPT).denoise(CANVASES), model.start(PROMPT).denoise(CANVASES))
    config = transformers.BertConfig(
        vocab_size=SIZE,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
        architectures=["BertForMaskedLM"],
        eos_token_id=END,
    )
    bert = transformers.BertForMaskedLM(config)
    found = load_diffusion_model((bert, model.tokenizer), mask_token=MASK).start(PROMPT).denoise(CANVASES)
    with torch.inference_mode():
        ids = torch.tensor([[*PROMPT, *CANVASES[1].tolist()]])
        expected = bert(input_ids=ids).logits[0, 3:].numpy()
    np.testing.assert_allclose(found[1], expected, atol=1e-5)


@pytest.mark.parametrize("style", [LLADA, DREAM])
def test_networks_that_keep_nothing_offer_nothing(make: Make, style: str) -> None:
    """Their denoisers are no ``CachingDenoiser``."""
    assert not isinstance(load(make(style)).start(PROMPT), CachingDenoiser)


@pytest.mark.parametrize("style", [FAST_LLADA, FAST_DREAM])
def test_live_slots_of_networks_that_replace_positions(make: Make, style: str) -> None:
    """With one layer the live slots are exact; the others keep their logits; a refresh restores everything."""
    folder = make(style, config={"layers": 1})
    denoiser = load(folder).start(PROMPT)
    assert isinstance(denoiser, CachingDenoiser)
    first = denoiser.denoise_live(CANVASES[0], np.zeros(6, dtype=bool))
    np.testing.assert_allclose(first, denoiser.denoise(CANVASES[:1])[0], atol=2e-5)
    later = CANVASES[0].copy()
    later[[2, 4]] = 50, 60
    live = np.array([False, False, True, False, True, False])
    second = denoiser.denoise_live(later, live)
    full = denoiser.denoise(later[None])[0]
    np.testing.assert_allclose(second[2:5], full[2:5], atol=2e-5)
    assert np.array_equal(second[[0, 1, 5]], first[[0, 1, 5]])
    assert np.abs(second - full)[[0, 1, 5]].max() > 0.01
    counted = denoiser.forwards
    assert np.array_equal(denoiser.denoise_live(later, np.zeros(6, dtype=bool)), second)
    assert denoiser.forwards == counted
    np.testing.assert_allclose(denoiser.denoise_live(later, np.ones(6, dtype=bool)), full, atol=2e-5)
    denoiser.denoise_live(CANVASES[0], live)
    denoiser.forget()
    np.testing.assert_allclose(denoiser.denoise_live(later, live), full, atol=2e-5)
    short = CANVASES[1, :4]
    np.testing.assert_allclose(denoiser.denoise_live(short, live[:4]), denoiser.denoise(short[None])[0], atol=2e-5)


@pytest.mark.parametrize("style", [FAST_LLADA, FAST_DREAM])
def test_live_slots_of_deeper_networks_are_an_approximation(make: Make, style: str) -> None:
    """The prompt and skipped slots would have changed; even with all slots live the prompt is still old."""
    denoiser = load(make(style, config={"layers": 3})).start(PROMPT)
    denoiser.denoise_live(CANVASES[0], np.ones(6, dtype=bool))
    full = denoiser.denoise(CANVASES[1:2])[0]
    second = np.where(np.arange(6) < 4, CANVASES[1], MASK).astype(np.int32)
    approximate = denoiser.denoise_live(second, second != CANVASES[0])
    assert np.abs(approximate - denoiser.denoise(second[None])[0])[:4].max() > 0.01
    kept_prompt = denoiser.denoise_live(CANVASES[1], np.ones(6, dtype=bool))
    assert np.abs(kept_prompt - full).max() > 0.01
    denoiser.forget()
    np.testing.assert_allclose(denoiser.denoise_live(CANVASES[1], np.ones(6, dtype=bool)), full, atol=2e-5)


def test_a_failed_pass_is_forgotten(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that a broken pass may have replaced are not read again."""
    model = load(make(FAST_LLADA))
    denoiser = model.start(PROMPT)
    denoiser.denoise_live(CANVASES[0], np.ones(6, dtype=bool))
    last = model.model.projections[1]

    def fail(stream: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(last, "forward", fail)
        with pytest.raises(GenerationError, match="out of memory"):
            denoiser.denoise_live(CANVASES[1], CANVASES[1] != CANVASES[0])
    found = denoiser.denoise_live(CANVASES[1], np.zeros(6, dtype=bool))
    np.testing.assert_allclose(found, denoiser.denoise(CANVASES[1:2])[0], atol=2e-5)


def test_without_a_name_it_is_the_embedded_model() -> None:
    """It is the model that its own module loads."""
    from structgen.models.diffusion.embedded.model import EmbeddedDiffusion

    model = load_diffusion_model(device="cpu")
    assert isinstance(model, EmbeddedDiffusion)
    assert isinstance(model, DiffusionModel)
