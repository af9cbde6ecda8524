"""Whether a release takes a storage format of weights, and whether a card has kernels for it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

from packaging.version import Version

from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine.rooms import find_engine
from kvcore.errors import CatalogueError, EngineRefusalError, Notice
from kvcore.model.quantization import NOT_QUANTIZED, agree

FILE: Final = "quantization_methods.toml"
_TABLES: Final = frozenset(("source", "since", "capability", "plugin", "platform"))
_PLUGIN_KEYS: Final = frozenset(("since", "package", "source"))
_PLATFORM_KEYS: Final = frozenset(("source", "since", "methods"))


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodPlugin:
    """The package that reads a method from the release `since` on."""

    since: Version
    package: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """What one kind of card takes from the release `since` on: methods, and which release brought each."""

    since: Version
    methods: Mapping[str, Version]

    def takes(self, method: str, version: Version) -> bool:
        """Whether it takes the method, or another name of it."""
        return version < self.since or any(
            since <= version and agree(method, name) for name, since in self.methods.items()
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationMethods:
    """What is known of the storage formats of weights, by the engine's names."""

    since: Mapping[str, Version]
    capability: Mapping[str, Mapping[Version, int]]
    """The least major × 10 + minor, by the release that asks it first."""
    plugin: Mapping[str, MethodPlugin]
    platform: Mapping[str, Platform]
    """rocm, xpu, ascend."""

    def least_capability(self, method: str, version: Version) -> int:
        """Major × 10 + minor; 0 where nothing is known.

        Example:
            >>> quantization_methods().least_capability("fp8", Version("0.14.1"))
            75
        """
        asked = self.capability.get(method, {})
        return asked[max(since for since in asked if since <= version)] if asked else 0


@cache
def quantization_methods() -> QuantizationMethods:
    """What the file beside this module says. Raises CatalogueError `invalid-catalogue-entry`."""
    return read_quantization_methods(files("kvcore.engine").joinpath(FILE).read_text("utf-8"))


def read_quantization_methods(text: str) -> QuantizationMethods:
    """The tables of a TOML text; raises CatalogueError `invalid-catalogue-entry` for any other shape."""
    tables = tomllib.loads(text)
    plugins, platforms = tables.get("plugin", {}), tables.get("platform", {})
    is_read = (
        tables.keys() == _TABLES
        and all(row.keys() == _PLUGIN_KEYS for row in plugins.values())
        and all(row.keys() == _PLATFORM_KEYS for row in platforms.values())
        and all("0.0" in releases for releases in tables["capability"].values())
    )
    if not is_read:
        raise CatalogueError(
            "invalid-catalogue-entry",
            field=FILE,
            reason="its tables are since, capability (from 0.0 on), plugin and platform, each with its source",
        )
    return QuantizationMethods(
        since=_versions(tables["since"]),
        capability={
            method: {Version(since): asked for since, asked in releases.items()}
            for method, releases in tables["capability"].items()
        },
        plugin={
            method: MethodPlugin(since=Version(row["since"]), package=row["package"])
            for method, row in plugins.items()
        },
        platform={
            name: Platform(since=Version(row["since"]), methods=_versions(row["methods"]))
            for name, row in platforms.items()
        },
    )


def check_quantization(
    *, method: str, requested: str | None, engine: str, accelerator: Accelerator, version: Version
) -> tuple[Notice, ...]:
    """Whether a release takes the format of the checkpoint on this card; what it needs beside the engine.

    A card of unknown compute capability, and an engine whose list is not known, take everything.

    Raises EngineRefusalError `quantization-not-in-release`, `quantization-not-on-platform` or
    `quantization-not-on-card`.

    Source: vllm/config/model.py:ModelConfig._verify_quantization, vllm/platforms/interface.py:
    Platform.verify_quantization, vllm/config/vllm.py:VllmConfig._get_quantization_config (0.8.5, 0.33.0).
    """
    if method == NOT_QUANTIZED:
        return ()
    known = quantization_methods()
    for name in dict.fromkeys((requested or method, method)):
        since = known.since.get(name)
        if since is not None and version < since:
            raise EngineRefusalError(
                "quantization-not-in-release", field="quantization", method=name, version=version, since=since
            )
    platform = known.platform.get(_platform(engine, accelerator))
    if platform is not None and not platform.takes(method, version):
        raise EngineRefusalError(
            "quantization-not-on-platform", field="quantization", method=method, name=accelerator.name
        )
    least = known.least_capability(method, version)
    if accelerator.vendor is Vendor.NVIDIA and accelerator.compute_capability is not None:
        major, minor = accelerator.compute_capability
        if major * 10 + minor < least:
            raise EngineRefusalError(
                "quantization-not-on-card",
                field="quantization",
                method=method,
                least=least,
                capability=major * 10 + minor,
            )
    plugin = known.plugin.get(method)
    if plugin is None or version < plugin.since:
        return ()
    facts = {"method": method, "version": str(version), "package": plugin.package}
    return (Notice(code="quantization-needs-package", field="quantization", params=facts),)


def _platform(engine: str, accelerator: Accelerator) -> str:
    own = find_engine(engine).refusals.platform
    if own:
        return own
    if accelerator.vendor is Vendor.INTEL:
        return "" if accelerator.id.startswith("Gaudi") else "xpu"
    return "rocm" if accelerator.vendor is Vendor.AMD else ""


def _versions(table: Mapping[str, Any]) -> dict[str, Version]:
    return {name: Version(since) for name, since in table.items()}
