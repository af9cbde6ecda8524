"""Which release an `engine_version` means, and what that release does."""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Annotated, Final

from msgspec import Meta
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from kvcore.base.errors import Notice, ScenarioError, invalid, notice
from kvcore.base.kept import kept
from kvcore.engine.protocol import Engine
from kvcore.engine.records import APPROXIMATED, Release
from kvcore.engine.switches import AttentionBackend, AttentionKind, CacheWidth, Switches, V1Engine
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


def find_release(engine: Engine, engine_version: str | None) -> Release:
    """The vLLM release whose behaviour stands for `engine_version`: the latest known one not above it.

    None is the newest. Development builds stand for the latest release that main had behind it. Plug-ins are
    followed to the vLLM that they run on; numbers from 0.6 on that a plug-in never had are read as vLLM's own.

    Raises ScenarioError `invalid-value` for a text that is no version, `engine-version-too-old` below the oldest.

    Example:
        >>> from kvcore.engines.registry import find_engine
        >>> str(find_release(find_engine("vllm"), "0.11.2.dev278+g55c6a5c").version)
        '0.11.1'
        >>> find_release(find_engine("vllm"), "v0.19.0").notices
        ()
    """
    known, own = vllm_releases(), engine.facts.releases
    if engine_version is None:
        return _release(engine.releases()[-1][1])
    asked = parse_version(engine_version)
    wanted = _host_version(own, asked) if own else asked if asked.dev is None else _behind(asked)
    used = next((version for version in reversed(known) if version <= wanted), None)
    if used is None:
        raise ScenarioError("engine-version-too-old", "engine_version", engine_version, oldest=str(known[0]))
    exact = used == Version(wanted.public) and asked.public == Version(asked.public).base_version + (
        f".post{asked.post}" if asked.post is not None else ""
    )
    return _release(used) if exact else _release(used, _said(APPROXIMATED, used, asked=engine_version))


def planned_release(engine: Engine, scenario: Scenario) -> Release:
    """The release that `scenario` is planned as: the one it names, else the newest that can do what it asks.

    Without a version, VLLM_USE_V1=0 is the newest release that still has the first engine, and a model class that was
    dropped the last release that has it. Variables by which a plug-in was given the memory of the card are for the last
    release that reads them.

    Raises ScenarioError as `find_release` does.

    Source: vllm/envs.py:VLLM_USE_V1 (0.8.5); vllm/worker removed (0.11.0).
    """
    if scenario.engine_version is None and reads_variables(engine, scenario.env):
        return find_release(engine, str(engine.last_with_variables))
    if scenario.engine_version is not None or engine.facts.releases:
        return find_release(engine, scenario.engine_version)
    return _assumed_release(scenario.config, scenario.env.get("VLLM_USE_V1") == "0")


def reads_variables(engine: Engine, env: Mapping[str, str]) -> bool:
    """Whether `env` has a variable by which some release of `engine` is given the memory of a card."""
    variables = engine.facts.memory_variables
    return variables is not None and any(name in env for name in variables.names)


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
    """The release that a development build of main has behind it: by its count, and that of an earlier candidate.

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
    """Switches of `version`.

    Example:
        >>> switches_of(Version("0.19.1")).gpu_memory_utilization
        0.9
    """
    return VLLM.load().switches.at(version)


def vllm_releases() -> tuple[Version, ...]:
    """Every known vLLM release, oldest first."""
    return VLLM.load().releases


@lru_cache(maxsize=256)
def vllm_release(number: str) -> Version:
    """A known release of vLLM. Raises ValueError for any other number.

    Example:
        >>> vllm_release("0.18.0")
        <Version('0.18.0')>
    """
    version = Version(number)
    if version not in vllm_releases():
        raise ValueError(f"{number} is no release of vLLM")
    return version


@cache
def releases_of(engine: Engine) -> tuple[tuple[Version, Version], ...]:
    """Every known release of an engine, oldest first, each with the vLLM release that it runs on.

    Example:
        >>> from kvcore.engines.registry import find_engine
        >>> [str(version) for version in releases_of(find_engine("vllm-ascend"))[-1]]
        ['0.23.0.post1', '0.23.0']
    """
    own = engine.facts.releases
    return tuple(own.items()) or tuple((version, version) for version in vllm_releases())


def assumed_version(engine: Engine, scenario: Scenario) -> str:
    """The release of `engine` that `scenario` is planned as while it names none.

    Example:
        >>> from kvcore.engines.registry import engine_of
        >>> from kvcore.wire.request import scenario_from_request
        >>> scenario = scenario_from_request({"model": "baichuan-inc/Baichuan2-7B-Chat"})
        >>> assumed_version(engine_of(scenario), scenario)
        '0.23.0'
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"})
        >>> assumed_version(engine_of(scenario), scenario)
        '0.23.0'
    """
    own = engine.facts.releases
    if own and reads_variables(engine, scenario.env):
        return str(engine.last_with_variables)
    if own:
        # One name for it everywhere: plans, images and files name the release that a post-release repairs.
        newest = next(reversed(own))
        base = Version(newest.base_version)
        return str(base if base in own else newest)
    return str(planned_release(engine, replace(scenario, engine_version=None)).version)


def other_versions(engine: Engine, scenario: Scenario) -> tuple[Version, ...]:
    """The releases of vLLM that the engine's other releases run on, oldest first, as far as the model is in them; none
    where the release is stated, or where only the newest is meant.

    Example:
        >>> from kvcore.engines.registry import engine_of
        >>> from kvcore.wire.request import scenario_from_request
        >>> scenario = scenario_from_request({"model": "Qwen/Qwen3-8B", "engine": "vllm-ascend"})
        >>> [str(one) for one in other_versions(engine_of(scenario), scenario)]
        ['0.11.0', '0.13.0', '0.18.0']
        >>> asked = {"model": "deepseek-ai/DeepSeek-V4-Flash", "engine": "vllm-ascend"}
        >>> other_versions(engine_of(scenario_from_request(asked)), scenario_from_request(asked))
        ()
    """
    unstated = engine.facts.unstated
    if scenario.engine_version is not None or unstated is None:
        return ()
    planned, names = planned_release(engine, scenario).version, scenario.config.architectures
    hosts = {host for host in engine.facts.releases.values() if host >= unstated.since and host != planned}
    return tuple(sorted(host for host in hosts if is_surely_there(names, host)))
