"""Draft tokens are accepted as by the verifiers in double precision, and the output has the target distribution."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_mask_cases import bitmask_of, mask_case
from kernel_tree_cases import BLOCK, Case, Language, check_case, random_case
from structgen_kernels.choices.choice import CHOSEN, EMPTY, MASSLESS, NON_FINITE
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.masks.mask_rows import MaskRows
from structgen_kernels.philox import Noise
from structgen_kernels.trees.draft_forest import DraftForest
from structgen_kernels.trees.draft_paths import DraftPaths
from structgen_kernels.trees.tree_verification import DraftDistributions, verify_tree
from structgen_kernels.trees.verification_workspace import VerificationWorkspace

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FIELDS = ("nodes", "accepted", "counts", "tokens", "status")


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("replaced", "size", "dtype", "flat"),
    [
        (False, 70, torch.float32, False),
        (False, 40, torch.float32, True),
        (True, 33, torch.bfloat16, True),
        (False, 1, torch.float16, False),
    ],
)
def test_decisions_are_those_of_the_verifiers(*, replaced: bool, size: int, dtype: torch.dtype, flat: bool) -> None:
    check_case(random_case(11, size, 3, replaced=replaced, dtype=dtype, flat=flat))


@pytest.mark.parametrize("replaced", [False, True])
def test_decisions_of_many_trees_are_those_of_the_verifiers(*, replaced: bool) -> None:
    cases = (random_case(seed, 12, 20, replaced=replaced, flat=seed % 2 == 1) for seed in range(12))
    assert sum(map(check_case, cases)) > 100


@pytest.mark.usefixtures("backend")
def test_a_request_does_not_depend_on_its_batch() -> None:
    case = random_case(5, 33, 2, replaced=False)
    together = case.verify()
    begin = row = 0
    for request, tree in enumerate(case.trees):
        length = len(tree[0])
        if request == 1:
            rows = slice(row, row + length + 1)
            one = slice(request, request + 1)
            alone = Case(
                case.logits[rows].clone(),
                [tree],
                DraftDistributions(case.distributions.values, case.distributions.rows[rows].clone()),
                Noise(case.noise.seeds[one], case.noise.offsets[one]),
                MaskRows(case.masks.table, case.masks.codes[rows]),
                case.allowed[rows],
                case.temperature[rows].clone(),
            ).verify()
            for field in FIELDS:
                places = slice(begin, begin + length) if field in ("nodes", "accepted") else one
                assert torch.equal(getattr(alone, field), getattr(together, field)[places])
        begin, row = begin + length, row + length + 1


def sampled_children(
    distribution: torch.Tensor, count: int, generator: torch.Generator, *, replaced: bool
) -> torch.Tensor:
    """Sample tokens, int64 ``[rows, count]``."""
    return torch.multinomial(distribution, count, replacement=replaced, generator=generator)


@pytest.mark.parametrize(
    ("widths", "with_replacement", "independent"),
    [((1, 1), False, False), ((3, 1), False, False), ((3, 1), True, False), ((2, 2), True, True)],
    ids=["chain", "without replacement", "with replacement", "independent"],
)
def test_sequences_have_the_distribution_of_the_target(
    widths: tuple[int, int], *, with_replacement: bool, independent: bool
) -> None:
    times, language, generator = 10_000, Language.random(sum(widths)), torch.Generator().manual_seed(7)
    first = sampled_children(language.q[0, 4].expand(times, -1), widths[0], generator, replaced=with_replacement)
    second = sampled_children(language.q[1][first.flatten()], widths[1], generator, replaced=with_replacement)
    tokens = torch.cat([first, second.view(times, -1)], 1)
    parents = torch.tensor([-1] * widths[0] + [each for each in range(widths[0]) for _ in range(widths[1])])
    nodes = len(parents)
    # Of each position: the place in the sequence, and the token before.
    places = torch.tensor([0] + [1] * widths[0] + [2] * (nodes - widths[0])).repeat(times)
    before = torch.nn.functional.pad(tokens, (1, 0), value=4).flatten()
    number = (places * 5 + before).int()
    forest = DraftForest(
        torch.arange(times + 1, dtype=torch.int32) * nodes,
        parents.repeat(times).int(),
        tokens.flatten().int(),
    )
    masks = MaskRows.of_bitmask(bitmask_of(language.allowed.view(15, 4)), 4)

    paths = verify_tree(
        language.p.view(15, 4).log().float()[number],
        forest,
        DraftDistributions(language.q.view(15, 4).log().float(), number, replaced=independent),
        Noise(torch.full((times,), 3), torch.arange(times)),
        masks=MaskRows(masks.table, number[:, None].contiguous()),
        workspace=VerificationWorkspace(nodes * times, times, 4, "cpu", block=BLOCK),
    )

    paths.check()
    sequences = torch.full((times, 3), -1)
    held = paths.nodes.view(times, nodes).long()
    for place in range(2):
        taken = paths.counts > place
        sequences[taken, place] = tokens[taken].gather(1, held[taken, place : place + 1])[:, 0]
    sequences[torch.arange(times), paths.counts.long()] = paths.tokens.long()
    for place in (1, 2):  # tokens that were not drafted are sampled from the target
        missing = sequences[:, place] < 0
        distribution = language.p[place][sequences[missing, place - 1]]
        sequences[missing, place] = torch.multinomial(distribution, 1, generator=generator)[:, 0]
    counts = torch.bincount((sequences * torch.tensor([16, 4, 1])).sum(1), minlength=64)
    expected = times * language.distribution().flatten()
    assert int(counts[expected == 0].sum()) == 0
    rare = expected < 10
    counts, expected = (torch.cat([each[~rare].double(), each[rare].sum()[None]]) for each in (counts, expected))
    kept = expected > 0
    freedom = int(kept.sum()) - 1
    # Wilson and Hilferty: above it with a probability of 1e-6.
    limit = freedom * (1 - 2 / (9 * freedom) + 4.753 * math.sqrt(2 / (9 * freedom))) ** 3
    assert float(((counts - expected)[kept] ** 2 / expected[kept]).sum()) < limit
    assert int(paths.counts.sum()) > times / 4


@pytest.mark.usefixtures("backend")
def test_what_is_not_allowed_is_never_taken() -> None:
    forest = DraftForest.of([([-1, -1], [2, 3]), ([-1, 0], [2, 0])])
    logits = torch.zeros(6, 4)
    logits[:, 2] = 40.0  # the forbidden tokens have nearly all of the mass of both distributions
    allowed = torch.tensor([True, True, False, True]).expand(6, -1)
    paths = verify_tree(
        logits,
        forest,
        DraftDistributions(logits, torch.arange(6, dtype=torch.int32)),
        Noise.of(1, 2),
        masks=MaskRows.of_bitmask(bitmask_of(allowed), 4),
    )
    # Both distributions are the same, so the first child that is allowed is taken for certain.
    assert paths.nodes.tolist() == [1, -1, -1, -1]
    assert paths.accepted.tolist() == [False, True, False, False]
    assert all(token in (0, 1, 3) for token in paths.tokens.tolist())


@pytest.mark.usefixtures("backend")
def test_positions_without_a_distribution_say_why() -> None:
    trees = [([], []), ([], []), ([], []), ([-1], [0]), ([-1], [0]), ([-1], [0]), ([-1], [9])]
    forest = DraftForest.of(trees)
    logits = torch.zeros(forest.positions, 3)
    logits[0] = -torch.inf
    logits[2, 1] = torch.nan
    logits[4, 2] = torch.inf  # after the node of the fourth
    values = torch.zeros(2, 3)
    values[1, 2] = torch.nan
    rows = torch.full((forest.positions,), -1, dtype=torch.int32)
    rows[5], rows[7] = 1, 0  # the root of the fifth, and that of the sixth
    rows[9] = 0
    allowed = torch.ones(forest.positions, 3, dtype=torch.bool)
    allowed[1] = False
    allowed[3, 1:] = False
    temperature = torch.ones(forest.positions)
    temperature[7] = -1

    paths = verify_tree(
        logits,
        forest,
        DraftDistributions(values, rows),
        Noise.of(2, 7),
        masks=MaskRows.of_bitmask(bitmask_of(allowed), 3),
        temperature=temperature,
    )

    assert paths.status.tolist() == [MASSLESS, EMPTY, NON_FINITE, NON_FINITE, NON_FINITE, NON_FINITE, CHOSEN]
    assert paths.tokens[:6].tolist() == [-1] * 6
    assert paths.counts.tolist() == [0, 0, 0, 1, 0, 0, 0]
    assert 0 <= int(paths.tokens[6]) < 3  # a draft that is not a token is skipped


@pytest.mark.usefixtures("backend")
def test_no_requests_and_no_distributions() -> None:
    none = DraftDistributions(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int32))
    assert verify_tree(torch.zeros(0, 5), DraftForest.of([]), none, Noise.of(0, 0)).counts.shape == (0,)
    chosen = DraftDistributions(torch.zeros(0, 5), torch.full((2,), -1, dtype=torch.int32))
    logits = torch.full((2, 5), -torch.inf)
    logits[0, 3] = logits[1, 4] = 0
    paths = verify_tree(logits, DraftForest.of([([-1], [3])]), chosen, Noise.of(0, 1))
    assert (paths.counts.tolist(), paths.tokens.tolist()) == ([1], [4])


def test_wrong_arguments_are_refused_before_a_launch() -> None:
    forest = DraftForest.of([([-1], [3])])
    logits, rows = torch.zeros(2, 40), torch.zeros(2, dtype=torch.int32)
    wrong = {
        "logits": {"logits": torch.zeros(3, 40)},
        "distributions.values": {"distributions": DraftDistributions(torch.zeros(1, 39), rows)},
        "distributions.rows": {"distributions": DraftDistributions(torch.zeros(1, 40), rows[:1])},
        "noise": {"noise": Noise.of(0, 2)},
        "masks": {"masks": MaskRows.everything(1, 40, logits.device)},
        "temperature": {"temperature": torch.ones(2, dtype=torch.float64)},
        "workspace": {"workspace": VerificationWorkspace(1, 1, 39, "cpu")},
        "out": {"out": DraftPaths.buffers(DraftForest.of([]))},
    }
    right = {
        "logits": logits,
        "forest": forest,
        "distributions": DraftDistributions(logits, rows),
        "noise": Noise.of(0, 1),
    }
    for argument, changed in wrong.items():
        with pytest.raises(KernelArgumentError) as caught:
            verify_tree(**{**right, **changed})
        assert caught.value.argument == argument
    with pytest.raises(KernelArgumentError):
        VerificationWorkspace(1, 1, 40, "cpu", block=48)


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    forest = DraftForest.of([([-1, 0], [5, 6])])
    case, rows, noise = mask_case(3, 700, seed=0), torch.zeros(3, dtype=torch.int32), Noise.of(0, 1)
    verify_tree(torch.zeros(3, 131_072), forest, DraftDistributions(torch.zeros(1, 131_072), rows), noise)
    for dtype in DTYPES:
        distributions = DraftDistributions(torch.zeros(1, 700, dtype=dtype), rows, replaced=dtype == torch.float16)
        logits = torch.zeros(3, 700, dtype=dtype)
        verify_tree(logits, forest, distributions, noise, masks=case.masks, temperature=torch.ones(3))
