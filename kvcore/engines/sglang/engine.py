"""SglangEngine: SGLang's answers. Its loaders and storage formats are vLLM's of the same time; flags, memory and pools
are its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

from msgspec.structs import replace
from packaging.version import Version

from kvcore import catalogue
from kvcore.base.errors import EngineRefusalError, KvPlannerError
from kvcore.base.quantity import Grade, Quantity
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.cards import CardView
from kvcore.engine.facts import EngineFacts
from kvcore.engine.names import OwnArgument, OwnName
from kvcore.engine.protocol import Resolved, Setting
from kvcore.engine.rank_memory import RankMemory
from kvcore.engine.records import Release
from kvcore.engines.sglang.controls import NAMES, arguments_of
from kvcore.engines.sglang.figures import PoolPlan, no_pool, pool_plan
from kvcore.engines.sglang.flags import (
    NOT_OFFERED,
    OF_OTHERS,
    SHARED,
    SHORT,
    adopted,
    asked_of,
    check_names,
    fields_of_command,
    launch_arguments,
    machine_flags,
    own_setting,
)
from kvcore.engines.sglang.host_pools import SWITCH, check_hicache, hicache_notices, hicache_tier
from kvcore.engines.sglang.memory import static_memory
from kvcore.engines.sglang.shapes import shape_of
from kvcore.engines.sglang.start import Start, own_release
from kvcore.engines.sglang.states import GIB
from kvcore.engines.sglang.tables import FACTS, own_releases
from kvcore.engines.sglang.watching import expected_lines, exported_metrics, load_generator
from kvcore.engines.vllm.engine import VllmEngine
from kvcore.engines.vllm.versions import switches_of
from kvcore.host.tier import Tier
from kvcore.model.architecture import Architecture
from kvcore.scenario import Scenario

SHOWN_DTYPES: Final = {
    "fp4_e2m1": "nvfp4",
    "fp4_mx_block16": "nvfp4",
    "mxfp8": "fp8_e4m3",
    "bf16": "bfloat16",
}
"""Dtypes of keys that the rest of the program has no name for, by one that is as wide."""


class SglangEngine(VllmEngine):
    """SGLang."""

    __slots__ = ()

    name: ClassVar[str] = "sglang"
    follows_vllm: ClassVar[bool] = False
    checks_weight_shapes: ClassVar[bool] = False
    starts_without_room: ClassVar[bool] = True

    @property
    def facts(self) -> EngineFacts:
        return FACTS.load()

    def release(self, engine_version: str | None) -> Release:
        own, notices = own_release(own_releases(), engine_version)
        host = self.facts.releases[own]
        return Release(version=host, switches=switches_of(host), notices=notices)

    def planned_release(self, scenario: Scenario) -> Release:
        return self.release(scenario.engine_version)

    def assumed_version(self, scenario: Scenario) -> str:
        return str(own_releases()[-1])

    def lists_classes(self, version: Version) -> bool:
        return False

    def is_available(self, field: str, value: str, version: Version) -> bool:
        """Every value that a request may have: SGLang's own handlers refuse what they do not take."""
        return True

    def reads_variable(self, name: str) -> bool:
        return not name.startswith("VLLM_")

    def adopted(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return adopted(request)

    def check_names(self, scenario: Scenario) -> None:
        check_names(scenario)

    def field_of(self, name: str) -> str:
        return "model" if name == "model_path" else SHARED.get(SHORT.get(name, name), name)

    def own_name(self, field: str) -> OwnName | None:
        return NAMES.get(field)

    def own_names(self) -> Mapping[str, OwnName]:
        return NAMES

    def lacks(self, field: str) -> bool:
        return field.partition(".")[0] in (*OF_OTHERS, *NOT_OFFERED)

    def own_controls(self, scenario: Scenario) -> tuple[OwnArgument, ...]:
        own, _ = own_release(own_releases(), scenario.engine_version)
        try:
            return arguments_of(shape_of(scenario.config, own))
        except KvPlannerError:
            return ()

    def fields_of_command(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return fields_of_command(given)

    def own_setting(self, field: str, value: Any) -> tuple[str, Any] | None:
        return own_setting(field, value)

    def own_arguments(
        self, scenario: Scenario, resolved: Resolved, *, every_flag: bool
    ) -> dict[str, Any] | None:
        return launch_arguments(scenario, resolved, every_flag=every_flag)

    def machine_flags(
        self, scenario: Scenario, place: int, number: int, replicas_here: int, first: str
    ) -> dict[str, Any] | None:
        return machine_flags(scenario, place, number, replicas_here, first)

    # Flags

    def resolve(self, scenario: Scenario, architecture: Architecture, card: CardView) -> Resolved:
        own, notices = own_release(own_releases(), scenario.engine_version)
        dtype = scenario.dtype if scenario.dtype != "auto" else architecture.dtype
        dtype = {"half": "float16", "float": "float32"}.get(dtype, dtype)
        if scenario.dtype == "auto" and dtype == "float32":
            dtype = "float16"
        start = Start(scenario, own, _card(scenario, self.facts.assumed_card), dtype)
        check_hicache(start)
        arguments, release = start.arguments, self.release(scenario.engine_version)
        kv_dtype = SHOWN_DTYPES.get(start.kv_dtype, start.kv_dtype)
        requests = arguments.max_running_requests or 0
        return Resolved(
            engine=self,
            engine_version=str(own),
            version=release.version,
            is_v0=False,
            dtype=dtype,
            kv_cache_dtype=kv_dtype,
            max_model_len=arguments.context_length,
            derived_max_model_len=start.shape.context,
            max_model_len_auto=False,
            max_num_seqs=requests or 2048,
            max_num_batched_tokens=arguments.chunked_prefill_size
            if arguments.chunked_prefill_size > 0
            else arguments.max_prefill_tokens,
            block_size=arguments.page_size,
            gpu_memory_utilization=arguments.mem_fraction_static,
            enforce_eager=not arguments.has_decode_graphs,
            enable_prefix_caching=not arguments.disable_radix_cache,
            enable_chunked_prefill=arguments.chunked_prefill_size > 0,
            async_scheduling=arguments.is_overlapped,
            max_concurrent_batches=1,
            use_v2_model_runner=False,
            hybrid_kv_cache_manager=True,
            mamba_cache_mode="none",
            attention_backend=arguments.attention_backend,
            mamba_ssm_cache_dtype=arguments.mamba_ssm_dtype or "float32",
            num_speculative_tokens=max(0, arguments.draft_tokens - 1) if arguments.algorithm else 0,
            speculative_method=""
            if scenario.speculative_config is None
            else scenario.speculative_config.method,
            notices=(*notices, *hicache_notices(start)),
            own_start=start,
        )

    # Watching

    metrics = staticmethod(exported_metrics)
    load_generator = staticmethod(load_generator)

    def own_log_lines(self, resolved: Resolved, cache: Any) -> tuple[str, ...] | None:
        if not isinstance(cache, PoolPlan):
            return ()
        start = start_of(resolved)
        return expected_lines(cache.pools, start.arguments, start.shape, Version(resolved.engine_version))

    # Memory

    def rank_memory(self, setting: Setting, weights: Quantity) -> RankMemory:
        return static_memory(setting, weights, start_of(setting.resolved))

    def loads_drafts_late(self, resolved: Resolved) -> bool:
        return not start_of(resolved).counts_drafts

    def own_pool(
        self, available_bytes: Sequence[int], resolved: Resolved, available_kv: Sequence[Quantity]
    ) -> PoolPlan:
        """The pools in that memory: of several stages, the least of it counts for all.

        Raises EngineRefusalError in the engine's words.
        """
        start = start_of(resolved)
        exact = [one.value for one in available_kv] or list(available_bytes)
        kv = min(available_kv, key=lambda one: one.value) if available_kv else None
        arguments = start.arguments
        rest = min(exact) / GIB
        try:
            pools = start.sizing.in_rest(rest)
        except EngineRefusalError:
            if kv is not None and kv.grade is Grade.MEASURED:
                raise
            return no_pool(arguments)
        return pool_plan(pools, arguments, start.shape, kv)

    def asks_for_tier(self, scenario: Scenario) -> bool:
        return bool(asked_of(scenario).get(SWITCH))

    def own_tier(self, scenario: Scenario, resolved: Resolved, cache: Any) -> Tier | None:
        if not isinstance(cache, PoolPlan):
            return None
        return hicache_tier(start_of(resolved), cache.pools, scenario.node_memory_gib)

    def with_pool(self, resolved: Resolved, cache: Any) -> Resolved:
        if not isinstance(cache, PoolPlan):
            return resolved
        return replace(resolved, max_num_seqs=cache.pools.requests)

    def own_result(self, resolved: Resolved, cache: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        start = start_of(resolved)
        arguments = start.arguments
        shown = {
            "mem_fraction_static": arguments.mem_fraction_static,
            "chunked_prefill_size": arguments.chunked_prefill_size,
            "max_prefill_tokens": arguments.max_prefill_tokens,
            "page_size": arguments.page_size,
            "attention_backend": arguments.attention_backend,
            "kv_cache_dtype": start.kv_dtype,
            "context_length": arguments.context_length,
            "cuda_graph_max_bs": arguments.graph_max_bs,
        }
        if not isinstance(cache, PoolPlan):
            return shown, {}
        pools = cache.pools
        return shown, {
            "tokens": pools.tokens,
            "swa_tokens": pools.swa_tokens,
            "state_slots": pools.state_slots,
            "bytes_per_token": pools.cell,
            "max_running_requests": pools.requests,
            "pool_bytes": pools.pool_bytes + pools.viewed_bytes,
            "request_table_bytes": pools.table_bytes,
        }


def start_of(resolved: Resolved) -> Start:
    """What `resolved` was made with."""
    start = resolved.own_start
    assert isinstance(start, Start)
    return start


def _card(scenario: Scenario, assumed: str) -> Accelerator:
    return scenario.accelerator or catalogue.find_accelerator(assumed)
