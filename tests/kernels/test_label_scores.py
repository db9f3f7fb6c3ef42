"""Scores of labels, compared with loops over their classes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from graph_capture import recorded_step
from structgen_kernels.canvases.label_scores import ClassLabels, label_scores
from structgen_kernels.errors import KernelArgumentError


def labels_of(classes: int, labels: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Make labels of no, one, some and nearly all classes."""
    rng = np.random.default_rng(seed)
    sizes = rng.choice([0, 1, 3, max(1, classes - 2)], size=labels)
    held = [rng.integers(0, classes, size) for size in sizes.tolist()]
    return np.concatenate([[0], np.cumsum(sizes)]), np.concatenate([*held, np.zeros(0, dtype=np.int64)])


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("classes", "labels"), [(1, 1), (40, 31), (150, 33), (40, 100)])
@pytest.mark.parametrize("is_max", [True, False])
def test_labels_are_scored_as_their_classes_say(*, is_max: bool, classes: int, labels: int) -> None:
    begin, held = labels_of(classes, labels, seed=labels)
    generator = torch.Generator().manual_seed(classes)
    wide = torch.randn(5, classes + 3, generator=generator) * torch.tensor([1, 10, 40, 40, 1])[:, None] - 5
    wide[3, torch.rand(classes + 3, generator=generator) < 0.5] = -torch.inf
    wide[4] = -torch.inf
    scores = wide[:, :classes]

    found = label_scores(scores, ClassLabels.of(begin, held, classes), is_max=is_max).numpy()

    for label in range(labels):
        values = scores.numpy()[:, held[begin[label] : begin[label + 1]]].astype(np.float64)
        if is_max:
            assert np.array_equal(found[:, label], values.max(1, initial=-np.inf))
        else:
            expected = np.logaddexp.reduce(values, axis=1, initial=-np.inf)
            np.testing.assert_allclose(found[:, label], expected, rtol=3e-7, atol=2e-6)


@pytest.mark.usefixtures("backend")
def test_out_is_filled_where_its_rows_lie_apart() -> None:
    begin, held = labels_of(40, 50)
    scores = torch.randn(3, 40, generator=torch.Generator().manual_seed(1))
    labels = ClassLabels.of(torch.from_numpy(begin), torch.from_numpy(held), 40)
    wide = torch.full((3, 60), 7.0)
    assert label_scores(scores, labels, is_max=True, out=wide[:, 5:55]) is not None
    assert torch.equal(wide[:, 5:55], label_scores(scores, labels, is_max=True))
    assert (wide[:, :5] == 7).all()
    assert (wide[:, 55:] == 7).all()
    assert label_scores(scores[:0], labels, is_max=True).shape == (0, 50)


def test_a_step_launches_one_kernel_and_nothing_else() -> None:
    labels = ClassLabels.of(*labels_of(40, 50), 40)
    scores, buffer = torch.zeros(3, 40), torch.zeros(3, 50)
    with recorded_step() as seen:
        label_scores(scores, labels, is_max=False, out=buffer)
    assert [launch.kernel for launch in seen] == ["label_scores_kernel"]


@pytest.mark.parametrize(
    ("begin", "held", "problem"),
    [([0, 2], [0], "begin must start"), ([0, 2, 1, 3], [0, 0, 0], "begin must ascend"), ([0, 1], [4], "held must be")],
)
def test_labels_that_are_none_are_refused(begin: list[int], held: list[int], problem: str) -> None:
    with pytest.raises(KernelArgumentError, match=problem):
        ClassLabels.of(np.array(begin), np.array(held), 4)


def test_wrong_scores_are_refused() -> None:
    labels = ClassLabels.of(np.array([0, 1]), np.array([2]), 4)
    with pytest.raises(KernelArgumentError, match="scores must have the shape"):
        label_scores(torch.zeros(2, 5), labels, is_max=True)
    with pytest.raises(KernelArgumentError, match="scores must be float32"):
        label_scores(torch.zeros(2, 4, dtype=torch.float64), labels, is_max=True)
    with pytest.raises(KernelArgumentError, match="out must have the shape"):
        label_scores(torch.zeros(2, 4), labels, is_max=True, out=torch.zeros(2, 2))


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    labels = ClassLabels.of(*labels_of(150, 400), 150)
    for is_max in (True, False):
        label_scores(torch.zeros(2, 150), labels, is_max=is_max)
