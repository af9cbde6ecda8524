"""The site of the documents: its navigation names all, it is built without a warning, it needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from html import unescape
from pathlib import Path

import kvcore
from kvcore.base.errors import MESSAGES
from kvcore.cli import COMMANDS
from kvcore.flags import FLAGS, Kind

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
LOADED = re.compile(r"<(?:script|link|img|source|iframe)\b[^>]*?\b(?:src|href|srcset)=\"([^\"]+)\"")
LOADED_BY_STYLE = re.compile(r"url\(\s*[\"']?([^)\"']+)|@import\s+[\"']([^\"']+)")
ANYTHING = FLAGS["model"]
ELSEWHERE = ("http:", "https:", "//")


def built(source: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What `make site` does, from other documents and into another folder."""
    (line,) = (line for line in (ROOT / "Makefile").read_text("utf-8").splitlines() if "-m sphinx" in line)
    options = line.partition("-m sphinx ")[2].split()
    assert options[-4:] == ["--doctree-dir", "build/site-trees", "docs", "build/site"]
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *options[:-4], "--doctree-dir", str(site / ".trees"), "-c", str(DOCS),
         str(source), str(site)],
        cwd=ROOT, capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip


def test_the_navigation_names_every_document_once() -> None:
    text = (DOCS / "index.md").read_text("utf-8")
    entries = "\n".join(re.findall(r"^```\{toctree\}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    lines = [line for line in entries.splitlines() if line and not line.startswith(":")]
    named = Counter(re.sub(r"^.*<(.+)>$", r"\1", line) for line in lines)
    assert named == Counter([*{path.stem for path in DOCS.glob("*.md")} - {"index"}, "genindex"])


def test_it_is_built_whole_and_needs_no_network(tmp_path: Path) -> None:
    done = built(DOCS, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {
        path.relative_to(tmp_path).as_posix(): path.read_text("utf-8") for path in tmp_path.rglob("*.html")
    }
    assert {f"{path.stem}.html" for path in DOCS.glob("*.md")} <= pages.keys()
    made = {
        "reference-fields.html": FLAGS, "reference-errors.html": MESSAGES, "reference-commands.html": COMMANDS,
        "reference-api.html": ("PlanResult", "max_concurrency", "/api/check"), "changelog.html": ("Unreleased",),
    }  # fmt: skip
    for name, words in made.items():
        text = unescape(re.sub(r"<[^>]+>", "", pages[name]))
        kinds = {Kind.ANY} if words is FLAGS else ()
        missing = [word for word in words if word not in text and FLAGS.get(word, ANYTHING).kind not in kinds]
        assert missing == [], name
        assert "generated:" not in text
    loaded = {each for text in pages.values() for each in LOADED.findall(text)}
    assert any(each.endswith("plan-en.png") for each in loaded)
    for style in tmp_path.rglob("*.css"):
        loaded |= {each for found in LOADED_BY_STYLE.findall(style.read_text("utf-8")) for each in found}
    assert [each for each in loaded if each.startswith(ELSEWHERE)] == []
    reference = "".join(text for name, text in pages.items() if name.startswith("reference"))
    anchors = set(re.findall(r'\bid="(?:module-)?(kvcore\.[\w.]+)"', reference))
    assert {f"kvcore.{name}" for name in kvcore.__all__} <= anchors
    assert {f"kvcore.Plan.{name}" for name in kvcore.Plan.__struct_fields__} <= anchors
    assert "<cite>" not in reference, "a docstring's `code` is not set as code"


def test_a_broken_link_is_an_error(tmp_path: Path) -> None:
    document = tmp_path / "source" / "index.md"
    document.parent.mkdir()
    document.write_text("# Start\n\n[a page](elsewhere.md)\n\n[a heading](#no-such-heading)\n", "utf-8")
    done = built(document.parent, tmp_path / "site")
    assert done.returncode != 0
    assert "elsewhere.md" in done.stderr
    assert "no-such-heading" in done.stderr
