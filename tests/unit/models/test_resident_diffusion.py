"""Diffusion models whose logits stay on the device: networks of transformers, compiled ones, and the embedded model."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import structgen as sg
from structgen.decode.diffusion.fill import fill_canvas
from structgen.decode.diffusion.forward_pass import DelayedReuse, DualReuse, PrefixReuse
from structgen.decode.diffusion.mean_field import HostLogits
from structgen.errors import GenerationError
from structgen.models import load_diffusion_model
from structgen.models.protocol.diffusion import CachingDenoiser, ResidentCachingDenoiser, ResidentDenoiser

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from slot_cache import LiveCanvas, SlotPass  # noqa: E402  # likewise

from structgen.models.diffusion.torch_slot_logits import CanvasResidence  # noqa: E402  # needs torch

CODE = Path(__file__).parents[2] / "fixtures" / "remote_code" / "modeling_tiny.py"
MASK, SIZE, SLOTS = 261, 264, 8
STYLES = ["TinyLLaDA", "TinyDream", "TinyFastLLaDA", "TinyFastDream"]
FAST = STYLES[2:]
GRAMMARS: dict[str, Any] = {
    "regular": sg.regex(r"(ab|the|[0-9]{2}){1,3}"),
    "context-free": sg.lark('start: "{" start* "}" | "a" | "the"'),
}


@pytest.fixture(scope="module")
def code() -> Any:
    """The code of the tiny networks."""
    spec = importlib.util.spec_from_file_location("modeling_tiny", CODE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def tokenizer(byte_tokenizer: Any) -> Any:
    """The tokenizer of the tiny networks, with MASK."""
    from tokenizers import AddedToken, Tokenizer

    spelled = Tokenizer.from_str(byte_tokenizer.to_str())
    spelled.add_special_tokens([AddedToken("<|mask|>", special=True, normalized=False)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=spelled, eos_token="<|im_end|>")


def network(code: Any, style: str, *, dtype: Any = torch.float32, **config: Any) -> Any:
    """A network with random weights; the same each time."""
    torch.manual_seed(4)
    family = getattr(code, f"{style.replace('Fast', '')}Config")
    return getattr(code, style)(family(vocab_size=SIZE, **config)).to(dtype)


def pair(code: Any, tokenizer: Any, style: str, **config: Any) -> tuple[Any, Any]:
    """A model whose logits are copied to the host, and one whose logits stay."""
    made = [
        load_diffusion_model((network(code, style, **config), tokenizer), mask_token=MASK, resident=resident)
        for resident in (False, True)
    ]
    return made[0], made[1]


def alike(wanted: Any, found: Any) -> None:
    """Compare two results for one canvas."""
    assert found.tokens == wanted.tokens
    assert found.canvas.commits == wanted.canvas.commits
    assert found.stats.forwards == wanted.stats.forwards
    assert [step.logprob for step in found.steps] == pytest.approx([step.logprob for step in wanted.steps], abs=1e-4)


def some(*slots: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.isin(np.arange(SLOTS), slots)
    return found


CANVASES = np.full((2, SLOTS), MASK, dtype=np.int32)
CANVASES[1, [1, 2, 5]] = 70, 80, 90


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_of_slots_that_are_asked_about(code: Any, tokenizer: Any, style: str, dtype: Any) -> None:
    """Each canvas has its own, in the dtype of the network; later passes do not change them."""
    copied, stays = pair(code, tokenizer, style, dtype=dtype)
    denoiser = stays.start([7, 80])
    assert isinstance(denoiser, ResidentDenoiser)
    assert denoiser.is_resident
    assert not copied.start([7, 80]).is_resident
    wanted = copied.start([7, 80]).denoise(CANVASES)
    found: list[Any] = denoiser.denoise_resident(CANVASES, CANVASES == MASK)
    assert stays.residence.copied_rows == 0
    for rows, canvas, logits in zip(found, CANVASES, wanted, strict=True):
        assert rows.shape == ((canvas == MASK).sum(), SIZE)
        assert rows._logits.dtype == dtype
        assert np.array_equal(rows.host_all(), logits[canvas == MASK])
    before = [rows._logits.clone() for rows in found]
    denoiser.denoise_resident(CANVASES[::-1].copy(), CANVASES == MASK)
    assert all(torch.equal(rows._logits, kept) for rows, kept in zip(found, before, strict=True))
    assert denoiser.forwards == 2
    np.testing.assert_array_equal(denoiser.denoise(CANVASES), wanted)


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("policy", "sampler"),
    [
        (sg.policies.Threshold(0.6), sg.diffusion.Dingo()),
        (sg.policies.Static(per_step=2), sg.diffusion.Posterior()),
        (sg.diffusion.FreeDave(depth=3), sg.diffusion.Dingo()),
        (sg.policies.EntropyBound(1.0), sg.diffusion.Posterior(tail="scored")),
    ],
    ids=["threshold", "static", "free dave", "entropy"],
)
def test_canvases_are_those_of_the_host(
    code: Any, tokenizer: Any, kind: str, style: str, policy: Any, sampler: Any
) -> None:
    """This holds for a regular and a context-free grammar; no row is copied."""
    copied, stays = pair(code, tokenizer, style)
    options: dict[str, Any] = {"canvas": SLOTS, "policy": policy, "sampler": sampler, "seed": 2, "chat": False}
    alike(fill_canvas(copied, "go", GRAMMARS[kind], **options), fill_canvas(stays, "go", GRAMMARS[kind], **options))
    residence = stays.residence
    assert residence.copied_rows == 0
    assert residence.waits > 0


@pytest.mark.parametrize("style", FAST)
@pytest.mark.parametrize("rule", [PrefixReuse(), DualReuse(), DelayedReuse(2)], ids=["prefix", "dual", "delayed"])
def test_live_slots_keep_logits_on_the_device(code: Any, tokenizer: Any, style: str, rule: Any) -> None:
    """Slots that did not run keep the logits of an earlier pass; decoding is that of the host."""
    copied, stays = pair(code, tokenizer, style)
    options: dict[str, Any] = {
        "canvas": SLOTS,
        "policy": sg.policies.Threshold(0.6),
        "block": 4,
        "reuse": rule,
        "chat": False,
    }
    alike(
        fill_canvas(copied, "go", GRAMMARS["regular"], **options),
        fill_canvas(stays, "go", GRAMMARS["regular"], **options),
    )
    assert stays.residence.copied_rows == 0
    host, denoiser = copied.start([7]), stays.start([7])
    assert isinstance(denoiser, ResidentCachingDenoiser)
    for canvas, live in ((CANVASES[0], some()), (CANVASES[1], some(1, 2, 5)), (CANVASES[0], some(5))):
        wanted = host.denoise_live(canvas, live)
        first = denoiser.denoise_live_resident(canvas, live, canvas == MASK)
        assert np.array_equal(first.host_all(), wanted[canvas == MASK])
        again = denoiser.denoise_live(canvas, some())  # nothing is live: the old logits are copied
        assert np.array_equal(again, wanted)
    kept = first.host_all().copy()
    denoiser.denoise_live_resident(CANVASES[1], some(*range(SLOTS)), some(0))
    assert np.array_equal(first.host_all(), kept)
    assert denoiser.forwards == host.forwards + 1


@pytest.mark.parametrize("style", ["TinyLLaDA", "TinyFastDream"])
def test_compiled_networks_are_called_as_they_are_written(code: Any, tokenizer: Any, style: str) -> None:
    """``torch.compile`` hides neither a network's abilities nor its name; canvases are the same."""
    plain = network(code, style)
    compiled = torch.compile(network(code, style), backend="eager")
    wanted = load_diffusion_model((plain, tokenizer), mask_token=MASK, resident=False)
    for resident in (False, True):
        model = load_diffusion_model((compiled, tokenizer), mask_token=MASK, resident=resident)
        assert model.name == style
        assert isinstance(model.start([7]), CachingDenoiser) == (style in FAST)
        options: dict[str, Any] = {
            "canvas": SLOTS,
            "policy": sg.policies.Threshold(0.6),
            "sampler": sg.diffusion.Posterior(),
            "seed": 1,
            "chat": False,
        }
        alike(
            fill_canvas(wanted, "go", GRAMMARS["regular"], **options),
            fill_canvas(model, "go", GRAMMARS["regular"], **options),
        )


