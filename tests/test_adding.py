"""docs/adding-*.md, followed in a copy of the house: their own blocks of code; a row for a family of models."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
FAMILY = """
[made_up]
classes = ["MadeUpForCausalLM"]
gated = false
"""
CONFIG = {
    "architectures": ["MadeUpForCausalLM"],
    "model_type": "made_up",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "max_position_embeddings": 2048,
    "torch_dtype": "bfloat16",
}
WEIGHTS_BYTES = 2 * (
    2 * 1024 * 64  # embedding and head
    + 64  # the norm behind the layers
    + 3 * (64 * (4 + 2 + 2) * 16 + 64 * 64 + 2 * 64 * 160 + 2 * 64)
)
"""By hand: query, key, value, output, an MLP without a gate, two norms a layer."""
OPEN = """
import json, os, sys
from streamlit.testing.v1 import AppTest
app = AppTest.from_file(os.path.abspath("app.py"), default_timeout=300)
for name, value in json.loads(sys.argv[1]).items():
    app.query_params[name] = value
app.run()
if len(sys.argv) > 2:
    app.switch_page(sys.argv[2]).run()
json.dump({
    "headers": [one.value for one in app.header],
    "texts": [one.value for one in app.markdown],
    "options": [option for one in app.segmented_control for option in one.options],
    "trouble": [one.message for one in app.exception],
}, sys.stdout)
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of what the documents speak of."""
    for part in ("kvcore", "pages", "locale", "tools"):
        shutil.copytree(ROOT / part, tmp_path / part)
    for file in ("app.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path)
    return tmp_path


def blocks(document: str) -> list[str]:
    """The blocks of code of a document, without the indentation that a list gives them."""
    found = re.findall(
        r"^( *)```\w+\n(.*?)^ *```$", (ROOT / "docs" / document).read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def insert(file: Path, before: str, text: str) -> None:
    """Puts `text` in front of the only place in `file` that reads `before`."""
    found = file.read_text("utf-8")
    assert found.count(before) == 1
    file.write_text(found.replace(before, text + before), "utf-8")


def answer(house: Path, *arguments: str, given: str = "") -> Any:
    """The JSON output of a program of this repository."""
    done = subprocess.run(
        [sys.executable, *arguments], cwd=house, input=given, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout) if done.stdout.startswith(("{", "[")) else done.stdout


def plan_of(house: Path, request: dict[str, Any]) -> Any:
    return answer(house, "-m", "kvcore", "plan", "--jsonl", "-", given=json.dumps(request) + "\n")


def changed(house: Path) -> set[str]:
    """The files that are not as in the house that was copied."""
    files = {path for part in ("kvcore", "pages", "locale", "tools") for path in (house / part).rglob("*.*")}
    return {
        path.relative_to(house).as_posix()
        for path in files
        if path.is_file() and path.parent.name != "__pycache__"
        and not ((twin := ROOT / path.relative_to(house)).exists() and twin.read_bytes() == path.read_bytes())
    }  # fmt: skip


def test_an_accelerator_is_one_entry(house: Path) -> None:
    file = house / "kvcore" / "catalogue" / "accelerators.toml"
    file.write_text(f"{file.read_text('utf-8')}\n{blocks('adding-an-accelerator.md')[0]}", "utf-8")
    result = plan_of(house, {"model": "Qwen/Qwen3-8B", "accelerator": "NVIDIA My Card"})
    assert result["per_rank_gib"]["total"] == 47.4
    assert "MyCard-48GB" in answer(house, "-m", "kvcore", "catalogue", "accelerators")
    assert changed(house) == {"kvcore/catalogue/accelerators.toml"}


def test_a_family_is_one_row(house: Path) -> None:
    file = house / "kvcore" / "model" / "families" / "decoders.toml"
    file.write_text(file.read_text("utf-8") + FAMILY, "utf-8")
    request = {"config": CONFIG, "accelerator": "H100-80GB", "tensor_parallel_size": 1}
    result = plan_of(house, request)
    assert result["weights_bytes_per_rank"] == WEIGHTS_BYTES
    assert result["kv"]["bytes_per_token"] == 3 * 2 * 2 * 16 * 2
    assert changed(house) == {"kvcore/model/families/decoders.toml"}


def test_a_page_is_a_script_and_a_row(house: Path) -> None:
    script, row = blocks("adding-a-page.md")
    (house / "pages" / "mypage.py").write_text(script, "utf-8")
    insert(house / "pages" / "ui" / "shared" / "shell.py", '    PageSpec("learn.py"', f"    {row.strip()},\n")
    seen = answer(house, "-c", OPEN, "{}", "pages/mypage.py")
    assert seen["trouble"] == []
    assert seen["headers"] == ["What the page answers"]
    assert "The verdict is fits." in seen["texts"]
    assert changed(house) == {"pages/mypage.py", "pages/ui/shared/shell.py"}


def test_a_language_is_a_row_and_its_texts(house: Path) -> None:
    row = blocks("adding-a-language.md")[0]
    insert(house / "kvcore" / "base" / "words.py", '    CHINESE = "zh"', f"    {row.strip()}\n")
    done = subprocess.run(
        [sys.executable, "tools/messages.py"], cwd=house, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, "without French\n" in done.stdout) == (1, True), done.stderr[-3000:]
    catalogue = house / "locale" / "fr" / "LC_MESSAGES" / "kvplanner.po"
    text = catalogue.read_text("utf-8")
    assert text.count('\nmsgid "Explore"\nmsgstr ""\n') == 1
    catalogue.write_text(
        text.replace('\nmsgid "Explore"\nmsgstr ""\n', '\nmsgid "Explore"\nmsgstr "Explorer"\n'), "utf-8"
    )
    program = 'from kvcore.base.words import *; print(words(Language.FRENCH)("Explore"))'
    assert answer(house, "-c", program).strip() == "Explorer"
    seen = answer(house, "-c", OPEN, '{"lang": "fr"}')
    assert seen["trouble"] == []
    assert changed(house) == {"kvcore/base/words.py", "locale/fr/LC_MESSAGES/kvplanner.po"}
