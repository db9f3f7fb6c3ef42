"""The notebooks of ``examples/notebooks``: they run, and what they show when they are read is what a run shows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from notebook_run import CHECKOUT, NOTEBOOKS, kinds, of_machine, run_notebook

NAMES = ["diffusion", "extraction", "probability", "tools", "your_own_model"]
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _text(cell: Any) -> str:
    return "".join(cell["source"])


def test_these_are_the_notebooks() -> None:
    """Each is listed in the README of the examples."""
    assert [path.stem for path in NOTEBOOKS] == NAMES
    listed = (CHECKOUT / "examples/README.md").read_text(encoding="utf-8")
    assert all(f"notebooks/{name}.ipynb" in listed for name in NAMES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_can_be_read_without_running_it(path: Path) -> None:
    """It has its outputs, no errors, nothing of the machine that it ran on, and links to files that are there."""
    notebook = _read(path)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert len(outputs) >= len(code) / 2
    assert all(output["output_type"] != "error" for output in outputs)
    assert not re.findall(r"/(?:home|root|Users|tmp)/|0x[0-9a-f]{6,}", json.dumps(outputs))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            for target in _LINK.findall(_text(cell)):
                assert (path.parent / target).exists(), target


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    """No cell fails, and each shows outputs of the kinds that it showed when its outputs were written."""
    pytest.importorskip("nbclient", reason="nbclient and ipykernel are not installed")
    pytest.importorskip("ipykernel", reason="nbclient and ipykernel are not installed")
    import nbformat

    made = run_notebook(path)
    assert kinds(made) == kinds(nbformat.read(path, as_version=4))
    assert of_machine(made) == []


def test_a_kernel_shows_progress_and_takes_it_away() -> None:
    """In a kernel of Jupyter, a stage is one output, drawn over, which is empty once the bar is closed."""
    pytest.importorskip("nbclient", reason="nbclient and ipykernel are not installed")
    pytest.importorskip("ipykernel", reason="nbclient and ipykernel are not installed")
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    begun = "from structgen.progress import ProgressBar, shown\nbar = ProgressBar()\nbar('fetch <b>', 1, 4)"
    ended = "with shown(progress=True) as report:\n    report('fetch', 1, 4)\n    report('fetch', 4, 4)"
    quick = "import structgen as sg\nsg.compile(sg.regex('a'), sg.Vocabulary([b'a', b''], eos=[1])).shortest_bytes"
    notebook = new_notebook(cells=[new_code_cell(text) for text in (begun, ended, quick)])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown, gone, plain = (
        [output for output in cell.outputs if output.output_type != "stream"] for cell in notebook.cells
    )
    assert 'value="0.2500"' in shown[0].data["text/html"]
    assert "fetch &lt;b&gt; 25%, 1 of 4" in shown[0].data["text/html"]
    assert shown[0].data["text/plain"].startswith("fetch <b> [######---")
    assert [dict(output.data) for output in gone] == [{"text/html": "", "text/plain": ""}]
    assert [output.data["text/plain"] for output in plain] == ["1"]
