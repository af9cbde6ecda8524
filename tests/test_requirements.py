"""The lists of pins: complete, hashed, the same for what both have, and what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LISTS = ("requirements.txt", "tools/requirements.txt")
AGENTS = "requirements-agents.txt"
DATABASES = "tools/databases.txt"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name: str) -> dict[str, tuple[Requirement, int]]:
    """Package -> its pin and its number of hashes."""
    text = re.sub(r"\\\n\s*", "", (ROOT / name).read_text())
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            wanted, *hashes = line.split(" --hash=sha256:")
            assert all(re.fullmatch(r"[0-9a-f]{64}\s*", one) for one in hashes), line
            requirement = Requirement(wanted)
            found[canonicalize_name(requirement.name)] = (requirement, len(hashes))
    return found


@pytest.mark.parametrize("name", [*LISTS, AGENTS, DATABASES])
def test_every_package_is_pinned_with_hashes(name: str) -> None:
    assert len(pins(name)) > 20
    for requirement, hashes in pins(name).values():
        assert [one.operator for one in requirement.specifier] == ["=="], requirement
        assert hashes >= 1, requirement


def test_what_lists_share_is_the_same() -> None:
    app, tools, databases = map(pins, [*LISTS, DATABASES])
    assert {name: str(pin) for name, (pin, _) in app.items()} == {name: str(tools[name][0]) for name in app}
    agents = pins(AGENTS)
    assert agents.keys() <= tools.keys()
    assert all(agents[name][0].specifier == tools[name][0].specifier for name in agents)
    shared = databases.keys() & tools.keys()
    assert all(databases[name][0].specifier == tools[name][0].specifier for name in shared)


@pytest.mark.parametrize(
    ("name", "extras"),
    [(LISTS[0], ["app"]), (AGENTS, ["mcp"]), (LISTS[1], list(PROJECT["optional-dependencies"]))],
)
def test_the_pins_are_those_that_the_project_asks_for(name: str, extras: list[str]) -> None:
    """After a change of pyproject.toml: make lock."""
    pinned = pins(name)
    asked = [
        *PROJECT["dependencies"],
        *(each for extra in extras for each in PROJECT["optional-dependencies"][extra]),
    ]
    for text in asked:
        wanted = Requirement(text)
        (version,) = pinned[canonicalize_name(wanted.name)][0].specifier
        assert wanted.specifier.contains(version.version), f"{text}: make lock"
