"""The storage format of weights: of the checkpoint, a flag or a GGUF name; whether a release and a card take it."""

from collections.abc import Mapping
from typing import Annotated, Final

from msgspec import Meta
from packaging.version import Version

from kvcore.base.errors import EngineRefusalError, ModelError, Notice, notice
from kvcore.base.kept import kept
from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.cards import CardView
from kvcore.engines.vllm.start import Start, VllmPlatform
from kvcore.model.architecture import Module, Parameter, elements
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.quantization import NOT_QUANTIZED, Quantization, agree, read_quantization
from kvcore.model.quantization.gguf import METHOD, MIXTURES, file_type, gguf, gguf_of_rate, names_gguf
from kvcore.model.quantization.humming import METHOD as HUMMING
from kvcore.model.quantization.humming import said_by as humming_says
from kvcore.model.quantization.modelslim import METHOD as MODELSLIM
from kvcore.model.quantization.modelslim import scheme_named
from kvcore.scenario import Scenario
from kvcore.tables import CapabilityNumber, Record, Reviewed, Source, TableFile, Timeline, one_of

RATES: Final = (1.5, 9.0)
"""Bits a weight of GGUF files, from IQ1_S to Q8_0: another size is that of another checkpoint."""

FLOAT32_BYTES: Final = 4
"""Bytes of an element that GGUF does not quantize."""


def storage_of(engine: VllmPlatform, scenario: Scenario) -> Quantization:
    """The storage format of the weights.

    GGUF where the flag, the config or the model's name says so: of the file type in the name, or at the average rate
    that the checkpoint's size comes to. `--quantization gguf` overrules what the config of the repository declares.

    Raises ModelError `gguf-type-unknown` without either, `unknown-quantization`; EngineRefusalError
    `quantization-mismatch`, `torchao-quant-type`.

    Source: vllm/model_executor/layers/quantization/gguf.py:GGUFConfig.override_quantization_method (0.20.2, 0.23.0).
    """
    config, asked = scenario.config, scenario.quantization
    is_gguf = asked == METHOD or (asked is None and (names_gguf(scenario.model) or declares_gguf(config)))
    if not is_gguf:
        said = scheme_named(scenario.model) if asked == MODELSLIM else ""
        said = humming_says(scenario.env) if asked == HUMMING else said
        return engine.loaded(scenario, read_quantization(config, asked, said))
    named = file_type(scenario.model)
    known = _gguf(config, named if named in MIXTURES.load().files else "", scenario.checkpoint.total_size)
    if known is None:
        raise ModelError("gguf-type-unknown", field="model", value=scenario.model[:200])
    return known


@kept
def declares_gguf(config: ModelConfig) -> bool:
    """Whether config.json says that the weights are GGUF."""
    section = config.root.optional_section("quantization_config")
    return section is not None and section.get("quant_method") == METHOD


@kept
def _gguf(config: ModelConfig, kind: str, stored: int | None) -> Quantization | None:
    architecture = read_architecture(config)
    if kind in MIXTURES.load().files:
        return gguf(architecture, kind)
    if stored is not None:
        layers = [module for layer in architecture.layers for module in layer.modules]
        modules: list[Module] = [*architecture.first, *layers, *architecture.last]
        kept = sum(elements(module) for module in modules if isinstance(module, Parameter))
        rest = sum(elements(module) for module in modules if not isinstance(module, Parameter))
        bits = 8 * (stored - FLOAT32_BYTES * kept) / max(1, rest)
        if RATES[0] <= bits <= RATES[1]:
            return gguf_of_rate(bits)
    return None


Method = Annotated[str, one_of((
    "ascend", "auto_awq", "auto_gptq", "awq", "awq_marlin", "bitsandbytes", "compressed-tensors",
    "deepseek_v4_fp8", "experts_int8", "fbgemm_fp8", "fp8", "fp8_per_block", "fp8_per_channel",
    "fp8_per_tensor", "gguf", "gptq", "gptq_marlin", "humming", "inc", "int8_per_channel_weight_only", "modelopt",
    "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8", "moe_wna16", "mxfp4", "mxfp8", "quark", "torchao",
))]  # fmt: skip
"""The engine's names of storage formats."""


