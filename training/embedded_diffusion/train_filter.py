"""Train the slot filter of the embedded diffusion model on its own slow decoding.

Each trajectory answers one prompt within the schema of its task, greedily, the surest slot in each step.  At every
step and slot that stays free the question is whether the top token of its marginal, given the language, is the one
that the trajectory ends with.  Slots that are committed in this very step are left out: there the answer is yes by
construction.

Run from the root of a checkout: ``python training/embedded_diffusion/train_filter.py``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from evaluate import score
from numpy.typing import NDArray
from torch.nn import functional

import structgen as sg
from structgen.decode.diffusion import CommitPolicy, Static, Threshold, fill_canvas
from structgen.methods.policies import Learned
from structgen.methods.policies.stateful import FEATURES, HISTORY, SlotFilter, load_slot_filter, slot_features
from structgen.models.diffusion import embedded
from structgen.models.diffusion.embedded.model import EmbeddedDiffusion, load_embedded_diffusion
from training.embedded_diffusion.examples import Example, Split, examples
from training.embedded_diffusion.tasks import TASKS

_FILE = Path(embedded.__file__).parent / "slot_filter.json"
_Rows = tuple[NDArray[np.float64], NDArray[np.bool_]]


class Recorder:
    """A filter that takes nothing to be settled, so that decoding is slow, and remembers what it was shown."""

    def __init__(self) -> None:
        self.features: list[NDArray[np.float64]] = []
        self.views: list[Any] = []

    def settled(self, views: Any, /) -> NDArray[np.float64]:
        """See ``SettledFilter``."""
        self.features.append(slot_features(views[-HISTORY:]))
        self.views.append(views[-1])
        return np.zeros(len(views[-1].tokens))

    def rows(self, final: NDArray[np.int32]) -> _Rows:
        """Return features of the slots that stayed free, and whether their top tokens are those of ``final``."""
        features, truth = [], []
        for step, (view, later) in enumerate(zip(self.views, self.views[1:], strict=False)):
            asked = np.flatnonzero(view.free & later.free)
            features.append(self.features[step][asked])
            truth.append(view.tokens[asked] == final[asked])
        return np.concatenate(features), np.concatenate(truth)


class Tasks:
    """The constraints of all tasks on the vocabulary of the model."""

    def __init__(self, model: EmbeddedDiffusion, slots: int) -> None:
        self.model, self.slots = model, slots
        self.constraints = {
            name: sg.compile(sg.json_schema(dict(task.schema), whitespace="compact"), model.vocabulary)
            for name, task in TASKS.items()
        }

    def answer(self, example: Example, policy: CommitPolicy) -> Any:
        """Return the ``Result`` of answering a prompt."""
        return fill_canvas(self.model, example.prompt, self.constraints[example.task], canvas=self.slots, policy=policy)

    def trajectories(self, split: Split, count: int) -> _Rows:
        """Return the rows of slow decodings."""
        parts = []
        for example in examples(split, 4141, count):
            recorder = Recorder()
            result = self.answer(example, Learned(recorder, threshold=1.0, history=HISTORY))
            parts.append(recorder.rows(np.array(result.canvas.tokens)))
        features, truth = zip(*parts, strict=True)
        return np.concatenate(features), np.concatenate(truth)


def fit(features: NDArray[np.float64], settled: NDArray[np.bool_], *, width: int, steps: int) -> SlotFilter:
    """Fit the network by the cross-entropy."""
    torch.manual_seed(0)
    centre, scale = features.mean(0), features.std(0) + 1e-6
    inputs = torch.tensor((features - centre) / scale, dtype=torch.float32)
    inputs = functional.pad(inputs, (0, 1), value=1.0)
    target = torch.tensor(settled, dtype=torch.float32)
    hidden = torch.nn.Parameter(torch.randn(width, inputs.shape[1]) * inputs.shape[1] ** -0.5)
    out = torch.nn.Parameter(torch.zeros(width + 1))
    optimizer = torch.optim.AdamW([hidden, out], lr=1e-2, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(0, len(inputs), (4096,))
        logits = functional.relu(inputs[rows] @ hidden.T) @ out[:-1] + out[-1]
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(logits, target[rows]).backward()
        optimizer.step()
        schedule.step()
    return SlotFilter(centre, scale, *(each.detach().numpy().astype(np.float64) for each in (hidden, out)))


def probabilities(found: SlotFilter, features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Apply a filter to rows of features."""
    inputs = (features - found.centre) / found.scale
    hidden = np.maximum(inputs @ found.hidden[:, :-1].T + found.hidden[:, -1], 0)
    return np.asarray(1 / (1 + np.exp(-(hidden @ found.out[:-1] + found.out[-1]))))


def area_under_curve(scores: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """Return the chance that a settled slot scores higher than an unsettled one, ties halved."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[inverse]
    positive, negative = int(truth.sum()), int((~truth).sum())
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * negative))


def compare(tasks: Tasks, found: SlotFilter, count: int) -> None:
    """Print a table: the filter and plain confidence at several thresholds, on examples that training never saw."""
    print("| policy | threshold | passes for a canvas | valid | exact | fields |\n|---|---|---|---|---|---|")
    tested = list(examples("new_combinations", 4242, count))
    rules: list[tuple[str, str, CommitPolicy]] = [("one slot a step", "", Static())]
    thresholds = (0.5, 0.7, 0.9, 0.97, 0.99)
    rules += [("confidence", str(threshold), Threshold(threshold)) for threshold in thresholds]
    rules += [("filter", str(threshold), Learned(found, threshold=threshold)) for threshold in thresholds]
    for name, threshold, policy in rules:
        results = [tasks.answer(example, policy) for example in tested]
        scores = [score(result.text, example) for result, example in zip(results, tested, strict=True)]
        means = " | ".join(f"{float(np.mean(column)):.3f}" for column in [*zip(*scores, strict=True)][1:])
        passes = np.mean([result.stats.forwards for result in results])
        print(f"| {name} | {threshold} | {passes:.1f} | {means} |", flush=True)


def main() -> None:
    """Read the command line, train, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=150)
    parser.add_argument("--held-out", type=int, default=40, help="trajectories of new combinations to test it on")
    parser.add_argument("--compare", type=int, default=60, help="examples for the table of decoding; 0 for none")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None, help="holds other weights of the model")
    parser.add_argument("--out", type=Path, default=_FILE)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tasks = Tasks(load_embedded_diffusion(device="cpu", folder=arguments.folder), arguments.slots)
    began = time.monotonic()
    features, truth = tasks.trajectories("train", arguments.trajectories)
    print(f"{len(truth)} rows of {len(FEATURES)} features in {time.monotonic() - began:.0f} s")
    fit(features, truth, width=arguments.width, steps=arguments.steps).save(arguments.out)
    found = load_slot_filter(arguments.out)
    features, truth = tasks.trajectories("new_combinations", arguments.held_out)
    scores = probabilities(found, features)
    print(
        f"held out: {len(truth)} rows, {truth.mean():.3f} settled; accuracy {((scores > 0.5) == truth).mean():.4f}, "
        f"area under the curve {area_under_curve(scores, truth):.4f} "
        f"(confidence alone {area_under_curve(features[:, 0], truth):.4f}); {arguments.out.stat().st_size} bytes\n"
    )
    if arguments.compare:
        compare(tasks, found, arguments.compare)


if __name__ == "__main__":
    main()
