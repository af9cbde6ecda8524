"""The answers of every engine (`Engine`), and the two records that they are given (`Resolved`, `Setting`).

The rooms below `kvcore.engines` are handed an engine, in `Resolved` or as an argument: none asks which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct
from packaging.version import Version

from kvcore.base.errors import Notice, ScenarioError
from kvcore.base.quantity import Quantity
from kvcore.catalogue.accelerators import Accelerator
from kvcore.engine.cards import CardView, dotted
from kvcore.engine.facts import EngineFacts
from kvcore.engine.names import OwnArgument, OwnName
from kvcore.engine.overheads import Budget, GraphApi, MemoryVariables
from kvcore.engine.rank_memory import RankMemory
from kvcore.engine.records import (
    Adaptable,
    CompressedBlocks,
    End,
    FormerFlag,
    LayerPeak,
    LoadGenerator,
    Metric,
    Release,
    Taken,
    TakenLater,
    Transfer,
)
from kvcore.engine.switches import AttentionBackend, Switches, graph_mode
from kvcore.model.architecture import Architecture
from kvcore.model.caches import CacheState
from kvcore.model.config import ModelConfig
from kvcore.model.families.drafts import Draft
from kvcore.model.quantization import Quantization
from kvcore.scenario import CudagraphMode, Parallel, Runner, Scenario, SpeculativeConfig


class Resolved(Struct, frozen=True, kw_only=True):
    """The flags as the engine would print them, and the internal switches that follow from them."""

    engine: Engine
    """The engine that answers for what these flags come to."""
    engine_version: str
    """The known version whose behaviour is used."""
    version: Version
    is_v0: bool
    dtype: str
    """bfloat16, float16 or float32."""
    kv_cache_dtype: str
    """A concrete storage dtype: bfloat16, fp8_e4m3, fp8_ds_mla, int8_per_token_head, ..."""
    max_model_len: int
    derived_max_model_len: int
    max_model_len_auto: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    gpu_memory_utilization: float
    enforce_eager: bool
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    async_scheduling: bool
    max_concurrent_batches: int
    use_v2_model_runner: bool
    hybrid_kv_cache_manager: bool
    mamba_cache_mode: str
    """none, align or all."""
    attention_backend: str
    """The engine's spelling, FLASH_ATTN, FLASHINFER, TRITON_ATTN, FLASHMLA, ..."""
    cudagraph_capture_sizes: tuple[int, ...] = ()
    cudagraph_modes: tuple[str, ...] = ()
    """Which graph sets are captured: PIECEWISE, FULL."""
    captures_mixed_full: bool = False
    """Full graphs are of every size; else of batches that only decode."""
    mamba_block_size: int | None = None
    """As asked for."""
    mamba_cache_dtype: str = ""
    """Dtype of recurrent layers' rows where the model's config names none; "" for `dtype`."""
    on_310p: bool = False
    """On an Ascend 310P, whose worker lays out hybrid models as vLLM does."""
    counts_in_flight: bool = False
    """Windows keep every batch in flight, whatever the vLLM release does."""
    state_export_tokens: int = 0
    """Gated delta nets export states inside a prefill, so many tokens apart, and keep one more a request; 0: none."""
    mamba_ssm_cache_dtype: str = ""
    """Dtype of the states themselves, before the model's config; "" where no flag sets it."""
    runner: Runner = Runner.GENERATE
    """generate or pooling."""
    num_speculative_tokens: int = 0
    speculative_method: str = ""
    """ngram, eagle, eagle3, mtp, draft_model, ...; "" without speculative decoding."""
    num_gpu_blocks_override: int | None = None
    narrow_block_keys: bool = False
    """Keys by which attention picks whole blocks are stored in fp8."""
    notices: tuple[Notice, ...] = ()
    own_start: object | None = None
    """What an engine that sizes its pools in its own way keeps of the start; only it reads this."""

    @property
    def switches(self) -> Switches:
        """Switches of the release."""
        return self.engine.switches(self.version)

    @property
    def max_cudagraph_capture_size(self) -> int:
        """The largest batch that is captured, in tokens; 0 without graphs."""
        return max(self.cudagraph_capture_sizes, default=0)

    @property
    def cudagraph_mode(self) -> CudagraphMode:
        """The captured sets of graphs, in the engine's word."""
        return graph_mode(self.cudagraph_modes, self.captures_mixed_full)


