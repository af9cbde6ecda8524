"""Model classes beyond the catalogue: kvcore on a config of each against what vLLM's own classes and planner answered.

The files are written by `tools/parity/classes.py --write`; `differences` in a file names, with its reason, what is not
the engine's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.parity import compare

FILES = sorted((Path(__file__).parent / "data" / "parity" / "classes").glob("*.json"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_class_is_planned_as_the_engine_does(path: Path) -> None:
    entry = json.loads(path.read_text(encoding="utf-8"))
    assert entry["rows"], "no answer of the engine is kept"
    allowed = {aspect for known in entry.get("differences", ()) for aspect in known["aspects"]}
    seen = set()
    for row in entry["rows"]:
        found = compare.disagreements(row | {"config": entry["config"]}, entry)
        seen |= {aspect for aspect, *_ in found}
        assert not [each for each in found if each[0] not in allowed], row["args"]
    assert seen == allowed, "a difference that is gone: delete its entry"
