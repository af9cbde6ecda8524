"""Which engine, version, model and card a log is of, and where in it each start begins."""

from __future__ import annotations

import re
from typing import Final

from kvcore.engine.protocol import Engine
from kvcore.engine.rooms import engines
from kvcore.errors import shorten
from kvcore.evidence.log.cleaned import LogText

MAX_MARKS: Final = 10_000
MAX_CARD_LINES: Final = 64
SHORTEST_CARD_NAME: Final = 2
LONGEST_CARD_NAME: Final = 48

_SERVER_MARKS: Final = ("vLLMAPIserverversion", "vLLMserverversion", "vLLMbatchprocessingAPIversion")
_ENGINE_MARKS: Final = (
    "InitializingaV0LLMengine(v",
    "InitializingaV1LLMengine(v",
    "InitializinganLLMengine(v",
)
_VERSION: Final = re.compile(r"(\d{1,3}\.\d{1,4}[0-9A-Za-z.+]{0,60})")
_ENGINE_VERSION: Final = re.compile(r"(\d{1,3}\.\d{1,4}[0-9A-Za-z.+\-]{0,60})\)")
_DEVICE: Final = re.compile(r"device_name=([A-Za-z0-9_\-]{3,48})")
_ASCEND: Final = re.compile(r"(?:Ascend|\|)(910[A-C]?[1-4]?|310P[1-3]?)")
_V0_ONLY: Final = (
    "non_torch_memorytakes",
    "InitializingaV0LLMengine",
    "Memoryprofilingresults:",
    "#CPUblocks:",
)
_V1_ONLY: Final = (
    "InitializingaV1LLMengine",
    "AvailableKVcachememory",
    "KVcachesize:",
    "(EngineCore",
    "UsingV2ModelRunner",
)


def start_offsets(log: LogText) -> tuple[int, ...]:
    """Where each start begins: at the server's version line, else where an engine process initialises again.

    Example:
        >>> from kvcore.evidence.log.cleaned import clean_log
        >>> start_offsets(clean_log("vLLM API server version 0.9.2"))
        (0,)
    """
    marks: list[tuple[int, bool]] = []
    for anchors, is_server in ((_SERVER_MARKS, True), (_ENGINE_MARKS, False)):
        for anchor in anchors:
            at = log.find(anchor)
            while at >= 0 and len(marks) < MAX_MARKS:
                marks.append((at, is_server))
                at = log.find(anchor, at + len(anchor))
    starts = [0]
    seen: set[str] = set()
    server_seen = False
    for at, is_server in sorted(marks):
        name = log.process(at).name
        if is_server:
            if server_seen and seen:
                starts.append(log.line_start(at))
                seen.clear()
            server_seen = True
        else:
            if name in seen:
                starts.append(log.line_start(at))
                seen.clear()
            seen.add(name)
    return tuple(dict.fromkeys(starts))


def engine_of(log: LogText) -> Engine:
    """The last engine whose marks the log has; the first of all when it has none."""
    known = engines()
    return next((one for one in reversed(known) if any(map(log.has, one.log.marks))), known[0])


def is_v0(log: LogText, start: int, end: int) -> bool | None:
    """Whether the V0 engine wrote it; None when no line tells."""
    if any(log.has(mark, start, end) for mark in _V1_ONLY):
        return False
    if any(log.has(mark, start, end) for mark in _V0_ONLY):
        return True
    return None


def version_of(log: LogText, start: int, end: int) -> str | None:
    """The engine version of a start, as printed: `0.19.0`, `0.11.2.dev278+g55c6a5c`."""
    for mark in _ENGINE_MARKS:
        at = log.find(mark, start, end)
        match = _ENGINE_VERSION.match(log.text, at + len(mark), end) if at >= 0 else None
        if match is not None:
            return match[1]
    for mark, words in (*((mark, "version") for mark in _SERVER_MARKS), ("\u2588version", "version")):
        at = log.find(mark, start, end)
        if at < 0:
            continue
        line = log.lines[log.line_index(at)]
        position = line.find(words)
        match = _VERSION.search(line, position, position + 80) if position >= 0 else None
        if match is not None:
            return match[1].rstrip(".")
    return None


def model_of(log: LogText, start: int, end: int) -> str | None:
    """The model from "Starting to load model", where the arguments do not name it."""
    mark = "Startingtoloadmodel"
    at = log.find(mark, start, end)
    if at < 0:
        return None
    name = log.text[at + len(mark) : min(log.line_end(at), at + len(mark) + 400)].partition("...")[0]
    return shorten(name, 400) or None


def card_of(log: LogText) -> str | None:
    """The card's name: from a kernel's tuning file, or from what nvidia-smi or npu-smi printed above the log."""
    at = log.find("device_name=")
    match = _DEVICE.match(log.text, at) if at >= 0 else None
    if match is not None:
        return match[1].replace("_", " ").strip()
    for anchor in ("Ascend910", "Ascend310P", "|910B", "|910C", "|310P"):
        at = log.find(anchor)
        match = _ASCEND.match(log.text, at) if at >= 0 else None
        if match is not None:
            return f"Ascend {match[1]}"
    at = log.find("NVIDIA")
    for _ in range(MAX_CARD_LINES):
        if at < 0:
            return None
        name = _card_name(log.lines[log.line_index(at)])
        if name is not None:
            return name
        at = log.find("NVIDIA", at + 6)
    return None


def _card_name(line: str) -> str | None:
    """`NVIDIA H100 80GB HBM3` out of a table row."""
    position = line.find("NVIDIA ")
    if position < 0:
        return None
    name = (
        line[position : position + LONGEST_CARD_NAME + 2].split("  ")[0].split("|")[0].split(",")[0].strip()
    )
    name = shorten(name, LONGEST_CARD_NAME)
    return name if len(name.split()) >= SHORTEST_CARD_NAME and any(c.isdigit() for c in name) else None


def release_of(version: str | None) -> tuple[int, int] | None:
    """Major and minor number of a version, or None.

    Example:
        >>> release_of("0.20.0rc1"), release_of("main")
        ((0, 20), None)
    """
    match = _VERSION.match(version or "")
    if match is None:
        return None
    major, minor = match[1].split(".")[:2]
    digits = re.match(r"\d+", minor)
    return (int(major), int(digits[0])) if digits else None
