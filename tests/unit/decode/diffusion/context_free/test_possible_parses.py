"""Charts of what is possible, against the chart of maxima in numpy."""

from __future__ import annotations

import numpy as np
import pytest
from context_free_enumeration import an_instance
from reference_chart import ReferenceChart
from structgen_kernels import _native

from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.context_free.plan import ENDING


@pytest.mark.parametrize("name", ["json across values", "brackets in pairs", "ambiguous", "palindromes"])
def test_possible_parses_equal_charts_of_numpy(name: str) -> None:
    """Labels and ends are possible where the chart of maxima says so; 70 slots need two words of bits."""
    plan = ContextFreeLanguage(an_instance(name, 0).text.constraint).plan
    rng = np.random.default_rng(7)
    for slots in (0, 1, 5, 11, 11, 11, *((70,) if plan.cells < 50 else ())):
        allowed = rng.random((slots, len(plan.labels))) < 0.8
        allowed[:, 0] = True
        may_end = rng.random(slots + 1) < 0.5
        with np.errstate(divide="ignore"):
            reference = ReferenceChart(plan, np.log(allowed.astype(np.float64)), is_max=True)
        ends = np.isfinite(reference.ends) & may_end
        arguments = plan.native, allowed.astype(np.uint8), may_end.astype(np.uint8), plan.cell(0, ENDING)
        steps, found, labels = _native.possible_parses(*arguments, 1 << 40)
        assert found is not None
        assert labels is not None
        assert np.array_equal(found.astype(bool), ends)
        wanted = reference.label_shares(ends.astype(np.float64)) > 0 if ends.any() else np.zeros_like(allowed)
        assert np.array_equal(labels.astype(bool), wanted)
        if steps:
            assert _native.possible_parses(*arguments, steps - 1)[1:] == (None, None)
