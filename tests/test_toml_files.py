"""What is kept of a TOML file is what it says, and only as long as it says so."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import kvcore
from kvcore.base.toml_files import keep_all, parsed, text_at

SAID = 'day = 2026-11-23\nlength = 1e3\nname = "a\\r\\n{}"\n[[rows]]\nsizes = [1, 2.0]\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    monkeypatch.setattr("sys.pycache_prefix", None)
    found = tmp_path / "a.toml"
    found.write_text(SAID, "utf-8")
    return found


def content(text: str) -> object:
    """The content of a TOML text, its dates as texts."""
    return json.loads(json.dumps(tomllib.loads(text), default=str))


def kept(folder: Path) -> list[Path]:
    return sorted((folder / "__pycache__").glob("*"))


def test_what_is_kept_is_what_the_file_says(file: Path) -> None:
    first, second = parsed(text_at(file)), parsed(text_at(file))
    assert len(kept(file.parent)) == 1
    assert first == second == content(SAID)
    assert [type(value) for value in second.values()] == [type(value) for value in first.values()]
    assert first is not second


def test_it_is_taken_from_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_all(file.parent)
    monkeypatch.setattr("tomllib.loads", lambda text: pytest.fail("parsed again"))
    assert parsed(text_at(file))["rows"] == [{"sizes": [1, 2.0]}]


@pytest.mark.parametrize("text", [SAID.replace("1e3", "1e4"), SAID + "\nmore = true", "rows = []"])
def test_another_text_is_never_answered_by_the_old_one(file: Path, text: str) -> None:
    parsed(text_at(file))
    file.write_text(text, "utf-8")
    assert parsed(text_at(file)) == content(text)
    assert parsed(text_at(file)) == content(text)
    assert len(kept(file.parent)) == 1


@pytest.mark.parametrize("damage", [b"", b"9\n", b"\xff", b"99999999999\n{}", b"x\n{}"])
def test_what_is_damaged_is_made_anew(file: Path, damage: bytes) -> None:
    parsed(text_at(file))
    kept(file.parent)[0].write_bytes(damage)
    assert parsed(text_at(file)) == content(SAID)
    kept(file.parent)[0].write_bytes(kept(file.parent)[0].read_bytes()[:-3])
    assert parsed(text_at(file)) == content(SAID)


def test_nothing_is_kept_where_nothing_may_be_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    assert parsed(text_at(file)) == content(SAID)
    assert not kept(file.parent)
    (file.parent / "__pycache__").write_text("in the way", "utf-8")
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    assert parsed(text_at(file)) == content(SAID)


def test_a_text_of_no_file_is_parsed() -> None:
    assert parsed(SAID) == content(SAID)
    with pytest.raises(ValueError, match="Expected"):
        parsed("a")


def test_every_file_of_the_package_reads_the_same(file: Path) -> None:
    for path in sorted(Path(kvcore.__file__).parent.rglob("*.toml")):
        file.write_text(path.read_text("utf-8"), "utf-8")
        parsed(text_at(file))
        assert parsed(text_at(file)) == content(path.read_text("utf-8")), path
