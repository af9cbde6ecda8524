"""The flags about CUDA graphs in a log: a release's own, their predecessors, and the compilation config."""

from __future__ import annotations

import re
from typing import Final

from kvcore.evidence.log.dictionaries import cut_fields, pairs, unquoted
from kvcore.evidence.log.startup import LoggedGraphs
from kvcore.scenario import CudagraphMode

MAX_CONFIG_CHARACTERS: Final = 1 << 15
"""Of a compilation config: with its sizes and splitting operators it is the longest field of the line."""
MAX_SIZES: Final = 4096
LARGEST_SIZE: Final = 1 << 31

LISTS: Final = frozenset({"cudagraph_capture_sizes", "cuda_graph_sizes"})
"""Flags that take several words of a command."""
_CONFIGS: Final = ("compilation_config", "O", "cc")
"""`--compilation-config`, `-O` up to 0.11 and `-cc` from 0.12 on; with a dot behind, one field of it.

Source: vllm/engine/arg_utils.py:EngineArgs.add_cli_args (0.9.2, 0.11.0, 0.12.0).
"""
_SIZE: Final = re.compile(r"\d{1,10}")
_NAMED_MODE: Final = re.compile(r"(?:<?CUDAGraphMode\.)?([A-Z_]+)(?::.*>)?", re.DOTALL)
_NUMBERED_MODES: Final = {
    "0": CudagraphMode.NONE, "1": CudagraphMode.PIECEWISE, "2": CudagraphMode.FULL,
    "2,0": CudagraphMode.FULL_DECODE_ONLY, "2,1": CudagraphMode.FULL_AND_PIECEWISE,
}  # fmt: skip
"""Source: vllm/config/compilation.py:CUDAGraphMode (0.10.1.1, 0.32.0)."""

GraphValue = int | str | tuple[int, ...]


def graph_flags(name: str, value: str) -> dict[str, GraphValue]:
    """What one field of a log's arguments says about graphs, by the contract's field names; empty for any other.

    `--cuda-graph-sizes` with one number says the largest size, with several all of them.

    Example:
        >>> graph_flags("compilation_config", '{"level":3,"cudagraph_mode":"FULL","cudagraph_capture_sizes":[4,2]}')
        {'cudagraph_mode': 'FULL', 'cudagraph_capture_sizes': (2, 4)}
        >>> graph_flags("cuda_graph_sizes", "[64]"), graph_flags("max_num_seqs", "64")
        ({'max_cudagraph_capture_size': 64}, {})
    """
    if name in _CONFIGS:
        found: dict[str, GraphValue] = {}
        for inner, text in pairs(unquoted(value), MAX_CONFIG_CHARACTERS):
            if inner in ("max_cudagraph_capture_size", "cudagraph_capture_sizes", "cudagraph_mode"):
                found |= graph_flags(inner, text)
        return found
    for config in _CONFIGS:
        name = name.removeprefix(f"{config}_")
    read: GraphValue | None = None
    if name == "cudagraph_mode":
        read = _mode(unquoted(value))
    elif name == "max_cudagraph_capture_size":
        read = _size(unquoted(value))
    elif name in LISTS:
        read = _sizes(unquoted(value))
        if name == "cuda_graph_sizes":
            is_one = read is not None and len(read) == 1
            name = "max_cudagraph_capture_size" if is_one else "cudagraph_capture_sizes"
            read = read[0] if read is not None and is_one else read
    return {} if read is None else {name: read}


def _mode(text: str) -> str | None:
    """A mode as a person writes it or as the engine prints it; `None` is what it prints for no mode yet."""
    if text == "None":
        return None
    named = _NAMED_MODE.fullmatch(text.upper() if text.replace("_", "").isalpha() else text)
    if named is None:
        numbered = _NUMBERED_MODES.get(text.strip("[]()"))
        return None if numbered is None else numbered.value
    return named[1] if named[1] in CudagraphMode.__members__ else None


def _size(text: str) -> int | None:
    return int(text) if _SIZE.fullmatch(text) and 1 <= int(text) <= LARGEST_SIZE else None


def _sizes(text: str) -> tuple[int, ...] | None:
    """A list of sizes; None where one of them is anything else, as in a list that somebody shortened."""
    inner = text[1:-1] if text[:1] in "[(" and text[-1:] in "])" else text
    words = [word for word, _ in cut_fields(inner, "")]
    sizes = [_size(word) for word in words[: MAX_SIZES + 1]]
    known = {size for size in sizes if size is not None}
    if not sizes or None in sizes or len(sizes) > MAX_SIZES:
        return None
    return tuple(sorted(known))


def logged_graphs(flags: dict[str, GraphValue]) -> LoggedGraphs | None:
    """What the engine resolved: sizes and mode of a config line; None where it names no sizes."""
    sizes, mode = flags.get("cudagraph_capture_sizes"), flags.get("cudagraph_mode")
    if not isinstance(sizes, tuple):
        return None
    return LoggedGraphs(sizes=sizes, mode=CudagraphMode(mode) if isinstance(mode, str) else None)
