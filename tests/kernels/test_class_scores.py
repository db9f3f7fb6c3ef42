"""Scores of classes are exact up to rounding at every depth, for all partitions, logits and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import structgen_kernels.canvases.class_scores as scoring
import torch
from graph_capture import recorded_step
from kernel_token_classes import LOWEST, PARTITIONS, Distribution, fast_scans, hard_logits, partition
from structgen_kernels import _native
from structgen_kernels.canvases.class_layout import GROUP, ClassLayout
from structgen_kernels.canvases.class_scores import ClassScores, class_scores
from structgen_kernels.choices.choice import CHOSEN, MASSLESS, NON_FINITE
from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from structgen.engine import Vocabulary

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "ok": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 2},
        "day": {"type": "string", "format": "date"},
    },
    "required": ["name", "age", "ok", "tags", "day"],
    "additionalProperties": False,
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FIELDS = ("maxima", "log_maxima", "log_sums", "mean_logs", "log_norms", "largest", "scales", "status")
EXACT = 2e-5
"""The float32 error of an exponent of 80 is 8e-6; it is computed from the largest logit in two steps."""


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    fast_scans(monkeypatch)


def check(scores: ClassScores, logits: torch.Tensor, distribution: Distribution) -> None:
    """Compare all scores with loops over classes in double precision."""
    size = len(distribution.class_of)
    maxima, sums, mean_logs = distribution.by_class()
    for of in range(distribution.classes):
        held = logits[:, :size][:, torch.from_numpy(distribution.class_of == of)].to(torch.float32)
        expected = held.amax(1) if held.shape[1] else torch.full((len(logits),), -torch.inf)
        assert torch.equal(scores.maxima[:, of], expected)
    assert torch.equal(scores.largest, logits[:, :size].amax(1).to(torch.float32))
    assert scores.status.tolist() == [CHOSEN] * len(logits)
    for found, expected in ((scores.log_maxima, maxima), (scores.log_sums, sums)):
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=EXACT)
    np.testing.assert_allclose(scores.log_norms.numpy(), distribution.log_norms(), rtol=1e-6, atol=1e-6)
    if scores.mean_logs is not None:
        np.testing.assert_allclose(scores.mean_logs.numpy(), mean_logs, rtol=EXACT, atol=3e-7)


@pytest.mark.parametrize("block", [None, 64, 4096])
@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize("size", [1, 31, 33, 4097, 20_000])
def test_a_layout_has_each_token_at_one_place(size: int, kind: str, block: int | None) -> None:
    of, classes = partition(kind, size)
    layout = ClassLayout.of(of, classes, block=block)

    begin, places, groups = layout.begin.tolist(), layout.places.numpy(), layout.groups.numpy()
    segments: dict[int, list[int]] = {}
    for number, first in enumerate(begin[:-1]):
        assert first % GROUP == 0
        dealt = places[number].reshape(-1, GROUP)
        tokens = places[number][places[number] >= 0]
        assert sorted(tokens.tolist()) == list(range(begin[number + 1] - first))
        for held, group in zip(dealt, groups[number].tolist(), strict=True):
            inside = first + held[held >= 0]
            if not len(inside):
                assert group == 0
                continue
            segment = int(layout.first_segment[number]) + (group >> 2)
            assert bool(group & 1) == (segment not in segments)
            members = segments.setdefault(segment, [])
            members += inside.tolist()
            assert bool(group & 2) == (len(members) == np.sum(of[first : begin[number + 1]] == of[members[0]]))
    assert len(segments) == layout.segments
    for number in range(classes):
        listed_all: list[int] = []
        for entry in range(int(layout.class_begin[number]), int(layout.class_begin[number + 1])):
            listed = layout.members[int(layout.member_begin[entry]) : int(layout.member_begin[entry + 1])].tolist()
            assert listed == segments[int(layout.segment_of[entry])]
            assert begin[int(layout.block_of[entry])] <= listed[0] < begin[int(layout.block_of[entry]) + 1]
            listed_all += listed
        assert listed_all == np.flatnonzero(of == number).tolist()
    assert layout.sizes().tolist() == np.bincount(of, minlength=classes).tolist()


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("kind", PARTITIONS)
@pytest.mark.parametrize(("size", "rows"), [(1, [0]), (31, [1, 3]), (32, [4, 6]), (33, [2, 5]), (150, [2, 4])])
def test_scores_are_those_of_loops_in_double_precision(size: int, rows: list[int], kind: str) -> None:
    of, classes = partition(kind, size)
    layout = ClassLayout.of(of, classes, block=64)
    logits = hard_logits(size, torch.float32, tail=5)[rows]

    check(class_scores(logits, layout, moments=True), logits, Distribution.of(logits, of, classes))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("kind", "dtype", "block"),
    [
        ("one", torch.float16, 512),
        ("own", torch.float32, 2048),
        ("even", torch.bfloat16, 1024),
        ("skew", torch.float16, 4096),
    ],
    ids=str,
)
def test_scores_of_more_blocks_than_one(
    kind: str, dtype: torch.dtype, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "_CLASSES", 1024)
    of, classes = partition(kind, 4097, seed=1)
    logits = hard_logits(4097, dtype, seed=2, tail=3)[[2]]

    check(class_scores(logits, ClassLayout.of(of, classes, block=block)), logits, Distribution.of(logits, of, classes))


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("scale", [0.01, 1e30])
def test_a_scale_is_that_of_all_rows_or_of_each(scale: float) -> None:
    of, classes = partition("skew", 120)
    layout = ClassLayout.of(of, classes, block=64)
    logits = hard_logits(120, torch.float32)[[1, 2, 4, 6]]
    check(class_scores(logits, layout, scale=scale, moments=True), logits, Distribution.of(logits, of, classes, scale))

    scales = np.geomspace(0.02, scale, len(logits)).astype(np.float32)
    scores = class_scores(logits, layout, scale=torch.from_numpy(scales), moments=True)
    check(scores, logits, Distribution.of(logits, of, classes, scales))
    assert np.array_equal(scores.scales.numpy(), scales)


@pytest.mark.usefixtures("backend")
def test_classes_near_the_floor_are_as_exact_as_others() -> None:
    """Classes of 1 to 100 tokens, with maxima from 0 to 120 nats below that of the row; some are at the floor."""
    generator = torch.Generator().manual_seed(3)
    of = np.repeat(np.arange(61), np.arange(61) * 37 % 100 + 1).astype(np.int32)
    mixed = np.random.default_rng(4).permutation(of)
    depth = torch.from_numpy(mixed).to(torch.float32) * 2
    logits = 50 - depth - torch.rand(2, len(mixed), generator=generator) * torch.tensor([[15.0], [60.0]])
    distribution = Distribution.of(logits, mixed, 61)
    straddling = [
        (row, one)
        for row in range(2)
        for one in range(61)
        if len({*(distribution.scaled[row, mixed == one] == LOWEST)}) == 2
    ]
    assert len(straddling) > 20

    layout = ClassLayout.of(mixed, 61, block=256)
    scores = class_scores(logits, layout, moments=True)

    check(scores, logits, distribution)
    _, sums, mean_logs = distribution.by_class()
    assert scores.mean_logs is not None
    deep = sums < -40
    assert deep.sum() > 40
    np.testing.assert_allclose(scores.mean_logs.numpy()[deep], mean_logs[deep], rtol=EXACT, atol=0)


@pytest.mark.usefixtures("backend")
def test_a_low_class_of_many_tokens_is_looked_at_again_in_parts() -> None:
    of = np.zeros(1500, dtype=np.int32)
    of[700] = 1
    logits = -75 - 20 * torch.rand(1, 1500, generator=torch.Generator().manual_seed(5))
    logits[0, 700] = 0
    check(class_scores(logits, ClassLayout.of(of, 2, block=512), moments=True), logits, Distribution.of(logits, of, 2))


@pytest.mark.usefixtures("backend")
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of numpy, as the interpreter
def test_blocks_that_have_nothing_but_minus_infinity() -> None:
    of, classes = partition("even", 500)
    logits = torch.full((2, 500), -torch.inf)
    logits[0, 499] = -3.0e38
    logits[1, :60] = 3.0e38
    logits[1, 490] = -3.0e38
    scores = class_scores(logits, ClassLayout.of(of, classes, block=64), moments=True)
    check(scores, logits, Distribution.of(logits.to(torch.float64), of, classes))


@pytest.mark.usefixtures("backend")
def test_rows_without_a_distribution_have_a_status_and_no_scores() -> None:
    of, classes = partition("even", 150)
    layout = ClassLayout.of(of, classes, block=64)
    logits = hard_logits(150, torch.float32)
    distribution = Distribution.of(logits[[0, 2]], of, classes)
    logits[1, 140] = torch.nan
    logits[3] = -torch.inf
    logits[4, 3] = torch.inf
    logits[5, 3], logits[5, 4] = torch.nan, torch.inf
    logits[6] = torch.nan

    scores = class_scores(logits, layout, moments=True)

    assert scores.status.tolist() == [CHOSEN, NON_FINITE, CHOSEN, MASSLESS, NON_FINITE, NON_FINITE, NON_FINITE]
    for name in FIELDS[:-2]:
        broken = getattr(scores, name)[[1, 3, 4, 5, 6]]
        assert (broken == (0 if name == "mean_logs" else -torch.inf)).all(), name
    _, sums, _ = distribution.by_class()
    np.testing.assert_allclose(scores.log_sums[[0, 2]].numpy(), sums, rtol=0, atol=EXACT)


@pytest.mark.usefixtures("backend")
def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    of, classes = partition("skew", 700)
    layout = ClassLayout.of(of, classes, block=256)
    whole = torch.nn.functional.pad(hard_logits(700, torch.bfloat16)[2:], (3, 6))[:, 3:-2]  # rows lie apart
    scores = class_scores(whole, layout, scale=1.5, moments=True)
    for row in range(len(whole)):
        alone = class_scores(whole[row : row + 1].clone(), layout, scale=1.5, moments=True)
        for name in FIELDS:
            assert torch.equal(getattr(alone, name)[0], getattr(scores, name)[row]), name


@pytest.mark.usefixtures("backend")
def test_no_rows() -> None:
    of, classes = partition("even", 40)
    assert len(class_scores(torch.zeros(0, 40), ClassLayout.of(of, classes))) == 0


@pytest.mark.usefixtures("backend")
def test_a_given_buffer_is_filled() -> None:
    of, classes = partition("even", 90)
    layout = ClassLayout.of(of, classes, block=64)
    logits = hard_logits(90, torch.float32)[:2]
    buffer = ClassScores.empty(layout, 2, moments=True)
    assert class_scores(logits, layout, moments=True, out=buffer) is buffer
    check(buffer, logits, Distribution.of(logits, of, classes))


@pytest.mark.usefixtures("backend")
def test_scores_agree_with_the_pass_of_the_host() -> None:
    of, classes = partition("skew", 2500)
    logits = hard_logits(2500, torch.float32)[1:5]
    host = _native.ClassLayout(of, classes)
    sums, _, moments, maxima = host.sums(
        logits.numpy(), 1.4, logits.amax(1).numpy(), with_maxima=True, with_moments=True
    )
    assert moments is not None
    log_norms = np.log(sums.sum(1))

    scores = class_scores(logits, ClassLayout.of(of, classes, block=1024), scale=1.4, moments=True)

    assert scores.mean_logs is not None
    assert np.array_equal(scores.maxima.numpy(), maxima)
    np.testing.assert_allclose(scores.log_norms.numpy(), log_norms, rtol=1e-6, atol=1e-6)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(scores.log_sums.numpy(), np.log(sums) - log_norms[:, None], rtol=0, atol=EXACT)
    mean_logs = (moments - sums * log_norms[:, None]) / np.exp(log_norms)[:, None]
    np.testing.assert_allclose(scores.mean_logs.numpy(), mean_logs, rtol=EXACT, atol=1e-6)


@pytest.mark.usefixtures("backend")
def test_a_real_schema_on_a_real_vocabulary(deepseek_vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> None:
    from structgen import compile, json_schema
    from structgen.decode.diffusion.token_automaton import byte_automaton, lift
    from structgen.grammars import JsonPolicy

    monkeypatch.setattr(scoring, "_CLASSES", 512)
    grammar = json_schema(SCHEMA, policy=JsonPolicy(whitespace="compact"))
    automaton = byte_automaton(compile(grammar, deepseek_vocabulary))
    assert automaton is not None
    lifted = lift(automaton, deepseek_vocabulary)
    layout = ClassLayout.of(lifted.class_of, lifted.classes)
    assert 8 * layout.segments < 0.1 * 2 * layout.size  # a tenth of what the logits take
    generator = torch.Generator().manual_seed(9)
    logits = (torch.randn(1, layout.size, generator=generator) * 6).to(torch.bfloat16)

    check(class_scores(logits, layout), logits, Distribution.of(logits, lifted.class_of, lifted.classes))


def test_a_step_launches_two_kernels_and_nothing_else() -> None:
    of, classes = partition("skew", 3000)
    layout = ClassLayout.of(of, classes)
    scales = torch.ones(7)
    logits = hard_logits(3000, torch.bfloat16)
    for scale in (0.5, scales):
        steps = []
        buffer = ClassScores.empty(layout, 7, moments=True)
        for values in (0.0, torch.nan):
            logits.fill_(values)
            with recorded_step() as launches_seen:
                class_scores(logits, layout, scale=scale, moments=True, out=buffer)
            steps.append(launches_seen)
        assert [launch.kernel for launch in steps[0]] == ["class_segments_kernel", "class_scores_kernel"]
        assert steps[0] == steps[1]


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        ({"logits": torch.zeros(2, 40, dtype=torch.float64)}, "logits"),
        ({"logits": torch.zeros(2, 39)}, "logits"),
        ({"logits": torch.zeros(40, 2).T}, "logits"),
        ({"scale": 0.0}, "scale"),
        ({"scale": float("inf")}, "scale"),
        ({"scale": torch.ones(3)}, "scale"),
        ({"scale": torch.ones(2, dtype=torch.float64)}, "scale"),
        ({"rows": 3}, "out"),
        ({"moments": True}, "out"),
    ],
)
def test_wrong_arguments_are_found_before_anything_runs(arguments: dict[str, object], argument: str) -> None:
    of, classes = partition("even", 40)
    layout = ClassLayout.of(of, classes)
    given = {"logits": torch.zeros(2, 40), "rows": 2, **arguments}
    buffer = ClassScores.empty(layout, given.pop("rows"))
    with pytest.raises(KernelArgumentError, match=f"'class_scores': {argument} "):
        class_scores(given.pop("logits"), layout, out=buffer, **given)


@pytest.mark.parametrize(
    ("class_of", "classes", "block", "argument"),
    [
        (np.zeros(4, dtype=np.int64), 1, None, "class_of"),
        (np.zeros(0, dtype=np.int32), 1, None, "class_of"),
        (np.zeros((2, 2), dtype=np.int32), 1, None, "class_of"),
        (np.full(4, 2, dtype=np.int32), 2, None, "class_of"),
        (np.full(4, -1, dtype=np.int32), 2, None, "class_of"),
        (np.zeros(4, dtype=np.int32), 0, None, "class_of"),
        (np.zeros(4, dtype=np.int32), 1, 96, "block"),
        (np.zeros(4, dtype=np.int32), 1, 32, "block"),
        (np.zeros(4, dtype=np.int32), 1, 8192, "block"),
    ],
)
def test_wrong_partitions_are_refused(class_of: np.ndarray, classes: int, block: int | None, argument: str) -> None:
    with pytest.raises(KernelArgumentError, match=f"'class_layout': {argument} must be"):
        ClassLayout.of(class_of, classes, block=block)


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    for size in (100, 131_072):
        layout = ClassLayout.of((np.arange(size) % 150 // 3).astype(np.int32), 51)
        for dtype in DTYPES if size > 100 else DTYPES[:1]:
            for moments in (False, True):
                logits = torch.zeros(2, size, dtype=dtype)
                class_scores(logits, layout, moments=moments)
                class_scores(logits, layout, scale=torch.ones(2), moments=moments)
