"""Runs the notebooks of ``examples/notebooks`` in kernels of their own; as a script, writes their outputs into them."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[3]
NOTEBOOKS = sorted((CHECKOUT / "examples/notebooks").glob("*.ipynb"))
_TIMEOUT_S = 600
_MACHINE = re.compile(r"/(?:home|root|Users|tmp)/|0x[0-9a-f]{6,}")


def run_notebook(path: Path) -> Any:
    """A notebook with the outputs of a new run, from the folder that it lies in; a cell that fails is an error."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=_TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the times
        if cell.cell_type == "code":
            cell.outputs = _joined(output for output in cell.outputs if not _is_empty(output))
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def _is_empty(output: Any) -> bool:
    """Whether it is a progress bar that has gone away, or a line of a library on standard error."""
    data = output.get("data")
    return output.get("name") == "stderr" or (data is not None and not any(data.values()))


def _joined(outputs: Iterable[Any]) -> list[Any]:
    """Outputs, with what follows each other on a stream as one."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output.get("name") and output.get("name") == joined[-1].get("name"):
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def kinds(notebook: Any) -> list[list[list[str]]]:
    """For each cell the kinds of its outputs: the types of what is shown, or the name of the stream."""
    return [
        [sorted(output.get("data", {output.get("name", "error"): ""})) for output in cell.get("outputs", ())]
        for cell in notebook.cells
    ]


def of_machine(notebook: Any) -> list[str]:
    """What outputs tell of the machine that they come from: paths and addresses."""
    return _MACHINE.findall(str([cell.get("outputs") for cell in notebook.cells]))


def main(names: list[str]) -> None:
    """Run the notebooks of these names, or all, and write their outputs into them."""
    import nbformat

    for path in NOTEBOOKS:
        if not names or path.stem in names:
            sys.stderr.write(f"running {path.name}\n")
            text = nbformat.writes(run_notebook(path))
            path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
