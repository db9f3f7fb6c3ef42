"""What a constraint does to the answers of the embedded diffusion model, and what commit policies cost.

Prompts are held out from training (``structgen.models.diffusion.embedded``: 22 tasks, records and values that training
never saw).  Answers are graded by ``json.loads``, ``jsonschema`` with formats, and the record that the prompt tells;
never by the constraint.

1. *Methods*, at each number of steps: no constraint; greedy masking, which goes through a canvas from left to right and
   takes the most probable token that some state allows (what T. Suresh et al., 2025, arXiv 2505.23061, compare with);
   best of both, which takes the unconstrained answer where it is valid and greedy's else; ``Dingo``; ``Posterior``.
2. *Policies*, with ``Dingo``: forward passes a canvas, beside one slot a step, and whether the answers are the same.
3. *Validity*, for every policy with every sampler at several temperatures, blocks and steps.

Usage: python benchmarks/diffusion.py [--only methods,policies,validity] [--count 66] [--steps 64,16,8,4,2]
    [--slots 64] [--record FILE]
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "training" / "embedded_diffusion"))

import numpy as np
from evaluate import Score, decode, document_of, score
from numpy.typing import NDArray

import structgen as sg
from structgen.decode.diffusion import Dingo, Posterior, fill_canvas
from structgen.decode.diffusion.canvas import canvas_language
from structgen.decode.diffusion.commit_policy import CommitPolicy
from structgen.decode.diffusion.mean_field import FREE, MeanField
from structgen.decode.diffusion.posterior import CanvasSampler
from structgen.decode.diffusion.regular import RegularLanguage
from structgen.methods import policies
from structgen.methods.diffusion_drafting.canvas_draft import FreeDave, SelfSpeculative
from structgen.methods.policies.stateful import load_slot_filter
from structgen.models.diffusion.embedded.model import EOS, EmbeddedDiffusion, load_embedded_diffusion
from training.embedded_diffusion.examples import Example, examples
from training.embedded_diffusion.tasks import TASKS

SPLITS = ("new_combinations", "new_values")


@dataclass
class Outcome:
    """The answers of one setting."""

    scores: list[Score] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    forwards: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, text: str, example: Example, forwards: int) -> None:
        """Grade one answer."""
        self.texts.append(text)
        self.scores.append(score(text, example))
        self.forwards.append(forwards)

    def cells(self) -> str:
        """Shares of answers that are read, valid and exact, of fields that are right; passes a canvas."""
        shares = " | ".join(f"{100 * mean(map(float, column)):.1f}" for column in zip(*self.scores, strict=True))
        return f"{shares} | {mean(self.forwards):.1f}"


Decode = Callable[[Example, int], tuple[str, int]]


class Tasks:
    """The constraints of all tasks on the model's vocabulary."""

    def __init__(self, model: EmbeddedDiffusion) -> None:
        self.model = model
        self.constraints = {
            name: sg.compile(sg.json_schema(dict(task.schema), whitespace="compact"), model.vocabulary)
            for name, task in TASKS.items()
        }

    def language(self, name: str) -> RegularLanguage:
        """The canvases of a task; all of them are regular."""
        language = canvas_language(self.constraints[name])
        if not isinstance(language, RegularLanguage):
            raise SystemExit(f"task {name} is not regular")
        return language


def run(found: list[Example], decode_one: Decode) -> Outcome:
    """Answer all prompts."""
    outcome = Outcome()
    began = perf_counter()
    answers = [decode_one(each, seed) for seed, each in enumerate(found)]
    outcome.seconds = perf_counter() - began
    for (text, forwards), each in zip(answers, found, strict=True):
        outcome.add(text, each, forwards)
    return outcome


def unconstrained(tasks: Tasks, slots: int, steps: int, temperature: float) -> Decode:
    """LLaDA's own decoding."""

    def decode_one(example: Example, seed: int) -> tuple[str, int]:
        canvas = decode(tasks.model, example.prompt, slots=slots, steps=steps, temperature=temperature, seed=seed)
        return document_of(tasks.model, canvas), steps

    return decode_one


