"""Which family of models a chat template is of, by the texts that it writes."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Final

from structgen.frontends.chat import Family, families, load_family
from structgen.frontends.chat.family import Placeholder, stop_string_of

__all__ = ["family_of_template", "thought_tags"]

_LEAST_MATCH: Final = 8


def family_of_template(written: str) -> Family | None:
    """The family whose calls a chat template writes; None if there is none.

    The template must have all tags of its calls; of several such families, the one with the longest texts in it counts.

    Args:
        written: the texts and string constants of the template, as ``literals_of`` returns them.
    """
    dense = _dense(written)
    best: tuple[tuple[int, int], Family | None] = (0, 0), None
    for family in map(load_family, families()):
        form = family.calls
        texts = {form.before, form.between, form.after}
        texts |= {part for layout in form.layouts for part in layout.parts if isinstance(part, str)}
        tags = set(family.tokens) - set(thought_tags(family))
        if not all(tag in written for tag in tags):
            continue
        found = sum(len(_dense(text)) for text in texts if _dense(text) in dense)
        starts = _dense(form.before + form.layouts[0].prefix) in dense
        found += sum(map(len, tags))
        begins = family.arguments.begins
        before = {a for layout in form.layouts for a, b in pairwise(layout.parts) if b == Placeholder("arguments")}
        texts |= {(text if isinstance(text, str) else "") + begins for text in before} if begins else set()
        exact = sum(len(text) for text in texts if text in written)
        if (starts or tags) and found >= _LEAST_MATCH and (found, exact) > best[0]:
            best = (found, exact), family
    return best[1]


def _dense(text: str) -> str:
    """A text without what templates put between its parts."""
    return re.sub(r"[\s\0]+", "", text)


def thought_tags(family: Family) -> list[str]:
    """The tags around thoughts."""
    if family.thought is None:
        return []
    parts = family.thought.layout.parts
    text = "".join(part for part in parts if not isinstance(part, Placeholder))
    return [tag for tag in family.tokens if tag in text] or [stop_string_of(text, ())]
