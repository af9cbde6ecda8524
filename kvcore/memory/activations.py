"""The peak of torch memory in the engine's profile run, on one rank: the largest of its phases, and what stays."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final, NamedTuple

from msgspec import Meta
from packaging.version import Version

from kvcore.base.kept import kept
from kvcore.base.quantity import Grade, Quantity, explained, figure
from kvcore.base.term import most
from kvcore.base.units import GIB, MIB, ceil_div
from kvcore.catalogue.accelerators import Accelerator, Vendor
from kvcore.engine.overheads import SamplerRow
from kvcore.engine.protocol import Engine, Setting
from kvcore.engine.records import LayerPeak
from kvcore.engine.setting import has_indexer
from kvcore.engine.switches import AttentionBackend
from kvcore.memory.encoder_profile import (
    AudioConstants,
    EncoderConstants,
    profiled_bytes,
    sees,
    takes_pixel_bounds,
    unexplained_share,
)
from kvcore.memory.sparse_attention import (
    LONG_TOKENS,
    gathered_bytes,
    reserved_bytes,
    stream_attention_bytes,
)
from kvcore.memory.weights import expert_slices
from kvcore.model.architecture import Architecture, Experts
from kvcore.scenario import Installation, Runner
from kvcore.tables import Amount, Capability, Record, ReleaseRange, Reviewed, Source, TableFile

INDEXER_ENTRY_BYTES: Final = 132
LATENT_PREFILL_TOKENS: Final = 65_536
"""Upper end of the MLA prefill workspace.

Source: vllm/v1/attention/backends/mla/common.py:MLACommonMetadataBuilder (0.11.0).
"""
LATENT_HEAD_SIZE: Final = 128
"""Size of keys and of values, without rope, in every published MLA model but a few."""

NO_WORKSPACE: Final = ("fp4", "modelopt_mixed")
"""Parts of the names of formats whose expert kernels bring their own memory.

