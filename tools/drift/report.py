"""The report in Markdown, and its place in docs/drift.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HEADING: Final = "## Last report"


@dataclass(frozen=True, kw_only=True, slots=True)
class Chapter:
    """A heading and its findings, or `nothing` for none."""

    title: str
    lines: Sequence[str]
    nothing: str = "nothing"


def markdown(date: str, about: str, chapters: Iterable[Chapter]) -> str:
    """The whole section, heading included."""
    parts = [HEADING, f"{date}. {about}"]
    for chapter in chapters:
        parts.append(f"### {chapter.title}")
        parts.append("\n".join(f"* {line}" for line in chapter.lines) or f"{chapter.nothing}.")
    return "\n\n".join(parts) + "\n"


def keep(report: str, page: Path) -> None:
    """Puts the report in the place of the page's last one. Raises ValueError where the page has no such heading."""
    before, heading, _ = page.read_text("utf-8").partition(HEADING)
    if not heading:
        raise ValueError(f"{page.name} has no heading {HEADING!r}")
    page.write_text(before + report, "utf-8")
