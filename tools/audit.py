"""Looks up the dependencies: known vulnerabilities, licences, and a bill of materials.

    python tools/audit.py                     all three, for requirements.txt; status 1 for a finding
    python tools/audit.py --live              status 1 also where the index of advisories could not be asked
    python tools/audit.py --refresh FOLDER    tools/advisories.json anew, from a checkout of pypa/advisory-database

Advisories are asked of PyPI (pip-audit). Where PyPI, or the mirror in its place, does not know them, the kept ones are
used, and their age is said: they know nothing that is newer than they are.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
LISTS = ("requirements.txt", "tools/requirements.txt")
KEPT = ROOT / "tools" / "advisories.json"
LICENCES = ROOT / "docs" / "licences.md"
BILL = ROOT / "build" / "sbom.cdx.json"
OLD_DAYS = 30
ALLOWED = (
    "Apache",
    "BSD",
    "MIT",
    "MPL",
    "PSF",
    "Python Software Foundation",
    "ISC",
    "Unlicense",
    "HPND",
    "Zlib",
    "0BSD",
    "CC0",
    "Mozilla Public License",
    "3-Clause BSD",
)
"""Beginnings of licences that go together with our own. Of the MPL only files that we do not change."""

Advisory = Mapping[str, Any]


def pins(name: str) -> dict[str, Requirement]:
    """Package -> its pin, of one list."""
    text = re.sub(r"\\\n\s*", "", (ROOT / name).read_text())
    lines = (line.split(" --hash")[0] for line in text.splitlines() if line and not line.startswith("#"))
    return {canonicalize_name(pin.name): pin for pin in map(Requirement, lines)}


def version_of(pin: Requirement) -> Version:
    """The one version that a pin allows."""
    (only,) = pin.specifier
    return Version(only.version)


def is_affected(version: Version, advisory: Advisory) -> bool:
    """Whether an advisory in OSV's form is about a version.

    Source: ossf.github.io/osv-schema, "Evaluation": listed versions, else the ranges between its events.

    Example:
        >>> advisory = {"ranges": [[{"introduced": "0"}, {"fixed": "2.11.3"}]], "versions": []}
        >>> is_affected(Version("2.11.2"), advisory), is_affected(Version("3.1.6"), advisory)
        (True, False)
    """
    if any(_version(listed) == version for listed in advisory["versions"]):
        return True
    return any(_in_range(version, events) for events in advisory["ranges"])


def _in_range(version: Version, events: Sequence[Mapping[str, str]]) -> bool:
    inside = False
    for event in sorted(events, key=lambda event: _version(next(iter(event.values()))) or Version("0")):
        ((kind, text),) = event.items()
        at = _version(text)
        if at is None or version < at:
            continue
        if kind == "last_affected":
            inside = inside and version == at
        else:
            inside = kind == "introduced"
    return inside


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def kept_findings(pinned: Mapping[str, Requirement], kept: Mapping[str, Any]) -> list[str]:
    """The saved advisories about the pins, a line each."""
    return [
        f"{name} {version_of(pin)}: {advisory['id']} ({', '.join(advisory['aliases'])})"
        for name, pin in pinned.items()
        for advisory in kept["packages"].get(name, ())
        if is_affected(version_of(pin), advisory)
    ]


def live_findings(name: str) -> list[str] | None:
    """PyPI's advisories about a list's pins, a line each; None where one could not be looked up."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", name, "--disable-pip", "--require-hashes"]
    ran = subprocess.run(
        [*command, "--strict", "--format=json", "--progress-spinner=off", "--timeout=20"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    try:
        answered = json.loads(ran.stdout)["dependencies"]
    except (ValueError, KeyError):
        return None
    return [
        f"{one['name']} {one['version']}: {found['id']} ({', '.join(found['aliases'])}), "
        f"fixed in {', '.join(found['fix_versions']) or 'no release'}"
        for one in answered
        for found in one["vulns"]
    ]


def refresh(checkout: Path) -> dict[str, Any]:
    """The advisories on packages of our lists, out of a checkout of github.com/pypa/advisory-database."""
    packages = {}
    for name in sorted({name for each in LISTS for name in pins(each)}):
        texts = [path.read_text() for path in sorted((checkout / "vulns" / name).glob("*.yaml"))]
        found = [advisory for advisory in map(_advisory, map(yaml.safe_load, texts)) if advisory is not None]
        if found:
            packages[name] = found
    newest = max(
        re.findall(
            r"^(?:modified|published): [\"']?(\d{4}-\d\d-\d\d)", "\n".join(_texts(checkout)), re.MULTILINE
        )
    )
    return {"source": "github.com/pypa/advisory-database", "until": newest, "packages": packages}


def _texts(checkout: Path) -> Iterable[str]:
    return (path.read_text() for path in (checkout / "vulns").glob("*/*.yaml"))


def _advisory(given: Mapping[str, Any]) -> dict[str, Any] | None:
    if given.get("withdrawn"):
        return None
    affected = given["affected"]
    ranges = [
        [{kind: str(text) for kind, text in event.items()} for event in one["events"]]
        for part in affected
        for one in part.get("ranges", ())
        if one["type"] == "ECOSYSTEM"
    ]
    # Where there are ranges, the list only spells them out.
    versions = [] if ranges else [str(version) for part in affected for version in part.get("versions", ())]
    return {"id": given["id"], "aliases": given.get("aliases", []), "ranges": ranges, "versions": versions}


def licence_of(name: str) -> str:
    """The licence of an installed package; empty where it names none."""
    facts = importlib.metadata.metadata(name)
    named = [
        one.rpartition(" :: ")[2] for one in facts.get_all("Classifier", []) if one.startswith("License ::")
    ]
    named = [one for one in named if one != "OSI Approved"]
    short = (facts.get("License") or "").strip().split("\n")[0]
    return facts.get("License-Expression") or " AND ".join(named) or (short if len(short) < 60 else "")


def licences(pinned: Mapping[str, Requirement]) -> dict[str, str]:
    """Package -> licence, of the packages installed on this system."""
    return {
        name: licence_of(name) for name, pin in pinned.items() if pin.marker is None or pin.marker.evaluate()
    }


def unsuitable(found: Mapping[str, str]) -> list[str]:
    """Packages whose licence is unknown or not among those allowed."""
    return [
        f"{name}: {licence or 'no licence named'}"
        for name, licence in found.items()
        if not _is_allowed(licence)
    ]


def _is_allowed(expression: str) -> bool:
    words = re.split(r"\s+(?:AND|WITH)\s+|\s*[,;]\s*", expression.replace("(", "").replace(")", ""))
    return all(any(one.strip().startswith(ALLOWED) for one in re.split(r"\s+OR\s+", word)) for word in words)


def licence_table(found: Mapping[str, str]) -> str:
    """docs/licences.md."""
    rows = "".join(f"| {name} | {licence} |\n" for name, licence in sorted(found.items()))
    return (
        "# Licences of what the app runs on\n\nWritten by `make audit`, from the installed packages' own metadata "
        f"(Linux). KV Planner itself is Apache-2.0.\n\n| package | licence |\n|---|---|\n{rows}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Status 1 for a known vulnerability or an unsuitable licence."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--refresh", type=Path, metavar="FOLDER")
    given = parser.parse_args(argv)
    if given.refresh is not None:
        KEPT.write_text(json.dumps(refresh(given.refresh), indent=1) + "\n")
        return 0
    status = _audit_advisories(given.live)
    found = licences(pins(LISTS[0]))
    bad = unsuitable(found)
    print("\n  ".join((f"licences: {len(found)} packages, {len(bad)} unsuitable", *bad)))
    LICENCES.write_text(licence_table(found))
    BILL.parent.mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "cyclonedx_py", "requirements", LISTS[0], "--output-reproducible", "-o", str(BILL)],
        cwd=ROOT, check=True,
    )  # fmt: skip
    print(
        f"bill of materials: {BILL.relative_to(ROOT)}, {len(json.loads(BILL.read_text())['components'])} components"
    )
    return 1 if bad else status


def _audit_advisories(must_be_live: bool) -> int:
    status = 0
    for name in LISTS:
        pinned, findings = pins(name), live_findings(name)
        if findings is not None:
            known = "as PyPI knows them today"
        else:
            kept = json.loads(KEPT.read_text())
            days = (datetime.date.today() - datetime.date.fromisoformat(kept["until"])).days
            findings, known = kept_findings(pinned, kept), f"kept ones until {kept['until']}, {days} days ago"
            known += "; PyPI could not be asked: nothing newer is known" if days > OLD_DAYS else ""
            status |= int(must_be_live)
        headline = f"advisories on {name}: {len(pinned)} packages, {len(findings)} findings ({known})"
        print("\n  ".join((headline, *findings)))
        status |= int(bool(findings))
    return status


if __name__ == "__main__":
    sys.exit(main())
