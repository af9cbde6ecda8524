"""Which release an `engine_version` means, and what that release does: `*.toml` beside this file, read strictly."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Final

from packaging.version import InvalidVersion, Version

from kvcore.engine.architectures import is_surely_there
from kvcore.engine.rooms import find_engine
from kvcore.errors import CatalogueError, Notice, ScenarioError
from kvcore.kept import kept
from kvcore.model.config import ModelConfig
from kvcore.scenario import Scenario

OLDEST: Final = Version("0.0")
NEVER: Final = Version("9999")
APPROXIMATED: Final = "engine-version-approximated"


@dataclass(frozen=True, kw_only=True, slots=True)
class Switches:
    """What one version does; each field is a table of vllm.toml, which names its source."""

    v1_engine: str
    """never, opt-in, default, only."""
    gpu_memory_utilization: float
    budget: str
    """absolute, parts, consumed."""
    communication_in_budget: bool
    """NCCL and all-reduce buffers are created after the memory snapshot."""
    graph_estimate: str
    """Whether an estimate of the CUDA graphs is taken off the budget: none, when-asked, counted."""
    kv_cache_memory_bytes: bool
    """`--kv-cache-memory-bytes` exists."""
    batch_tiers: str
    """Which cards get large batches: by-memory, not-a100, huge; each keeps what the ones before it do."""
    clips_batch: bool
    largest_item_in_batch: bool
    """The default max_num_batched_tokens holds the largest multimodal item of a prefix model."""
    async_scheduling: bool
    async_pooling: bool
    """The pooling runner schedules ahead as well."""
    v1_pooling: bool
    """V1 pools."""
    model_runner_v2: str
    """Which models take the V2 runner: never, opt-in, qwen3, plain, listed, dense, all."""
    hybrid_prefix_caching: str
    """unsupported, off, on."""
    mamba_cache_mode: str
    """With prefix caching, for models whose every state may be cached and for others: none, all-or-none, all-or-align,
    all-unless-speculative (then align), align.
    """
    align_speculates: bool
    """Mode align drafts tokens as well."""
    align_block_fits_batch: bool
    """Mode align takes no block above max_num_batched_tokens."""
    ssm_dtype_kinds: str
    """Recurrent layers that `--mamba-ssm-cache-dtype` is asked for, space between."""
    config_state_dtype: bool
    """Nemotron's `mamba_ssm_cache_dtype` is read from its config."""
    no_float32_states: str
    """Recurrent layers that keep no float32, space between."""
    graph_sizes: str
    """eights, eights-capped, sixteens, sixteens-speculative, uniform, uniform-and-widest."""
    captures_batch: bool
    """max_num_batched_tokens is a size of its own where it is not above the largest."""
    graph_size_flag: str
    """`--cuda-graph-sizes` or `--max-cudagraph-capture-size`; "" for none."""
    graph_rounding: str
    """Where drafts are decoded in full graphs, sizes are multiples of a request's tokens; none left: "" for no
    rounding, kept, refused, refused-v1 (the V2 runner does not round).
    """
    graph_limit_sm100: int
    graph_modes: str
    """piecewise, full-for-hybrids, full-and-piecewise."""
    chunked_local_groups: bool
    max_model_len_auto: bool
    """`--max-model-len auto` exists."""
    sparse_fp8_layout: str
    """When a sparse MLA cache has the packed fp8_ds_mla layout: always, with-fp8, by-backend."""
    fp8_kv_cache: str
    """Which cards store fp8 keys and values: flash-attention (Hopper and SM100), sm80 (SM80 and later)."""
    nvfp4_kv_cache: str
    """Which cards store nvfp4 keys and values: sm100, sm80 (but for heads of 64 elements before SM100)."""
    sparse_attention: str
    """Major compute capabilities with kernels for sparse latent attention, space between."""
    block_sizes: str
    """What `--block-size` takes, space between; "" for any."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackendRow:
    """One line of the table of attention backends."""

    source: str
    backend: str
    block_size: int
    attention: str = "plain"
    cache: str = "any"
    since: Version = OLDEST
    below: Version = NEVER
    capability: tuple[int, int] = (0, 999)
    forced: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A known vLLM release."""

    version: Version
    switches: Switches
    notices: tuple[Notice, ...] = ()
    """`engine-version-approximated` when another version was asked for; why it is not the newest when none was."""

    @property
    def is_exact(self) -> bool:
        """Whether no other version was asked for: what a development build refuses is not known."""
        return all(notice.code != APPROXIMATED for notice in self.notices)


