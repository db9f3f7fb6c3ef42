"""Measure the embedded diffusion model without any constraint: what it has learnt by itself.

Plain LLaDA decoding: each step commits the slots whose drawn token is most probable, an equal number a step.  At a
temperature the token is drawn by Gumbel's rule, and its probability is that without temperature, as LLaDA has it.

A document is what stands before the first EOS; everything after it is ignored.  Counted are the documents that
``json.loads`` reads, those that also obey their schema (jsonschema, with formats), those that equal the record, and
the fields of records that are told right (0 for a document that cannot be read).

Run from the root of a checkout: ``python training/embedded_diffusion/evaluate.py``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import numpy as np
from numpy.typing import NDArray

from structgen.models.diffusion.embedded.model import EOS, EmbeddedDiffusion, load_embedded_diffusion
from training.embedded_diffusion.examples import Example, examples
from training.embedded_diffusion.tasks import TASKS

_SPLITS = ("new_combinations", "new_values")


class Score(NamedTuple):
    """How one document compares with its record."""

    parsed: bool
    valid: bool
    exact: bool
    fields: float


def decode(
    model: EmbeddedDiffusion, prompt: str, *, slots: int, steps: int, temperature: float, seed: int
) -> NDArray[np.int32]:
    """Fill one canvas in ``steps`` passes, most confident slots first."""
    generator = np.random.default_rng(seed)
    denoiser = model.start(model.encode_prompt(prompt))
    canvas = np.full(slots, model.mask_token, dtype=np.int32)
    for step in range(steps):
        free = np.flatnonzero(canvas == model.mask_token)
        count = -(-len(free) // (steps - step))
        log_law = denoiser.denoise(canvas[None])[0][free].astype(np.float64)
        log_law[:, model.mask_token] = -np.inf
        noised = log_law
        if temperature > 0:
            noised = log_law / temperature + generator.gumbel(size=log_law.shape)
        tokens = noised.argmax(1)
        confidence = np.take_along_axis(log_law, tokens[:, None], 1)[:, 0]
        chosen = np.argsort(-confidence, kind="stable")[:count]
        canvas[free[chosen]] = tokens[chosen]
    return canvas


def document_of(model: EmbeddedDiffusion, canvas: NDArray[np.int32]) -> str:
    """Return the text before the first EOS."""
    ends = np.flatnonzero(canvas == EOS)
    return model.vocabulary.decode(canvas[: ends[0]] if len(ends) else canvas).decode(errors="replace")


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return what stands where in a JSON value, by path."""
    if isinstance(value, dict):
        parts = [leaves(each, f"{path}.{name}") for name, each in value.items()]
    elif isinstance(value, list):
        parts = [leaves(each, f"{path}.{index}") for index, each in enumerate(value)]
    else:
        return {path: value}
    return {name: leaf for part in parts for name, leaf in part.items()}


def score(text: str, example: Example) -> Score:
    """Compare a document with the record that was told."""
    try:
        value = json.loads(text)
    except ValueError:
        return Score(parsed=False, valid=False, exact=False, fields=0.0)
    validator = jsonschema.Draft202012Validator(TASKS[example.task].schema, format_checker=jsonschema.FormatChecker())
    wanted, found = leaves(example.record), leaves(value)
    missing = object()
    right = sum(type(found.get(path, missing)) is type(leaf) and found[path] == leaf for path, leaf in wanted.items())
    return Score(
        parsed=True,
        valid=validator.is_valid(value),
        exact=value == example.record,
        fields=right / len(wanted),
    )


def main() -> None:
    """Read the command line, measure, and print a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="examples for each line")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--steps", type=int, nargs="+", default=[64, 16, 8, 2])
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--folder", type=Path, default=None, help="holds other weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="print so many wrong documents of each line")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(arguments.threads)
    model = load_embedded_diffusion(device=arguments.device, folder=arguments.folder)
    print(
        f"{arguments.count} examples, {arguments.slots} slots, seed {arguments.seed}; EOS after the first is ignored\n"
    )
    print(
        "| split | steps | temperature | json.loads | valid | exact | fields | s |\n|---|---|---|---|---|---|---|---|"
    )
    for split in _SPLITS:
        found = list(examples(split, arguments.seed, arguments.count))
        for steps in arguments.steps:
            for temperature in arguments.temperatures:
                began = time.monotonic()
                texts = [
                    document_of(
                        model,
                        decode(
                            model, each.prompt, slots=arguments.slots, steps=steps, temperature=temperature, seed=index
                        ),
                    )
                    for index, each in enumerate(found)
                ]
                spent = time.monotonic() - began
                scores = [score(text, each) for text, each in zip(texts, found, strict=True)]
                means = " | ".join(f"{float(np.mean(column)):.3f}" for column in zip(*scores, strict=True))
                print(f"| {split} | {steps} | {temperature} | {means} | {spent:.0f} |", flush=True)
                wrong = [(text, each) for text, each, s in zip(texts, found, scores, strict=True) if not s.exact]
                for text, each in wrong[: arguments.show]:
                    print(f"    {each.prompt}\n    wanted {each.document}\n    found  {text}")


if __name__ == "__main__":
    main()