def test_a_network_that_writes_to_the_same_memory(code: Any, tokenizer: Any) -> None:
    """A captured network does so; the logits of an earlier pass stay valid."""
    made = network(code, "TinyLLaDA")
    place: list[Any] = []
    answer = made.answer

    def captured(*args: Any, **options: Any) -> Any:
        logits, kept = answer(*args, **options)
        if not place:
            place.append(torch.empty_like(logits))
        place[0].copy_(logits)
        return place[0], kept

    made.answer = captured
    denoiser: Any = load_diffusion_model((made, tokenizer), mask_token=MASK, resident=True).start([7])
    everything = np.ones((1, SLOTS), dtype=np.bool_)
    (first,) = denoiser.denoise_resident(CANVASES[:1], everything)
    before = first._logits.clone()
    (second,) = denoiser.denoise_resident(CANVASES[1:], everything)
    assert torch.equal(first._logits, before)
    assert not torch.equal(second._logits, before)


def test_logits_stay_by_default_where_the_device_is_a_gpu(code: Any, tokenizer: Any) -> None:
    """On a CPU they come as arrays, unless the caller asks otherwise."""
    made = network(code, "TinyLLaDA")
    for resident, wanted in ((None, False), (False, False), (True, True)):
        model: Any = load_diffusion_model((made, tokenizer), mask_token=MASK, resident=resident)
        assert model.start([7]).is_resident is wanted
    embedded: Any = load_diffusion_model(device="cpu")
    assert not embedded.start([7]).is_resident
    embedded = load_diffusion_model(device="cpu", resident=True)
    assert embedded.start([7]).is_resident