@lru_cache(maxsize=1024)
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
    known = vllm_releases()
    if engine_version is None:
        newest = releases_of(engine)[-1][1]
        return Release(version=newest, switches=switches_of(newest))
    asked = parse_version(engine_version)
    wanted = asked
    if find_engine(engine).releases:
        wanted = _host_version(find_engine(engine).releases, asked)
    elif asked.dev is not None:
        wanted = _behind(asked)
    below = [version for version in known if version <= wanted]
    if not below:
        raise ScenarioError(
            "engine-version-too-old", field="engine_version", value=engine_version, oldest=str(known[0])
        )
    used = below[-1]
    exact = used == Version(wanted.public) and asked.public == Version(asked.public).base_version + (
        f".post{asked.post}" if asked.post is not None else ""
    )
    notices = () if exact else (_approximated(engine_version, used),)
    return Release(version=used, switches=switches_of(used), notices=notices)


def planned_release(scenario: Scenario) -> Release:
    """The release that `scenario` is planned as: the one it names, else the newest that can do what it asks.

    Without a version, VLLM_USE_V1=0 is the newest release that still has the first engine, and a model class that was
    dropped the last release that has it.

    Raises ScenarioError as `find_release` does.

    Source: vllm/envs.py:VLLM_USE_V1 (0.8.5); vllm/worker removed (0.11.0).
    """
    if scenario.engine_version is not None or find_engine(scenario.engine).releases:
        return find_release(scenario.engine, scenario.engine_version)
    return _assumed_release(scenario.config, scenario.env.get("VLLM_USE_V1") == "0")


@kept
def _assumed_release(config: ModelConfig, asks_for_v0: bool) -> Release:
    architectures = config.architectures
    releases = vllm_releases()
    if asks_for_v0:
        releases = tuple(version for version in releases if switches_of(version).v1_engine != "only")
    fitting = [version for version in releases if is_surely_there(architectures, version)]
    used = (fitting or releases)[-1]
    notices = []
    if asks_for_v0:
        notices.append(_assumed("v0-release-assumed", used))
    if used != releases[-1]:
        notices.append(_assumed("release-assumed-for-model", used, value=architectures[0]))
    return Release(version=used, switches=switches_of(used), notices=tuple(notices))


def _assumed(code: str, used: Version, **facts: str) -> Notice:
    return Notice(code=code, field="engine_version", params={"used": str(used), **facts})


def _approximated(engine_version: str, used: Version) -> Notice:
    return Notice(
        code=APPROXIMATED,
        field="engine_version",
        params={"asked": engine_version, "used": str(used)},
    )


def _host_version(releases: tuple[tuple[Version, Version], ...], asked: Version) -> Version:
    """The vLLM that a plug-in version runs on; development and candidate versions belong to the number they name."""
    base = Version(asked.base_version)
    for own, host in releases:
        if Version(own.base_version) == base:
            return host
    if base >= vllm_releases()[0]:
        return base
    older = [host for own, host in releases if own <= asked]
    return older[-1] if older else base


def _behind(asked: Version) -> Version:
    """What a development build of main has behind it: releases by its count, and the release of an earlier candidate.

    `X rc2.dev5` is five commits after the first candidate of X; `rc1.dev5` follows a tag that no release came of.
    """
    candidate = asked.pre[1] if asked.pre else 0
    series = asked.base_version + (f"rc{candidate}" if asked.pre else "")
    counts = development_builds().get(series, ())
    passed = [release for count, release in counts if count <= (asked.dev or 0)]
    if passed:
        return passed[-1]
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
        raise ScenarioError(
            "invalid-value", field="engine_version", value=text, reason="it must be a version such as 0.19.0"
        ) from None


@lru_cache(maxsize=256)
def switches_of(version: Version) -> Switches:
    """What `version` does.

    Example:
        >>> switches_of(Version("0.19.1")).gpu_memory_utilization
        0.9
    """
    tables = read_switches(_raw("vllm.toml")["switches"])
    values = {}
    for name, entries in tables.items():
        values[name] = [value for since, value in entries if since <= version][-1]
    return Switches(**values)


