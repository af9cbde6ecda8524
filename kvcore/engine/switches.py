"""Switches of one release: a field for each table of `switches` in releases.toml, which names its source."""

from enum import StrEnum
from typing import Annotated, Literal

from msgspec import Meta

from kvcore.catalogue.accelerators import Vendor
from kvcore.engine.overheads import Budget
from kvcore.scenario import CudagraphMode
from kvcore.tables import Record, Share


class AttentionBackend(StrEnum):
    """vLLM's own attention backends."""

    CUTLASS_MLA = "CUTLASS_MLA"
    FLASHINFER = "FLASHINFER"
    FLASHINFER_MLA = "FLASHINFER_MLA"
    FLASHINFER_MLA_SPARSE = "FLASHINFER_MLA_SPARSE"
    FLASHINFER_MLA_SPARSE_SM120 = "FLASHINFER_MLA_SPARSE_SM120"
    FLASHMLA = "FLASHMLA"
    FLASHMLA_MEGA_ATTN_DSV41 = "FLASHMLA_MEGA_ATTN_DSV41"
    FLASHMLA_SPARSE = "FLASHMLA_SPARSE"
    FLASHMLA_SPARSE_DSV41 = "FLASHMLA_SPARSE_DSV41"
    FLASH_ATTN = "FLASH_ATTN"
    FLASH_ATTN_MLA = "FLASH_ATTN_MLA"
    FLASH_ATTN_MLA_SPARSE = "FLASH_ATTN_MLA_SPARSE"
    FLEX_ATTENTION = "FLEX_ATTENTION"
    MINIMAX_M3_SPARSE = "MINIMAX_M3_SPARSE"
    TRITON_ATTN = "TRITON_ATTN"
    TRITON_MLA = "TRITON_MLA"
    ROCM_OCTAVE = "ROCM_OCTAVE"
    TURBOQUANT = "TURBOQUANT"
    ULTRAQUANT = "ULTRAQUANT"
    XFORMERS = "XFORMERS"


class AttentionKind(StrEnum):
    """Kinds of attention that the table of backends tells apart."""

    PLAIN = "plain"
    MLA = "mla"
    SPARSE = "sparse"
    """MLA with an indexer."""
    BLOCKS = "blocks"
    """MiniMax-M3's."""
    COMPRESSED = "compressed"
    """DeepSeek-V4's."""
    SHARED = "shared"
    """DeepSeek-V4.1's, whose layers share compressed caches."""
    PREFIX = "prefix"
    """Images attend to themselves."""
    TURBOQUANT = "turboquant"
    ULTRAQUANT = "ultraquant"
    OCTAVE = "octave"


class CacheWidth(StrEnum):
    """Which caches a row of the table is for."""

    ANY = "any"
    FP8 = "fp8"
    WIDE = "wide"


class V1Engine(StrEnum):
    """Whether the second generation of the engine runs."""

    NEVER = "never"
    OPT_IN = "opt-in"
    DEFAULT = "default"
    ONLY = "only"


class GraphEstimate(StrEnum):
    """Whether an estimate of the CUDA graphs is taken off the budget."""

    NONE = "none"
    WHEN_ASKED = "when-asked"
    COUNTED = "counted"


class BatchTiers(StrEnum):
    """Which cards get large batches; each keeps what the ones before it do."""

    BY_MEMORY = "by-memory"
    NOT_A100 = "not-a100"
    HUGE = "huge"


class V2Models(StrEnum):
    """Which models take the V2 runner."""

    NEVER = "never"
    OPT_IN = "opt-in"
    QWEN3 = "qwen3"
    PLAIN = "plain"
    """Llama, Mistral, Qwen3."""
    LISTED = "listed"
    """And a few mixtures of experts."""
    DENSE = "dense"
    """All dense ones, and the listed mixtures."""
    ALL = "all"


class ConnectorGroups(StrEnum):
    """When layers keep groups of their own with a connector of KV caches."""

    NEVER = "never"
    ASKED = "asked"
    """With --no-disable-hybrid-kv-cache-manager."""
    BY_CONNECTOR = "by-connector"
    """Asked for, or where the connector knows groups."""


class HybridPrefixCaching(StrEnum):
    """Prefix caching of models with recurrent layers: not possible, or the default of the flag."""

    UNSUPPORTED = "unsupported"
    OFF = "off"
    ON = "on"


class MambaModes(StrEnum):
    """With prefix caching, the mode of models whose every state may be cached, and that of others."""

    NONE = "none"
    ALL_OR_NONE = "all-or-none"
    ALL_OR_ALIGN = "all-or-align"
    ALL_UNLESS_SPECULATIVE = "all-unless-speculative"
    """Then align, as others."""
    ALIGN = "align"


class StateKind(StrEnum):
    """Kinds of recurrent layers."""

    MAMBA1 = "mamba1"
    MAMBA2 = "mamba2"
    LINEAR_ATTENTION = "linear_attention"
    GDN_ATTENTION = "gdn_attention"
    KDA = "kda"
    SHORT_CONV = "short_conv"


