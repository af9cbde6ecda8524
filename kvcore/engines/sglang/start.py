"""A start: the release, the arguments filled in, and the sizing of its pools."""

from __future__ import annotations

from typing import Final

from packaging.version import Version

from kvcore.base.errors import Notice, ScenarioError, notice
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine.records import APPROXIMATED
from kvcore.engines.sglang.arguments import V0_5_11, Arguments, Card
from kvcore.engines.sglang.filling import Open
from kvcore.engines.sglang.flags import asked_of
from kvcore.engines.sglang.pools import Pools, Sizing
from kvcore.engines.sglang.shapes import Shape, shape_of
from kvcore.engines.sglang.tables import DEFAULTS, sglang_release
from kvcore.engines.vllm.draft import draft_config
from kvcore.engines.vllm.versions import parse_version
from kvcore.model.config import ModelConfig
from kvcore.scenario import Scenario

UNKNOWN_CAPABILITY: Final = (8, 0)
MIB: Final = 1024


def own_release(releases: tuple[Version, ...], asked: str | None) -> tuple[Version, tuple[Notice, ...]]:
    """The release read that stands for `asked`, the newest one not above it, and what is to be said of that.

    Raises ScenarioError `invalid-value` for a text that is no version, `engine-version-too-old` below the oldest.

    Example:
        >>> read = tuple(map(Version, ("0.5.9", "0.5.13", "0.5.18")))
        >>> str(own_release(read, "0.5.16")[0]), own_release(read, "0.5.13")[1]
        ('0.5.13', ())
    """
    if asked is None:
        return releases[-1], ()
    version = parse_version(asked)
    used = next((one for one in reversed(releases) if one <= Version(version.public)), None)
    if used is None:
        raise ScenarioError("engine-version-too-old", "engine_version", asked, oldest=str(releases[0]))
    is_exact = used == Version(version.public)
    return used, () if is_exact else (notice(APPROXIMATED, "engine_version", asked=asked, used=str(used)),)


def driver_mib(card: Accelerator) -> float:
    """MiB of a card as the driver's tool prints them: as given, as published, or torch's with what the driver keeps."""
    if card.driver_total_mib is not None:
        return card.driver_total_mib
    table = DEFAULTS.load().driver_total
    known = table.mib.get(card.id)
    return known if known is not None else card.memory_gib * MIB * (1 + table.kept_share)


def card_of(card: Accelerator) -> Card:
    """`card` as the arguments see it."""
    is_rocm = card.vendor is Vendor.AMD
    return Card(
        mib=driver_mib(card), capability=card.compute_capability or UNKNOWN_CAPABILITY, is_rocm=is_rocm
    )


class Start:
    """One start of one release: the same where it is made of the same."""

    def __init__(self, scenario: Scenario, version: Version, accelerator: Accelerator, dtype: str) -> None:
        """Raises EngineRefusalError in the engine's words."""
        given = asked_of(scenario)
        self._made_of = scenario, version, accelerator, dtype
        self.version = version
        self.shape: Shape = shape_of(scenario.config, version, given.get("enable_multimodal"))
        self.card = card_of(accelerator)
        opened = Open(
            given,
            self.shape,
            self.card,
            version,
            model=scenario.model,
            checkpoint_kv_dtype=checkpoint_kv_dtype(scenario.config),
            draft_layers=named_draft_layers(scenario),
        )
        self.arguments: Arguments = opened.closed()
        self.kv_dtype = opened.kv_dtype(dtype)
        backend = given.get("dsa_decode_backend") or given.get("nsa_decode_backend")
        is_trtllm = self.card.is_blackwell and version >= V0_5_11 and self.kv_dtype == "fp8_e4m3"
        self.sizing = Sizing(
            self.arguments, self.shape, version, self.kv_dtype, backend or ("trtllm" if is_trtllm else "")
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Start) and self._made_of == other._made_of

    def __hash__(self) -> int:
        return hash(self._made_of)

    @property
    def counts_drafts(self) -> bool:
        """Whether a draft is loaded before the pools are sized.

        Source: managers/scheduler.py:Scheduler.init_model_worker (0.5.18, 0.5.23); model_executor/model_runner.py
        (0.5.9, 0.5.13: after the target's pools).
        """
        return self.version >= sglang_release("0.5.18")

    def pools(self, before_gib: float, after_gib: float) -> Pools:
        """The pools in that memory. Raises EngineRefusalError in the engine's words."""
        return self.sizing.sized(before_gib, after_gib)


def checkpoint_kv_dtype(config: ModelConfig) -> str | None:
    """The KV dtype that a checkpoint names itself.

    Source: model_executor/model_runner.py (0.5.9), mem_cache/kv_cache_dtype.py (0.5.23): kv_cache_quant_algo.
    """
    found = config.language.get("quantization_config") or config.root.get("quantization_config") or {}
    side = (config.hf_quant_config or {}).get("quantization") or {}
    algorithm = (found.get("kv_cache_quant_algo") if isinstance(found, dict) else None) or (
        side.get("kv_cache_quant_algo") if isinstance(side, dict) else None
    )
    return "fp8_e4m3" if str(algorithm or "").upper() == "FP8" else None


def named_draft_layers(scenario: Scenario) -> int | None:
    """Layers of a draft that is named with its config; None without."""
    speculative = scenario.speculative_config
    config = None if speculative is None else draft_config(speculative)
    if config is None:
        return None
    text = config.language
    return text.optional_integer("num_nextn_predict_layers") or text.optional_integer("num_hidden_layers")
