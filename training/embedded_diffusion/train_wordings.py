"""Teach a trained embedded diffusion model what texts word and do not spell: booleans, codes and enumerations.

Training learns to copy long before it learns them, for a document has one or two among thirty tokens.  Here the network
stays as it is, and only what it reads of the prompt as a whole is learnt (``words``, ``asked`` and ``answer`` of
``DiffusionNetwork``), from streams that are computed once: masked slots of training examples, those that hold a worded
value more often than others.

Run from the root of a checkout after ``train.py``: ``python training/embedded_diffusion/train_wordings.py``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from train import FOLDER, Batches, canvas_of, stratified_shares

from structgen.models.diffusion.embedded.model import EOS, MASK, Tokenizer
from structgen.models.diffusion.embedded.network import DiffusionNetwork, load_network, save_network
from training.embedded_diffusion.tasks import TASKS

_LONGEST_PROMPT = 64


def worded_values() -> list[str]:
    """Return the values that texts do not spell but word: a document has one or two of them among thirty tokens."""
    wordings = [texts for task in TASKS.values() for texts in task.wordings.values()]
    return [str(json.loads(value)) if value.startswith('"') else value for each in wordings for value in each]


class Slots(NamedTuple):
    """Masked slots and what the network makes of them: all that the loss needs.

    Attributes:
        prompts: tokens of the prompts, filled up with EOS, ``[n, _LONGEST_PROMPT]``.
        streams: ``[n, width]``.
        copied: the probability of the right token among those of the prompt, ``[n]``.
        gates: the logit of copying, ``[n]``.
        targets: the right tokens, ``[n]``.
        worded: whether the slot holds a worded value, bool ``[n]``.
    """

    prompts: Tensor
    streams: Tensor
    copied: Tensor
    gates: Tensor
    targets: Tensor
    worded: Tensor


@torch.no_grad()
def collect(network: DiffusionNetwork, split: str, *, count: int, seed: int, others: float) -> Slots:
    """Return the masked slots of ``count`` examples: all with worded values, and a share of all others."""
    tokenizer = Tokenizer.load(FOLDER / "tokenizer.json")
    kinds = torch.tensor(sorted({tokenizer.encode(word)[0] for word in worded_values()}))
    batches, generator = Batches(tokenizer, batch=32, split=split, seed=seed), torch.Generator().manual_seed(seed)
    parts = []
    for step in range(count // 32):
        prompts, documents = batches.next()
        canvas = canvas_of(documents, 64 if step % 3 == 0 else max(map(len, documents)) + 1)
        masked = torch.rand(canvas.shape, generator=generator) < stratified_shares(len(canvas), 1, generator)
        is_worded = torch.isin(canvas, kinds)
        state = network.read(torch.tensor(prompts))
        masked |= is_worded
        stream = network.run(torch.where(masked, MASK, canvas), state)
        pointed, gate = network.point(stream, state)
        kept = masked & (is_worded | (torch.rand(canvas.shape, generator=generator) < others))
        rows, slots = kept.nonzero(as_tuple=True)
        target = canvas[rows, slots]
        filled = functional.pad(state.ids, (0, _LONGEST_PROMPT - state.ids.shape[1]), value=EOS)
        copied = (pointed[rows, slots] * (state.ids[rows] == target[:, None])).sum(1)
        parts.append(
            Slots(filled[rows], stream[rows, slots], copied, gate[rows, slots, 0], target, is_worded[rows, slots])
        )
    return Slots(*(torch.cat(part) for part in zip(*parts, strict=True)))


def entropy_of(network: DiffusionNetwork, slots: Slots, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy of each slot, and whether what it writes itself is right."""
    ids = slots.prompts[rows]
    summary = (functional.embedding(ids, network.words) * (ids != EOS)[..., None]).sum(1)
    logits = network.own_logits(slots.streams[rows], summary)
    own = -functional.cross_entropy(logits, slots.targets[rows], reduction="none")
    gate = slots.gates[rows]
    copied = (slots.copied[rows] + 1e-9).log() + functional.logsigmoid(gate)
    return -torch.logaddexp(own + functional.logsigmoid(-gate), copied), logits.argmax(1) == slots.targets[rows]


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--examples", type=int, default=16_000)
    parser.add_argument("--others", type=float, default=0.1, help="share of masked slots without worded values")
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--decay", type=float, default=0.05, help="of the weights: most words say nothing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="holds the weights, which are written anew")
    parser.add_argument("--out", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    network = load_network(arguments.folder, device=torch.device("cpu"))
    began = time.monotonic()
    slots = collect(network, "train", count=arguments.examples, seed=5, others=arguments.others)
    held_out = collect(network, "new_combinations", count=960, seed=6, others=arguments.others)
    print(f"{len(slots.targets)} slots in {time.monotonic() - began:.0f} s", flush=True)
    learnt = [network.words, network.asked, network.answer]
    torch.nn.init.normal_(network.words, std=0.1)
    torch.nn.init.normal_(network.asked, std=network.shape.width**-0.5)
    torch.nn.init.zeros_(network.answer)
    for each in learnt:
        each.requires_grad_()
    optimizer = torch.optim.AdamW(learnt, lr=arguments.rate, weight_decay=arguments.decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    for step in range(arguments.steps):
        rows = torch.randint(0, len(slots.targets), (arguments.batch,))
        loss = entropy_of(network, slots, rows)[0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 249:
            with torch.no_grad():
                entropy, right = entropy_of(network, held_out, torch.arange(len(held_out.targets)))
            worded = held_out.worded
            print(
                f"step {step + 1} at {time.monotonic() - began:.0f} s: loss {float(loss.detach()):.4f}, held out: "
                f"worded {float(entropy[worded].mean()):.4f} ({float(right[worded].float().mean()):.3f} right), "
                f"others {float(entropy[~worded].mean()):.4f}",
                flush=True,
            )
    save_network(arguments.out, network.shape, dict(network.named_parameters()))


if __name__ == "__main__":
    main()