def greedy(tasks: Tasks, slots: int, steps: int) -> Decode:
    """Masking from left to right, with free slots as wildcards; nothing looks at what is possible further right."""

    def decode_one(example: Example, seed: int) -> tuple[str, int]:
        del seed
        model, language = tasks.model, tasks.language(example.task)
        denoiser = model.start(model.encode_prompt(example.prompt))
        canvas = np.full(slots, FREE, dtype=np.int32)
        for step in range(steps):
            free = np.flatnonzero(canvas == FREE)
            logits = denoiser.denoise(np.where(canvas == FREE, model.mask_token, canvas)[None].astype(np.int32))[0]
            distribution = MeanField(canvas, logits[free])
            log_p = np.stack([distribution.log_probs(int(slot)) for slot in free])
            count = -(-len(free) // (steps - step))
            chosen = free[np.sort(np.argsort(-log_p.max(1), kind="stable")[:count])]
            canvas = masked(
                language, canvas, set(chosen.tolist()), {int(s): row for s, row in zip(free, log_p, strict=True)}
            )
        return document_of(model, np.where(canvas == FREE, EOS, canvas)), steps

    return decode_one


def masked(
    language: RegularLanguage, canvas: NDArray[np.int32], chosen: set[int], log_p: dict[int, NDArray[np.float64]]
) -> NDArray[np.int32]:
    """Fill the chosen slots by what the states that are possible from the left allow, else with the argmax."""
    edges, holds, class_of = language.edges, language.holds, language.automaton.class_of
    states = np.zeros(edges.states, dtype=bool)
    states[0] = True
    filled = canvas.copy()
    for slot in range(len(canvas)):
        alive = states[edges.source]
        if slot in chosen:
            allowed = holds[edges.label[alive]].any(axis=0)[class_of]
            scores = np.where(allowed, log_p[slot], -np.inf) if allowed.any() else log_p[slot]
            filled[slot] = int(scores.argmax())
        if filled[slot] != FREE:
            alive &= holds[edges.label, class_of[filled[slot]]]
        states = np.zeros(edges.states, dtype=bool)
        states[edges.target[alive]] = True
    return filled


def best_of(first: Outcome, second: Outcome, found: list[Example]) -> Outcome:
    """The first answers where they are valid, else the second."""
    outcome = Outcome(seconds=first.seconds + second.seconds)
    for index, each in enumerate(found):
        source = first if first.scores[index].valid else second
        outcome.add(
            source.texts[index], each, first.forwards[index] + (0 if source is first else second.forwards[index])
        )
    return outcome


def filled(
    tasks: Tasks, slots: int, policy: CommitPolicy, sampler: CanvasSampler, *, temperature: float = 1.0, **options: Any
) -> Decode:
    """Decoding within the constraint."""

    def decode_one(example: Example, seed: int) -> tuple[str, int]:
        result = fill_canvas(
            tasks.model,
            example.prompt,
            tasks.constraints[example.task],
            canvas=slots,
            policy=policy,
            sampler=sampler,
            temperature=temperature,
            seed=seed,
            **options,
        )
        return result.text, result.stats.forwards

    return decode_one


def methods(tasks: Tasks, arguments: argparse.Namespace) -> Iterator[str]:
    """The first table."""
    yield "| prompts | steps | method | json.loads % | valid % | exact % | fields % | forwards |"
    yield "|---|---:|---|---:|---:|---:|---:|---:|"
    for split in SPLITS:
        found = list(examples(split, arguments.seed, arguments.count))
        for steps in arguments.steps:
            free = run(found, unconstrained(tasks, arguments.slots, steps, 0.0))
            masking = run(found, greedy(tasks, arguments.slots, steps))
            policy = policies.Static(steps=steps)
            rows = {
                "unconstrained": free,
                "unconstrained, T = 0.7": run(found, unconstrained(tasks, arguments.slots, steps, 0.7)),
                "greedy masking": masking,
                "best of both": best_of(free, masking, found),
                "Dingo": run(found, filled(tasks, arguments.slots, policy, Dingo())),
                "Posterior": run(found, filled(tasks, arguments.slots, policy, Posterior())),
                "Posterior, T = 0.7": run(found, filled(tasks, arguments.slots, policy, Posterior(), temperature=0.7)),
            }
            for name, outcome in rows.items():
                yield f"| {split} | {steps} | {name} | {outcome.cells()} |"


def all_policies() -> dict[str, CommitPolicy]:
    """Every policy that needs nothing but the model, at its defaults."""
    return {
        "Static, one a step": policies.Static(),
        "Threshold(0.9)": policies.Threshold(0.9),
        "Factor": policies.Factor(),
        "Prophet": policies.Prophet(),
        "CreditDecoding": policies.CreditDecoding(),
        "LocalLeap": policies.LocalLeap(),
        "EntropyBound": policies.EntropyBound(),
        "Explore": policies.Explore(),
        "Learned": policies.Learned(load_slot_filter()),
        "FreeDave(4)": FreeDave(4),
        "FreeDave(8)": FreeDave(8),
        "SelfSpeculative": SelfSpeculative(),
    }


def forwards(tasks: Tasks, arguments: argparse.Namespace) -> Iterator[str]:
    """The second table."""
    yield "| policy | same as one a step | valid % | exact % | fields % | forwards | of one a step | ms a canvas |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    found = list(examples("new_combinations", arguments.seed, arguments.count))
    reference: Outcome | None = None
    for name, policy in all_policies().items():
        outcome = run(found, filled(tasks, arguments.slots, policy, Dingo()))
        reference = reference or outcome
        same = sum(a == b for a, b in zip(outcome.texts, reference.texts, strict=True))
        _, valid, exact, fields = (100 * mean(map(float, column)) for column in zip(*outcome.scores, strict=True))
        yield (
            f"| {name} | {same} of {len(found)} | {valid:.1f} | {exact:.1f} | {fields:.1f} | "
            f"{mean(outcome.forwards):.1f} | {mean(outcome.forwards) / mean(reference.forwards):.2f} | "
            f"{1000 * outcome.seconds / len(found):.0f} |"
        )


def validity(tasks: Tasks, arguments: argparse.Namespace) -> Iterator[str]:
    """The third table: how many answers of each setting are not valid, of how many."""
    yield "| policy | sampler | temperature | block | answers | read by json.loads | valid |"
    yield "|---|---|---:|---|---:|---:|---:|"
    found = list(examples("new_values", arguments.seed + 1, arguments.few))
    steps = {f"Static(steps={count})": policies.Static(steps=count) for count in (4, 16, arguments.slots)}
    for name, policy in (steps | all_policies()).items():
        for sampler in (Dingo(), Posterior(), Posterior(tail="scored")):
            if not sampler.deterministic and isinstance(policy, FreeDave | SelfSpeculative):
                continue
            for temperature, block in ((0.3, None), (1.0, 16), (2.0, None)):
                outcome = run(
                    found, filled(tasks, arguments.slots, policy, sampler, temperature=temperature, block=block)
                )
                parsed, valid = (sum(column) for column in list(zip(*outcome.scores, strict=True))[:2])
                yield f"| {name} | {sampler!r} | {temperature} | {block or 'all'} | {len(found)} | {parsed} | {valid} |"


def main() -> None:
    """Measure and print, and write the record where one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="methods,policies,validity")
    parser.add_argument("--count", type=int, default=66)
    parser.add_argument("--few", type=int, default=11, help="prompts of each setting of the validity table")
    parser.add_argument("--steps", type=lambda text: [int(each) for each in text.split(",")], default=[64, 16, 8, 4, 2])
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    tasks = Tasks(load_embedded_diffusion(device="cpu"))
    tables = {"methods": methods, "policies": forwards, "validity": validity}
    lines = [
        f"{arguments.count} prompts a setting ({arguments.few} for validity), canvas of {arguments.slots} slots, "
        f"seed {arguments.seed}, Python {platform.python_version()}, two cores, CPU only",
    ]
    print(lines[0])
    for name in arguments.only.split(","):
        if name not in tables:
            raise SystemExit(f"--only: {name!r} is none of {', '.join(tables)}")
        lines += ["", f"### {name}", ""]
        print("\n".join(lines[-3:]))
        for line in tables[name](tasks, arguments):
            print(line, flush=True)
            lines.append(line)
    if arguments.record:
        arguments.record.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