Source: vllm/model_executor/layers/fused_moe/flashinfer_trtllm_moe.py (0.32.0).
"""

FLOAT32_BYTES: Final = 4
FLASHINFER_VARIABLE: Final = "VLLM_USE_FLASHINFER_SAMPLER"
FLASHINFER_CAPABILITY: Final = (7, 5)
"""Source: vllm/v1/attention/backends/flashinfer.py:FlashInferBackend.supports_compute_capability (0.13.0, 0.33.0)."""

VOCABULARY_MULTIPLE: Final = 64
"""Logits of a vocabulary that is no multiple are copied. Source: vllm/.../vocab_parallel_embedding.py (0.32.0)."""


class Body(Record, frozen=True, kw_only=True):
    """Vectors of one layer alive at once, for each batched token."""

    source: Source
    hidden_vectors: Amount
    intermediate_vectors: Amount
    xformers_hidden_vectors: Amount


class ExpertVectors(Record, frozen=True, kw_only=True):
    """Vectors of the hidden size that exist while experts run, in addition to those of any layer."""

    source: Source
    shared_vectors: Amount
    quantized_vectors: Amount
    quantized: Annotated[str, Meta(pattern=r"^[a-z0-9_]{2,20}$")]


class CompilingRow(ReleaseRange, frozen=True, kw_only=True):
    """Releases whose profile run of a first start keeps a copy of the embedding table, but for some classes."""

    source: Source
    vendor: Vendor | None = None


class FlashInferRow(ReleaseRange, frozen=True, kw_only=True):
    """Whether V1 filters by top-k and top-p with FlashInfer."""

    source: Source
    is_default: bool
    """Without VLLM_USE_FLASHINFER_SAMPLER."""
    installed: frozenset[Installation] = frozenset()
    """Installations that have it; none: all of them."""


class Multiprocessors(Record, frozen=True, kw_only=True):
    """Multiprocessors by compute capability, and of cards that differ."""

    source: Source
    capability: Mapping[Capability, Annotated[int, Meta(ge=1, le=1024)]]
    card: Mapping[Annotated[str, Meta(pattern=r"^\S(.*\S)?$")], Annotated[int, Meta(ge=1, le=1024)]]


class ActivationTables(Reviewed, frozen=True, kw_only=True):
    """activations.toml."""

    sampler: tuple[SamplerRow, ...]
    flashinfer: tuple[FlashInferRow, ...]
    body: Body
    experts: ExpertVectors
    compiling: tuple[CompilingRow, ...]
    encoder: EncoderConstants
    audio: AudioConstants
    multiprocessors: Multiprocessors

    def __post_init__(self) -> None:
        if any(row.runner is None for row in self.sampler):
            raise ValueError("each row of sampler is of a runner")


ACTIVATIONS: Final = TableFile("kvcore.memory", "activations.toml", ActivationTables)


def peak_activation_bytes(setting: Setting) -> Quantity:
    """Peak activation bytes of the profile run on one rank.

    max(layers, sampling, vision encoder, compiling) + what stays allocated (encoder outputs, expert and indexer
    workspaces). Only the last pipeline stage samples. The pooling runner pools there instead.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner.profile_run (0.19.0, 0.32.0).
    """
    phases = _phases(setting)
    row, *others = sampler_rows(setting)
    sampler = _last_bytes(setting, row)
    sizes = {
        "layers": phases.layers,
        "pooling" if setting.resolved.runner is Runner.POOLING else "sampling": sampler,
        "encoder": phases.encoder,
    }
    if phases.compiling:
        sizes["compiling"] = phases.compiling
    low, high = _interval(setting, phases, row, sampler)
    for other in others:
        ends = _interval(setting, phases, other, _last_bytes(setting, other))
        low, high = min(low, ends[0]), max(high, ends[1])
    return explained(
        "activations",
        peak_bytes,
        tuple([figure(name, size, grade=Grade.FITTED) for name, size in sizes.items()]),
        figure("kept", phases.kept, grade=Grade.FITTED),
        grade=Grade.FITTED,
        source=row.source,
        interval=(low, high),
    )


class Phases(NamedTuple):
    """Peaks of the profile run but for sampling, in bytes, and what is kept throughout."""

    layers: int
    encoder: int
    compiling: int
    kept: int
    outputs: int
    """The encoder's part of `kept`."""
    own: LayerPeak | None
    """The engine's own figure for the layers, where it has one."""


def _phases(setting: Setting) -> Phases:
    """The phases of a rank.

    What a repository's preprocessor_config.json allows is not read: without bounds in the request the images may be
    smaller, down to none.
    """
    body, tables = body_bytes(setting) + spark_states_bytes(setting), ACTIVATIONS.load()
    encoder, outputs = profiled_bytes(setting, tables.encoder, tables.audio) if setting.is_first else (0, 0)
    experts = expert_workspace_bytes(setting) + gathered_tokens_bytes(setting)
    stays = setting.switches.expert_workspace_stays
    kept = outputs + (shared_bytes(setting, experts) if stays else indexer_bytes(setting))
    kept += setting.engine.profiled_buffers(setting)
    layers = body + (0 if stays else experts)
    own = setting.engine.layer_peak(setting, body)
    if own is not None:
        layers = max(own.plain, own.streams)
    return Phases(layers, encoder, compiling_bytes(setting), kept, outputs, own)


def _last_bytes(setting: Setting, row: SamplerRow) -> int:
    """Bytes that the last pipeline stage takes for sampling as in `row`, or for pooling."""
    if not setting.is_last:
        return 0
    if setting.resolved.runner is Runner.POOLING:
        return pooler_bytes(setting)
    return sampler_bytes(setting, row)