class MethodPlugin(Record, frozen=True, kw_only=True):
    """The package that reads a method from the release `since` on."""

    since: Version
    package: Annotated[str, Meta(pattern=r"^[a-z0-9-]+$")]
    source: Source


class PlatformFormats(Record, frozen=True, kw_only=True):
    """Formats that one kind of card takes from the release `since` on: methods, and which release brought each."""

    source: Source
    since: Version
    methods: Mapping[Method, Version]

    def takes(self, method: str, version: Version) -> bool:
        """Whether it takes the method, or another name of it."""
        return version < self.since or any(
            since <= version and agree(method, name) for name, since in self.methods.items()
        )


class QuantizationMethods(Reviewed, frozen=True, kw_only=True):
    """Facts about storage formats of weights, by the engine's names."""

    source: Source
    since: Mapping[Method, Version]
    capability: Mapping[Method, Timeline[CapabilityNumber]]
    """The least major × 10 + minor, by the release that asks it first."""
    plugin: Mapping[Method, MethodPlugin]
    platform: Mapping[Annotated[str, one_of(("rocm", "xpu"))], PlatformFormats]

    def least_capability(self, method: str, version: Version) -> int:
        """Major × 10 + minor; 0 where nothing is known.

        Example:
            >>> METHODS.load().least_capability("fp8", Version("0.14.1"))
            75
        """
        asked = self.capability.get(method)
        return 0 if asked is None else asked.at(version)


METHODS: Final = TableFile("kvcore.engines.vllm", "quantization_methods.toml", QuantizationMethods)


def check_quantization(start: Start) -> tuple[Notice, ...]:
    """Whether a release takes the format of the checkpoint on this card; what it needs in addition to the engine.

    A card of unknown compute capability, and an engine whose list is not known, take everything.

    Raises EngineRefusalError `quantization-not-in-release`, `quantization-not-on-platform`,
    `quantization-not-on-card`, or as the check of a plug-in.

    Source: vllm/config/model.py:ModelConfig._verify_quantization, vllm/platforms/interface.py:
    Platform.verify_quantization, vllm/config/vllm.py:VllmConfig._get_quantization_config (0.8.5, 0.33.0).
    """
    method, card, version = start.quantization.method, start.card, start.version
    if method == NOT_QUANTIZED:
        return ()
    known = METHODS.load()
    for name in dict.fromkeys((start.scenario.quantization or method, method)):
        since = known.since.get(name)
        if since is not None and version < since:
            raise EngineRefusalError(
                "quantization-not-in-release", "quantization", method=name, version=version, since=since
            )
    if not start.engine.takes_format(method, card, version):
        raise EngineRefusalError(
            "quantization-not-on-platform", "quantization", method=method, name=card.label
        )
    start.engine.check_format(start)
    least = known.least_capability(method, version)
    is_known = card.vendor is Vendor.NVIDIA and card.compute_capability is not None
    if is_known and card.number < least:
        raise EngineRefusalError(
            "quantization-not-on-card", "quantization", method=method, least=least, capability=card.number
        )
    if notices := start.engine.format_notices(start):
        return notices
    plugin = known.plugin.get(method)
    if plugin is None or version < plugin.since:
        return ()
    facts = {"method": method, "version": version, "package": plugin.package}
    return (notice("quantization-needs-package", "quantization", **facts),)


def is_listed(method: str, card: CardView, version: Version) -> bool:
    """Whether vLLM's platform for `card` lists a storage format; every one where its list is not known.

    Source: vllm/platforms/interface.py:Platform.verify_quantization (0.8.5, 0.33.0).
    """
    name = "rocm" if card.vendor is Vendor.AMD else ""
    if card.vendor is Vendor.INTEL and not card.is_gaudi:
        name = "xpu"
    formats = METHODS.load().platform.get(name)
    return method != MODELSLIM and (formats is None or formats.takes(method, version))
