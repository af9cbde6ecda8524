"""Which release an `engine_version` means, and what that release does."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from kvcore.base.errors import Notice, ScenarioError, invalid, notice
from kvcore.base.kept import kept
from kvcore.engine.protocol import Engine
from kvcore.engine.switches import AttentionBackend, AttentionKind, CacheWidth, Switches, V1Engine
from kvcore.engines.registry import find_engine
from kvcore.engines.vllm.classes import is_surely_there
from kvcore.model.config import ModelConfig
from kvcore.scenario import Scenario
from kvcore.tables import (
    OLDEST,
    ByRelease,
    CapabilityNumber,
    Count,
    Record,
    ReleaseRange,
    Reviewed,
    Source,
    TableFile,
)

APPROXIMATED: Final = "engine-version-approximated"


class BackendRow(ReleaseRange, frozen=True, kw_only=True):
    """One line of the table of attention backends."""

    source: Source
    backend: AttentionBackend
    block_size: Annotated[int, Meta(ge=1, le=1024)]
    attention: AttentionKind = AttentionKind.PLAIN
    cache: CacheWidth = CacheWidth.ANY
    capability: tuple[CapabilityNumber, CapabilityNumber] = (0, 999)
    forced: bool = False


class DevelopmentRow(Record, frozen=True, kw_only=True):
    """From which count of commits on a release is behind the development builds of one series."""

    source: Source
    series: Version
    commits: Count
    behind: Version


class VllmTables(Reviewed, frozen=True, kw_only=True):
    """releases.toml."""

    releases: tuple[Version, ...]
    development: tuple[DevelopmentRow, ...]
    switches: ByRelease[Switches]
    backends: tuple[BackendRow, ...]
    """In the order in which they are searched."""

    def __post_init__(self) -> None:
        if list(self.releases) != sorted(set(self.releases)):
            raise ValueError("releases are listed once each, oldest first")
        known = frozenset((OLDEST, *self.releases))
        for name, timeline in self.switches.timelines.items():
            if unknown := [str(since) for since, _ in timeline.entries if since not in known]:
                raise ValueError(f"switches {name}: {unknown[0]} is none of the releases")


VLLM: Final = TableFile("kvcore.engines.vllm", "releases.toml", VllmTables)


class Release(Struct, frozen=True, kw_only=True):
    """A known vLLM release."""

    version: Version
    switches: Switches
    notices: tuple[Notice, ...] = ()
    """`engine-version-approximated` when another version was asked for; why it is not the newest when none was."""

    @property
    def is_exact(self) -> bool:
        """Whether no other version was asked for: what a development build refuses is not known."""
        return all(notice.code != APPROXIMATED for notice in self.notices)


def knows_release(engine: str, engine_version: str | None) -> bool:
    """Whether `find_release` finds one.

    Example:
        >>> knows_release("vllm", "0.19.0"), knows_release("vllm", "0.3.0")
        (True, False)
    """
    try:
        find_release(engine, engine_version)
    except ScenarioError:
        return False
    return True


def find_release(engine: str, engine_version: str | None) -> Release:
    """The vLLM release whose behaviour stands for `engine_version`: the latest known one not above it.

    None is the newest. Development builds stand for the latest release that main had behind it. Plug-ins are
    followed to the vLLM that they run on; numbers from 0.6 on that a plug-in never had are read as vLLM's own.

    Raises ScenarioError `invalid-value` for a text that is no version, `engine-version-too-old` below the oldest.

    Example:
        >>> str(find_release("vllm", "0.11.2.dev278+g55c6a5c").version)
        '0.11.1'
        >>> find_release("vllm", "v0.19.0").notices
        ()
    """
    known, own = vllm_releases(), find_engine(engine).releases
    if engine_version is None:
        return _release(releases_of(engine)[-1][1])
    asked = parse_version(engine_version)
    wanted = _host_version(own, asked) if own else asked if asked.dev is None else _behind(asked)
    used = next((version for version in reversed(known) if version <= wanted), None)
    if used is None:
        raise ScenarioError("engine-version-too-old", "engine_version", engine_version, oldest=str(known[0]))
    exact = used == Version(wanted.public) and asked.public == Version(asked.public).base_version + (
        f".post{asked.post}" if asked.post is not None else ""
    )
    return _release(used) if exact else _release(used, _said(APPROXIMATED, used, asked=engine_version))


def planned_release(scenario: Scenario) -> Release:
    """The release that `scenario` is planned as: the one it names, else the newest that can do what it asks.

    Without a version, VLLM_USE_V1=0 is the newest release that still has the first engine, and a model class that was
    dropped the last release that has it. Variables by which a plug-in was given the memory of the card are for the last
    release that reads them.

    Raises ScenarioError as `find_release` does.

    Source: vllm/envs.py:VLLM_USE_V1 (0.8.5); vllm/worker removed (0.11.0).
    """
    engine = find_engine(scenario.engine)
    if scenario.engine_version is None and reads_variables(engine, scenario.env):
        return find_release(scenario.engine, str(engine.last_with_variables))
    if scenario.engine_version is not None or engine.releases:
        return find_release(scenario.engine, scenario.engine_version)
    return _assumed_release(scenario.config, scenario.env.get("VLLM_USE_V1") == "0")


def reads_variables(engine: Engine, env: Mapping[str, str]) -> bool:
    """Whether `env` has a variable by which some release of `engine` is given the memory of a card."""
    return engine.memory_variables is not None and any(name in env for name in engine.memory_variables.names)


def measures_memory(scenario: Scenario) -> bool:
    """Whether the release that `scenario` is planned as looks at the card at start.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> measures_memory(scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": "vllm-mindspore"}))
        True
    """
    return find_engine(scenario.engine).measures_memory_in(planned_release(scenario).version)


@kept
def _assumed_release(config: ModelConfig, asks_for_v0: bool) -> Release:
    architectures = config.architectures
    releases = vllm_releases()
    if asks_for_v0:
        releases = tuple(one for one in releases if switches_of(one).v1_engine is not V1Engine.ONLY)
    fitting = (version for version in reversed(releases) if is_surely_there(architectures, version))
    used = next(fitting, releases[-1])
    notices = [_said("v0-release-assumed", used)] if asks_for_v0 else []
    if used != releases[-1]:
        notices.append(_said("release-assumed-for-model", used, value=architectures[0]))
    return _release(used, *notices)


def _release(version: Version, *notices: Notice) -> Release:
    return Release(version=version, switches=switches_of(version), notices=notices)


def _said(code: str, used: Version, **facts: str) -> Notice:
    return notice(code, "engine_version", used=used, **facts)


def _host_version(releases: Mapping[Version, Version], asked: Version) -> Version:
    """The vLLM that a plug-in version runs on; development and candidate versions belong to the number they name."""
    base = Version(asked.base_version)
    for own, host in releases.items():
        if Version(own.base_version) == base:
            return host
    if base >= vllm_releases()[0]:
        return base
    older = [host for own, host in releases.items() if own <= asked]
    return older[-1] if older else base


def _behind(asked: Version) -> Version:
    """What a development build of main has behind it: releases by its count, and the release of an earlier candidate.

    `X rc2.dev5` is five commits after the first candidate of X; `rc1.dev5` follows a tag that no release came of.
    """
    candidate = asked.pre[1] if asked.pre else 0
    series = Version(asked.base_version + (f"rc{candidate}" if asked.pre else ""))
    rows = (row for row in VLLM.load().development if row.series == series)
    passed = [row.behind for row in rows if row.commits <= (asked.dev or 0)]
    if passed:
        return max(passed)
    return Version(asked.base_version) if candidate > 1 else asked


def parse_version(text: str) -> Version:
    """A version as a log prints it.

    Raises ScenarioError `invalid-value`.

    Example:
        >>> str(parse_version("v0.20.0rc1"))
        '0.20.0rc1'
    """
    try:
        return Version(text.strip())
    except InvalidVersion:
        raise invalid("engine_version", text, "it must be a version such as 0.19.0") from None


@lru_cache(maxsize=256)
def switches_of(version: Version) -> Switches:
    """What `version` does.

    Example:
        >>> switches_of(Version("0.19.1")).gpu_memory_utilization
        0.9
    """
    return VLLM.load().switches.at(version)


def vllm_releases() -> tuple[Version, ...]:
    """Every known vLLM release, oldest first."""
    return VLLM.load().releases


def first_without_v0() -> Version:
    """The release that removed the first engine.

    Example:
        >>> str(first_without_v0())
        '0.11.0'
    """
    return next(one for one in vllm_releases() if switches_of(one).v1_engine is V1Engine.ONLY)


def releases_of(engine: str) -> tuple[tuple[Version, Version], ...]:
    """Every known release of an engine, oldest first, each with the vLLM release that it runs on.

    Example:
        >>> [str(version) for version in releases_of("vllm-ascend")[-1]]
        ['0.23.0.post1', '0.23.0']
    """
    own = find_engine(engine).releases
    return tuple(own.items()) or tuple((version, version) for version in vllm_releases())


def assumed_version(scenario: Scenario) -> str:
    """The release of its engine that `scenario` is planned as while it names none.

    Example:
        >>> from kvcore.wire.request import scenario_from_request
        >>> assumed_version(scenario_from_request({"model": "baichuan-inc/Baichuan2-7B-Chat"}))
        '0.23.0'
        >>> assumed_version(scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"}))
        '0.23.0'
    """
    engine = find_engine(scenario.engine)
    if engine.releases and reads_variables(engine, scenario.env):
        return str(engine.last_with_variables)
    if engine.releases:
        # One name for it everywhere: plans, images and files name the release that a post-release repairs.
        newest = next(reversed(engine.releases))
        base = Version(newest.base_version)
        return str(base if base in engine.releases else newest)
    return str(planned_release(replace(scenario, engine_version=None)).version)