@pytest.mark.parametrize(("wrong", "shown"), [(torch.nan, "nan"), (torch.inf, "inf")])
def test_logits_that_are_no_distribution_are_refused_by_their_slot(
    code: Any, tokenizer: Any, wrong: float, shown: str
) -> None:
    """This holds whether they stay or not."""
    made = network(code, "TinyLLaDA")
    made.head.weight.data[100] = wrong
    for resident in (False, True):
        model = load_diffusion_model((made, tokenizer), mask_token=MASK, resident=resident)
        with pytest.raises(
            GenerationError, match=r"slot 0: its logits are no distribution over tokens.*maximum is nan"
        ):
            fill_canvas(model, "go", GRAMMARS["regular"], canvas=SLOTS, chat=False)


def test_what_cannot_be_asked_about_is_refused(code: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that do not fit the canvases are refused; a failing network raises, also on the way to the host."""
    _, model = pair(code, tokenizer, "TinyFastLLaDA")
    denoiser = model.start([7])
    for asked in (np.ones(SLOTS, dtype=np.bool_), np.ones((2, SLOTS), dtype=np.int64)):
        with pytest.raises(GenerationError, match="must be bool, in the shape of the canvases"):
            denoiser.denoise_resident(CANVASES, asked)
    with pytest.raises(GenerationError, match="must be bool, in the shape of the canvases"):
        denoiser.denoise_live_resident(CANVASES[0], some(), some()[:3])

    def fail(*_: Any) -> None:
        raise RuntimeError("device-side assert")

    monkeypatch.setattr(CanvasResidence, "copied", fail)
    with pytest.raises(GenerationError, match=r"the forward pass failed.*device-side assert with 2 canvases of 8"):
        denoiser.denoise_resident(CANVASES, CANVASES == MASK)


# the embedded model


@pytest.fixture(scope="module")
def embedded() -> tuple[Any, Any]:
    """The embedded model on the CPU, with logits that are copied and with logits that stay."""
    return tuple(load_diffusion_model(device="cpu", resident=resident) for resident in (False, True))  # type: ignore[return-value]


PERSON = sg.json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 150}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    whitespace="compact",
)
NESTED = sg.lark(r'start: "[" (start ("," start)*)? "]" | /[0-9]/')


@pytest.mark.parametrize("grammar", [PERSON, NESTED], ids=["regular", "context-free"])
@pytest.mark.parametrize(
    ("policy", "sampler", "rest"),
    [
        (sg.policies.Threshold(0.8), sg.diffusion.Dingo(), {}),
        (sg.policies.Threshold(0.8), sg.diffusion.Posterior(), {"temperature": 0.7}),
        (sg.policies.Prophet(), sg.diffusion.Dingo(), {}),
        # Not so sure that slots are equal up to the rounding of float32, which would decide their order.
        (sg.diffusion.SelfSpeculative(3), sg.diffusion.Dingo(), {"temperature": 3.0}),
        (sg.policies.Threshold(0.8), sg.diffusion.Dingo(), {"reuse": DualReuse(), "block": 12}),
    ],
    ids=["threshold", "posterior", "prophet", "drafts", "reuse"],
)
def test_the_embedded_model_writes_the_same(
    embedded: tuple[Any, Any], grammar: Any, policy: Any, sampler: Any, rest: dict[str, Any]
) -> None:
    """Its distributions are computed for free slots alone; few bytes are copied."""
    copied, stays = embedded
    options: dict[str, Any] = {"canvas": 24, "policy": policy, "sampler": sampler, "seed": 5, **rest}
    before = stays.residence.copied_bytes
    wanted = fill_canvas(copied, "person: Ada, 36", grammar, **options)
    found = fill_canvas(stays, "person: Ada, 36", grammar, **options)
    alike(wanted, found)
    assert stays.residence.copied_rows == 0
    canvases = found.stats.forwards * (4 if isinstance(policy, sg.diffusion.SelfSpeculative) else 1)
    assert stays.residence.copied_bytes - before < canvases * 24 * stays.vocabulary.size * 4


def test_log_distributions_of_some_slots_are_those_of_all(embedded: tuple[Any, Any]) -> None:
    """They agree up to rounding; with a prompt and without, and for a live canvas."""
    copied, stays = embedded
    mask = stays.mask_token
    canvases = np.full((2, 10), mask, dtype=np.int32)
    canvases[1, :4] = stays.encode_prompt("[1,2", chat=False)[:4]
    prompts: list[list[int]] = [[], stays.encode_prompt("person: Ada, 36")]
    for prompt in prompts:
        wanted = copied.start(prompt).denoise(canvases)
        denoiser = stays.start(prompt)
        for rows, canvas, logits in zip(
            denoiser.denoise_resident(canvases, canvases == mask), canvases, wanted, strict=True
        ):
            np.testing.assert_allclose(rows.host_all(), logits[canvas == mask], atol=2e-4)
        host = copied.start(prompt)
        for canvas, live in ((canvases[0], np.zeros(10, dtype=bool)), (canvases[1], canvases[1] != mask)):
            found = denoiser.denoise_live_resident(canvas, live, canvas == mask)
            np.testing.assert_allclose(found.host_all(), host.denoise_live(canvas, live)[canvas == mask], atol=2e-4)


def test_live_canvases_of_any_network_may_stay() -> None:
    """A network that returns tensors keeps them on its device, and one that returns arrays may as well."""
    table = torch.randn(20, 6, generator=torch.Generator().manual_seed(1)).bfloat16()

    def run(canvas: NDArray[np.int32], through: SlotPass) -> Any:
        through.put(torch.zeros(1, len(through.live), 2), torch.zeros(1, len(through.live), 2))
        return table[torch.from_numpy(canvas).long()[through.live]]

    residence = CanvasResidence()
    stays, copied = LiveCanvas(run, layers=1, residence=residence), LiveCanvas(run, layers=1)
    first, second = np.arange(8, dtype=np.int32), np.arange(8, 16, dtype=np.int32)
    stays.denoise(first, some())
    found: Any = stays.denoise_resident(second, some(2, 3), some(1, 2, 7))
    copied.denoise(first, some())
    wanted = copied.denoise(second, some(2, 3))
    assert wanted.dtype == np.float32
    assert np.array_equal(wanted, table.float().numpy()[[0, 1, 10, 11, 4, 5, 6, 7]])
    assert isinstance(found._logits, torch.Tensor)
    assert found._logits.dtype == torch.bfloat16
    assert np.array_equal(found.host_all(), wanted[[1, 2, 7]])
    assert np.array_equal(HostLogits(found.host_all()).largest(), found.largest())
    assert residence.copied_rows == 3
