"""Logits that stay on the device: every answer equals that of logits on the host, and no row is copied."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stepwise_unmasking import LETTERS
from toy_canvases import VOCABULARY

import structgen as sg
from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.class_posterior import ClassScores
from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.fill import fill_canvas
from structgen.decode.diffusion.forward_pass import DelayedReuse, DualReuse, PrefixReuse
from structgen.decode.diffusion.mean_field import FREE, HostLogits, MeanField
from structgen.decode.diffusion.posterior import Dingo, Posterior
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.methods.diffusion_drafting.adaptive_parallel import AdaptiveParallel
from structgen.methods.diffusion_drafting.canvas_draft import given_canvas
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion
from structgen.models.protocol.diffusion import LOWEST, ResidentCachingDenoiser, SlotLogits, TokenClasses

torch = pytest.importorskip("torch")

from device_diffusion import ResidentToy, resident  # noqa: E402  # needs torch

TYPES = [torch.float32, torch.float16, torch.bfloat16]
SCALES = [1.0, 1 / 0.3, 0.25]


def rows_of(size: int, dtype: Any, *, seed: int = 0) -> NDArray[np.float32]:
    """Rows that are exact in ``dtype``: narrow and wide ones, with equal logits and minus infinity."""
    rng = np.random.default_rng([seed, size])
    logits = rng.normal(size=(7, size)).astype(np.float32) * np.array(
        [[0.1], [1], [3], [3], [40], [40], [3]], np.float32
    )
    logits[2] = np.round(logits[2])
    logits[3, 1:][rng.random(size - 1) < 0.5] = -np.inf
    rounded: NDArray[np.float32] = torch.from_numpy(logits).to(dtype).float().numpy()
    return rounded


def classes_of(size: int) -> TokenClasses:
    """Class of each token: most tokens in one class, few in the others; the last class is empty."""
    rng = np.random.default_rng(size)
    count = min(size, 9)
    of = np.where(rng.random(size) < 0.7, count // 2, rng.integers(0, count, size))
    return TokenClasses(of.astype(np.int32), count + 1)


def both(size: int, dtype: Any) -> tuple[SlotLogits, SlotLogits]:
    """The same rows in double precision on the host, and on the device."""
    logits = rows_of(size, dtype)
    return HostLogits(logits.astype(np.float64)), resident(logits, dtype)


# one question at a time


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1, 2, 33, 1000])
@pytest.mark.parametrize("scale", SCALES)
def test_rows_answer_as_on_the_host(size: int, dtype: Any, scale: float) -> None:
    """Logits are equal exactly, sums to 1e-5; the leading tokens come in the same order."""
    host, stays = both(size, dtype)
    assert stays.shape == host.shape == (7, size)
    assert np.array_equal(stays.largest(), host.largest())
    assert stays.log_norms(scale) == pytest.approx(host.log_norms(scale), abs=1e-5)
    tokens = np.random.default_rng(1).integers(0, size, 7).astype(np.int32)
    assert np.array_equal(stays.at(tokens), host.at(tokens))
    classes = classes_of(size)
    factors = np.random.default_rng(2).normal(size=(7, classes.count))
    factors[:, 0] = -np.inf
    count = min(3, size)
    wanted, wanted_values = host.leading(classes, factors, scale, count)
    found, values = stays.leading(classes, factors, scale, count)
    near = np.isclose(wanted_values[:, :-1], wanted_values[:, 1:], atol=1e-4).any(axis=1)
    assert np.array_equal(found[~near], wanted[~near])
    assert values == pytest.approx(wanted_values, rel=1e-6, abs=1e-4)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("size", [1, 2, 33, 1000])
@pytest.mark.parametrize("scale", SCALES)
def test_classes_answer_as_on_the_host(size: int, dtype: Any, scale: float) -> None:
    """Maxima and best tokens are equal exactly, sums and sums of p log p to 1e-5, draws by the same numbers."""
    host, stays = both(size, dtype)
    classes = classes_of(size)
    wanted, found = host.by_class(classes, scale), stays.by_class(classes, scale)
    present = np.flatnonzero(classes.sizes)
    assert np.array_equal(found.maxima()[:, present], wanted.maxima()[:, present])
    assert found.log_norms() == pytest.approx(wanted.log_norms(), abs=1e-5)
    assert found.log_sums()[:, present] == pytest.approx(wanted.log_sums()[:, present], rel=1e-6, abs=1e-5)
    assert found.mean_logs()[:, present] == pytest.approx(wanted.mean_logs()[:, present], rel=2e-5, abs=1e-5)
    assert np.all(found.log_sums()[:, -1] == -np.inf)
    rows, columns = (each.ravel() for each in np.indices((7, len(present))))
    of = present[columns].astype(np.int32)
    assert np.array_equal(found.best(rows, of), wanted.best(rows, of))
    uniform = np.random.default_rng(5).random(len(rows))
    assert (found.draw(rows, of, uniform) == wanted.draw(rows, of, uniform)).mean() > 0.99
    nothing = np.zeros(0, dtype=np.int64)
    assert len(found.best(nothing, nothing.astype(np.int32))) == 0
    assert len(found.draw(nothing, nothing.astype(np.int32), np.zeros(0))) == 0


def test_native_passes_over_many_tokens_say_the_same() -> None:
    """With 12 rows of 33,000 tokens the host uses native passes."""
    size = 33_000
    logits = np.concatenate([rows_of(size, torch.float32), rows_of(size, torch.float32, seed=1)])[:12]
    host, stays = HostLogits(logits), resident(logits)
    assert host.is_native
    classes = classes_of(size)
    wanted, found = host.by_class(classes, 1.0), stays.by_class(classes, 1.0)
    assert np.array_equal(found.maxima(), wanted.maxima())
    assert found.log_sums() == pytest.approx(wanted.log_sums(), rel=1e-6, abs=1e-5)
    assert found.mean_logs() == pytest.approx(wanted.mean_logs(), rel=2e-5, abs=1e-5)
    rows = np.arange(12, dtype=np.int64)
    for one in range(classes.count - 1):
        of = np.full(12, one, dtype=np.int32)
        assert np.array_equal(found.best(rows, of), wanted.best(rows, of))
        uniform = np.random.default_rng(one).random(12)
        assert (found.draw(rows, of, uniform) == wanted.draw(rows, of, uniform)).sum() >= 11


def test_equal_logits_lead_by_their_number() -> None:
    """Of equal logits the lowest id is first, wherever the tokens are."""
    logits = np.zeros((2, 5000), dtype=np.float32)
    logits[:, [4999, 17, 2048]] = 3.0
    classes = TokenClasses(np.zeros(5000, dtype=np.int32), 1)
    for each in (HostLogits(logits), resident(logits)):
        found, _ = each.leading(classes, np.zeros((2, 1)), 1.0, 4)
        assert found.tolist() == [[17, 2048, 4999, 0]] * 2


def test_rows_are_taken_raised_and_copied_once() -> None:
    """A raised row is a copy; a row that was copied is not copied again, alone or with all others."""
    logits = rows_of(33, torch.bfloat16)
    host, stays = HostLogits(logits), resident(logits, torch.bfloat16)
    some = np.array([5, 0], dtype=np.intp)
    assert np.array_equal(stays.take(some).host_all(), host.take(some).host_all())
    assert np.array_equal(stays.take(some).largest(), host.take(some).largest())
    rows, tokens = np.array([0, 0, 6]), np.array([1, 2, 32], dtype=np.int32)
    by = np.array([100.0, 0.001, 2.0], dtype=np.float32)
    raised = stays.raised(rows, tokens, by)
    assert np.array_equal(raised.host_all(), host.raised(rows, tokens, by).host_all())
    assert raised.largest()[0] == raised.host(0)[1] > stays.largest()[0]
    one = resident(logits)
    residence = one._residence
    assert one.host(3) is one.host(3)
    assert residence.copied_rows == 1
    assert one.host_all() is one.host_all()
    assert np.array_equal(one.host(4), logits[4])
    assert residence.copied_rows == 8


def test_classes_are_laid_out_once_for_a_language() -> None:
    """A layout takes as long as a row; the posteriors of a language share one for each kind of logits."""
    classes = classes_of(100)
    found = [classes.layout(key, lambda of, count: [len(of), count]) for key in ("here", "there", "here")]
    assert found == [[100, 10]] * 3
    assert found[0] is found[2] is not found[1]
    language = canvas_language(compile(sg.regex("[ab]*"), VOCABULARY))
    distribution = MeanField(
        np.full(3, FREE, dtype=np.int32), resident(np.zeros((3, VOCABULARY.size), dtype=np.float32))
    )
    language.posterior(distribution).best()
    (kept,) = language.token_classes._layouts.values()  # type: ignore[attr-defined]
    language.posterior(distribution).best()
    assert [*language.token_classes._layouts.values()] == [kept]  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("wrong", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_rows_that_make_no_distribution_are_refused_by_their_slot(wrong: float, shown: str, dtype: Any) -> None:
    canvas = np.array([FREE, 0, FREE, FREE], dtype=np.int32)
    logits = np.zeros((3, 70), dtype=np.float32)
    logits[1] = -np.inf if wrong == -np.inf else logits[1]
    logits[1, 2] = wrong
    with pytest.raises(GenerationError, match=rf"slot 2: its logits are no distribution.*maximum is {shown}"):
        MeanField(canvas, resident(logits, dtype))


def test_zeros_of_half_precision_count_as_little_and_not_as_nothing() -> None:
    """Minus infinity counts as ``LOWEST`` below the largest, at any temperature."""
    logits = np.full((1, 300), -np.inf, dtype=np.float32)
    logits[0, 7] = 2.0
    for temperature in (1e-300, 1.0, 1e300):
        distribution = MeanField(np.array([FREE], dtype=np.int32), resident(logits), temperature=temperature)
        scores = ClassScores(distribution, TokenClasses(np.minimum(np.arange(300), 1).astype(np.int32), 2))
        assert scores.maxima()[0, 0] - distribution.log_prob_of(np.array([7], dtype=np.int32)) == pytest.approx(
            LOWEST, rel=1e-6
        )


def test_tokens_that_are_none_are_refused_before_the_device_is_asked() -> None:
    """Otherwise a GPU would fail at some later call."""
    stays = resident(np.zeros((2, 5), dtype=np.float32))
    for token in (-1, 5):
        with pytest.raises(IndexError, match="tokens are 0 to 4"):
            stays.at(np.array([0, token], dtype=np.int32))
    assert stays._residence.waits == 1  # for the largest logits


# posteriors

GRAMMARS: dict[str, Any] = {
    "regular": sg.regex(r"(a|b){2,4}|1(\.1){0,2}"),
    "context-free": sg.lark('start: "a" inner "b"\ninner: ("1" | ".") inner? | start+'),
}


def distributions(vocabulary: Vocabulary, slots: int, *, temperature: float = 1.0) -> tuple[MeanField, MeanField]:
    """The distributions of a canvas with a fixed slot, on the host and on the device."""
    canvas = np.full(slots, FREE, dtype=np.int32)
    logits = 2 * np.random.default_rng(slots).normal(size=(slots, vocabulary.size)).astype(np.float32)
    return MeanField(canvas, logits, temperature=temperature), MeanField(
        canvas, resident(logits), temperature=temperature
    )


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("tail", ["free", "scored"])
@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_posteriors_are_those_of_the_host(kind: str, tail: Any, temperature: float) -> None:
    """Masses, completions, draws by the same numbers, shares, marginals, leaders, entropies and clamping agree."""
    language = canvas_language(compile(GRAMMARS[kind], VOCABULARY), ambiguity="counted")
    assert isinstance(language, RegularLanguage if kind == "regular" else ContextFreeLanguage)
    host, stays = distributions(VOCABULARY, 6, temperature=temperature)
    wanted, found = language.posterior(host, tail=tail), language.posterior(stays, tail=tail)
    assert found.log_z == pytest.approx(wanted.log_z, abs=1e-5)
    best = wanted.best()
    assert found.best().tokens.tolist() == best.tokens.tolist()
    assert found.best().log_prob == pytest.approx(best.log_prob, abs=1e-5)
    for seed in range(20):
        draws = [each.draw(np.random.default_rng(seed)) for each in (wanted, found)]
        assert draws[1].tokens.tolist() == draws[0].tokens.tolist()
        assert draws[1].log_prob == pytest.approx(draws[0].log_prob, abs=1e-5)
    assert found.shares(best.tokens) == pytest.approx(wanted.shares(best.tokens), abs=1e-5)
    assert found.entropies() == pytest.approx(wanted.entropies(), abs=1e-5)
    half = np.where(np.arange(6) < 2, best.tokens, FREE).astype(np.int32)
    assert found.clamped(half) == pytest.approx(wanted.clamped(half), abs=1e-5)
    again = [language.posterior(given_canvas(distribution, half), tail=tail).best() for distribution in (host, stays)]
    assert again[1].tokens.tolist() == again[0].tokens.tolist()
    assert stays.slot_logits._residence.copied_rows == 0  # type: ignore[attr-defined]
    for slot in range(6):
        assert found.marginals(slot) == pytest.approx(wanted.marginals(slot), abs=1e-5)
    assert stays.slot_logits._residence.copied_rows == 6  # type: ignore[attr-defined]
    assert stays.logits == pytest.approx(host.logits)


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("tail", ["free", "scored"])
def test_leaders_are_the_first_two_of_the_marginals(kind: str, tail: Any) -> None:
    """This holds for both kinds of logits, and with free padding in the tail."""
    language = canvas_language(compile(GRAMMARS[kind], VOCABULARY), ambiguity="counted")
    for distribution in distributions(VOCABULARY, 6):
        posterior = language.posterior(distribution, tail=tail)
        leaders = posterior.leaders()
        for slot in range(6):
            marginals = posterior.marginals(slot)
            assert leaders.tokens[slot] == marginals.argmax()
            assert [leaders.seconds[slot], leaders.shares[slot]] == pytest.approx(np.sort(marginals)[-2:], abs=1e-6)
        half = np.where(np.arange(6) < 3, posterior.best().tokens, FREE).astype(np.int32)
        fixed = language.posterior(given_canvas(distribution, half), tail=tail).leaders()
        assert fixed.tokens[:3].tolist() == half[:3].tolist()
        assert (fixed.shares[:3].tolist(), fixed.seconds[:3].tolist()) == ([1.0] * 3, [0.0] * 3)


# whole canvases


class Confident:
    """A filter that accepts the top token where it is much more probable than the second."""

    def settled(self, views: Any, /) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.where(views[-1].confidences > 2 * views[-1].seconds, 0.95, 0.05)
        return found


POLICIES: list[Any] = [
    sg.policies.Static(),
    sg.policies.Threshold(0.7),
    sg.policies.Factor(1.5),
    sg.policies.Prophet((1.5, 1.0, 0.5)),
    sg.policies.Prophet((1.5, 1.0, 0.5), over="completion"),
    sg.policies.CreditDecoding(0.7),
    sg.policies.LocalLeap(0.8, 0.3, 2),
    sg.policies.EntropyBound(0.5),
    sg.policies.Explore(),
    sg.policies.Learned(Confident(), threshold=0.9),
]
TOY = HashDiffusion(VOCABULARY, seed=3, context=0.5)


def alike(wanted: Any, found: Any) -> None:
    """Compare two results for one canvas."""
    assert found.tokens == wanted.tokens
    assert found.canvas.commits == wanted.canvas.commits
    assert found.stats.forwards == wanted.stats.forwards
    for one, other in zip(wanted.steps, found.steps, strict=True):
        assert other.logprob == pytest.approx(one.logprob, abs=1e-4)
        assert (other.log_z is None) == (one.log_z is None)
        assert one.log_z is None or other.log_z == pytest.approx(one.log_z, abs=1e-4)


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.parametrize("sampler", [Dingo(), Posterior(), Posterior(tail="scored")], ids=["dingo", "free", "scored"])
def test_policies_commit_the_same_and_copy_no_row(kind: str, policy: Any, sampler: Any) -> None:
    """This holds for every sampler, with the same seed, and over blocks."""
    for seed, block in ((1, None), (2, 3)):
        toy = ResidentToy(TOY)
        options: dict[str, Any] = {"canvas": 6, "policy": policy, "sampler": sampler, "seed": seed, "block": block}
        wanted = fill_canvas(TOY, "", GRAMMARS[kind], **options)
        found = fill_canvas(toy, "", GRAMMARS[kind], **options)
        alike(wanted, found)
        assert toy.residence.copied_rows == 0


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize(
    "policy", [sg.diffusion.FreeDave(depth=3), sg.diffusion.SelfSpeculative()], ids=["free dave", "self"]
)
def test_drafts_stand_as_on_the_host(kind: str, policy: Any) -> None:
    """Several canvases with different free slots share one pass."""
    toy = ResidentToy(TOY)
    wanted = fill_canvas(TOY, "", GRAMMARS[kind], canvas=6, policy=policy)
    found = fill_canvas(toy, "", GRAMMARS[kind], canvas=6, policy=policy)
    alike(wanted, found)
    assert found.stats.drafted == wanted.stats.drafted > 0
    assert toy.residence.copied_rows == 0


@pytest.mark.parametrize("sampler", [Dingo(), Posterior()], ids=["dingo", "posterior"])
def test_adaptive_parallel_asks_for_the_rows_it_judges(sampler: Any) -> None:
    """The mixture with a small model's distribution needs whole marginals: one row for each judged slot."""
    model = HashDiffusion(LETTERS, seed=5, context=0.3)
    policy = AdaptiveParallel(HashModel(LETTERS, seed=2), "", weight=0.6)
    toy = ResidentToy(model)
    options: dict[str, Any] = {"canvas": 8, "policy": policy, "sampler": sampler, "seed": 4}
    wanted = fill_canvas(model, "", sg.regex("[abc]{5,8}"), **options)
    found = fill_canvas(toy, "", sg.regex("[abc]{5,8}"), **options)
    alike(wanted, found)
    assert 0 < toy.residence.copied_rows <= 8 * found.stats.forwards


