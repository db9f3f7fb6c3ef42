"""The embedded diffusion model: the distributions of its denoisers, and that it has learnt its task."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from structgen.errors import GenerationError, ModelError
from structgen.models.diffusion import CachingDenoiser, Denoiser, DiffusionModel, embedded
from structgen.models.diffusion.embedded.model import EmbeddedDiffusion, load_embedded_diffusion
from training.embedded_diffusion.examples import Split, examples

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

FOLDER = Path(embedded.__file__).parent
PROMPTS = [
    "pet: Rex the dog, 4 years, has its shots",
    "weather: Graz 21 degrees, mist",
    "job: Orion seeks a baker in Linz, 30000 a year, on site",
]


@pytest.fixture(scope="module")
def model() -> EmbeddedDiffusion:
    """The model of the package, on the CPU."""
    return load_embedded_diffusion(device="cpu")


@pytest.fixture(scope="module")
def canvases(model: EmbeddedDiffusion) -> NDArray[np.int32]:
    """Five canvases of 24 slots with different shares of free slots."""
    generator = np.random.default_rng(1)
    tokens = generator.integers(4, len(model.tokenizer.tokens), size=(5, 24))
    free = generator.random((5, 24)) < np.linspace(0, 1, 5)[:, None]
    return np.where(free, model.mask_token, tokens).astype(np.int32)


def test_it_is_a_diffusion_model(model: EmbeddedDiffusion, canvases: NDArray[np.int32]) -> None:
    """It implements the protocols; logits are float32 and logarithms of probabilities."""
    denoiser = model.start(model.encode_prompt(PROMPTS[0]))
    assert isinstance(model, DiffusionModel)
    assert isinstance(denoiser, Denoiser)
    assert isinstance(denoiser, CachingDenoiser)
    logits = denoiser.denoise(canvases)
    assert (logits.shape, logits.dtype) == ((5, 24, model.vocabulary.size), np.float32)
    np.testing.assert_allclose(np.exp(logits.astype(np.float64)).sum(2), 1, atol=1e-4)
    assert model.mask_token in model.vocabulary.special
    assert model.mask_token not in model.vocabulary.eos
    assert denoiser.forwards == 1
    logits[:] = 0  # the caller owns it
    assert np.any(denoiser.denoise(canvases))


@pytest.mark.parametrize("prompt", ["", *PROMPTS])
def test_canvases_do_not_see_one_another(model: EmbeddedDiffusion, canvases: NDArray[np.int32], prompt: str) -> None:
    """The distribution is the same in a batch, alone, asked again, and beside any prompt."""
    denoiser = model.start(model.encode_prompt(prompt))
    together = denoiser.denoise(canvases)
    alone = np.concatenate([denoiser.denoise(canvas[None]) for canvas in canvases])
    np.testing.assert_allclose(together, alone, atol=2e-4)
    np.testing.assert_array_equal(denoiser.denoise(canvases), together)
    denoiser.close()
    np.testing.assert_array_equal(denoiser.denoise(canvases), together)


def test_the_empty_prompt_is_one(model: EmbeddedDiffusion, canvases: NDArray[np.int32]) -> None:
    """Without any token there is still a distribution."""
    logits = model.start([]).denoise(canvases)
    np.testing.assert_allclose(np.exp(logits.astype(np.float64)).sum(2), 1, atol=1e-4)


def test_some_slots_are_a_part_of_all(model: EmbeddedDiffusion, canvases: NDArray[np.int32]) -> None:
    """``start`` and ``stop`` choose slots and change nothing else."""
    denoiser = model.start(model.encode_prompt(PROMPTS[0]))
    whole = denoiser.denoise(canvases)
    for start, stop in ((0, None), (3, 9), (23, 24), (0, 1)):
        np.testing.assert_allclose(denoiser.denoise(canvases, start=start, stop=stop), whole[:, start:stop], atol=2e-4)


def test_prompts_do_not_see_one_another(model: EmbeddedDiffusion, canvases: NDArray[np.int32]) -> None:
    """Denoisers of different prompts, asked in turn, answer as each does alone, and differently."""
    ids = [model.encode_prompt(prompt) for prompt in PROMPTS]
    assert len({len(each) for each in ids}) > 1
    alone = [model.start(each).denoise(canvases) for each in ids]
    denoisers = [model.start(each) for each in ids]
    for _ in range(2):
        for denoiser, expected in zip(denoisers, alone, strict=True):
            np.testing.assert_array_equal(denoiser.denoise(canvases), expected)
    assert np.abs(alone[0] - alone[1]).max() > 1


def test_two_loads_are_one_model(model: EmbeddedDiffusion, canvases: NDArray[np.int32]) -> None:
    """They agree bit by bit."""
    ids = model.encode_prompt(PROMPTS[2])
    other = load_embedded_diffusion(device="cpu")
    np.testing.assert_array_equal(other.start(ids).denoise(canvases), model.start(ids).denoise(canvases))


def test_both_neighbours_and_far_slots_count(model: EmbeddedDiffusion) -> None:
    """The model is not autoregressive: a slot's distribution changes with slots on either side, near and far."""
    denoiser = model.start(model.encode_prompt(PROMPTS[0]))
    free = np.full(20, model.mask_token, dtype=np.int32)
    plain = denoiser.denoise(free[None])[0, 10]
    for slot in (0, 9, 11, 19):
        other = free.copy()
        other[slot] = model.tokenizer.encode('","')[0]
        assert np.abs(denoiser.denoise(other[None])[0, 10] - plain).max() > 1e-3


