"""An HTML page that replays how a canvas was filled.

The page is one file without network access or libraries: every slot is an element with the step that filled it and the
model's confidence, and a script shows and hides slots. Without scripts the page shows the finished canvas.

``slot_text`` makes every character of a slot visible, and none of them acts on a terminal or a page.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Self, final

import numpy as np

from structgen.decode.diffusion.mean_field import FREE
from structgen.markup import page_policy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.step.result import Result
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["END", "Recorder", "Replay", "replay_page", "slot_text", "visible"]

END: Final = "∎"
"""The text shown for EOS."""

_CONTROL_PICTURES: Final = 0x2400
_DELETE: Final = 0x7F


def slot_text(vocabulary: Vocabulary, token: int) -> str:
    r"""Return the text shown for a fixed slot; never empty.

    Special tokens are in angle brackets, EOS is ``END``, and bytes that are no whole character are ``\xNN``.
    """
    if token in vocabulary.eos:
        return END
    data = vocabulary.tokens[token]
    if not data:
        return f"⟨{visible(vocabulary.special.get(token) or str(token))}⟩"
    return visible(data.decode("utf-8", "backslashreplace"))


def visible(text: str) -> str:
    r"""Return a text with every character that is not printable spelled out.

    Control characters become their pictures (``␊``), other invisible characters their numbers (``\u{202e}``).
    """
    return "".join(_character(each) for each in text)


def _character(character: str) -> str:
    if character.isprintable():
        return character
    code = ord(character)
    if code < ord(" "):
        return chr(_CONTROL_PICTURES + code)
    return "␡" if code == _DELETE else f"\\u{{{code:x}}}"


_PLACEHOLDER: Final = re.compile(r"\{\{(title|sections|policy)\}\}")
_SHADES: Final = 10
"""How many colours there are for confidences; the last is for the highest confidence."""


@final
@dataclass(frozen=True, eq=False)
class Replay:
    """How one canvas was filled.

    Attributes:
        snapshots: of one canvas, in order; a filled slot keeps its token.
        vocabulary: the tokens of the slots.
        confidences: the probability of each slot's token when it was filled, float64 ``[slots]``; NaN where it is
            unknown, 1 where the grammar left no choice.
        name: the heading, or "".

    Raises:
        ValueError: there is no snapshot, or they are not of one canvas.
    """

    snapshots: Sequence[Snapshot]
    vocabulary: Vocabulary
    confidences: NDArray[np.float64]
    name: str = ""

    def __post_init__(self) -> None:
        if not self.snapshots:
            raise ValueError("a replay needs at least one snapshot; pass those that stream= was called with")
        before = self.snapshots[0].canvas
        for number, snapshot in enumerate(self.snapshots[1:], 2):
            canvas = snapshot.canvas
            if canvas.shape != before.shape or np.any((before != FREE) & (canvas != before)):
                raise ValueError(
                    f"snapshot {number} is of another canvas than snapshot {number - 1}: a filled slot changed; "
                    "replay each canvas separately"
                )
            before = canvas
        if self.confidences.shape != before.shape:
            raise ValueError(f"there are {len(self.confidences)} confidences for {len(before)} slots")

    @classmethod
    def of(cls, snapshots: Sequence[Snapshot], result: Result, *, name: str = "") -> Self:
        """Return the replay of one output.

        Args:
            snapshots: those that ``stream=`` was called with.
            result: the output; its steps hold the probability of each token.
            name: a heading.

        Raises:
            ValueError: as the class.
        """
        if not snapshots:
            raise ValueError("a replay needs at least one snapshot; pass those that stream= was called with")
        confidences = np.full(len(snapshots[-1].canvas), np.nan)
        for slot, step in enumerate(result.steps[: len(confidences)]):
            if step.forced or step.log_z is not None:  # else the caller fixed the slot
                confidences[slot] = math.exp(min(step.logprob, 0.0))
        return cls(snapshots, result.vocabulary, confidences, name)

    @property
    def filled_in(self) -> NDArray[np.int64]:
        """The first snapshot that shows each slot filled; ``len(snapshots)`` for slots that stay free."""
        free = np.stack([snapshot.canvas == FREE for snapshot in self.snapshots])
        first: NDArray[np.int64] = free.sum(axis=0)
        return first


@final
class Recorder:
    """Keeps the snapshots of all canvases; pass it as ``stream``.

    The first snapshot of a canvas comes before any forward pass.
    """

    def __init__(self) -> None:
        self._canvases: list[list[Snapshot]] = []

    def __call__(self, snapshot: Snapshot, /) -> None:
        """Keep a snapshot."""
        if not snapshot.forwards or not self._canvases:
            self._canvases.append([])
        self._canvases[-1].append(snapshot)

    def replays(self, results: Sequence[Result], *, names: Sequence[str] = ()) -> list[Replay]:
        """Return the replays of some outputs.

        Canvases that are not among the outputs, such as those that a check refused, are left out.

        Args:
            results: the outputs, in the order in which their canvases were filled.
            names: a heading for each.

        Raises:
            ValueError: the canvas of an output was not recorded.
        """
        replays: list[Replay] = []
        canvases = iter(self._canvases)
        for number, result in enumerate(results):
            tokens = None if result.canvas is None else list(result.canvas.tokens)
            snapshots = next((each for each in canvases if each[-1].canvas.tolist() == tokens), None)
            if snapshots is None:
                raise ValueError(f"output {number + 1} is on none of the {len(self._canvases)} canvases recorded")
            replays.append(Replay.of(snapshots, result, name=names[number] if number < len(names) else ""))
        return replays


def replay_page(replays: Sequence[Replay], *, title: str = "structgen: how the canvas was filled") -> str:
    """Return a page of HTML that replays canvases being filled.

    Args:
        replays: each becomes a section with its own buttons and slider.
        title: the title of the page.

    Raises:
        ValueError: there are no replays.
    """
    if not replays:
        raise ValueError("there is nothing to replay; pass at least one Replay")
    sections = "\n".join(_section(number, replay) for number, replay in enumerate(replays, 1))
    page = (files(__package__) / "replay.html").read_text(encoding="utf-8")
    parts = {"title": escape(visible(title)), "sections": sections, "policy": page_policy(page)}
    return _PLACEHOLDER.sub(lambda found: parts[found[1]], page)  # one pass: inserted text is not searched


def _section(number: int, replay: Replay) -> str:
    heading = f"<h2>{escape(visible(replay.name))}</h2>\n" if replay.name else ""
    label = escape(visible(replay.name) or f"canvas {number}", quote=True)
    forwards = ",".join(str(int(snapshot.forwards)) for snapshot in replay.snapshots)
    last = len(replay.snapshots) - 1
    slots = "".join(_slot(slot, replay, int(at)) for slot, at in enumerate(replay.filled_in))
    buttons = "".join(
        f'<button type="button" data-go="{go}" aria-label="{name}">{mark}</button>'
        for go, name, mark in (
            ("first", "first step", "⏮"),
            ("back", "step back", "◀"),
            ("play", "play", "▶ play"),
            ("next", "next step", "▶"),
            ("last", "last step", "⏭"),
        )
    )
    return (
        f'<section class="replay" aria-label="{label}" data-forwards="{forwards}">\n{heading}'
        f'<p class="canvas" role="group" aria-label="slots">{slots}</p>\n'
        f'<div class="controls">{buttons}'
        f'<input type="range" min="0" max="{last}" value="{last}" step="1" aria-label="step"></div>\n'
        f'<p class="where" role="status" aria-live="polite">{_step_summary(replay)}</p>\n</section>'
    )


def _step_summary(replay: Replay) -> str:
    """The text below the finished canvas before the script changes it."""
    last, step = replay.snapshots[-1], len(replay.snapshots) - 1
    filled = int((last.canvas != FREE).sum())
    passes = "pass" if last.forwards == 1 else "passes"
    slots = f"{filled} of {len(last.canvas)} slots filled"
    return f"step {step} of {step}: {slots} after {int(last.forwards)} forward {passes}"


def _slot(slot: int, replay: Replay, at: int) -> str:
    token = int(replay.snapshots[-1].canvas[slot])
    if token == FREE:
        return f'<span class="slot free" data-at="{at}" title="slot {slot}: free">&nbsp;</span>'
    confidence = float(replay.confidences[slot])
    shade = "unknown" if math.isnan(confidence) else f"c{min(int(confidence * _SHADES), _SHADES - 1)}"
    sure = "" if math.isnan(confidence) else f", probability {confidence:.3g}"
    ends = " end" if token in replay.vocabulary.eos else ""
    text = slot_text(replay.vocabulary, token)
    return f'<bdi class="slot {shade}{ends}" data-at="{at}" title="slot {slot}: step {at}{sure}">{escape(text)}</bdi>'
