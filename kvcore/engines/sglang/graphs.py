"""Which lengths of a prompt and sizes of a batch a release captures as graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from packaging.version import Version

from kvcore.engines.sglang.shapes import Shape
from kvcore.engines.sglang.tables import CLASSES, sglang_release

V0_5_11: Final = sglang_release("0.5.11")
V0_5_18: Final = sglang_release("0.5.18")
V0_5_21: Final = sglang_release("0.5.21")


def prefill_sizes(most: int) -> tuple[int, ...]:
    """Tokens of the prompts that are captured, up to `most`.

    Source: server_args.py:ServerArgs._generate_piecewise_cuda_graph_tokens (0.5.9, 0.5.13), arg_groups/
    cuda_graph_hook.py:generate_prefill_cuda_graph_batch_sizes (0.5.23).

    Example:
        >>> len(prefill_sizes(8192)), prefill_sizes(48)[-3:]
        (58, (28, 32, 48))
    """
    steps = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, most, 512))
    sizes = (size for first, last, step in steps for size in range(first, last + 1, step))
    return tuple(size for size in sizes if size <= most)


def decode_sizes(most: int, *, has_drafts: bool) -> tuple[int, ...]:
    """Requests of the batches that are captured, up to `most`.

    Source: server_args.py:ServerArgs._generate_cuda_graph_batch_sizes (0.5.9, 0.5.13), arg_groups/cuda_graph_hook.py:
    generate_decode_cuda_graph_batch_sizes (0.5.23).

    Example:
        >>> decode_sizes(32, has_drafts=False), len(decode_sizes(256, has_drafts=False))
        ((1, 2, 4, 8, 12, 16, 24, 32), 36)
    """
    if has_drafts:
        dense = ((1, 8, 1), (10, 32, 2), (40, 64, 4), (72, 256, 8), (272, most, 16))
        sizes = [size for first, last, step in dense for size in range(first, last + 1, step)]
    else:
        steps = ((16, 256, 8), (272, 511, 16), (512, most, 32))
        sizes = [
            1,
            2,
            4,
            8,
            12,
            *(size for first, last, step in steps for size in range(first, last + 1, step)),
        ]
    return tuple(size for size in sizes if size <= most)


def has_prefill_graphs(
    given: Mapping[str, Any], shape: Shape, version: Version, *, is_dp: bool, pp: int, role: str
) -> bool:
    """Whether prompts are captured: only where it is asked for before 0.5.11, since then unless something stands
    against it.

    Source: server_args.py:ServerArgs._handle_piecewise_cuda_graph (0.5.13),
    _disable_tc_piecewise_cudagraph_if_incompatible,
    _disable_breakable_cudagraph_if_incompatible (0.5.18), arg_groups/cuda_graph_hook.py (0.5.23).
    """
    if version < V0_5_11:
        return bool(given.get("enable_piecewise_cuda_graph"))
    if version < V0_5_18:
        off = given.get("disable_piecewise_cuda_graph")
        return not off and not _against_pieces(given, shape, version, is_dp=is_dp, pp=pp, role=role)
    if given.get("disable_cuda_graph") or given.get("disable_prefill_cuda_graph") or role == "decode":
        return False
    asked = given.get("cuda_graph_backend_prefill")
    if asked is not None:
        return bool(asked != "disabled")
    return not _against_breaks(given, shape, version, is_dp=is_dp, pp=pp, role=role)


def _against_pieces(
    given: Mapping[str, Any], shape: Shape, version: Version, *, is_dp: bool, pp: int, role: str
) -> bool:
    classes = CLASSES.load()
    flags = (
        "enable_torch_compile", "enable_lora", "lora_paths", "dllm_algorithm", "enable_hierarchical_cache",
        "enable_deterministic_inference", "enable_symm_mem", "enable_eplb", "debug_cuda_graph",
        "enable_dsa_prefill_context_parallel", "cpu_offload_gb",
    )  # fmt: skip
    sees_images = shape.is_multimodal
    if version >= V0_5_18:
        sees_images = sees_images and not classes.images_piecewise.has(shape.name, version)
    return (
        classes.without_piecewise.has(shape.name, version)
        or is_dp
        or pp > 1
        or sees_images
        or role != "null"
        or given.get("moe_a2a_backend", "none") != "none"
        or any(given.get(flag) for flag in flags)
    )


def _against_breaks(
    given: Mapping[str, Any], shape: Shape, version: Version, *, is_dp: bool, pp: int, role: str
) -> bool:
    classes, name = CLASSES.load(), shape.name
    breaks = classes.images_breakable.has(name, version)
    if (
        version < V0_5_21
        and classes.images_piecewise.has(name, version)
        and not breaks
        and shape.is_multimodal
    ):
        return _against_pieces(given, shape, version, is_dp=is_dp, pp=pp, role=role)
    if version >= V0_5_21 and (pp > 1 or _has_kda(shape)):
        return True
    return (
        shape.compressed is not None
        or (shape.is_multimodal and not breaks)
        or bool(given.get("enable_two_batch_overlap"))
        or given.get("moe_a2a_backend", "none") not in ("none", "deepep", "megamoe", "flashinfer")
    )


def _has_kda(shape: Shape) -> bool:
    return any(state.kind == "kda" for _, state in shape.states) and not shape.name.startswith("Glm5Next")
