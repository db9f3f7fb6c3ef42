"""One schema with one engine: what it costs, and what it says of the instances.

Time to first mask (TTFM) runs from the JSON text of the schema to the first mask of a new matcher.  Time between
masks (TBM) is, for each token of an instance, that of filling the mask and accepting the token; a mask that refuses
the token counts alone.  Looking at the bit is not timed.

Compiling is measured cold: what an engine keeps of equal schemas is dropped before each, for some occur twice in the
data.  What different schemas have in common stays, as it does in a server.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from structgen.cli.bench.cases import Case
from structgen.cli.bench.engines import Engine, Sequence, allows

__all__ = ["Tally", "Tokenize", "Verdict", "judge", "run_case"]

Tokenize = Callable[[str], list[int]]


class Verdict(Enum):
    """What an engine says of an instance."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDECIDED = "undecided"
    """The instance was cut before its end."""


@dataclass(slots=True)
class Tally:
    """What one engine did; instances are named ``schema#index``.

    Attributes:
        first_mask: TTFM in microseconds by schema; its keys are the schemas that were compiled.
        between: TBM in microseconds, in order of time, by schema.
        refused: first line of what was said, by schema.
        valid: number of valid instances of compiled schemas.
        valid_rejected: those of them that were rejected as they stand in the data.
        reordered: valid instances that were rejected, and have another text in declared order.
        ordered_rejected: valid instances that were rejected in declared order too.
        invalid: number of invalid instances of compiled schemas.
        invalid_accepted: those of them that were accepted.
        undecided: instances that were cut and not rejected before.
    """

    first_mask: dict[str, float] = field(default_factory=dict)
    between: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    valid: int = 0
    valid_rejected: list[str] = field(default_factory=list)
    reordered: int = 0
    ordered_rejected: list[str] = field(default_factory=list)
    invalid: int = 0
    invalid_accepted: list[str] = field(default_factory=list)
    undecided: int = 0

    def reasons(self) -> list[tuple[str, int]]:
        """Return what refusals say, the most frequent first."""
        return Counter(self.refused.values()).most_common()


def run_case(engine: Engine, tally: Tally, case: Case, tokenize: Tokenize, most: int) -> None:
    """Compile a schema and judge its instances, of which at most ``most`` tokens are looked at."""
    clock = time.perf_counter_ns
    engine.forget()
    begin = clock()
    try:
        compiled = engine.compile(case.schema)
        sequence = engine.start(compiled)
        sequence.fill()
    except Exception as error:  # any refusal counts, whatever its class in the engine
        tally.refused[case.name] = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return
    tally.first_mask[case.name] = (clock() - begin) / 1000
    samples: list[float] = []
    for index, instance in enumerate(case.instances):
        name = f"{case.name}#{index}"
        verdict = judge(engine.start(compiled), tokenize(instance.text), most, samples)
        tally.undecided += verdict is Verdict.UNDECIDED
        if not instance.is_valid:
            tally.invalid += 1
            if verdict is Verdict.ACCEPTED:
                tally.invalid_accepted.append(name)
            continue
        tally.valid += 1
        if verdict is Verdict.REJECTED:
            tally.valid_rejected.append(name)
        if verdict is Verdict.REJECTED and instance.ordered is not None:
            tally.reordered += 1
            verdict = judge(engine.start(compiled), tokenize(instance.ordered), most, [])
        if verdict is Verdict.REJECTED:
            tally.ordered_rejected.append(name)
    tally.between[case.name] = samples


def judge(sequence: Sequence, tokens: list[int], most: int, samples: list[float]) -> Verdict:
    """Read ``tokens`` one by one, adding the microseconds that each took to ``samples``."""
    clock, fill, accept, words = time.perf_counter_ns, sequence.fill, sequence.accept, sequence.words
    for token in tokens[:most]:
        start = clock()
        fill()
        filled = clock()
        if not allows(words, token):
            samples.append((filled - start) / 1000)
            return Verdict.REJECTED
        resumed = clock()
        is_accepted = accept(token)
        samples.append((clock() - resumed + filled - start) / 1000)
        if not is_accepted:
            return Verdict.REJECTED
    if len(tokens) > most:
        return Verdict.UNDECIDED
    return Verdict.ACCEPTED if sequence.may_end() else Verdict.REJECTED
