"""The drift watch on two small wheels that are made here: what came, went, moved, or reads otherwise. No network."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from packaging.version import Version

from kvcore.engines.vllm.classes import Absence
from kvcore.flags import Flag, Kind
from kvcore.tables import NEVER, OLDEST
from tools.drift import index, learn
from tools.drift.citations import Change, Citation, TableSources, changes, cited, tables_of
from tools.drift.report import Chapter, keep, markdown
from tools.drift.source import Source

OLD = Version("1.0")
NEW = Version("1.1")

ARGUMENTS = """
from vllm.config.cache import CacheConfig, CacheDType


class EngineArgs:
    kv_cache_dtype: CacheDType = CacheConfig.cache_dtype

    def add_cli_args(parser):
        parser.add_argument("--kv-cache-dtype", "-kv")
        parser.add_argument("--{flag}")
"""

CACHE = """
from typing import Literal

CacheDType = Literal["auto", "fp8", "{dtype}"]


class CacheConfig:
    block_size: int = 16
    gpu_memory_utilization: float = Field(default={share}, gt=0)
    cache_dtype: CacheDType = "auto"
    swap: int = {swap}
"""

REGISTRY = """
_TEXT_GENERATION_MODELS = {{
    "LlamaForCausalLM": ("llama", "LlamaForCausalLM"),
    {text}
}}
_MULTIMODAL_MODELS = {{{multimodal}}}
_SPECULATIVE_DECODING_MODELS = {{"DraftModel": ("draft", "Draft")}}
_PREVIOUSLY_SUPPORTED_MODELS = {{{former}}}
"""

OLD_WORKER = '''
class Worker:
    """Measurements of a worker."""

    def measure(self, total):
        # half of it
        return total // 2

    def plan(self, blocks):
        return blocks + 1


def page(tokens):
    return tokens * 16


def gone():
    return 1
'''

NEW_WORKER = '''
class Worker:
    """Other words about the same."""

    def measure(self, total):
        return (
            total // 2
        )

    def plan(self, blocks):
        return blocks + 2
'''

OLD_FILES = {
    "vllm/engine/arg_utils.py": ARGUMENTS.format(flag="swap-space"),
    "vllm/config/cache.py": CACHE.format(dtype="int8", share=0.9, swap=4),
    "vllm/model_executor/models/registry.py": REGISTRY.format(
        text='"FormerForCausalLM": ("former", "F"), "SilentForCausalLM": ("silent", "S"),',
        multimodal="",
        former="",
    ),
    "vllm/worker/worker.py": OLD_WORKER,
    "vllm/_C.abi3.so": "compiled",
}
NEW_FILES = {
    "vllm/engine/arg_utils.py": ARGUMENTS.format(flag="watchdog"),
    "vllm/config/cache.py": CACHE.format(dtype="nvfp4", share=0.92, swap=8),
    "vllm/model_executor/models/registry.py": REGISTRY.format(
        text='"NewForCausalLM": ("new", "N"), "BackForCausalLM": ("back", "B"),',
        multimodal='"SeeingModel": ("seeing", "S")',
        former='"FormerForCausalLM": "1.0"',
    ),
    "vllm/worker/worker.py": NEW_WORKER,
    "vllm/worker/pages.py": "def page(tokens):\n    return tokens * 16\n",
}


def wheel(folder: Path, project: str, version: Version, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{project}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def releases(tmp_path: Path) -> tuple[Source, Source]:
    """Both releases as the tool gets them: pip downloads a wheel, the tool unpacks it."""
    wheels = {OLD: OLD_FILES, NEW: NEW_FILES}

    def pip(arguments: Sequence[str]) -> str:
        project, version = arguments[-1].split("==")
        wheel(
            Path(arguments[arguments.index("--dest") + 1]),
            project,
            Version(version),
            wheels[Version(version)],
        )
        return ""

    old, new = (Source(index.source_of("vllm", version, tmp_path / "kept", pip)) for version in wheels)
    return old, new


def test_only_final_releases_of_the_index_in_order() -> None:
    asked = []

    def pip(arguments: Sequence[str]) -> str:
        asked.append(list(arguments))
        return "vllm (1.1)\nAvailable versions: 1.10, 1.1, 1.0.post1, 1.0, strange\n  INSTALLED: 1.0\n"

    assert [str(one) for one in index.published("vllm", pip)] == ["1.0", "1.0.post1", "1.1", "1.10"]
    assert asked == [["index", "versions", "vllm"]]
    assert index.published("nothing", lambda _: "") == ()


def test_a_wheel_is_downloaded_once_and_its_kernels_are_left_out(tmp_path: Path) -> None:
    calls = []

    def pip(arguments: Sequence[str]) -> str:
        calls.append(arguments[-1])
        wheel(Path(arguments[arguments.index("--dest") + 1]), "vllm", OLD, OLD_FILES)
        return ""

    first = index.source_of("vllm", OLD, tmp_path, pip)
    assert index.source_of("vllm", OLD, tmp_path, pip) == first
    assert calls == ["vllm==1.0"]
    assert sorted(path.name for path in first.rglob("*.*")) == [
        "arg_utils.py",
        "cache.py",
        "registry.py",
        "worker.py",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["vllm-1.0"]


def test_releases_in_no_table() -> None:
    offered = map(Version, ("0.8", "1.0", "1.1", "1.2"))
    known = {Version("1.0"), Version("1.1")}
    assert list(learn.releases("vllm", known, offered)) == ["vllm 1.2 is on the index and in no table"]


def test_new_model_classes_are_found(releases: tuple[Source, Source]) -> None:
    absences = {
        "NewForCausalLM": (Absence(first=OLDEST, last=OLD, since=NEW),),
        "FormerForCausalLM": (Absence(first=NEW, last=NEVER, until=OLD),),
        "BackForCausalLM": (Absence(first=OLD, last=NEVER, until=OLDEST),),
    }
    found = list(learn.classes(*releases, NEW, absences, {"NewForCausalLM", "SeeingModel"}))
    assert found == [
        "`BackForCausalLM` is there again, and classes.toml says that it is not",
        "`SilentForCausalLM` is gone",
        "`SeeingModel` is new, and in no row of classes.toml",
        "new, and read by no family: `BackForCausalLM`",
    ]


def test_a_class_that_a_table_expects_and_the_release_dropped(releases: tuple[Source, Source]) -> None:
    absences = {"SilentForCausalLM": (Absence(first=OLDEST, last=Version("0.5"), since=OLD),)}
    found = list(learn.classes(*releases, NEW, absences, set()))
    assert "`SilentForCausalLM` is gone, and classes.toml says that it is there" in found


def test_a_registry_that_is_not_there_is_said(tmp_path: Path) -> None:
    empty = Source(tmp_path)
    assert list(learn.classes(empty, empty, NEW, {}, set())) == [
        "the registry of model classes was not found where it was"
    ]


def test_flags_and_their_values(releases: tuple[Source, Source]) -> None:
    dtype = Flag(
        name="kv_cache_dtype", kind=Kind.CHOICE, choices=("auto", "fp8", "int8"), cli=("--kv-cache-dtype",)
    )
    assert list(learn.flags(*releases, {"kv_cache_dtype": dtype}, NEW)) == [
        "`--kv-cache-dtype nvfp4` is taken and not offered",
        "`--kv-cache-dtype int8` is taken no more and offered",
        "`--swap-space` is gone",
        "new, and no field of a request: `--watchdog`",
    ]
    swap = Flag(name="max_loras", kind=Kind.INTEGER, minimum=1, maximum=9, cli=("--swap-space",))
    assert "`--swap-space` is gone from the argument parser" in list(
        learn.flags(*releases, {"max_loras": swap}, NEW)
    )


def test_defaults_of_the_fields_of_a_request_first(releases: tuple[Source, Source]) -> None:
    share = Flag(name="gpu_memory_utilization", kind=Kind.NUMBER, minimum=0, maximum=1)
    assert list(learn.defaults(*releases, {"gpu_memory_utilization": share})) == [
        "`CacheConfig.gpu_memory_utilization` is `0.92`, was `0.9`",
        "other defaults that changed: `CacheConfig.swap`",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "vllm/config/cache.py:CacheDType (0.19.1 without, 0.20.2 with)",
            ["vllm/config/cache.py:CacheDType"],
        ),
        (
            "vllm/models/a/indexer.py, sparse.py (0.28.0)",
            ["vllm/models/a/indexer.py", "vllm/models/a/sparse.py"],
        ),
        (
            "vllm/a.py:one and Two.three, four (0.1)",
            ["vllm/a.py:one", "vllm/a.py:Two.three", "vllm/a.py:four"],
        ),
        ("fit: dense models, 0.9.2 to 0.27", []),
    ],
)
def test_citations_of_a_source_are_found(text: str, expected: list[str]) -> None:
    assert [str(one) for one in cited(text)] == expected


def test_changes_of_cited_places(releases: tuple[Source, Source]) -> None:
    names = ("Worker.measure", "measure", "Worker.plan", "Worker", "page", "gone", "never")
    places = [Citation(path="worker/worker.py", name=name) for name in names]
    elsewhere = Citation(path="torch/cuda.py", name="allocate")
    found = {place.name: change for place, change in changes([*places, elsewhere], *releases).items()}
    assert found == {
        "Worker.measure": (Change.SAME, ""),  # comments, docstrings and line breaks are no difference
        "measure": (Change.SAME, ""),
        "Worker.plan": (Change.CHANGED, ""),
        "Worker": (Change.CHANGED, ""),
        "page": (Change.MOVED, "vllm/worker/pages.py"),
        "gone": (Change.GONE, ""),
    }
    whole = changes([Citation(path="vllm/config/*.py", name="CacheDType")], *releases)
    assert {str(place): change for place, (change, _) in whole.items()} == {
        "vllm/config/cache.py:CacheDType": Change.CHANGED
    }
    assert list(learn.citations(changes(places, *releases))) == [
        "changed: `vllm/worker/worker.py:Worker`",
        "changed: `vllm/worker/worker.py:Worker.plan`",
        "gone: `vllm/worker/worker.py:gone`",
        "moved, unchanged: `vllm/worker/worker.py:page` to `vllm/worker/pages.py`",
    ]


def test_tables_and_their_sources(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "a.toml").write_text(
        'reviewed = "1.0"\n[x]\nsource = "vllm/a.py:f (1.0)"\n[[y]]\nsource = "vllm/a.py:f, b.py (1.0)"\n',
        "utf-8",
    )
    (tmp_path / "b.toml").write_text('source = "vllm/a.py:f"\n', "utf-8")
    assert tables_of(tmp_path) == (
        TableSources(
            file="inner/a.toml",
            reviewed=OLD,
            citations=(Citation(path="vllm/a.py", name="f"), Citation(path="vllm/b.py")),
        ),
    )


def test_every_table_of_the_package_is_read() -> None:
    """The real tables: each that says `reviewed` is found, and most cite the engine."""
    found = {table.file: table for table in tables_of(Path(learn.__file__).parents[2] / "kvcore")}
    assert {"cache/planner.toml", "engines/vllm/releases.toml", "memory/framework.toml"} <= found.keys()
    assert (
        Citation(path="vllm/config/cache.py", name="CacheDType")
        in found["engines/vllm/availability.toml"].citations
    )


def test_the_report_takes_the_place_of_the_last_one(tmp_path: Path) -> None:
    page = tmp_path / "drift.md"
    page.write_text("# The chore\n\nWords.\n\n## Last report\n\nold\n", "utf-8")
    chapters = (
        Chapter(title="Flags", lines=("`--a` is gone", "`--b` is gone")),
        Chapter(title="Defaults", lines=()),
    )
    keep(markdown("2026-11-22", "vLLM 1.1.", chapters), page)
    assert page.read_text("utf-8") == (
        "# The chore\n\nWords.\n\n## Last report\n\n2026-11-22. vLLM 1.1.\n\n"
        "### Flags\n\n* `--a` is gone\n* `--b` is gone\n\n### Defaults\n\nnothing.\n"
    )
    other = tmp_path / "other.md"
    other.write_text("# Nothing\n", "utf-8")
    with pytest.raises(ValueError, match="no heading"):
        keep("x", other)