def _interval(setting: Setting, phases: Phases, row: SamplerRow, sampler: int) -> tuple[float, float]:
    """The 80 % interval of the peak where sampling takes `sampler` bytes, as in `row`."""
    encoder, kept, own = phases.encoder, phases.kept, phases.own
    others = max(phases.layers, sampler, phases.compiling)
    value = max(others, encoder) + kept
    share = row.spread_share
    if own is not None and own.streams_share and value == own.streams + kept:
        share = own.streams_share
    spread = max(row.spread_gib * GIB, share * value)
    low = value - spread
    if own is not None and own.least_streams < own.streams:
        low -= own.streams - max(own.least_streams, own.plain)
    if encoder > others:
        constants = ACTIVATIONS.load().encoder
        spread = constants.spread_share * value
        is_bounded = setting.scenario.mm_processor_kwargs is not None or not takes_pixel_bounds(setting)
        low = value - spread if is_bounded else others + kept - phases.outputs
        spread = max(spread, unexplained_share(setting, constants) * value)
    if phases.compiling:
        # Nothing says whether kernels are there already: a start that finds them does without the copy.
        restart = max(phases.layers, sampler, encoder) + kept
        low = min(low, restart - max(row.spread_gib * GIB, share * restart))
    return max(0.0, low), value + spread


def peak_bytes(peaks: tuple[int, ...], kept: int) -> int:
    """The largest of the peaks, which come one after the other, and what is kept throughout."""
    return most(*peaks) + kept


def sampler_rows(setting: Setting) -> tuple[SamplerRow, ...]:
    """How the setting samples: the likelier way first where its surroundings leave two.

    FlashInfer needs compute capability 7.5. Without VLLM_USE_FLASHINFER_SAMPLER the way that takes more comes first,
    and the other is kept as possible: published starts of one release and image show both.

    Source: the rows of `flashinfer`.
    """
    version, asked = setting.resolved.version, setting.scenario.env.get(FLASHINFER_VARIABLE)
    runs = (
        setting.runner == "v1"
        and setting.accelerator.vendor is Vendor.NVIDIA
        and (setting.accelerator.compute_capability or FLASHINFER_CAPABILITY) >= FLASHINFER_CAPABILITY
    )
    rows = ACTIVATIONS.load().flashinfer if runs else ()
    rule = next((row for row in rows if row.covers(version)), None)
    if rule is None:
        return (sampler_row(setting.engine, setting.runner, version),)
    wants = rule.is_default if asked is None else asked == "1"
    place = setting.scenario.surroundings.installation
    if not wants or not rule.installed:
        return (sampler_row(setting.engine, "v1", version, wants),)
    if place is Installation.PIP:
        return (sampler_row(setting.engine, "v1", version),)
    ways = (True,) if asked is not None else (False, True)
    return tuple(sampler_row(setting.engine, "v1", version, way) for way in ways)


@lru_cache(maxsize=256)
def sampler_row(engine: Engine, runner: str, version: Version, flashinfer: bool = False) -> SamplerRow:
    """The constants of sampling in one era: the newest row of the runner."""
    rows = (row for row in _rows_of(engine, runner) if row.covers(version))
    found = (row for row in rows if row.is_flashinfer == flashinfer)
    return max(found, key=lambda row: row.since)


@lru_cache(maxsize=256)
def counts_multiprocessors(engine: Engine, runner: str, version: Version) -> bool:
    """Whether sampling in one era may take memory for each multiprocessor of the card."""
    rows = (row for row in _rows_of(engine, runner) if row.covers(version))
    return any(row.vocabulary_rows_per_multiprocessor for row in rows)


def _rows_of(engine: Engine, runner: str) -> tuple[SamplerRow, ...]:
    own = engine.facts.overheads
    return own.sampler if own else tuple(row for row in ACTIVATIONS.load().sampler if row.runner == runner)


def sampler_bytes(setting: Setting, row: SamplerRow) -> int:
    """Logits of min(max_num_seqs, batch) rows with the sampler's copies, with the hidden states of the batch."""
    resolved, architecture = setting.resolved, setting.architecture
    tokens = resolved.max_num_batched_tokens
    rows = min(resolved.max_num_seqs, tokens)
    vocabulary = architecture.vocab_size
    programs = filter_programs(multiprocessors(setting.accelerator), rows)
    top_k = row.vocabulary_rows_per_multiprocessor * programs * vocabulary * 4
    hidden = tokens * architecture.hidden_size * setting.element_bytes
    per_logit = max(row.bytes_per_logit, logit_copies(setting) * setting.element_bytes)
    per_logit += setting.element_bytes if vocabulary % VOCABULARY_MULTIPLE else 0
    return int(per_logit * rows * vocabulary + top_k + row.bytes_per_token * tokens) + hidden