class GraphSizes(StrEnum):
    """Which batch sizes are captured where no flag asks for any."""

    EIGHTS = "eights"
    EIGHTS_CAPPED = "eights-capped"
    SIXTEENS = "sixteens"
    SIXTEENS_SPECULATIVE = "sixteens-speculative"
    UNIFORM = "uniform"
    UNIFORM_AND_WIDEST = "uniform-and-widest"


class GraphSizeFlag(StrEnum):
    """The flag that asks for the largest captured batch."""

    NONE = ""
    FORMER = "--cuda-graph-sizes"
    """With one number it says the largest size, with several all of them. From 0.11.1 on it is an alias of
    `--cudagraph-capture-sizes`, and gone with 0.13.

    Source: vllm/engine/arg_utils.py:EngineArgs (0.9.2, 0.11.0, 0.11.1, 0.13.0).
    """
    OWN = "--max-cudagraph-capture-size"


class GraphRounding(StrEnum):
    """Where drafts are decoded in full graphs, sizes are multiples of a request's tokens: what becomes of none left."""

    NONE = ""
    """No rounding."""
    KEPT = "kept"
    REFUSED = "refused"
    REFUSED_V1 = "refused-v1"
    """The V2 runner does not round."""


class GraphModes(StrEnum):
    """Which sets of graphs are captured."""

    PIECEWISE = "piecewise"
    FULL_FOR_HYBRIDS = "full-for-hybrids"
    FULL_AND_PIECEWISE = "full-and-piecewise"


class SparseFp8Layout(StrEnum):
    """When a sparse MLA cache has the packed fp8_ds_mla layout."""

    ALWAYS = "always"
    WITH_FP8 = "with-fp8"
    BY_BACKEND = "by-backend"


class SparseQueries(StrEnum):
    """Copies of the batch's queries that FlashMLA's sparse kernel reserves."""

    NONE = "none"
    HEADS = "heads"
    PADDED = "padded"
    """Padded to the heads of the kernel where the cache is not packed."""
    OUTPUTS = "outputs"
    """And padded queries and outputs where it is."""


class Fp8Cards(StrEnum):
    """Which cards store fp8 keys and values."""

    FLASH_ATTENTION = "flash-attention"
    """Hopper and SM100."""
    SM80 = "sm80"
    """SM80 and later."""


class Nvfp4Cards(StrEnum):
    """Which cards store nvfp4 keys and values."""

    SM100 = "sm100"
    SM80 = "sm80"
    """SM80 and later, but for heads of 64 elements before SM100."""


class LongRequests(StrEnum):
    """How a request is treated that needs more than max_model_len."""

    REFUSED = "refused"
    UNREAD = "unread"
    """In releases whose code was not read for it."""
    CUT = "cut"
    """Its answer stops at the limit."""