class Setting(Struct, frozen=True, kw_only=True):
    """One rank of one pipeline stage."""

    scenario: Scenario
    architecture: Architecture
    resolved: Resolved
    accelerator: Accelerator
    parallel: Parallel
    switches: Switches
    is_first: bool
    """Whether this stage embeds tokens and images."""
    is_last: bool
    """Whether this stage makes the logits."""
    runner: str
    """v0, v1, v2, or the engine's own overheads."""
    links: tuple[str, ...]
    """How its ranks may reach each other, the likeliest first."""
    element_bytes: int
    layers: int
    """Decoder layers of this stage."""
    storage: str
    """The storage format of the weights: method and detail, lower case."""
    ranks: int
    """Ranks that one start joins."""

    @property
    def link(self) -> str:
        """The likeliest of `links`."""
        return self.links[0]

    @property
    def card_label(self) -> str:
        """The card's id and name, for tables that know it by a part of its names."""
        return f"{self.accelerator.id} {self.accelerator.name}"

    @property
    def engine(self) -> Engine:
        """The engine that answers for this rank."""
        return self.resolved.engine

    @property
    def capability(self) -> str:
        """Compute capability with a dot; "" where there is none."""
        return dotted(self.accelerator.compute_capability or ())


class Engine(ABC):
    """One engine: an object without state, whose class answers in the words of one engine."""

    __slots__ = ()

    name: ClassVar[str]
    """The name in a request."""
    follows_vllm: ClassVar[bool] = False
    """Whether flags and memory are found as vLLM finds them, so that a sweep may plan like cards together."""

    @property
    @abstractmethod
    def facts(self) -> EngineFacts:
        """The content of its `engine.toml`."""

    def runs_on(self, card: Accelerator | CardView) -> bool:
        """Whether it has a platform for `card`."""
        return card.vendor in self.facts.vendors

    # Releases

    @abstractmethod
    def releases(self) -> tuple[tuple[Version, Version], ...]:
        """Every known release, oldest first, each with the vLLM release that it runs on."""

    @abstractmethod
    def release(self, engine_version: str | None) -> Release:
        """The release whose behaviour stands for `engine_version`; None is the newest.

        Raises ScenarioError `invalid-value` for a text that is no version, `engine-version-too-old` below the oldest.
        """

    @abstractmethod
    def planned_release(self, scenario: Scenario) -> Release:
        """The release that `scenario` is planned as: the one it names, else the newest that can do what it asks."""

    @abstractmethod
    def assumed_version(self, scenario: Scenario) -> str:
        """The own release that `scenario` is planned as while it names none."""

    @abstractmethod
    def other_versions(self, scenario: Scenario) -> tuple[Version, ...]:
        """Versions that may be meant as well where `scenario` states none, oldest first."""

    @abstractmethod
    def switches(self, version: Version) -> Switches:
        """Switches of `version`."""

    def knows(self, engine_version: str | None) -> bool:
        """Whether `release` finds one."""
        try:
            self.release(engine_version)
        except ScenarioError:
            return False
        return True

    def may_be_other(self, scenario: Scenario) -> bool:
        """Whether the release is not stated, and there are releases that differ in memory."""
        return scenario.engine_version is None and self.facts.unstated is not None

    # Flags

    def reads_variable(self, name: str) -> bool:
        """Whether the environment variable `name`, of a table that engines share, is one of this engine's."""
        return True

    def adopted(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """`request` with what it says under the engine's own names in the fields that mean the same."""
        return request

    def field_of(self, name: str) -> str:
        """The field of a request that an argument sets, which the engine's log names `name`; `name` where none does."""
        return name

    starts_without_room: ClassVar[bool] = False
    """A context longer than the pool starts all the same; a request of that length is refused when it comes."""

    def own_name(self, field: str) -> OwnName | None:
        """What the engine calls the setting of a field; None where it is called as in the registry of flags."""
        return None

    def own_names(self) -> Mapping[str, OwnName]:
        """Every setting that it calls by a name of its own, by its field."""
        return {}

    def called(self, field: str) -> str:
        """The name of a setting in a sentence."""
        own = self.own_name(field)
        return field if own is None else own.spelling.lstrip("-").replace("-", "_")

    def lacks(self, field: str) -> bool:
        """Whether the engine has no setting of that field."""
        return False

    def own_controls(self, scenario: Scenario) -> tuple[OwnArgument, ...]:
        """Arguments of its own that a page sets for this scenario."""
        return ()

    def fields_of_command(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a command, by the engine's own names, as fields of a request; those without are left out.

        Only asked of an engine that has names of its own.
        """
        return dict(given)

    def own_setting(self, field: str, value: Any) -> tuple[str, Any] | None:
        """The engine's own name of a field and its value there; None where it has no argument of that meaning."""
        return field, value

    def own_arguments(
        self, scenario: Scenario, resolved: Resolved, *, every_flag: bool
    ) -> dict[str, Any] | None:
        """The arguments of a start by the engine's own names, without dashes in front; None where they are vLLM's."""
        return None

    def machine_flags(
        self, scenario: Scenario, place: int, number: int, replicas_here: int, first: str
    ) -> dict[str, Any] | None:
        """The own arguments of machine `place` of `number`, `first` being the address of the first one; None where
        they are vLLM's. `replicas_here`: 0 where a replica takes more than the machine."""
        return None

    def check_names(self, scenario: Scenario) -> None:
        """Raises ScenarioError for arguments that only another engine has."""
        if scenario.server_args:
            raise ScenarioError("field-of-another-engine", field="server_args", engine=self.name)

    @abstractmethod
    def resolve(self, scenario: Scenario, architecture: Architecture, card: CardView) -> Resolved:
        """Every flag as a release fills it in; of the card it reads the view alone.

        Raises EngineRefusalError for what the engine refuses before it looks at memory.
        """

    @abstractmethod
    def check_block(self, resolved: Resolved) -> None:
        """Raises EngineRefusalError where the final block size is one that the release does not take."""

    @abstractmethod
    def is_available(self, field: str, value: str, version: Version) -> bool:
        """Whether the flag of `field` takes `value` in `version`; "" asks for the flag itself."""

    @abstractmethod
    def former_flag(self, flag: str) -> FormerFlag | None:
        """The fate of `flag`: since when it is gone, and its replacement; None for one that is still there."""

    @abstractmethod
    def runner_flag(self, scenario: Scenario, runner: Runner, version: Version) -> tuple[str, str]:
        """Name and value of the flag that asks for `runner`, without dashes."""

    @abstractmethod
    def backend_to_ask_for(self, architecture: Architecture) -> AttentionBackend | None:
        """The attention backend that a start has to name; None where the engine finds it by itself."""

    @abstractmethod
    def transfer(self, scenario: Scenario) -> Transfer:
        """The connector of KV caches and the role of the server that `scenario` starts."""

    @abstractmethod
    def exchange(self, scenario: Scenario) -> str | None:
        """The backend by which ranks with whole experts exchange tokens; None for the engine's default."""

    @abstractmethod
    def gathers_tokens(self, scenario: Scenario) -> bool:
        """Whether each rank gathers the tokens of all replicas."""

    exchanged_tokens: ClassVar[int]
    """Tokens that a rank may send at once where experts are whole, unless a variable says otherwise."""

    def additional_keys(self, version: Version) -> frozenset[str]:
        """Keys of `--additional-config` that `version` reads, with dots those of an object in it."""
        return frozenset()

    @abstractmethod
    def unread_keys(self, scenario: Scenario) -> tuple[str, ...]:
        """Keys of `--additional-config` that the planned release passes over."""

    format_refusals: ClassVar[frozenset[str]]
    """Codes of refusals of a checkpoint's format that another checkpoint of the model ends."""

    # Model

    @abstractmethod
    def storage(self, scenario: Scenario) -> Quantization:
        """The storage format of the weights once they are loaded.

        Raises ModelError `gguf-type-unknown` or `unknown-quantization`, EngineRefusalError `quantization-mismatch`.
        """

    @abstractmethod
    def stored_architecture(self, scenario: Scenario, architecture: Architecture) -> Architecture:
        """`architecture` as the engine stores it: what is whole on a rank, cut, or kept in fewer bits."""

    @abstractmethod
    def draft(
        self,
        speculative: SpeculativeConfig | None,
        architecture: Architecture,
        quantization: Quantization,
        parallel: Parallel,
        max_model_len: int,
    ) -> Draft | None:
        """The draft that is loaded in addition to the model; None where none is, or none that is known here."""

    @abstractmethod
    def draft_notices(self, speculative: SpeculativeConfig | None, draft: Draft | None) -> tuple[Notice, ...]:
        """Notices about the draft: its shape is assumed, or it is not counted."""

    @abstractmethod
    def ends_on_every_stage(self, architecture: Architecture, version: Version) -> frozenset[End]:
        """The ends of the model that each of several pipeline stages stores a copy of.

        Raises EngineRefusalError `pipeline-unsupported` for a class that is not cut into stages.
        """

    @abstractmethod
    def compiles(self, architecture: Architecture, version: Version) -> bool:
        """Whether the class of the model is compiled."""

    @abstractmethod
    def adaptable(self, config: ModelConfig, version: Version) -> Adaptable:
        """The modules of a model that LoRA adapters may adapt."""

    checks_weight_shapes: ClassVar[bool] = True
    """Blocks and groups of quantized weights that tensor parallelism would cut stop the start."""

    # Cache

    states_last: ClassVar[bool] = False
    """Layers with recurrent states come after all others, so that attention is the first group."""
    plain_index_keys: ClassVar[bool] = False
    """Keys of a sparse indexer are stored in the model's dtype, not in fp8 with scales."""
    aligns_to_kernel_block: ClassVar[bool] = False
    """Blocks of hybrid models are multiples of the backend's smallest kernel block, in every release."""

    def kept_states(self, caches: tuple[CacheState, ...], version: Version) -> Iterable[CacheState]:
        """The states of a layer as the engine keeps them."""
        return caches

    def compressed_blocks(self, version: Version) -> CompressedBlocks | None:
        """Blocks of compressed caches where they are counted in vectors; None where they are packed."""
        return None

    def has_contiguous_states(self, resolved: Resolved) -> bool:
        """Whether keys of a hybrid model are as large as a state's largest tensor, with the smallest behind them."""
        return False

    def loads_drafts_late(self, resolved: Resolved) -> bool:
        """Whether a draft is loaded after the pools, out of what they leave."""
        return False

    def own_pool(
        self, available_bytes: Sequence[int], resolved: Resolved, available_kv: Sequence[Quantity]
    ) -> Any:
        """The KV plan in the memory of a rank of each stage, where the engine has no pool of blocks as vLLM's; None
        where it has."""
        return None

    def asks_for_tier(self, scenario: Scenario) -> bool:
        """Whether arguments that only this engine has ask for a tier in the host's memory."""
        return False

    def own_tier(self, scenario: Scenario, resolved: Resolved, cache: Any) -> Any:
        """The tier of one replica that those arguments ask for; None for none.

        Raises EngineRefusalError.
        """
        return None

    def with_pool(self, resolved: Resolved, cache: Any) -> Resolved:
        """`resolved` with what is only known once the pool is."""
        return resolved

    def own_result(self, resolved: Resolved, cache: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Flags and figures of the pool for a result in JSON that only this engine has."""
        return {}, {}

    # Memory

    @abstractmethod
    def rank_memory(self, setting: Setting, weights: Quantity) -> RankMemory:
        """Where the memory of one rank goes, given its weights: the parts, the budget, what the KV cache gets."""

    graph_api: ClassVar[GraphApi] = GraphApi.CUDA
    """How the platform records the steps that run as graphs."""
    has_cuda_kernels: ClassVar[bool] = True
    """The profile run and the capture take the workspaces of vLLM's CUDA kernels: of fused experts, of a sparse
    indexer, of the matrix library."""
    profiles_attention: ClassVar[bool] = True
    """Latent attention expands the keys of a prefix in the profile run."""
    captures_pieces_with_full: ClassVar[bool] = True
    """Where batches are captured in full, every size is captured piecewise as well."""
    counts_communicators: ClassVar[bool] = False
    """The buffers of each communicator are counted; else they are of the tables of `kvcore/memory/framework.toml`."""

    def budget(self, setting: Setting) -> Budget:
        """How the budget is made up, but for the first runner of vLLM."""
        return setting.switches.budget

    def pool_share(self, setting: Setting) -> int:
        """The divisor of what is left before it becomes the KV cache."""
        return 1

    def unsized_bytes(self, setting: Setting) -> tuple[int, int]:
        """How far memory that no source gives a size for may move the KV cache, down and up."""
        return 0, 0

    def communicators(self, setting: Setting) -> Taken:
        """Buffers of the communicators that the profile run uses, where they are counted."""
        return Taken(0)

    def layer_peak(self, setting: Setting, body_bytes: int) -> LayerPeak | None:
        """The largest layer of the profile run, given what it takes without experts; None: as vLLM's kernels take
        it."""
        return None

    def profiled_buffers(self, setting: Setting) -> int:
        """Bytes of the engine's own buffers that are there before the profile run."""
        return 0

    def embeds_in_profile(self, version: Version) -> bool:
        """Whether the profile run of the V1 engine embeds images, video or recordings."""
        return True

    def reserved(self, setting: Setting, peak: Quantity) -> Quantity:
        """The peak of the profile run as the engine's allocator reserves it."""
        return peak

    def estimates_graphs(self, setting: Setting) -> bool:
        """Whether graphs of this model may be estimated on the card, where the release estimates any."""
        return setting.accelerator.vendor not in setting.switches.graphs_not_estimated

    def taken_later(self, setting: Setting, pool_bytes: float) -> Iterable[TakenLater]:
        """The engine's own share of what a start takes after its KV cache of `pool_bytes`."""
        return ()

    def doubles_pool(self, setting: Setting) -> bool:
        """Whether the KV cache of a hybrid model is allocated twice."""
        return False

    def expands_segments(self, version: Version) -> bool:
        """Whether the allocator grows its segments where no variable says otherwise."""
        return False

    def table_copies(self, version: Version) -> int:
        """Further copies of the plain cos/sin table that a model keeps."""
        return 0

    def kept_stream_bytes(self, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        """Bytes of the residual streams of a batch that a model keeps from the time it is built."""
        return 0

    def variables_in(self, version: Version) -> MemoryVariables | None:
        """The variables by which it is given the memory of a card on `version`; None where it looks itself."""
        variables = self.facts.memory_variables
        return variables if variables is not None and version < variables.below else None

    @property
    def last_with_variables(self) -> Version:
        """The newest of its own releases that is given the memory of a card."""
        releases = reversed(self.facts.releases.items())
        return next(own for own, host in releases if self.variables_in(host) is not None)

    def measures_memory_in(self, version: Version) -> bool:
        """Whether it looks at the card at start: free memory, and a profile run that its log takes apart."""
        return self.variables_in(version) is None

    def measures_memory(self, scenario: Scenario) -> bool:
        """Whether the release that `scenario` is planned as looks at the card at start."""
        return self.measures_memory_in(self.planned_release(scenario).version)

    # Serving

    @abstractmethod
    def metrics(self, version: Version, is_v0: bool) -> Mapping[str, Metric]:
        """Role -> the metric that `version` exports for it; a role that it has no metric for is absent."""

    def own_log_lines(self, resolved: Resolved, cache: Any) -> tuple[str, ...] | None:
        """Lines of a start in the engine's own words, after that of the weights; None where they are vLLM's."""
        return None

    @abstractmethod
    def load_generator(self, version: Version) -> LoadGenerator:
        """The load generator of `version`."""