def logit_copies(setting: Setting) -> float:
    """How many times the logits are there at once before anything is sampled: twice where they are capped, or gathered
    from ranks and put in order next to the rank's own.

    Source: vllm/model_executor/layers/logits_processor.py:LogitsProcessor.forward, _gather_logits,
    vllm/distributed/device_communicators/base_device_communicator.py:all_gather (0.11.0, 0.27.1). Gemma-4-E4B on an RTX
    3090, 0.27.1, prints 0.27 GiB: 256 × 262,144 × 2 × 2 bytes are 0.25.
    """
    ranks = setting.parallel.tensor_parallel_size
    if ranks > 1:
        return 2 + 1 / ranks
    return 2 if setting.scenario.config.language.get("final_logit_softcapping") else 1


def filter_programs(chip: int, rows: int) -> int:
    """Rows of the vocabulary that Triton's filter keeps on a chip of so many multiprocessors: a power of two of the
    rows that are sampled, at most one for each multiprocessor.

    Source: vllm/v1/sample/ops/topk_topp_triton.py:apply_top_k_top_p_triton (0.17.1, 0.20.0, 0.29.0).

    Example:
        >>> filter_programs(132, 1024), filter_programs(132, 33), filter_programs(132, 1)
        (132, 64, 1)
    """
    return min(chip, 1 << (min(chip, rows) - 1).bit_length()) if chip else 0


def pooler_bytes(setting: Setting) -> int:
    """The batch's hidden states and, for the task of embedding each token, a float32 copy of them and of one request's.

    Source: vllm/v1/worker/gpu_model_runner.py:GPUModelRunner._dummy_pooler_run_task, vllm/model_executor/layers/
    pooler/tokwise/heads.py:TokenEmbeddingPoolerHead (0.32.0).
    """
    resolved, hidden_size = setting.resolved, setting.architecture.hidden_size
    tokens = resolved.max_num_batched_tokens
    longest = ceil_div(tokens, min(resolved.max_num_seqs, tokens))
    return hidden_size * (tokens * (setting.element_bytes + FLOAT32_BYTES) + longest * FLOAT32_BYTES)


def compiling_bytes(setting: Setting) -> int:
    """The copy of the rank's embedding table that the profile run of a first start keeps while it compiles.

    None in a restart, in eager mode, for classes that are not compiled, and where images are embedded outside the
    compiled model.
    """
    architecture, resolved = setting.architecture, setting.resolved
    cold = not setting.scenario.kernels_compiled and not resolved.enforce_eager
    compiles = cold and setting.runner in ("v1", "v2") and setting.is_first
    vendors = (None, setting.accelerator.vendor)
    rows = (row for row in ACTIVATIONS.load().compiling if row.vendor in vendors)
    if not compiles or not any(row.covers(resolved.version) for row in rows):
        return 0
    if not resolved.engine.compiles(architecture, resolved.version):
        return 0
    if sees(setting):
        return 0
    share = ceil_div(architecture.vocab_size, setting.parallel.tensor_parallel_size)
    return share * architecture.hidden_size * setting.element_bytes


def restart_gain_bytes(activations: Quantity) -> int:
    """How much less a start peaks that finds compiled kernels: compiling - max(layers, sampling, encoder).

    0 where compiling is not the largest phase, or the peak was given.
    """
    found = activations.arguments[0] if activations.arguments else ()
    if not isinstance(found, tuple):
        return 0  # a figure that an engine is given instead of a profile run
    phases = {phase.name: int(phase.value) for phase in found}
    compiling = phases.pop("compiling", 0)
    return max(0, compiling - max(phases.values(), default=0))