@pytest.mark.parametrize("rule", [PrefixReuse(), DualReuse(), DelayedReuse(3)], ids=["prefix", "dual", "delayed"])
@pytest.mark.parametrize("kind", GRAMMARS)
def test_reuse_keeps_logits_where_they_are(kind: str, rule: Any) -> None:
    """Passes run live slots; the logits of the other slots stay on the device from an earlier pass."""
    toy = ResidentToy(TOY)
    assert isinstance(toy.start([]), ResidentCachingDenoiser)
    options: dict[str, Any] = {"canvas": 6, "policy": sg.policies.Threshold(0.7), "block": 3, "reuse": rule}
    alike(fill_canvas(TOY, "", GRAMMARS[kind], **options), fill_canvas(toy, "", GRAMMARS[kind], **options))
    assert toy.residence.copied_rows == 0


def test_particles_weigh_the_same() -> None:
    """Weights are masses of posteriors, also after more slots are fixed; all canvases share passes."""
    toy = ResidentToy(TOY)
    options: dict[str, Any] = {"canvas": 6, "sampler": sg.samplers.SMC(12), "seed": 9}
    wanted, found = (sg.sample(model, "", GRAMMARS["regular"], **options) for model in (TOY, toy))
    assert found.log_evidence == pytest.approx(wanted.log_evidence, abs=1e-4)
    assert [each.result.tokens for each in found.samples] == [each.result.tokens for each in wanted.samples]
    weights = [[each.log_weight for each in of.samples] for of in (wanted, found)]
    assert weights[1] == pytest.approx(weights[0], abs=1e-4)
    assert toy.residence.copied_rows == 0