def test_the_distribution_is_a_mixture_of_writing_and_copying(
    model: EmbeddedDiffusion, canvases: NDArray[np.int32]
) -> None:
    """It is recomputed in float64, token by token, from the network's last layer."""
    network, ids = model.network, model.encode_prompt(PROMPTS[0])
    with torch.inference_mode():
        prompt = network.read(torch.tensor([ids]))
        stream = network.run(torch.tensor(canvases[:1].astype(np.int64)), prompt)
        found = network.log_distribution(stream, prompt)[0].double().exp().numpy()
        slots = stream[0].double().numpy()
        weights = {name: weight.double().numpy() for name, weight in network.named_parameters()}
        pointers = prompt.pointers[0].double().numpy()

    def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
        powers = np.exp(scores - scores.max())
        return np.asarray(powers / powers.sum())

    told = np.sum([weights["words"][token] for token in ids], axis=0)
    for slot, vector in enumerate(slots):
        answered = vector + weights["answer"] @ (weights["asked"] @ vector * told)
        expected = softmax(weights["head"] @ answered + weights["head_bias"])
        share = 1 / (1 + np.exp(-(weights["pointer_gate"] @ vector)[0]))
        expected *= 1 - share
        pointed = softmax(pointers @ (weights["pointer_query"] @ vector) * 4 / np.sqrt(len(pointers[0])))
        for token, chance in zip(ids, pointed, strict=True):
            expected[token] += share * chance
        np.testing.assert_allclose(found[slot], expected, atol=1e-5)


def test_all_slots_live_is_no_approximation(model: EmbeddedDiffusion, canvases: NDArray[np.int32]) -> None:
    """This holds for each canvas in turn through the cache; so is leaving slots out when nothing has changed."""
    denoiser = model.start(model.encode_prompt(PROMPTS[1]))
    generator = np.random.default_rng(2)
    for canvas in canvases:
        expected = denoiser.denoise(canvas[None])[0]
        every = np.ones(24, dtype=np.bool_)
        np.testing.assert_allclose(denoiser.denoise_live(canvas, every), expected, atol=2e-4)
        some = generator.random(24) < 0.3
        np.testing.assert_allclose(denoiser.denoise_live(canvas, some), expected, atol=2e-4)


