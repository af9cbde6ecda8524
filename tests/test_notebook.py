"""The notebook of docs/: runs in a kernel of its own, and says what it says in the repository."""

from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "library.ipynb"


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What each code cell printed; a slow kernel sends it in several pieces."""
    cells = (cell for cell in notebook.cells if cell.cell_type == "code")
    return ["".join(output["text"] for output in cell.outputs) for cell in cells]


def test_the_notebook_runs_and_its_outputs_are_those_in_the_repository(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After a change that moves figures: jupyter execute --inplace docs/library.ipynb."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    stored = nbformat.read(NOTEBOOK, as_version=4)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    kernel = AsyncKernelManager(transport="ipc", connection_file=str(tmp_path / "kernel.json"))
    client = NotebookClient(notebook, km=kernel, timeout=300, resources={"metadata": {"path": str(ROOT)}})
    client.owns_km = True  # so that it ends the kernel
    client.execute()
    assert len(texts(stored)) >= 5
    assert all(texts(stored))
    assert texts(notebook) == texts(stored)
