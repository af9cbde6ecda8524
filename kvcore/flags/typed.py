"""The fields of a request as types, for editors and type checkers; by tools/typed_flags.py.

Nothing here is edited by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

# ruff: noqa: E501
# fmt: off


class LimitMmPerPromptImage(TypedDict, total=False):
    """`limit_mm_per_prompt.image` of a request."""

    width: int | None
    height: int | None


class LimitMmPerPromptVideo(TypedDict, total=False):
    """`limit_mm_per_prompt.video` of a request."""

    num_frames: int | None
    width: int | None
    height: int | None


class LimitMmPerPromptAudio(TypedDict, total=False):
    """`limit_mm_per_prompt.audio` of a request."""

    length: int | None


class AdditionalConfigEplbConfig(TypedDict, total=False):
    """`additional_config.eplb_config` of a request."""

    dynamic_eplb: bool | None
    """`eplb_config.dynamic_eplb`: experts move between ranks by their load, through buffers as
    large as a rank's experts of one layer. The engine also wants DYNAMIC_EPLB=true."""
    num_redundant_experts: int | None
    """`eplb_config.num_redundant_experts`: copies of experts that each layer stores in addition,
    over all ranks; they count where experts are balanced."""
    algorithm_execution_interval: object | None
    eplb_heat_collection_stage: object | None
    eplb_policy_type: object | None
    expert_heat_collection_interval: object | None
    expert_map_path: object | None
    expert_map_record_path: object | None


class AdditionalConfigFinegrainedTpConfig(TypedDict, total=False):
    """`additional_config.finegrained_tp_config` of a request."""

    lmhead_tensor_parallel_size: int | None
    """`finegrained_tp_config.lmhead_tensor_parallel_size`: so many data parallel ranks share the
    output head."""
    embedding_tensor_parallel_size: int | None
    """`finegrained_tp_config.embedding_tensor_parallel_size`: so many data parallel ranks share the
    embedding."""
    oproj_tensor_parallel_size: int | None
    """`finegrained_tp_config.oproj_tensor_parallel_size`: so many data parallel ranks share the
    output projections of attention."""
    mlp_tensor_parallel_size: int | None
    """`finegrained_tp_config.mlp_tensor_parallel_size`: so many data parallel ranks share the feed-
    forward layers without experts."""
    olora_tensor_parallel_size: object | None


class AdditionalConfigAscendSchedulerConfig(TypedDict, total=False):
    """`additional_config.ascend_scheduler_config` of a request."""

    enabled: bool | None
    """`ascend_scheduler_config.enabled`: the plug-in's own scheduler in place of vLLM's. It does
    not cut prompts unless that is asked for, so a batch must have room for the whole length."""
    enable_chunked_prefill: bool | None
    """`ascend_scheduler_config.enable_chunked_prefill`: long prompts are cut over several steps
    under this scheduler too."""
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    decode_max_num_seqs: object | None
    delay_factor: object | None
    enable_pd_transfer: object | None
    long_prefill_token_threshold: object | None
    max_long_partial_prefills: object | None
    max_model_len: object | None
    max_num_partial_prefills: object | None
    num_lookahead_slots: object | None
    num_scheduler_steps: object | None
    policy: object | None
    preemption_mode: object | None
    scheduler_cls: object | None
    send_delta_data: object | None


class AdditionalConfigTorchairGraphConfig(TypedDict, total=False):
    """`additional_config.torchair_graph_config` of a request."""

    enabled: bool | None
    """`torchair_graph_config.enabled`: graphs of TorchAir in place of ACL graphs. No source gives a
    size, so the interval is wider."""
    enable_frozen_parameter: object | None
    enable_kv_nz: object | None
    enable_multistream_mla: object | None
    enable_multistream_moe: object | None
    enable_multistream_shared_expert: object | None
    enable_super_kernel: object | None
    enable_view_optimize: object | None
    graph_batch_sizes: object | None
    graph_batch_sizes_init: object | None
    mode: object | None
    use_cached_graph: object | None
    use_cached_kv_cache_bytes: object | None


class AdditionalConfigXliteGraphConfig(TypedDict, total=False):
    """`additional_config.xlite_graph_config` of a request."""

    enabled: bool | None
    """`xlite_graph_config.enabled`: decoding runs in Xlite's own graphs. No source gives a size, so
    the interval is wider."""
    full_mode: bool | None


