"""The operations that the benchmark of kernels measures: at full shapes on a GPU, at small ones in the interpreter."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from structgen_kernels.dispatch import use_backend

if TYPE_CHECKING:
    from kernel_data import Data
    from structgen_kernels.masks.mask_rows import MaskRows
    from torch import Tensor

__all__ = ["OPERATIONS", "Case", "Place", "Wrong"]


class Wrong(AssertionError):
    """A result that is not that of the reference implementation."""


@dataclass(frozen=True)
class Place:
    """Where cases are made.

    Attributes:
        device: a GPU, or the CPU, where shapes are small and Triton interprets.
        data: real masks, an automaton and a plan, or None.
        xgrammar: the folder of the peer's kernels, or None.
    """

    device: torch.device
    data: Data | None = None
    xgrammar: Path | None = None

    @property
    def is_gpu(self) -> bool:
        """Whether the cases run on a GPU."""
        return self.device.type == "cuda"

    def of(self, full: int, small: int) -> int:
        """A length."""
        return full if self.is_gpu else small

    def logits(self, rows: int, columns: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Logits as a model's: most are far below the best."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        made = torch.empty((rows, columns), dtype=dtype, device=self.device)
        for begin in range(0, rows, 64):
            part = torch.randn((min(64, rows - begin), columns), generator=generator, device=self.device)
            made[begin : begin + 64] = (3 * part).to(dtype)
        return made


@dataclass
class Case:
    """One row of the table.

    Attributes:
        name: of the operation and the shape.
        floor_bytes: what it must read and write at the full shape.
        work: does it once, into memory that is there.
        result: what it made, of integers and floats.
        peers: others that do the same, by name; None where one does not run, with the reason.
        bar: what is to be reached: the name of a measure and a number.
        ahead: how many times as long each peer is to take, at least.
        is_captured: whether it is many launches, which are timed as one graph.
        differs: the share of integers that may differ from the reference implementation's, for draws that rounding
            decides.
        reset: undoes what ``work`` does in place.
    """

    name: str
    floor_bytes: int
    work: Callable[[], Any]
    result: Callable[[], list[Tensor]]
    peers: dict[str, Callable[[], Any] | str] = field(default_factory=dict)
    bar: tuple[str, float] | None = None
    ahead: float | None = None
    is_captured: bool = False
    differs: float = 0.0
    reset: Callable[[], Any] = lambda: None

    def check(self) -> None:
        """Compare with the reference implementation.

        Raises:
            Wrong: it does not make what the reference implementation does.
        """
        self.reset()
        with use_backend("triton"):
            self.work()
        found = [each.clone() for each in self.result()]
        self.reset()
        with use_backend("torch"):
            self.work()
        for at, (one, two) in enumerate(zip(found, self.result(), strict=True)):
            if one.is_floating_point():
                if not torch.allclose(one.float(), two.float(), rtol=1e-3, atol=1e-3):
                    raise Wrong(f"number {at} differs by up to {(one.float() - two.float()).abs().max()}")
            elif int((one != two).sum()) > self.differs * one.numel():
                raise Wrong(f"{int((one != two).sum())} of {one.numel()} entries of result {at} differ")


def apply_masks(place: Place) -> Iterator[Case]:
    """In place: mask words are read, and what is excluded is written, by sectors of 32 bytes."""
    from structgen_kernels.masks.apply_mask import apply_mask
    from structgen_kernels.masks.mask_rows import MaskRows, MaskTable

    rows, size = place.of(256, 3), 131_072
    generator = torch.Generator().manual_seed(5)
    found: list[tuple[str, MaskRows, int]] = []
    for name, share in (("nothing allowed", 0.0), ("half of the tokens", 0.5), ("1 in 1,000", 0.001)):
        words = _random_words(rows, size, share, generator).to(place.device)
        masks = MaskRows.of_bitmask(words, size)
        found.append((name, masks, _written(masks)))
    if place.data is not None:
        words = torch.from_numpy(place.data.masks).to(place.device)
        sparse = MaskRows.of_bitmask(words, place.data.size).table.sparse
        codes = (torch.arange(rows, dtype=torch.int32, device=place.device) * 37 % len(words))[:, None].contiguous()
        masks = MaskRows(MaskTable(place.data.size, words, sparse), codes)
        found.append((f"{len(words)} masks of JSON", masks, _written(MaskRows.of_bitmask(words, place.data.size))))
    for name, masks, written in found:
        logits = place.logits(rows, masks.size)
        fresh = logits.clone()
        bitmask = masks.table.dense[masks.codes[:, 0].long()].contiguous()
        yield Case(
            f"apply mask, {name}",
            256 * (written + 4 * masks.table.words),
            partial(apply_mask, logits, masks),
            partial(_finite, logits),
            _xgrammar(place, logits, bitmask, masks.size),
            ("copy", 85.0),
            1.0,
            reset=partial(logits.copy_, fresh),
        )


def _finite(*tensors: Tensor) -> list[Tensor]:
    """The same with a number in place of minus infinity, which is not close to itself."""
    return [tensor.float().clamp(min=-1e30) for tensor in tensors]


def _held(*tensors: Tensor) -> list[Tensor]:
    return list(tensors)


def _written(masks: MaskRows) -> int:
    """Bytes of the sectors of 16 bfloat16 logits in which some is excluded, of a row on average."""
    sectors = 0
    for row in range(len(masks)):
        allowed = type(masks)(masks.table, masks.codes[row : row + 1]).allowed()[0]
        excluded = torch.nn.functional.pad(~allowed, (0, -masks.size % 16), value=False)
        sectors += int(excluded.view(-1, 16).any(1).sum())
    return 32 * sectors // len(masks)


def _random_words(rows: int, columns: int, share: float, generator: torch.Generator) -> Tensor:
    words = torch.zeros((rows, (columns + 31) // 32), dtype=torch.int32)
    for row in words if share else ():
        bits = torch.rand(words.shape[1], 32, generator=generator) < share
        packed = (bits.long() << torch.arange(32)).sum(1)
        row.copy_(torch.where(packed >= 2**31, packed - 2**32, packed))
    return words


def _xgrammar(place: Place, logits: Tensor, bitmask: Tensor, size: int) -> dict[str, Callable[[], Any] | str]:
    """The peer's kernels, each checked to write the same; a file of each is loaded, not the package around it."""
    peers: dict[str, Callable[[], Any] | str] = {}
    if not place.is_gpu:
        return peers
    for kind in ("triton", "cuda", "torch_compile"):
        name = f"xgrammar {kind}"
        if place.xgrammar is None:
            peers[name] = "not installed"
            continue
        try:
            function = _xgrammar_function(place.xgrammar, kind)
            # The kernel in CUDA has no argument for the size: it masks as many columns as logits and bitmask have.
            apply = partial(function, vocab_size=size) if kind != "cuda" else function
            trial = torch.zeros_like(logits)
            apply(trial, bitmask)
            torch.cuda.synchronize()
            if bool((trial[:, :size] != -torch.inf).ne(_allowed(bitmask, size)).any()):
                peers[name] = "wrong"
                continue
            peers[name] = partial(apply, logits, bitmask)
        except Exception as error:
            peers[name] = f"{type(error).__name__}: {error}".splitlines()[0][:80]
    return peers