@kept
def multiprocessors(accelerator: Accelerator) -> int:
    """Multiprocessors of a card, by its name, else by its compute capability; of AMD's by name alone. 0 for others."""
    if accelerator.vendor not in (Vendor.NVIDIA, Vendor.AMD):
        return 0
    table = ACTIVATIONS.load().multiprocessors
    label = f"{accelerator.id} {accelerator.name}".replace("-", " ").upper().split()
    for name, count in table.card.items():
        words = name.upper().split()
        if any(label[at : at + len(words)] == words for at in range(len(label))):
            return count
    if accelerator.vendor is Vendor.AMD:
        return 0
    major, minor = accelerator.compute_capability or (8, 0)
    return table.capability.get(f"{major}.{minor}", table.capability["8.0"])


def body_bytes(setting: Setting) -> int:
    """Bytes that one decoder layer keeps for the whole batch: batch × (3 hidden + 3 intermediate / tp) elements.

    For MLA the prefill workspace comes on top, for its sparse kind what the profile run takes for the indexer's logits.
    Attention and recurrent scans do not run in the profile.

    Source: vllm/model_executor/layers/sparse_attn_indexer.py:sparse_attn_indexer (0.18.0 without, 0.19.0, 0.33.0).
    """
    architecture, resolved, body = setting.architecture, setting.resolved, ACTIVATIONS.load().body
    is_xformers = resolved.attention_backend == AttentionBackend.XFORMERS
    vectors = body.xformers_hidden_vectors if is_xformers else body.hidden_vectors + expert_vectors(setting)
    total = resolved.max_num_batched_tokens * layer_elements(setting, vectors) * setting.element_bytes
    if not setting.engine.profiles_attention:
        return int(total)
    streams = stream_attention_bytes(architecture, setting.parallel, resolved)
    if streams or has_indexer(architecture):
        total = max(total + setting.switches.indexer_logits_mib * MIB, streams)
    elif architecture.is_mla:
        total += _latent_prefill_bytes(setting)
    return int(total)


def spark_states_bytes(setting: Setting) -> int:
    """What the layers keep for a DSpark draft in the same checkpoint.

    Source: vllm/v1/worker/gpu/model_runner.py:GPUModelRunner.use_aux_hidden_state_outputs (0.25.0, 0.33.0).
    """
    spark, resolved = setting.architecture.spark, setting.resolved
    if spark is None or resolved.speculative_method != "dspark" or not setting.is_last:
        return 0
    return resolved.max_num_batched_tokens * spark.kept_elements * setting.element_bytes


def expert_vectors(setting: Setting) -> float:
    """Vectors of the hidden size that a mixture adds while its experts run."""
    moe, row = setting.architecture.moe, ACTIVATIONS.load().experts
    if moe is None or not setting.engine.has_cuda_kernels:
        return 0.0
    shared = row.shared_vectors if moe.shared_intermediate_size else 0.0
    return shared + (row.quantized_vectors if row.quantized in setting.storage else 0.0)


def layer_elements(setting: Setting, hidden_vectors: float) -> float:
    """Elements of one token that a decoder layer keeps: vectors of the hidden size, and 3 intermediate / tp."""
    architecture, moe = setting.architecture, setting.architecture.moe
    intermediate = architecture.intermediate_size if moe is None else moe.shared_intermediate_size
    vectors = ACTIVATIONS.load().body.intermediate_vectors
    return (
        hidden_vectors * architecture.hidden_size
        + vectors * intermediate / setting.parallel.tensor_parallel_size
    )


def _latent_prefill_bytes(setting: Setting) -> int:
    """Keys and values that MLA expands for a chunk of the prefix.

    Source: vllm/v1/attention/backends/mla/common.py:MLACommonImpl (0.11.0, 0.19.0).
    """
    architecture, resolved = setting.architecture, setting.resolved
    tokens = min(
        max(8 * resolved.max_model_len, 4 * resolved.max_num_seqs * resolved.block_size),
        LATENT_PREFILL_TOKENS,
    )
    heads = ceil_div(architecture.num_attention_heads, setting.parallel.tensor_parallel_size)
    return tokens * heads * 2 * LATENT_HEAD_SIZE * setting.element_bytes


