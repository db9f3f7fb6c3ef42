"""A drawing as one file of HTML, without network and without libraries."""

from __future__ import annotations

import json
import re
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from structgen.cli.show.drawing import Drawing

__all__ = ["page_of"]

_PLACE: Final = re.compile(r"\{\{(title|data)\}\}")


def page_of(drawing: Drawing, *, title: str, text: str = "") -> str:
    """Return the page that draws ``drawing`` and steps through texts, ``text`` first."""
    template = files(__package__).joinpath("page.html").read_text("utf-8")
    # No text of the grammar can end the script, and none is read as HTML.
    data = json.dumps(_data(drawing, text), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    values = {"title": escape(title), "data": data}
    return _PLACE.sub(lambda match: values[match[1]], template)


def _data(drawing: Drawing, text: str) -> dict[str, Any]:
    return {
        "text": text,
        "final": sorted(drawing.final),
        "rules": [
            {
                "name": rule.name,
                "start": rule.start,
                "leftOut": rule.left_out,
                "states": [[state, *place] for state, place in sorted(rule.places.items())],
                "strokes": [
                    {
                        "from": each.source,
                        "to": each.target,
                        "label": each.label,
                        "inner": each.inner,
                        "call": each.rule,
                    }
                    for each in rule.strokes
                ],
                "edges": [
                    {
                        "from": edge.source,
                        "to": edge.target,
                        "bytes": edge.ranges,
                        "call": edge.rule,
                        "token": edge.token,
                    }
                    for edge in rule.edges
                ],
            }
            for rule in drawing.rules
        ],
    }