@cache
def _xgrammar_function(folder: Path, kind: str) -> Any:
    """Load one of the peer's files, once: the one in CUDA registers an operator, which torch refuses to do again."""
    function = f"apply_token_bitmask_inplace_{kind}"
    found = importlib.util.spec_from_file_location(function, folder / f"{function}.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return getattr(module, function)


def _allowed(bitmask: Tensor, size: int) -> Tensor:
    shifts = torch.arange(32, dtype=torch.int32, device=bitmask.device)
    return ((bitmask[:, :, None] >> shifts) & 1).bool().flatten(1)[:, :size]


def samples(place: Place) -> Iterator[Case]:
    """Logits and mask words are read once; the bar is 1.15 times that, and a third of torch's time."""
    from structgen_kernels.choices.masked_argmax import masked_argmax
    from structgen_kernels.choices.masked_sample import Shape, masked_sample
    from structgen_kernels.choices.step_workspace import Workspace
    from structgen_kernels.masks.mask_rows import MaskRows
    from structgen_kernels.philox import Noise

    rows, columns = place.of(256, 3), place.of(131_072, 700)
    logits = place.logits(rows, columns)
    words = _random_words(rows, columns, 0.5, torch.Generator().manual_seed(9)).to(place.device)
    masks, workspace = MaskRows.of_bitmask(words, columns), Workspace(rows, columns, place.device)
    noise = Noise.of(7, rows, place.device)
    choice = workspace.choice(rows, "benchmark")
    floor = 256 * 131_072 * 2 + 256 * 16_384

    def result() -> list[Tensor]:
        return [choice.tokens, choice.log_z, choice.log_mass, choice.status]

    yield Case(
        "masked argmax",
        floor,
        lambda: masked_argmax(logits, masks, workspace=workspace),
        result,
        {"torch": lambda: _torch_sample(logits, words, columns, 0.0, _Truncation())},
        ("read", 1.15),
    )
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("plain", {}),
        ("top-k 50", {"top_k": 50}),
        ("top-p 0.9", {"top_p": 0.9}),
        ("min-p 0.05", {"min_p": 0.05}),
        ("top-k 50, top-p 0.9, min-p 0.05", {"top_k": 50, "top_p": 0.9, "min_p": 0.05}),
    )
    for name, options in kinds:
        shape = Shape.of(rows, place.device, temperature=0.8, **options)
        yield Case(
            f"masked sample, {name}",
            floor,
            partial(masked_sample, logits, masks, shape, noise, workspace=workspace),
            result,
            {"torch": partial(_torch_sample, logits, words, columns, 0.8, _Truncation(**options))},
            ("read", 1.15),
            3.0,
            differs=0.01,
        )
    codes = torch.arange(rows, dtype=torch.int32)[:, None]
    if place.is_gpu:
        codes = codes.pin_memory()
    device_codes = torch.zeros((rows, 1), dtype=torch.int32, device=place.device)
    held, cut = MaskRows(masks.table, device_codes), Shape.of(rows, place.device, temperature=0.8, top_p=0.9)

    def step() -> None:
        device_codes.copy_(codes, non_blocking=True)
        masked_sample(logits, held, cut, noise, workspace=workspace)

    yield Case("a whole step, top-p 0.9, with codes from the host", floor, step, result, is_captured=True, differs=0.01)