def expert_workspace_bytes(setting: Setting) -> int:
    """The two buffers of the fused experts: chunk × top_k rows of the larger of what an expert takes and what it makes.

    Source: vllm/model_executor/layers/fused_moe/fused_moe.py:TritonExperts.workspace_shapes (0.19.0, 0.32.0).
    """
    if any(name in setting.storage for name in NO_WORKSPACE):
        return 0
    return _workspace_bytes(setting, setting.resolved.max_num_batched_tokens)


def gathered_tokens_bytes(setting: Setting) -> int:
    """Bytes the experts' step takes more since data parallel replicas gather the tokens of all of them: tokens in and
    out, and the workspace of the further rows, whatever the format.

    Backends that send tokens where their experts are bring buffers of their own instead.

    Source: vllm/distributed/device_communicators/all2all.py:NaiveAll2AllManager (0.9.2), AgRsAll2AllManager (0.11.0,
    0.33.0); vllm/model_executor/layers/fused_moe/layer.py:FusedMoE.forward_impl (0.9.2, 0.20.0).
    """
    parallel, tokens = setting.parallel, setting.resolved.max_num_batched_tokens
    if setting.ranks == parallel.tensor_parallel_size or not setting.engine.gathers_tokens(setting.scenario):
        return 0
    every = tokens * parallel.data_parallel_size
    rows = 2 * every * experts_width(setting.architecture) * setting.element_bytes
    return rows + _workspace_bytes(setting, every) - _workspace_bytes(setting, tokens)


@kept
def experts_width(architecture: Architecture) -> int:
    """Elements of a token as the routed experts take it: the hidden size, or the smaller one that a latent mixture
    projects tokens to before them.

    Source: vllm/model_executor/models/nemotron_h.py:NemotronHMoE, fc1_latent_proj (0.13.0, 0.33.0).

    Example:
        >>> from kvcore import catalogue
        >>> from kvcore.model.families import read_architecture
        >>> ultra = read_architecture(catalogue.find_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16").config)
        >>> ultra.hidden_size, experts_width(ultra)
        (4096, 1024)
    """
    widths = (
        module.hidden_size
        for layer in dict.fromkeys(architecture.layers)
        for module in layer.modules
        if isinstance(module, Experts)
    )
    return max(widths, default=architecture.hidden_size)


def _workspace_bytes(setting: Setting, tokens: int) -> int:
    moe, hidden = setting.architecture.moe, experts_width(setting.architecture)
    if moe is None or not setting.engine.has_cuda_kernels:
        return 0
    width = 2 * moe.moe_intermediate_size // expert_slices(setting.parallel)
    rows = min(tokens, setting.switches.expert_chunk_tokens or tokens) * moe.top_k
    return rows * (max(width // 2, hidden) + max(width, hidden)) * setting.element_bytes


def shared_bytes(setting: Setting, experts: int) -> int:
    """Bytes by which the workspace of experts and a sparse indexer grows beyond what loading reserved of it.

    Source: vllm/v1/worker/workspace.py:WorkspaceManager.get_simultaneous (0.13.0, 0.33.0).
    """
    reserved = reserved_bytes(setting.architecture, setting.parallel, setting.resolved)
    gathered = gathered_bytes(setting.architecture, setting.resolved) if _runs_sparse(setting) else 0
    return max(0, max(experts, indexer_bytes(setting), gathered) - reserved)


def _runs_sparse(setting: Setting) -> bool:
    major = (setting.accelerator.compute_capability or (0,))[0]
    return setting.engine.profiles_attention and major in setting.switches.sparse_attention


def indexer_bytes(setting: Setting) -> int:
    """The gather buffer of a sparse-attention indexer: max_model_len × 40 entries of 132 bytes.

    Since 0.32 fewer above 256K tokens, as FlashMLA's reserve has.
    """
    if not has_indexer(setting.architecture) or not setting.engine.has_cuda_kernels:
        return 0
    switches, length = setting.switches, setting.resolved.max_model_len
    entries = switches.indexer_entries
    if length > LONG_TOKENS and switches.sparse_reserve:
        entries = entries * switches.sparse_reserve_long // switches.sparse_reserve
    return length * entries * INDEXER_ENTRY_BYTES