def test_holes_are_filled_alike() -> None:
    """The lengths of holes are chosen by masses."""
    toy = ResidentToy(TOY)
    parts: list[Any] = ["a", sg.grammars.hole(3), "1", sg.grammars.hole(3), "."]
    pattern = sg.regex(r"a[ab]{0,3}1[ab.]{0,3}\.")
    for sampler in (Dingo(), Posterior()):
        wanted, found = (
            sg.infill(model, parts, pattern, sampler=sampler, lengths="mass", seed=1) for model in (TOY, toy)
        )
        assert found.text == wanted.text
    assert toy.residence.copied_rows == 0


def test_half_precision_stays_half_precision() -> None:
    """Logits of bfloat16 give the results of the same values in float32 on the host; a raised copy does not round."""

    class Rounded:
        """A model whose logits are rounded to bfloat16."""

        def __init__(self, model: Any) -> None:
            self.model = model

        def __getattr__(self, name: str) -> Any:
            return getattr(self.model, name)

        def start(self, prompt_ids: Any, /) -> Any:
            denoiser = self.model.start(prompt_ids)
            exact = denoiser.denoise

            class Rounding:
                forwards = property(lambda self: denoiser.forwards)
                close = staticmethod(denoiser.close)

                @staticmethod
                def denoise(canvases: Any, /, **options: Any) -> Any:
                    return torch.from_numpy(exact(canvases, **options)).bfloat16().float().numpy()

            return Rounding()

    for policy in (sg.policies.Threshold(0.7), sg.policies.CreditDecoding(0.7)):
        options: dict[str, Any] = {"canvas": 6, "policy": policy, "sampler": Posterior(), "seed": 3}
        alike(
            fill_canvas(Rounded(TOY), "", GRAMMARS["regular"], **options),
            fill_canvas(ResidentToy(TOY, dtype=torch.bfloat16), "", GRAMMARS["regular"], **options),
        )


