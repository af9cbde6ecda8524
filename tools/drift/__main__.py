"""python -m tools.drift: news of the newest releases on the package index that the tables lack.

    python -m tools.drift [--release 0.33.0] [--before 0.32.0] [--parity] [--write]

Downloads the wheels once into build/drift, keeps their source and runs none of it; with --parity the engine's own
planner and model classes are asked as well (make parity). --write keeps the report in docs/drift.md. The exit status
is 0 where the tables lack nothing.
"""

from __future__ import annotations

import argparse
import datetime
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.version import Version

from kvcore.engines.registry import find_engine
from kvcore.engines.vllm.classes import CLASSES
from kvcore.engines.vllm.versions import vllm_releases
from kvcore.flags import FLAGS
from kvcore.model.families import READERS, generating_names
from tools.drift import index, learn
from tools.drift.citations import TableSources, changes, tables_of
from tools.drift.report import Chapter, keep, markdown
from tools.drift.source import Source

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "drift"
PAGE = ROOT / "docs" / "drift.md"
PLUGINS = ("vllm-ascend",)
PLACES_OF_PARITY = (
    "known differences",
    "deployments",
    "all ",
    "vLLM ",
    "command lines",
    "cases agree",
    "classes:",
)
"""Lines of make parity that a report keeps."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--release", type=Version, help="the release to read; else the newest on the index")
    parser.add_argument("--before", type=Version, help="the one to compare with; else the one before it")
    parser.add_argument("--parity", action="store_true", help="run make parity with it too")
    parser.add_argument("--write", action="store_true", help="keep the report in docs/drift.md")
    options = parser.parse_args()
    offered = index.published("vllm")
    release = options.release or offered[-1]
    before = options.before or max(known for known in vllm_releases() if known < release)
    chapters = [
        Chapter(title="Releases", lines=list(unknown_releases(offered))),
        *read(release, before),
        Chapter(
            title="Places that the tables cite",
            lines=list(unread_places(release, tables_of(ROOT / "kvcore"))),
        ),
    ]
    status = any(chapter.lines for chapter in chapters)
    if options.parity:
        lines, differs = parity(release)
        chapters.append(Chapter(title="Parity", lines=lines))
        status |= differs
    about = f"vLLM {release}, the newest of {len(offered)} on the index, next to {before}."
    report = markdown(datetime.datetime.now(datetime.UTC).date().isoformat(), about, chapters)
    print(report)
    if options.write:
        keep(report, PAGE)
    return int(status)


def unknown_releases(offered: Sequence[Version]) -> Iterator[str]:
    """Packages of the engine and of its plug-ins."""
    yield from learn.releases("vllm", vllm_releases(), offered)
    for name in PLUGINS:
        known = list(find_engine(name).facts.releases)
        yield from learn.releases(name, known, index.published(name))


def read(release: Version, before: Version) -> Iterator[Chapter]:
    """News in the source of a release, compared with the release before and with our tables."""
    old, new = (Source(index.source_of("vllm", version, KEPT)) for version in (before, release))
    is_read = {name for name in new.supported_classes if {name, *generating_names(name)} & READERS.keys()}
    absences = CLASSES.load().registry.absences
    yield Chapter(title="Model classes", lines=list(learn.classes(old, new, release, absences, is_read)))
    yield Chapter(title="Flags", lines=list(learn.flags(old, new, FLAGS, release)))
    yield Chapter(title="Defaults", lines=list(learn.defaults(old, new, FLAGS)))


def unread_places(release: Version, tables: Sequence[TableSources]) -> Iterator[str]:
    """Table by table: the places that changed since it was last compared, or that it may be raised."""
    for table in tables:
        if table.reviewed >= release or table.reviewed not in vllm_releases():
            continue
        old, new = (Source(index.source_of("vllm", version, KEPT)) for version in (table.reviewed, release))
        found = changes(table.citations, old, new)
        lines = list(learn.citations(found))
        if found and not lines:
            lines = [f"all {len(found)} places read the same"]
        yield from (f"{table.file} ({table.reviewed}): {line}" for line in lines)


def parity(release: Version) -> tuple[list[str], bool]:
    """Runs the engine's own classes and planner on the catalogue; the lines to keep, and whether anything differs."""
    done = subprocess.run(
        ["make", "parity", f"PARITY_VLLM={release}", f"PYTHON={sys.executable}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    return [line.strip() for line in lines if line.startswith(PLACES_OF_PARITY)], done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