def test_slots_left_out_keep_what_they_said(model: EmbeddedDiffusion, canvases: NDArray[np.int32]) -> None:
    """For another canvas only live slots are new; the first pass, and that after ``forget``, runs all of them."""
    denoiser = model.start(model.encode_prompt(PROMPTS[1]))
    live = np.arange(24) % 3 == 0
    none = np.zeros(24, dtype=np.bool_)
    first = denoiser.denoise_live(canvases[1], none)
    np.testing.assert_allclose(first, denoiser.denoise(canvases[1][None])[0], atol=2e-4)
    second = denoiser.denoise_live(canvases[4], live)
    np.testing.assert_array_equal(second[~live], first[~live])
    exact = denoiser.denoise(canvases[4][None])[0]
    assert np.abs(second[live] - first[live]).max() > 1
    assert np.abs(second - exact).max() > 1e-2
    before = denoiser.forwards
    np.testing.assert_array_equal(denoiser.denoise_live(canvases[4], none), second)
    assert denoiser.forwards == before
    denoiser.forget()
    np.testing.assert_allclose(denoiser.denoise_live(canvases[4], live), exact, atol=2e-4)
    np.testing.assert_allclose(
        denoiser.denoise_live(canvases[4][:9], none[:9]), denoiser.denoise(canvases[4][None, :9])[0], atol=2e-4
    )


def read_right(model: EmbeddedDiffusion, split: Split, *, count: int, masked: float) -> float:
    """The share of masked slots of documents whose most probable token is right, EOS apart."""
    generator = np.random.default_rng(5)
    right = []
    for example in examples(split, 77, count):
        document = np.array(model.tokenizer.encode(example.document), dtype=np.int32)
        canvas = np.full(64, model.vocabulary.eos[0], dtype=np.int32)
        canvas[: len(document)] = document
        free = generator.random(64) < masked
        logits = model.start(model.encode_prompt(example.prompt)).denoise(
            np.where(free, model.mask_token, canvas)[None]
        )
        slots = np.flatnonzero(free[: len(document)])
        right += (logits[0, slots].argmax(1) == document[slots]).tolist()
    return float(np.mean(right))


@pytest.mark.exhaustive
@pytest.mark.parametrize(("split", "half", "all_"), [("new_combinations", 0.97, 0.85), ("new_values", 0.97, 0.85)])
def test_it_has_learnt_to_copy(model: EmbeddedDiffusion, split: Split, half: float, all_: float) -> None:
    """It copies words that training never showed; an untrained network of the same sizes cannot."""
    assert read_right(model, split, count=60, masked=0.5) > half
    assert read_right(model, split, count=60, masked=1.0) > all_
    trained, model.network = model.network, type(model.network)(model.network.shape).eval()
    try:
        assert read_right(model, split, count=20, masked=0.5) < 0.2
    finally:
        model.network = trained


@pytest.mark.parametrize("split", ["new_combinations", "new_values"])
def test_it_knows_what_words_mean(model: EmbeddedDiffusion, split: Split) -> None:
    """Booleans are in no prompt; random answers to 80 would be nine tenths right with probability below 1e-13."""
    truths = {text: model.tokenizer.encode(text)[0] for text in ("true", "false")}
    right = []
    for example in examples(split, 78, 130):
        canvas = np.array([*model.tokenizer.encode(example.document), *model.vocabulary.eos], dtype=np.int32)
        slots = np.flatnonzero(np.isin(canvas, list(truths.values())))
        asked = canvas.copy()
        asked[slots] = model.mask_token
        logits = model.start(model.encode_prompt(example.prompt)).denoise(asked[None])[0]
        right += [logits[slot, canvas[slot]] == logits[slot, list(truths.values())].max() for slot in slots]
    assert len(right) >= 80
    assert np.mean(right[:100]) > 0.9