class _Truncation(NamedTuple):
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


def _torch_sample(logits: Tensor, words: Tensor, size: int, temperature: float, truncation: _Truncation) -> Tensor:
    """Mask, softmax, truncation by a sort, and a draw, as they are written in torch."""
    top_k, top_p, min_p = truncation
    scaled = logits[:, :size].float().masked_fill(~_allowed(words, size), -torch.inf)
    if temperature == 0:
        return torch.log_softmax(scaled, 1).max(1).indices
    p = torch.softmax(scaled / temperature, 1)
    if min_p:
        p = torch.where(p < min_p * p.amax(1, keepdim=True), 0.0, p)
    if top_k or top_p < 1:
        p, order = p.sort(1, descending=True)
        if top_k:
            p[:, top_k:] = 0
        if top_p < 1:
            p = torch.where(p.cumsum(1) - p >= top_p * p.sum(1, keepdim=True), 0.0, p)
        return order.gather(1, torch.multinomial(p, 1))
    return torch.multinomial(p, 1)


def orders(place: Place) -> Iterator[Case]:
    """The first 64 tokens in the order of drawing without replacement."""
    from structgen_kernels.choices.gumbel_order import gumbel_order
    from structgen_kernels.choices.token_order import Order, OrderWorkspace
    from structgen_kernels.philox import Noise

    rows, columns, count = place.of(256, 2), place.of(131_072, 300), place.of(64, 5)
    logits, noise = place.logits(rows, columns), Noise.of(3, rows, place.device)
    workspace, out = OrderWorkspace(rows, columns, place.device), Order.buffers(rows, count, place.device)
    yield Case(
        "Gumbel order, 64 tokens of 256 rows",
        256 * (131_072 * 2 + 2 * 16 * 1024 + 64 * 256),
        lambda: gumbel_order(logits, noise, count=count, workspace=workspace, out=out),
        lambda: [out.tokens, out.keys, out.log_p],
        {
            "torch": lambda: (
                logits.float() - torch.empty(logits.shape, device=place.device).exponential_().log()
            ).topk(count)
        },
        differs=0.01,
    )