# bytes that are copied


@pytest.mark.parametrize(("sampler", "floats"), [(Dingo(), 2), (Posterior(), 1)], ids=["dingo", "posterior"])
def test_bytes_of_a_step_are_those_of_classes_and_tokens(sampler: Any, floats: int) -> None:
    """A step copies class scores and a few numbers per free slot: a hundredth of the logits of 5,000 tokens."""
    words = [b"", *(b"%c" % byte for byte in b"ab1.()"), *(b"w%d " % index for index in range(4992)), b""]
    vocabulary = Vocabulary(words, eos=[0], special={len(words) - 1: "<mask>"})
    model = HashDiffusion(vocabulary, seed=3, context=0.5)
    language = canvas_language(compile(GRAMMARS["regular"], vocabulary))
    toy = ResidentToy(model)
    slots = 6
    result = fill_canvas(
        toy, "", GRAMMARS["regular"], canvas=slots, sampler=sampler, policy=sg.policies.Threshold(0.99)
    )
    passes, residence = result.stats.forwards, toy.residence
    classes = language.token_classes.count  # type: ignore[attr-defined]
    # Largest logits, normalisers, scores of classes; a token and three log-probabilities for each free slot.
    assert residence.copied_bytes <= passes * slots * 4 * (2 + floats * classes + 4)
    # Which slots are free, their largest logits, then rows, classes and numbers of choices, and tokens to be scored.
    assert residence.sent_bytes <= passes * slots * (16 + 4 + 8 + 8 + 3 * 8)
    assert residence.waits <= passes * 4
    assert residence.copied_rows == 0
    assert residence.copied_bytes + residence.sent_bytes < passes * slots * 4 * vocabulary.size / 100