class Switches(Record, frozen=True, kw_only=True):
    """Behaviour of one release."""

    v1_engine: V1Engine
    gpu_memory_utilization: Share
    budget: Budget
    communication_in_budget: bool
    """NCCL and all-reduce buffers are created after the memory snapshot."""
    graph_estimate: GraphEstimate
    kv_cache_memory_bytes: bool
    """`--kv-cache-memory-bytes` exists."""
    batch_tiers: BatchTiers
    clips_batch: bool
    latent_cuts_late: bool
    """V0 leaves prefills of latent attention whole, but only once the batch is made as if it cut them."""
    largest_item_in_batch: bool
    """The default max_num_batched_tokens fits the largest multimodal item of a prefix model."""
    async_scheduling: bool
    async_pooling: bool
    """The pooling runner schedules ahead as well."""
    v2_async_methods: bool
    """The V2 runner schedules ahead with every speculative method."""
    v1_pooling: bool
    """V1 pools."""
    model_runner_v2: V2Models
    hybrid_prefix_caching: HybridPrefixCaching
    mamba_cache_mode: MambaModes
    align_speculates: bool
    """Mode align drafts tokens as well."""
    align_block_fits_batch: bool
    """Mode align takes no block above max_num_batched_tokens."""
    ssm_dtype_kinds: frozenset[StateKind]
    """Recurrent layers that `--mamba-ssm-cache-dtype` is asked for."""
    config_state_dtype: bool
    """Nemotron's `mamba_ssm_cache_dtype` is read from its config."""
    no_float32_states: frozenset[StateKind]
    """Recurrent layers that keep no float32."""
    graph_sizes: GraphSizes
    captures_batch: bool
    """max_num_batched_tokens is a size of its own where it is not above the largest."""
    graph_size_flag: GraphSizeFlag
    redundant_experts_flag: Literal["", "num-redundant-experts", "eplb-config.num_redundant_experts"]
    """How the copies of EPLB are asked for; "" where there are none."""
    batched_exchange: bool
    """With low-latency exchange of tokens, a batch is what one rank may send at once."""
    pplx_exchange: bool
    """`--all2all-backend pplx` exchanges by pplx; later it means gathering and scattering."""
    allreduce_fusion_pass: Literal["", "enable_fi_allreduce_fusion", "fuse_allreduce_rms"]
    """The field of `pass_config` that fuses all-reduce with RMSNorm; "" where there is none."""
    graph_rounding: GraphRounding
    graph_limit_sm100: Annotated[int, Meta(ge=1, le=1 << 20)]
    graph_modes: GraphModes
    flashinfer_draft_graphs: frozenset[Annotated[int, Meta(ge=1, le=99)]]
    """Major compute capabilities on which full graphs contain FlashInfer's decoding of drafts."""
    chunked_local_groups: bool
    connector_groups: ConnectorGroups
    max_model_len_auto: bool
    """`--max-model-len auto` exists."""
    sparse_fp8_layout: SparseFp8Layout
    fp8_kv_cache: Fp8Cards
    nvfp4_kv_cache: Nvfp4Cards
    xpu_graphs: bool
    """Graphs are captured on Intel's cards without XPU_VARIABLE."""
    prefill_context: bool
    """Latent attention takes prefill context parallelism; other attention of vLLM never does."""
    sparse_attention: frozenset[Annotated[int, Meta(ge=1, le=99)]]
    """Major compute capabilities with kernels for sparse latent attention."""
    block_sizes: tuple[Annotated[int, Meta(ge=1, le=1 << 20)], ...]
    """Sizes that `--block-size` accepts; empty for any."""
    runner_flag: bool
    """`--runner` exists; `--task` stood for it."""
    gpt_oss_graph_limit: Annotated[int, Meta(ge=0, le=1 << 20)]
    """The largest captured batch that gpt-oss sets itself; 0 for none."""
    adapters_double_graphs: bool
    """Each graph is captured with LoRA adapters and without."""
    v2_graph_estimate: bool
    """The V2 runner estimates graphs; its answer was 0."""
    graphs_not_estimated: frozenset[Vendor]
    """Vendors whose cards' graphs are not estimated."""
    rounds_budget_up: bool
    checks_free_memory: bool
    """A start with less free memory than its budget is refused."""
    float_kv_cache_follows_model: bool
    """A 16-bit KV cache of another dtype than the model's is refused."""
    gdn_checkpoint_tokens: Annotated[int, Meta(ge=0, le=1024)]
    """Tokens that states which a gated delta net exports inside a prefill lie apart; 0 where it exports none."""
    indexer_entries: Annotated[int, Meta(ge=1, le=1 << 10)]
    """Entries of a sparse indexer's gather buffer for each token of max_model_len."""
    indexer_logits_mib: Annotated[int, Meta(ge=0, le=1 << 20)]
    """Memory of the profile run for the logits of a sparse indexer."""
    sparse_reserve: Annotated[int, Meta(ge=0, le=64)]
    """Tokens for each of max_model_len that FlashMLA's sparse kernel reserves for a packed cache, where it is short."""
    sparse_reserve_long: Annotated[int, Meta(ge=0, le=64)]
    """The same above 256K tokens."""
    sparse_queries: SparseQueries
    sparse_groups: bool
    """Layers that share a sparse indexer's choice keep a copy of it."""
    expert_chunk_tokens: Annotated[int, Meta(ge=0, le=1 << 30)]
    """Tokens that fused experts take at once; 0 for all."""
    expert_workspace_stays: bool
    """The workspace of fused experts outlives its layer."""
    skips_encoders: bool
    """Encoders that no request can use are not loaded."""
    offloads_encoders: bool
    """`--cpu-offload-gb` moves encoders too, before the layers."""
    loading_split_mib: Annotated[int, Meta(ge=0, le=1 << 20)]
    """The size from which the allocator cuts no blocks while weights are loaded; 0 where it always does."""
    refines_expert_blocks: bool
    """Blocks of quantized experts are cut where the experts are."""
    fused_blocks_whole: bool
    """Fused projections in fp8 have to be whole blocks on each rank."""
    long_requests: LongRequests
    logs_available_memory: bool
    """A start prints "Available KV cache memory"."""
    logs_capacity_in_one_line: bool
    """Tokens and concurrency stand on one line of the log."""


def graph_mode(modes: tuple[str, ...], mixed_full: bool) -> CudagraphMode:
    """The engine's word for captured sets of graphs; `mixed_full`: full graphs are of mixed batches too.

    Example:
        >>> graph_mode(("PIECEWISE", "FULL"), False).value, graph_mode(("FULL",), False).value
        ('FULL_AND_PIECEWISE', 'FULL_DECODE_ONLY')
    """
    if "FULL" not in modes:
        return CudagraphMode.PIECEWISE if modes else CudagraphMode.NONE
    if mixed_full:
        return CudagraphMode.FULL
    return CudagraphMode.FULL_AND_PIECEWISE if "PIECEWISE" in modes else CudagraphMode.FULL_DECODE_ONLY