class Checkpoint(TypedDict, total=False):
    """`checkpoint` of a request."""

    total_size: int | None
    total_parameters: int | None
    sentence_transformers: bool | None


class Accelerator(TypedDict, total=False):
    """`accelerator` of a request."""

    memory_gib: float | None
    vendor: str | None
    name: str | None
    compute_capability: str | None
    driver_total_mib: float | None
    interconnect: Literal["nvlink", "xgmi", "hccs", "pcie", "none"] | None


class LimitMmPerPrompt(TypedDict, total=False):
    """`limit_mm_per_prompt` of a request."""

    image: int | LimitMmPerPromptImage | None
    video: int | LimitMmPerPromptVideo | None
    audio: int | LimitMmPerPromptAudio | None


class MmProcessorKwargs(TypedDict, total=False):
    """`mm_processor_kwargs` of a request."""

    max_pixels: int | None
    """`max_pixels` of `--mm-processor-kwargs`: larger images are scaled down. The profile run draws
    the largest image that is left."""
    min_pixels: int | None
    """`min_pixels` of `--mm-processor-kwargs`: smaller images are scaled up."""
    fps: float | None
    """`fps` of `--mm-processor-kwargs`: how many frames of each second become tokens."""
    num_frames: int | None
    """`num_frames` of `--mm-processor-kwargs`: how many frames of a whole video become tokens."""


class SpeculativeConfig(TypedDict, total=False):
    """`speculative_config` of a request."""

    method: str | None
    num_speculative_tokens: int | None
    model: str | None
    config: Mapping[str, object] | None
    draft_tensor_parallel_size: int | None
    enforce_eager: bool | None
    acceptance_method: object | None
    attention_backend: object | None
    code_revision: object | None
    disable_by_batch_size: object | None
    disable_eagle_block_drop: object | None
    disable_logprobs: object | None
    disable_mqa_scorer: object | None
    disable_padded_drafter_batch: object | None
    draft_load_config: object | None
    draft_sample_method: object | None
    dspark_draft_topk: object | None
    enable_adaptive_verification: object | None
    index_share_for_mtp_iteration: object | None
    kv_cache_dtype: object | None
    max_model_len: object | None
    moe_backend: object | None
    num_speculative_tokens_per_batch_size: object | None
    parallel_drafting: object | None
    posterior_alpha: object | None
    posterior_threshold: object | None
    prompt_lookup_max: object | None
    prompt_lookup_min: object | None
    quantization: object | None
    rejection_sample_method: object | None
    revision: object | None
    speculative_token_tree: object | None
    suffix_decoding_max_cached_requests: object | None
    suffix_decoding_max_spec_factor: object | None
    suffix_decoding_max_tree_depth: object | None
    suffix_decoding_min_token_prob: object | None
    synthetic_acceptance_length: object | None
    synthetic_acceptance_rate: object | None
    synthetic_acceptance_rates: object | None
    use_heterogeneous_vocab: object | None
    use_local_argmax_reduction: object | None


class KvTransferConfig(TypedDict, total=False):
    """`kv_transfer_config` of a request."""

    kv_connector: str | None
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] | None
    enable_permute_local_kv: object | None
    engine_id: object | None
    kv_buffer_device: object | None
    kv_buffer_size: object | None
    kv_connector_extra_config: object | None
    kv_connector_module_path: object | None
    kv_ip: object | None
    kv_load_failure_policy: object | None
    kv_parallel_size: object | None
    kv_port: object | None
    kv_rank: object | None


class Surroundings(TypedDict, total=False):
    """`surroundings` of a request."""

    link: Literal["nvlink", "pcie-p2p", "pcie", "hosts"] | None
    """How the cards of one replica reach each other. `nvidia-smi topo -m` shows NVLink; NCCL's
    lines in a log show P2P, which many cloud machines and pods switch off."""
    installation: Literal["image", "pip", "ngc", "vendor"] | None
    """Where the engine comes from. It decides which kernel libraries are there: with FlashInfer,
    sampling takes less memory."""
    host: Literal["linux", "wsl", "unified"] | None
    """Unified memory is shared by processor and card: GB10, Strix Halo, Jetson. Under WSL, Windows
    keeps a part of the card."""
    driver: str | None
    """As `nvidia-smi`, `rocm-smi` or `npu-smi` prints it: 580.159.03. Empty is unknown."""
    taken_gib: float | None
    """What a display and other processes use on the card before the engine starts, as `nvidia-smi`
    shows it. Empty is unknown."""