@lru_cache(maxsize=1)
def vllm_releases() -> tuple[Version, ...]:
    """Every known vLLM release, oldest first."""
    return tuple(sorted(Version(name) for name in _raw("vllm.toml")["releases"]))


@lru_cache(maxsize=1)
def development_builds() -> dict[str, tuple[tuple[int, Version], ...]]:
    """Series of development builds as name -> ((commits, release behind), ...), fewest first."""
    return read_development(_raw("vllm.toml")["development"])


@lru_cache(maxsize=1)
def backend_rows() -> tuple[BackendRow, ...]:
    """The table of attention backends, in the order in which it is searched."""
    return read_backend_rows(_raw("vllm.toml")["backends"])


def releases_of(engine: str) -> tuple[tuple[Version, Version], ...]:
    """Every known release of an engine, oldest first, each with the vLLM release that it runs on.

    Example:
        >>> [str(version) for version in releases_of("vllm-ascend")[-1]]
        ['0.23.0.post1', '0.23.0']
    """
    return find_engine(engine).releases or tuple((version, version) for version in vllm_releases())


def assumed_version(scenario: Scenario) -> str:
    """The release of its engine that `scenario` is planned as while it names none.

    Example:
        >>> from kvcore.request import scenario_from_request
        >>> assumed_version(scenario_from_request({"model": "baichuan-inc/Baichuan2-7B-Chat"}))
        '0.23.0'
    """
    own = find_engine(scenario.engine).releases
    if own:
        return str(own[-1][0])
    return str(planned_release(dataclasses.replace(scenario, engine_version=None)).version)


def read_switches(raw: Mapping[str, Any]) -> dict[str, tuple[tuple[Version, Any], ...]]:
    """Tables of switches as name -> ((since, value), ...); raises CatalogueError for any other shape."""
    kinds = {field.name: field.type for field in dataclasses.fields(Switches)}
    _check_keys("vllm.toml switches", set(raw), set(kinds))
    tables = {}
    for name, table in raw.items():
        entries = {Version(key): value for key, value in table.items() if key != "source"}
        if not table.get("source") or Version("0.0") not in entries:
            raise _invalid(f"vllm.toml {name}", "source or 0.0 is missing")
        if any(type(value).__name__ != kinds[name] for value in entries.values()):
            raise _invalid(f"vllm.toml {name}", f"every value must be of type {kinds[name]}")
        tables[name] = tuple(sorted(entries.items()))
    return tables


def read_development(raw: Mapping[str, Any]) -> dict[str, tuple[tuple[int, Version], ...]]:
    """Series of development builds; raises CatalogueError for one without source or with other than counts."""
    series = {}
    for name, table in raw.items():
        counts = {key: value for key, value in table.items() if key != "source"}
        if not table.get("source") or not counts or not all(key.isdecimal() for key in counts):
            raise _invalid(f"vllm.toml development {name}", "it holds source, and counts of commits")
        series[name] = tuple(sorted((int(key), Version(value)) for key, value in counts.items()))
    return series


def read_backend_rows(raw: list[Mapping[str, Any]]) -> tuple[BackendRow, ...]:
    """Rows of attention backends; raises CatalogueError for an unknown key or a missing one."""
    names = {field.name for field in dataclasses.fields(BackendRow)}
    rows = []
    for row in raw:
        if not set(row) <= names or not {"source", "backend", "block_size"} <= set(row):
            raise _invalid("vllm.toml backends", f"unknown or missing key in {sorted(row)}")
        values: dict[str, Any] = dict(row)
        for key in ("since", "below"):
            if key in values:
                values[key] = Version(values[key])
        if "capability" in values:
            values["capability"] = tuple(values["capability"])
        rows.append(BackendRow(**values))
    return tuple(rows)


@lru_cache(maxsize=4)
def _raw(file: str) -> dict[str, Any]:
    raw = tomllib.loads(resources.files("kvcore.engine").joinpath(file).read_text(encoding="utf-8"))
    if file == "vllm.toml":
        _check_keys(file, set(raw), {"releases", "development", "switches", "backends"})
    return raw


def _check_keys(where: str, found: set[str], wanted: set[str]) -> None:
    if found != wanted:
        raise _invalid(where, "unknown or missing " + ", ".join(sorted(found ^ wanted)))


def _invalid(where: str, reason: str) -> CatalogueError:
    return CatalogueError("invalid-catalogue-entry", field=where, reason=reason)