def test_it_writes_what_it_is_told(model: EmbeddedDiffusion) -> None:
    """It is decoded greedily, one slot per step, without any constraint."""
    denoiser = model.start(model.encode_prompt(PROMPTS[0]))
    canvas = np.full(40, model.mask_token, dtype=np.int32)
    while len(free := np.flatnonzero(canvas == model.mask_token)):
        logits = denoiser.denoise(canvas[None])[0][free]
        best = logits.max(1).argmax()
        canvas[free[best]] = logits[best].argmax()
    assert model.vocabulary.decode(canvas) == b'{"name":"Rex","kind":"dog","age":4,"vaccinated":true}'
    assert denoiser.forwards == 40


def test_its_files_are_small() -> None:
    """Every installation contains them."""
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) <= 12_000_000
    assert (FOLDER / "weights.safetensors").stat().st_mode & 0o044 == 0o044


@pytest.mark.parametrize(
    ("canvas", "problem"),
    [
        ([[]], "no canvas"),
        ([[0, -1]], "no token -1"),
        ([[0, 1008]], "no token 1008"),
        ([[0] * 300], "do not fit"),
        ([0, 1], "canvases are int32"),
    ],
)
def test_bad_canvases_are_refused(model: EmbeddedDiffusion, canvas: list[list[int]], problem: str) -> None:
    """The error comes before anything runs."""
    denoiser = model.start(model.encode_prompt(PROMPTS[0]))
    with pytest.raises(GenerationError, match=problem):
        denoiser.denoise(np.array(canvas, dtype=np.int32))
    assert denoiser.forwards == 0


@pytest.mark.parametrize(("ids", "problem"), [([3, 1008], "no token 1008"), ([-1], "no token -1"), ([5] * 257, "257")])
def test_bad_prompts_are_refused(model: EmbeddedDiffusion, ids: list[int], problem: str) -> None:
    """``start`` refuses them."""
    with pytest.raises(GenerationError, match=problem):
        model.start(ids)


def test_prompts_of_any_characters_are_read(model: EmbeddedDiffusion) -> None:
    """Unknown words are read as bytes; special tokens are spelled, not parsed; a lone surrogate is refused."""
    free = np.full((1, 8), model.mask_token, dtype=np.int32)
    for text in ("pet: 犬 the dog", "\x00\n", "<mask><eos>", ""):
        ids = model.encode_prompt(text)
        assert b"".join(model.vocabulary.tokens[token] for token in ids) == text.encode()
        assert model.mask_token not in ids
        assert np.isfinite(model.start(ids).denoise(free)).all()
    with pytest.raises(ModelError, match="surrogate"):
        model.encode_prompt("\udcff")


def test_prompts_and_messages(model: EmbeddedDiffusion) -> None:
    """A text is one message; without ``chat`` it has no template; each message has its own line."""
    text = model.encode_prompt("pet: Rex")
    assert model.encode_prompt([{"role": "user", "content": "pet: Rex"}]) == text
    assert model.encode_prompt("pet: Rex", chat=False) == text[1:-1]
    two = [{"role": "system", "content": "pet"}, {"role": "user", "content": "Rex"}]
    assert model.encode_prompt(two) == model.encode_prompt("pet\nRex")
    with pytest.raises(ModelError, match="no messages"):
        model.encode_prompt([])


@pytest.mark.parametrize("damage", ["missing", "cut", "text"])
def test_damaged_weights_are_refused(tmp_path: Path, damage: str) -> None:
    """The error names the file."""
    path = tmp_path / "weights.safetensors"
    if damage == "cut":
        shutil.copy(FOLDER / path.name, path)
        path.write_bytes(path.read_bytes()[:-1000])
    elif damage == "text":
        path.write_text("these are no weights")
    with pytest.raises(ModelError, match=r"weights\.safetensors"):
        load_embedded_diffusion(device="cpu", folder=tmp_path)


def test_an_unknown_device_is_refused() -> None:
    """The error is structgen's, not torch's."""
    with pytest.raises(ModelError, match="device 'abacus'"):
        load_embedded_diffusion(device="abacus")
