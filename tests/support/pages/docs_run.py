"""Run the Python blocks of a page of the documentation, each one alone, as a reader pastes it."""

from __future__ import annotations

import doctest
import functools
import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

import structgen
import structgen.models
import structgen.program.definition as home
from structgen.integrations import openai_server

__all__ = ["CHECKOUT", "PageRun", "page_blocks", "page_path", "run_page", "stand_in"]

CHECKOUT: Final = Path(__file__).resolve().parents[3]
_BLOCK: Final = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class PageRun(dict[str, Any]):
    """The names that the blocks of a page defined (of a repeated name, the last), and the number of blocks."""

    blocks: int = 0


def stand_in(monkeypatch: pytest.MonkeyPatch, model: Any) -> None:
    """Let pages have a model for each one that they load, by name, from a file or on a server.

    They still have to call ``load_model`` and ``remote`` with arguments that these take.
    """
    for function, homes in (
        (structgen.models.load_model, (structgen, structgen.models)),
        (openai_server.remote, (openai_server,)),
    ):
        load = _instead_of(function, model)
        for module in homes:
            monkeypatch.setattr(module, function.__name__, load, raising=False)
    monkeypatch.setattr(home, "_default", [model])


def _instead_of(function: Callable[..., Any], made: Any) -> Callable[..., Any]:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def load(*arguments: Any, **settings: Any) -> Any:
        signature.bind(*arguments, **settings)
        return made

    return load


def page_path(page: str) -> Path:
    """Return the file of ``README.md`` or of a page in ``docs``; skip the test if the pages are missing."""
    path = CHECKOUT / page if page == "README.md" else CHECKOUT / "docs" / page
    if not path.is_file():
        pytest.skip(f"the documents are not beside the tests: no {path}")
    return path


def page_blocks(page: str, *, without: str | None = None) -> list[str]:
    """Return the text of every Python block of ``page``, in order, but for the section with the heading ``without``."""
    text = page_path(page).read_text(encoding="utf-8")
    if without is not None:
        before, section = text.split(f"\n## {without}\n")
        text = before + "\n## ".join(["", *section.split("\n## ")[1:]])
    return _BLOCK.findall(text)


def run_page(
    page: str,
    *,
    before: Callable[[int], object] = lambda number: None,
    after: Callable[[PageRun], object] = lambda names: None,
    without: str | None = None,
) -> PageRun:
    """Run every Python block of ``page`` in a namespace of its own, so that it defines all names that it uses.

    Args:
        page: ``README.md``, or a page in ``docs``.
        before: called with the number of each block, from 0, before it runs.
        after: called with the names of each block.
        without: the heading of a section that is left out.
    """
    found = PageRun()
    for number, block in enumerate(page_blocks(page, without=without)):
        before(number)
        names = PageRun({"__name__": "example"})
        label = f"{page}, block {number + 1}"
        with warnings.catch_warnings():
            warnings.filterwarnings("error", r"structgen\.", DeprecationWarning)  # no page shows a name that has moved
            if block.lstrip().startswith(">>>"):
                _run_session(block, names, label)
            else:
                exec(compile(block, label, "exec", dont_inherit=True), names)
        after(names)
        found.update(names)
        found.blocks = number + 1
    return found


def _run_session(block: str, names: PageRun, label: str) -> None:
    """Run a block that shows a session of the interpreter; its output must be that of the page."""
    session = doctest.DocTestParser().get_doctest(block, names, label, None, 0)
    report: list[str] = []
    failed = (
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(session, out=report.append, clear_globs=False).failed
    )
    names.update(session.globs)
    assert not failed, "".join(report)
