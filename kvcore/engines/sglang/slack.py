"""What the slack has to hold: graphs, activations, the request table, and the context that is there before anything."""

from __future__ import annotations

from typing import Final

from kvcore.base.quantity import Grade, Quantity, figure
from kvcore.base.units import MIB
from kvcore.engine.protocol import Setting
from kvcore.engines.sglang.graphs import decode_sizes
from kvcore.engines.sglang.start import Start
from kvcore.engines.sglang.states import GIB

CONTEXT_GIB: Final = (0.7, 0.5, 1.0)
"""Context and libraries of a process that joins no others: as a rule, and from the least to the most."""
JOINED_GIB: Final = (1.1, 0.4, 1.9)
"""The same where ranks join: the communicator's buffers come with it. QwQ-32B on four L4: 0.4;
DeepSeek-V4-Flash on eight H20: 1.4."""
JOINED_ROCM_GIB: Final = (4.6, 1.0, 10.0)
"""The same on ROCm. Kimi-K2.5 and GLM-5 on eight MI355X: 4.4 and 4.5; Qwen3.8-27B on two: 8.7."""
CONTEXT_SOURCE: Final = "free memory that published starts print before their weights (Load weight begin)"
GRAPH_SOURCE: Final = "Capture cuda graph end of published starts"
GRAPH_MIB: Final = (11.0, 2.0, 40.0)
"""A decode graph: as a rule, and from the least to the most. Qwen3-8B on GB300: 51 graphs in 0.60 GiB."""
CAPTURE_MIB: Final = (60.0, 20.0, 300.0)
"""What the first capture takes: workspaces of attention. Qwen3.8-27B on H100, up to 24 requests: 0.10 GiB in all."""
JOINED_CAPTURE_MIB: Final = (900.0, 300.0, 5000.0)
"""The same where ranks join. QwQ-32B on four L4: 0.93 GiB for 4 graphs; DeepSeek-V4-Flash on eight H20: 1.93 GiB;
51 graphs of eight ranks: 7.36 GiB."""
PREFILL_GRAPH_MIB: Final = (24.0, 4.0, 45.0)
"""A graph of prompts. Qwen3-8B on GB300: 2.32 GiB in all; another model of 58 graphs: 1.29 GiB."""
ACTIVATION_SOURCE: Final = "hidden states and the widest projection of a chunk; no release profiles them"
TABLE_SOURCE: Final = "mem_cache/memory_pool.py:ReqToTokenPool (0.5.9, 0.5.23)"


def _spread(
    name: str, sizes: tuple[float, float, float], source: str, grade: Grade = Grade.FITTED
) -> Quantity:
    value, least, most = (int(size) for size in sizes)
    return figure(name, value, grade=grade, source=source, interval=(least, most))


def context_bytes(setting: Setting) -> Quantity:
    """What is taken before the weights: the context, libraries, communicators."""
    is_joined = setting.ranks > 1 or setting.parallel.pipeline_parallel_size > 1
    joined = JOINED_ROCM_GIB if setting.accelerator.vendor == "amd" else JOINED_GIB
    sizes = joined if is_joined else CONTEXT_GIB
    taken = setting.scenario.surroundings.taken_gib or 0
    usual, least, most = (size + taken for size in sizes)
    return _spread("system", (usual * GIB, least * GIB, most * GIB), CONTEXT_SOURCE)


def graph_bytes(setting: Setting, start: Start) -> Quantity:
    """Graphs of decode batches and of prompts."""
    arguments = start.arguments
    sizes = [0.0, 0.0, 0.0]
    if arguments.has_decode_graphs:
        decode = decode_sizes(arguments.graph_max_bs, has_drafts=bool(arguments.algorithm))
        largest = arguments.max_running_requests or arguments.graph_max_bs
        count = sum(size <= largest for size in decode) or 1
        first = JOINED_CAPTURE_MIB if setting.ranks > 1 else CAPTURE_MIB
        sizes = [base + each * count for base, each in zip(first, GRAPH_MIB, strict=True)]
    if arguments.has_prefill_graphs:
        more = [each * arguments.prefill_graphs for each in PREFILL_GRAPH_MIB]
        sizes = [size + one for size, one in zip(sizes, more, strict=True)]
    usual, least, most = (size * MIB for size in sizes)
    return _spread("cuda_graphs", (usual, least, most), GRAPH_SOURCE)


def activation_bytes(setting: Setting, start: Start) -> Quantity:
    """The largest step: a chunk of prompts, its hidden states, the widest projection, its logits."""
    architecture, arguments = setting.architecture, start.arguments
    tokens = (
        arguments.chunked_prefill_size if arguments.chunked_prefill_size > 0 else arguments.max_prefill_tokens
    )
    ranks = max(1, setting.parallel.tensor_parallel_size)
    wide = 2 * architecture.intermediate_size / ranks
    if architecture.moe is not None:
        wide = max(wide, architecture.moe.top_k * 2 * architecture.moe.moe_intermediate_size / ranks)
    step = tokens * setting.element_bytes * (4 * architecture.hidden_size + 1.5 * wide)
    logits = arguments.graph_max_bs * architecture.vocab_size * 4
    value = step + logits
    return _spread("activations", (value, 0.4 * value, 2.5 * value), ACTIVATION_SOURCE, Grade.ASSUMED)


def table_bytes(start: Start, rest: float) -> Quantity:
    """The request table, and the draft with its pool where they are not counted before."""
    sizing, arguments = start.sizing, start.arguments
    requests = arguments.max_running_requests
    if requests is None:
        try:
            requests = sizing.in_rest(rest / GIB).requests
        except ValueError:
            requests = 2048
    value = sizing.table_bytes(min(requests, 4096))
    spread = 0.02 * value
    return figure(
        "after_pool",
        value,
        grade=Grade.DERIVED,
        source=TABLE_SOURCE,
        interval=(value - spread, value + spread),
    )
