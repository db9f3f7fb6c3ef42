"""Train the embedded diffusion model: masked diffusion as LLaDA trains it (Nie et al. 2025, arXiv 2502.09992).

Each document stands on a canvas with a tail of EOS.  A share ``t`` of its slots, uniform on [0.03, 1], is masked, and
the loss is the cross-entropy of the masked slots divided by ``t``.  EOS after the first one counts half, and
canvases have different lengths: a model that is paid for every EOS alike learns to fill canvases with them.

Run from the root of a checkout: ``python training/embedded_diffusion/train.py --minutes 80``.  The rate of learning
follows the clock (or ``--steps``), so a training that is stopped and goes on with ``--resume`` ends as it would have.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from structgen.models.diffusion import embedded
from structgen.models.diffusion.embedded.model import EOS, JSON, MASK, TEXT, Tokenizer
from structgen.models.diffusion.embedded.network import DiffusionNetwork, NetworkShape, save_network
from training.embedded_diffusion.examples import examples

FOLDER = Path(embedded.__file__).parent
_CHUNK = 40  # batches that are drawn at once and sorted by length
_SHORTEST, _LONGEST = 0.03, 1.0


class Batches:
    """Endless batches of prompts of one length each, with their documents; the same ones for the same seed."""

    def __init__(self, tokenizer: Tokenizer, *, batch: int, split: Any, seed: int) -> None:
        self.tokenizer, self.batch, self.split, self.seed = tokenizer, batch, split, seed
        self.drawn = 0
        self._ready: list[tuple[list[list[int]], list[list[int]]]] = []
        self._left: list[tuple[list[int], list[int]]] = []

    def next(self) -> tuple[list[list[int]], list[list[int]]]:
        """Return prompts and documents as tokens."""
        while not self._ready:
            self._draw()
        return self._ready.pop()

    def _draw(self) -> None:
        seed = self.seed * 1_000_003 + self.drawn
        self.drawn += 1
        encode = self.tokenizer.encode
        pairs = self._left + [
            ([TEXT, *encode(example.prompt), JSON], encode(example.document))
            for example in examples(self.split, seed, self.batch * _CHUNK)
        ]
        by_length: dict[int, list[tuple[list[int], list[int]]]] = {}
        for pair in pairs:
            by_length.setdefault(len(pair[0]), []).append(pair)
        self._left = []
        for group in by_length.values():
            group.sort(key=lambda pair: len(pair[1]))
            full = len(group) // self.batch * self.batch
            for start in range(0, full, self.batch):
                prompts, documents = zip(*group[start : start + self.batch], strict=True)
                self._ready.append((list(prompts), list(documents)))
            self._left += group[full:]
        np.random.default_rng(seed).shuffle(self._ready)


def canvas_of(documents: list[list[int]], slots: int) -> Tensor:
    """Return canvases of ``slots`` slots, ``[n, slots]``, with a tail of EOS."""
    canvas = np.full((len(documents), slots), EOS, dtype=np.int64)
    for row, document in zip(canvas, documents, strict=True):
        row[: len(document)] = document
    return torch.from_numpy(canvas)


def slot_weights(documents: list[list[int]], slots: int, tail: float) -> Tensor:
    """Return what each slot counts: 1 up to the first EOS, ``tail`` after it."""
    ends = torch.tensor([len(document) for document in documents])
    return torch.where(torch.arange(slots)[None] <= ends[:, None], 1.0, tail)


def loss_of(
    network: DiffusionNetwork, prompts: Tensor, canvas: Tensor, weights: Tensor, shares: Tensor, masked: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the loss, and the mean cross-entropy of the masked slots that count fully.

    Args:
        network: what is trained.
        prompts: ``[n, tokens]``.
        canvas: ``[n * draws, slots]``, filled.
        weights: likewise, what a slot counts.
        shares: ``[n * draws, 1]``, the chance that a slot was masked with.
        masked: ``[n * draws, slots]``.
    """
    state = network.read(prompts)
    state = state.repeated(canvas.shape[0] // prompts.shape[0])
    stream = network.run(torch.where(masked, MASK, canvas), state)
    rows, slots = masked.nonzero(as_tuple=True)
    found, target = stream[rows, slots], canvas[rows, slots]
    written = network.own_logits(found, state.summary[rows, 0])
    own = -functional.cross_entropy(written, target, reduction="none")
    pointed, gate = network.point(stream, state)
    copied = (pointed[rows, slots] * (state.ids[rows] == target[:, None])).sum(1)
    follow = gate[rows, slots, 0]
    entropy = -torch.logaddexp(
        own + functional.logsigmoid(-follow), (copied + 1e-9).log() + functional.logsigmoid(follow)
    )
    weight = weights[rows, slots]
    loss = (entropy * weight / shares[rows, 0]).sum() / weights.sum()
    counted = weight == 1
    return loss, entropy.detach()[counted].mean()


def stratified_shares(count: int, draws: int, generator: torch.Generator) -> Tensor:
    """Draw the shares of masked slots: for each document one from each of ``draws`` equal parts of the range."""
    uniform = (torch.arange(draws)[None] + torch.rand(count, draws, generator=generator)) / draws
    return (_SHORTEST + (_LONGEST - _SHORTEST) * uniform).view(-1, 1)


def optimizers_of(network: DiffusionNetwork, *, muon: float, adam: float) -> list[torch.optim.Optimizer]:
    """Muon (Jordan 2024) for the matrices of the layers, AdamW for all else that is learnt here."""
    for later in (network.words, network.asked, network.answer):  # train_wordings.py; until then they add nothing
        later.requires_grad_(requires_grad=False)
    matrices = [p for layer in network.layers for p in layer.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in network.parameters() if id(p) not in chosen and p.requires_grad]
    return [
        torch.optim.Muon(matrices, lr=muon, momentum=0.95, weight_decay=0.01, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=adam, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def rate_at(progress: float, step: int, warmup: int) -> float:
    """Return the factor of the rate: a linear warmup, level until 0.4 of the way, and a cosine down to 0.02."""
    if progress < 0.4:
        return min(1.0, (step + 1) / warmup)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * (progress - 0.4) / 0.6))


class Trainer:
    """A network on its way, with all that resuming needs."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device = torch.device(arguments.device)
        torch.manual_seed(arguments.seed)
        self.tokenizer = Tokenizer.load(FOLDER / "tokenizer.json")
        vocabulary = math.ceil(len(self.tokenizer.tokens) / 16) * 16
        self.network = DiffusionNetwork(
            NetworkShape(vocabulary, width=arguments.width, layers=arguments.layers, hidden=4 * arguments.width)
        ).to(self.device)
        self.mean = {name: p.detach().clone() for name, p in self.network.named_parameters()}
        self.optimizers = optimizers_of(self.network, muon=arguments.muon, adam=arguments.adam)
        self.batches = Batches(self.tokenizer, batch=arguments.batch, split="train", seed=arguments.seed)
        self.generator = torch.Generator().manual_seed(arguments.seed)
        self.step, self.spent = 0, 0.0

    def progress(self) -> float:
        """Return the share of the training that is done."""
        if self.arguments.steps:
            return min(1.0, self.step / self.arguments.steps)
        return min(1.0, self.spent / (60 * self.arguments.minutes))

    def train_step(self) -> tuple[float, float]:
        """Take one step; return the loss and the mean cross-entropy of the masked slots that count."""
        arguments, generator = self.arguments, self.generator
        prompts, documents = self.batches.next()
        longest = max(map(len, documents))
        slots = longest + 1
        if torch.rand((), generator=generator) < arguments.long:
            slots += int(torch.randint(0, max(1, arguments.slots - slots) + 1, (), generator=generator))
        draws = arguments.draws
        canvas = canvas_of(documents, slots).repeat_interleave(draws, 0)
        weights = slot_weights(documents, slots, arguments.tail).repeat_interleave(draws, 0)
        shares = stratified_shares(len(documents), draws, generator)
        masked = torch.rand(canvas.shape, generator=generator) < shares
        device = self.device
        inputs = (torch.tensor(prompts), canvas, weights, shares, masked)
        loss, entropy = loss_of(self.network, *(each.to(device) for each in inputs))
        factor = rate_at(self.progress(), self.step, arguments.warmup)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        for optimizer, base in zip(self.optimizers, (arguments.muon, arguments.adam), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = base * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        decay = min(arguments.decay, self.step / (self.step + 20))
        with torch.no_grad():
            for name, parameter in self.network.named_parameters():
                self.mean[name].lerp_(parameter, 1 - decay)
        return float(loss.detach()), float(entropy)

    def save(self) -> None:
        """Write all that resuming needs, and the mean of the weights for users."""
        folder = self.arguments.out
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            "network": self.network.state_dict(),
            "mean": self.mean,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "generator": self.generator.get_state(),
            "step": self.step,
            "spent": self.spent,
            "drawn": self.batches.drawn,
        }
        torch.save(state, folder / "checkpoint.new")
        (folder / "checkpoint.new").replace(folder / "checkpoint.pt")
        save_network(folder, self.network.shape, self.mean)

    def resume(self) -> None:
        """Go on from what ``save`` wrote; documents that were drawn and not used are drawn no more."""
        state = torch.load(self.arguments.out / "checkpoint.pt", map_location=self.device, weights_only=True)
        self.network.load_state_dict(state["network"])
        self.mean = state["mean"]
        for optimizer, each in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(each)
        self.generator.set_state(state["generator"].cpu())
        self.step, self.spent, self.batches.drawn = state["step"], state["spent"], state["drawn"]

    @torch.no_grad()
    def measure(self, split: str, batches: int = 8) -> tuple[float, float]:
        """Return the loss with every slot counted alike, and the cross-entropy of content, of the mean of weights."""
        network = DiffusionNetwork(self.network.shape).to(self.device)
        network.load_state_dict(self.mean)
        generator = torch.Generator().manual_seed(7)
        source = Batches(self.tokenizer, batch=32, split=split, seed=99)
        losses = []
        for _ in range(batches):
            prompts, documents = source.next()
            canvas = canvas_of(documents, self.arguments.slots).repeat_interleave(4, 0)
            shares = stratified_shares(len(documents), 4, generator)
            masked = torch.rand(canvas.shape, generator=generator) < shares
            weights = slot_weights(documents, self.arguments.slots, 0.999999).repeat_interleave(4, 0)
            inputs = (torch.tensor(prompts), canvas, weights, shares, masked)
            loss, entropy = loss_of(network, *(each.to(self.device) for each in inputs))
            losses.append((float(loss), float(entropy)))
        mean = np.mean(losses, 0)
        return float(mean[0]), float(mean[1])


def train(trainer: Trainer) -> None:
    """Train until the time or the steps are over."""
    arguments = trainer.arguments
    saved = reported = time.monotonic()
    losses: list[tuple[float, float]] = []
    while trainer.progress() < 1:
        began = time.monotonic()
        losses.append(trainer.train_step())
        now = time.monotonic()
        trainer.spent += now - began
        if trainer.step % arguments.report == 0:
            loss, entropy = np.mean(losses, 0)
            rate = len(losses) / (now - reported)
            print(
                f"step {trainer.step} at {trainer.spent:.0f} s: "
                f"loss {loss:.4f}, entropy {entropy:.4f}, {rate:.2f} it/s",
                flush=True,
            )
            losses, reported = [], now
        if now - saved > arguments.save_every:
            trainer.save()
            for split in ("new_combinations", "new_values"):
                loss, entropy = trainer.measure(split)
                print(f"  {split}: loss {loss:.4f}, entropy {entropy:.4f}", flush=True)
            saved = time.monotonic()
    trainer.save()


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--minutes", type=float, default=80.0, help="of training, saving and measuring apart")
    parser.add_argument("--steps", type=int, default=0, help="train for so many steps, not by the clock")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=FOLDER, help="where weights and the checkpoint go")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16, help="prompts in a step")
    parser.add_argument("--draws", type=int, default=3, help="canvases for each prompt")
    parser.add_argument("--slots", type=int, default=64, help="the longest canvas")
    parser.add_argument(
        "--long", type=float, default=0.5, help="share of batches whose canvases are longer than needed"
    )
    parser.add_argument("--tail", type=float, default=0.5, help="what EOS after the first one counts")
    parser.add_argument("--muon", type=float, default=0.02)
    parser.add_argument("--adam", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--decay", type=float, default=0.998, help="of the mean of the weights")
    parser.add_argument("--report", type=int, default=50)
    parser.add_argument("--save-every", type=float, default=300.0, help="seconds")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    trainer = Trainer(arguments)
    if arguments.resume:
        trainer.resume()
    parameters = sum(p.numel() for p in trainer.network.parameters())
    print(f"{parameters} parameters, {len(trainer.tokenizer.tokens)} tokens", flush=True)
    train(trainer)


if __name__ == "__main__":
    main()