class Measured(TypedDict, total=False):
    """`measured` of a request."""

    system_gib: float | None
    weights_gib: float | None
    non_torch_gib: float | None
    peak_activation_gib: float | None
    cuda_graph_gib: float | None
    available_kv_gib: float | None
    fitted: Sequence[Literal["weights_gib", "peak_activation_gib", "non_torch_gib", "cuda_graph_gib", "system_gib", "available_kv_gib"]] | None
    carried: Sequence[Literal["weights_gib", "peak_activation_gib", "non_torch_gib", "cuda_graph_gib", "system_gib", "available_kv_gib"]] | None
    free_before_weights_gib: float | None
    free_after_weights_gib: float | None
    batched_tokens: int | None


class Flags(TypedDict, total=False):
    """What one deployment may be asked with besides model and card."""

    id: object | None
    engine: Literal["vllm", "vllm-ascend", "vllm-mindspore", "sglang"] | None
    engine_version: str | None
    pipeline_parallel_size: int | None
    """--pipeline-parallel-size: Machines, or groups of GPUs, that each store a part of the
    layers."""
    data_parallel_size: int | None
    decode_context_parallel_size: int | None
    prefill_context_parallel_size: int | None
    enable_expert_parallel: bool | None
    all2all_backend: Literal["allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "deepep_v2", "flashinfer_all2allv", "flashinfer_nvlink_one_sided", "flashinfer_nvlink_two_sided", "moonep", "mori", "mori_high_throughput", "mori_low_latency", "naive", "nixl_ep", "passthrough", "pplx"] | None
    num_redundant_experts: int | None
    disable_custom_all_reduce: bool | None
    runner: Literal["auto", "generate", "pooling"] | None
    """--runner: `--runner`: generate returns text, pooling returns embeddings or classes. auto
    decides by the files of the repository."""
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] | None
    """--dtype: The type in which the model computes and keeps weights that are not quantized."""
    quantization: str | None
    """--quantization: The storage format of the weights. Checkpoints that are already quantized
    need no flag. auto takes the checkpoint as it is; fp8 and bitsandbytes convert it while it
    loads; ascend stands for ModelSlim's checkpoint of the same model."""
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla", "nvfp4", "nvfp4_ds_mla", "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc", "octave_k3v4", "octave_k3v3", "octave_k3v3_compact", "ultraquant_4bit", "nvfp4_4over6"] | None
    """--kv-cache-dtype: How keys and values are stored. auto is the model's own. fp8 halves the
    cache; check the accuracy of your task. Only what this card and release support."""
    indexer_kv_dtype: Literal["auto", "bf16", "fp8", "mxfp4", "nvfp4"] | None
    gpu_memory_utilization: float | None
    """--gpu-memory-utilization: The share of the whole card that the engine may spend: weights,
    activations, graphs and KV cache together."""
    max_model_len: int | Literal["auto"] | None
    """--max-model-len: The most tokens of one request, prompt and answer together. Most requests
    are shorter. 32k is 32,000, 32K is 32,768."""
    wanted: int | None
    """How many requests of the context length the deployment is to serve at once, over all
    replicas. Empty: no target."""
    hf_overrides: str | Mapping[str, object] | None
    max_num_seqs: int | None
    """--max-num-seqs: The most requests that run in one step."""
    max_num_batched_tokens: int | None
    """--max-num-batched-tokens: The most tokens that one step computes, prompts and answers
    together."""
    block_size: int | None
    """--block-size: Tokens in one block of the KV cache."""
    enforce_eager: bool | None
    """--enforce-eager: Runs without CUDA graphs and without compiling."""
    max_cudagraph_capture_size: int | None
    """--max-cudagraph-capture-size: `--max-cudagraph-capture-size`: batches up to this size run as
    graphs, which saves small batches the gaps between kernels. Every captured size takes memory in
    every layer: a smaller maximum leaves more for the KV cache, and larger batches run without
    graphs."""
    cudagraph_capture_sizes: Sequence[int] | None
    cudagraph_mode: Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"] | None
    """--compilation-config cudagraph_mode: `cudagraph_mode` of `--compilation-config`: PIECEWISE
    keeps attention out of the graphs, FULL_DECODE_ONLY captures only batches that decode. Now:
    {mode}."""
    fuse_allreduce_rms: bool | None
    enable_prefix_caching: bool | None
    """--enable-prefix-caching: Keeps blocks of finished requests, so that the same beginning is not
    computed again. Recurrent states are kept for later requests as well."""
    enable_chunked_prefill: bool | None
    """--enable-chunked-prefill: Computes long prompts in pieces, in the same steps as answers of
    other requests."""
    mamba_cache_mode: Literal["all", "align", "none"] | None
    """--mamba-cache-mode: `--mamba-cache-mode`: all keeps a state for every block, align the last
    ones of a request. Needs prefix caching; now: {mode}."""
    mamba_block_size: int | None
    mamba_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] | None
    mamba_ssm_cache_dtype: Literal["auto", "float32", "float16", "bfloat16"] | None
    disable_hybrid_kv_cache_manager: bool | None
    kernels_compiled: bool | None
    """A first start compiles its kernels while it measures, and leaves less for the KV cache. A
    restart that finds them in ~/.cache/vllm does not."""
    enable_lora: bool | None
    max_loras: int | None
    max_lora_rank: int | None
    fully_sharded_loras: bool | None
    language_model_only: bool | None
    limit_mm_per_prompt: LimitMmPerPrompt | None
    skip_mm_profiling: bool | None
    mm_encoder_tp_mode: Literal["weights", "data"] | None
    mm_processor_kwargs: MmProcessorKwargs | None
    speculative_config: SpeculativeConfig | None
    """--speculative-config: Drafts tokens and checks them in one step. Its fields set how many at a
    time, and the n-gram window: num_speculative_tokens, prompt_lookup_max."""
    cpu_offload_gb: float | None
    """--cpu-offload-gb: Weights that stay in the memory of the machine and cross the bus in every
    step."""
    kv_cache_memory_bytes: int | None
    num_gpu_blocks_override: int | None
    kv_transfer_config: KvTransferConfig | None
    kv_offloading_size: float | None
    """--kv-offloading-size: Memory of the host for finished prefixes, over all ranks of one engine.
    Each data parallel replica takes it again."""
    kv_offloading_backend: Literal["native", "lmcache"] | None
    """--kv-offloading-backend: The engine's own, or LMCache: in the engine's processes up to 0.22,
    a server of its own from 0.23 on."""
    lmcache_version: str | None
    enable_sleep_mode: bool | None
    node_memory_gib: float | None
    """What the machine, or the pod's memory limit, has. Empty is unknown."""
    shm_gib: float | None
    """Shared memory of the machine or the container: `df -h /dev/shm`. Docker and Kubernetes give
    0.0625. Empty is unknown."""
    other_engines: str | None
    """In the order of start, apart by semicolons: a model with its fraction (Qwen/Qwen3-8B 0.3), or
    with kv=2 GiB, or the memory that something takes (7.2 GiB). The word this stands for the
    planned engine, which is the last without it."""
    link_gb_s: float | None
    """Where prompts and answers run on servers of their own: what each card's link to the other
    pool carries, 50 for 400 Gbit/s. Empty is unknown."""
    server_args: Mapping[str, object] | None
    draft_config: Mapping[str, object] | None
    additional_config: Mapping[str, object] | None
    env: Mapping[str, str | int | float] | None
    surroundings: Surroundings | None


class Request(Flags, total=False):
    """One deployment to plan: `model` or `config`, a card, flags."""

    model: str | None
    config: Mapping[str, object] | None
    hf_quant_config: Mapping[str, object] | None
    headers: Mapping[str, object] | None
    checkpoint: Checkpoint | None
    accelerator: str | Accelerator | None
    tensor_parallel_size: int | None
    """--tensor-parallel-size: GPUs that share every layer of one replica. Only sizes that the
    engine accepts for this model."""
    measured: Measured | None
