"""Whether a release takes a storage format of weights, and whether a card has kernels for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from packaging.version import Version

from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.card import CardView
from kvcore.engine.rooms import find_engine
from kvcore.errors import EngineRefusalError, Notice
from kvcore.model.quantization import NOT_QUANTIZED, agree
from kvcore.versioned import (
    CapabilityNumber,
    OneOf,
    Pattern,
    Published,
    Reviewed,
    Source,
    TableFile,
    Timeline,
)

Method = Annotated[str, OneOf((
    "ascend", "auto_awq", "auto_gptq", "awq", "awq_marlin", "bitsandbytes", "compressed-tensors",
    "deepseek_v4_fp8", "experts_int8", "fbgemm_fp8", "fp8", "fp8_per_block", "fp8_per_channel",
    "fp8_per_tensor", "gguf", "gptq", "gptq_marlin", "inc", "int8_per_channel_weight_only", "modelopt",
    "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "moe_wna16", "mxfp4", "mxfp8", "quark", "torchao",
))]  # fmt: skip
"""The engine's names of storage formats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodPlugin:
    """The package that reads a method from the release `since` on."""

    since: Published
    package: Annotated[str, Pattern(r"[a-z0-9-]+", "a package")]
    source: Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """What one kind of card takes from the release `since` on: methods, and which release brought each."""

    source: Source
    since: Published
    methods: Mapping[Method, Published]

    def takes(self, method: str, version: Version) -> bool:
        """Whether it takes the method, or another name of it."""
        return version < self.since or any(
            since <= version and agree(method, name) for name, since in self.methods.items()
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizationMethods(Reviewed):
    """What is known of the storage formats of weights, by the engine's names."""

    source: Source
    since: Mapping[Method, Published]
    capability: Mapping[Method, Timeline[CapabilityNumber]]
    """The least major × 10 + minor, by the release that asks it first."""
    plugin: Mapping[Method, MethodPlugin]
    platform: Mapping[Annotated[str, OneOf(("rocm", "xpu", "ascend"))], Platform]

    def least_capability(self, method: str, version: Version) -> int:
        """Major × 10 + minor; 0 where nothing is known.

        Example:
            >>> METHODS.load().least_capability("fp8", Version("0.14.1"))
            75
        """
        asked = self.capability.get(method)
        return 0 if asked is None else asked.at(version)


METHODS: Final = TableFile("kvcore.engine.vllm", "quantization_methods.toml", QuantizationMethods)


def check_quantization(
    *, method: str, requested: str | None, engine: str, card: CardView, version: Version
) -> tuple[Notice, ...]:
    """Whether a release takes the format of the checkpoint on this card; what it needs in addition to the engine.

    A card of unknown compute capability, and an engine whose list is not known, take everything.

    Raises EngineRefusalError `quantization-not-in-release`, `quantization-not-on-platform` or
    `quantization-not-on-card`.

    Source: vllm/config/model.py:ModelConfig._verify_quantization, vllm/platforms/interface.py:
    Platform.verify_quantization, vllm/config/vllm.py:VllmConfig._get_quantization_config (0.8.5, 0.33.0).
    """
    if method == NOT_QUANTIZED:
        return ()
    known = METHODS.load()
    for name in dict.fromkeys((requested or method, method)):
        since = known.since.get(name)
        if since is not None and version < since:
            raise EngineRefusalError(
                "quantization-not-in-release", field="quantization", method=name, version=version, since=since
            )
    platform = known.platform.get(_platform(engine, card))
    if platform is not None and not platform.takes(method, version):
        raise EngineRefusalError(
            "quantization-not-on-platform", field="quantization", method=method, name=card.label
        )
    least = known.least_capability(method, version)
    if card.vendor is Vendor.NVIDIA and card.compute_capability is not None:
        major, minor = card.compute_capability
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


def _platform(engine: str, card: CardView) -> str:
    own = find_engine(engine).refusals.platform
    if own:
        return own
    if card.vendor is Vendor.INTEL:
        return "" if card.is_gaudi else "xpu"
    return "rocm" if card.vendor is Vendor.AMD else ""