def trees(place: Place) -> Iterator[Case]:
    """Verification of a tree of 32 sampled nodes for each of 8 requests."""
    from structgen_kernels.philox import Noise
    from structgen_kernels.trees.draft_forest import DraftForest
    from structgen_kernels.trees.draft_paths import DraftPaths
    from structgen_kernels.trees.tree_verification import DraftDistributions, verify_tree
    from structgen_kernels.trees.verification_workspace import VerificationWorkspace

    requests, nodes = place.of(8, 2), place.of(32, 6)
    for full in (49_152, 131_072):
        columns = place.of(full, full // 500)
        generator = torch.Generator().manual_seed(full)
        parents = [(node - 1) // 2 if node else -1 for node in range(nodes)]
        sampled = torch.randint(columns, (requests, nodes), generator=generator).tolist()
        forest = DraftForest.of([(parents, tokens) for tokens in sampled], place.device)
        positions = requests * (nodes + 1)
        values = place.logits(positions, columns, seed=1)
        distributions = DraftDistributions(values, torch.arange(positions, dtype=torch.int32, device=place.device))
        logits, noise = place.logits(positions, columns, seed=2), Noise.of(4, requests, place.device)
        workspace = VerificationWorkspace(requests * nodes, requests, columns, place.device)
        out = DraftPaths.buffers(forest)
        yield Case(
            f"tree verification, 8 trees of 32 nodes, {full:,} tokens",
            8 * 33 * full * 2 * 2,
            partial(verify_tree, logits, forest, distributions, noise, workspace=workspace, out=out),
            partial(_held, out.nodes, out.counts, out.tokens, out.status),
            differs=0.05,
        )


def canvases(place: Place) -> Iterator[Case]:
    """A step of DINGO on 8 canvases of 128 free slots, and its pass over the logits."""
    from structgen_kernels.canvases.canvas_tables import CanvasTables
    from structgen_kernels.canvases.chain_edges import ChainEdges
    from structgen_kernels.canvases.class_layout import ClassLayout
    from structgen_kernels.canvases.class_scores import ClassScores, class_scores
    from structgen_kernels.canvases.dingo import DingoWorkspace, dingo
    from structgen_kernels.canvases.label_scores import ClassLabels
    from structgen_kernels.philox import Noise

    if place.data is None:
        return
    held = place.data.automaton
    class_of = held.class_of if place.is_gpu else held.class_of[:600].copy()
    edges = ChainEdges.of(held.states, held.labels, held.final, held.source, held.target, held.label, place.device)
    layout = ClassLayout.of(class_of, held.classes, place.device)
    labels = ClassLabels.of(held.label_begin, held.label_class, held.classes, place.device)
    tables = CanvasTables.of(edges, layout, labels, held.filler if held.filler < layout.size else -1)
    batch, slots = place.of(8, 1), place.of(128, 3)
    logits = place.logits(batch * slots, layout.size)
    canvas = torch.full((batch, slots), -1, dtype=torch.int32, device=place.device)
    workspace = DingoWorkspace(tables, batch, slots)
    out = ClassScores.empty(layout, batch * slots)
    floor = 8 * 128 * held.class_of.size * 2
    yield Case(
        "scores of classes, 8 canvases of 128 slots",
        floor,
        lambda: class_scores(logits, layout, out=out),
        partial(_finite, out.maxima, out.log_sums),
        {"torch log-softmax": lambda: torch.log_softmax(logits.float(), 1)},
    )
    for name, noise in (("most probable", None), ("draw", Noise.of(11, batch * slots, place.device))):
        yield Case(
            f"DINGO, {name}, {held.states} states, 8 canvases of 128 slots",
            floor,
            partial(dingo, logits, canvas, tables, noise=noise, workspace=workspace),
            lambda: [workspace.filled.tokens, workspace.filled.totals, workspace.filled.status],
            bar=("ms", 1.0),
            is_captured=True,
            differs=0.02,
        )


def chains(place: Place) -> Iterator[Case]:
    """The tree of products of dense transitions."""
    from structgen_kernels.canvases.chain_tree import ChainTree

    batch, slots, states = place.of(8, 1), place.of(128, 3), place.of(150, 9)
    generator = torch.Generator(device=place.device).manual_seed(1)
    transitions = torch.randn((batch, slots, states, states), generator=generator, device=place.device)
    ends = torch.zeros(states, device=place.device)
    total = torch.zeros(batch, device=place.device)

    def add_up(*, is_max: bool) -> None:
        total.copy_(ChainTree(transitions, ends, ends, is_max=is_max).total)

    for name, is_max in (("maxima", True), ("sums", False)):
        yield Case(
            f"chain tree, {name}, 150 states, 8 canvases of 128 slots",
            8 * 4 * 150 * 150 * 127 * 3,
            partial(add_up, is_max=is_max),
            lambda: [total],
        )


def charts(place: Place) -> Iterator[Case]:
    """Boolean products, and the whole closure of canvases of any JSON value."""
    from structgen_kernels.charts.boolean_products import Pairs, boolean_products, packed_bits
    from structgen_kernels.charts.chart_step import CanvasChart, chart_closure
    from structgen_kernels.charts.chart_tables import ChartTables

    items, size = place.of(1024, 3), place.of(129, 5)
    generator = torch.Generator().manual_seed(1)
    spans = [
        packed_bits((torch.rand(items, size, size, generator=generator) < 0.1).triu()).to(place.device) for _ in "ab"
    ]
    out = torch.zeros_like(spans[0])
    triples = Pairs.of([(item, item, (item + 1) % items) for item in range(items)], items, place.device)
    yield Case(
        "boolean products, 1,024 of 129 x 129 spans",
        1024 * 129 * 5 * 4 * 4,
        lambda: boolean_products(spans[0], spans[1], triples, out, is_span=True),
        lambda: [out],
        reset=out.zero_,
    )
    if place.data is None:
        return
    plan = place.data.plan
    batch, slots = place.of(8, 1), place.of(128, 1)
    tables = ChartTables.of(plan, root=plan.root, labels=plan.labels, device=place.device)
    admissible = (torch.rand((batch, slots, plan.labels), generator=generator) < 0.9).to(place.device)
    ends = torch.ones((batch, slots + 1), dtype=torch.bool, device=place.device)
    chart = CanvasChart.empty(tables, batch, slots)
    yield Case(
        "chart of any JSON value, inside and outside, 8 canvases of 128 slots",
        8 * 4 * tables.row_words(128),
        lambda: chart_closure(tables, admissible, ends, chart=chart),
        lambda: [chart.completable, chart.ends, chart.allowed],
        is_captured=True,
    )


OPERATIONS: Final[dict[str, Callable[[Place], Iterator[Case]]]] = {
    "apply_mask": apply_masks,
    "masked_sample": samples,
    "gumbel_order": orders,
    "tree_verification": trees,
    "dingo": canvases,
    "chain_tree": chains,
    "chart": charts,
}
