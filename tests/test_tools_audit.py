"""The audit finds what is there to be found, and says how old its knowledge is."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tools import audit

KEPT = json.loads(audit.KEPT.read_text())


def advisory(*events: dict[str, str], versions: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "id": "X-1",
        "aliases": [],
        "ranges": [list(events)] if events else [],
        "versions": list(versions),
    }


@pytest.mark.parametrize(
    ("version", "given", "affected"),
    [
        ("1.0", advisory({"introduced": "0"}), True),
        ("1.0", advisory({"introduced": "0"}, {"fixed": "1.0"}), False),
        ("1.0rc1", advisory({"introduced": "0"}, {"fixed": "1.0"}), True),
        ("1.9", advisory({"introduced": "0"}, {"fixed": "1.10"}), True),
        ("1.5", advisory({"introduced": "1"}, {"fixed": "1.4"}, {"introduced": "1.5"}), True),
        ("1.4.2", advisory({"introduced": "1"}, {"fixed": "1.4"}, {"introduced": "1.5"}), False),
        ("0.9", advisory({"introduced": "1.0"}, {"fixed": "2.0"}), False),
        ("2.0", advisory({"introduced": "1.0"}, {"last_affected": "2.0"}), True),
        ("2.0.1", advisory({"introduced": "1.0"}, {"last_affected": "2.0"}), False),
        ("3.0", advisory(versions=("2.9", "3.0")), True),
        ("3.1", advisory(versions=("2.9", "3.0")), False),
    ],
)
def test_a_range_is_read_as_osv_says(version: str, given: dict[str, Any], affected: bool) -> None:
    assert audit.is_affected(Version(version), given) is affected


@pytest.mark.parametrize(
    ("pin", "known"),
    [
        ("jinja2==2.11.2", "CVE-2020-28493"),
        ("streamlit==1.11.0", "CVE-2022-35918"),
        ("urllib3==2.0.6", "CVE-2023-45803"),
        ("pillow==9.0.0", "CVE-2022-24303"),
    ],
)
def test_saved_advisories_find_known_vulnerabilities(pin: str, known: str) -> None:
    wanted = Requirement(pin)
    assert known in "\n".join(audit.kept_findings({wanted.name: wanted}, KEPT))


def test_the_pins_have_no_saved_advisories() -> None:
    for name in audit.LISTS:
        pinned = audit.pins(name)
        assert len(set(pinned) & set(KEPT["packages"])) > 5
        assert audit.kept_findings(pinned, KEPT) == []


def test_the_saved_advisories_have_a_date() -> None:
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", KEPT["until"])


@pytest.mark.parametrize(
    ("licence", "suits"),
    [
        ("MIT", True), ("BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0", True), ("MIT OR GPL-2.0-only", True),
        ("(MIT OR Apache-2.0) AND BSD-2-Clause", True),
        ("GPL-3.0-only", False), ("MIT AND AGPL-3.0-or-later", False), ("", False), ("Proprietary", False),
        ("Permissive-ish MIT", False),
    ],
)  # fmt: skip
def test_a_licence_suits_or_is_named(licence: str, suits: bool) -> None:
    assert (audit.unsuitable({"package": licence}) == []) is suits


def test_every_licence_suits_and_is_listed() -> None:
    found = audit.licences(audit.pins(audit.LISTS[0]))
    assert audit.unsuitable(found) == []
    listed = set(re.findall(r"^\| ([a-z0-9-]+) \|", audit.LICENCES.read_text(), re.MULTILINE))
    assert set(found) <= listed, "make audit"
