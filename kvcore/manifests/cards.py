"""What a file says of a card: node labels, instance types, resources, generic resources of a scheduler."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from kvcore.manifests.nodes import Map, at, rows, text_of
from kvcore.manifests.unknowns import has_mark
from kvcore.manifests.workload import whole

_NAMES: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:GB?[123]00|[BH][123]00|H20|H800|A[18]00|A10G?|A30|A40|A16|A6000|A5000|A4000|L4|L40S?|L20|T4|V100|P100|"
    r"(?:RTX|GTX)[ _-]?(?:PRO[ _-]?)?[A-Z]?\d{4}\w{0,3}|[345]0[6789]0(?:[ _-]?Ti)?|MI\d{3}[A-Z]?|gfx\d{3,4}\w?|"
    r"Ascend[ _-]?\w{0,8}|9[1-5]0[A-D]?\d?|310P\d?|Gaudi[ _-]?\d?|GB10|DGX[ _-]?Spark|"
    r"TITAN[ _-]?\w{0,4}|Thor|Orin)(?![A-Za-z0-9]*\d)",
    re.IGNORECASE,
)  # fmt: skip
_INSTANCE: Final = re.compile(
    r"(?:(?:ml\.)?[gp]\d[a-z]{0,3}\.\d{0,3}x?(?:large|metal)\w{0,10}|Standard_N[CDGV]\w{1,40}|a[234]-(?:high|mega|ultra|edge)gpu-\w{1,12}|"
    r"g[24]-standard-\d{1,4}|BM\.GPU[\w.]{1,20}|VM\.GPU[\w.]{1,20}|gpu_\d{1,2}x_\w{1,30})",
    re.IGNORECASE,
)  # fmt: skip
_CARD_KEYS: Final = re.compile(
    r"(?:gke-accelerator$|gpu[._-]?(?:product|model|type|name)|accelerator(?:[._-]?(?:type|name))?$|instance-type|instance_type|"
    r"(?:card|npu|chip)[._-]?(?:type|name|product)|machine-type|device-class|gpu\.name$|/gpu$)",
    re.IGNORECASE,
)  # fmt: skip
_COUNTED: Final = re.compile(
    r"(?:^|/)(?:[a-z]*gpu|Ascend\w*|mig-[\w.-]+|i915|xe|gaudi|npu|gpu\.shared|vgpu\w*|dcu\w*|mlu\w*|n?gpu)$",
    re.I,
)
_VENDORED: Final = ("amd.com", "huawei.com", "intel.com", "habana.ai", "mig-", "hygon", "cambricon", "ascend")
_NO_CARD: Final = ("true", "false", "present", "nvidia", "gpu", "any")
_OF_GPUS: Final = ("nvidia.com/gpu", "gpu")


class Cards(Struct, frozen=True, kw_only=True):
    """The card that a pod asks for."""

    name: str | None = None
    choices: tuple[str, ...] = ()


def card_in(text: str) -> str | None:
    """The name of a card in a text; None where there is none.

    Example:
        >>> card_in("VLLM on 2x H100 nodes"), card_in("node-group gpu-pool")
        ('H100', None)
    """
    found = _NAMES.search(text)
    return found[0] if found is not None else None


def is_card(text: str) -> bool:
    """Whether a label names a card or a machine with known cards."""
    return card_in(text) is not None or _INSTANCE.search(text) is not None


def of_nodes(spec: Map) -> Cards:
    """The card by a pod's node selector and node affinity: a product before an instance type."""
    asked = [
        (key, [str(value)])
        for key, value in spec.get("nodeSelector", {}).items()
        if isinstance(spec.get("nodeSelector"), Map) and isinstance(value, str)
    ] if isinstance(spec.get("nodeSelector"), Map) else []  # fmt: skip
    required = at(spec, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    terms = rows(at(required, "nodeSelectorTerms"))
    wished = rows(at(spec, "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution"))
    terms += [at(one, "preference") for one in wished]
    for term in terms:
        for one in rows(at(term, "matchExpressions")):
            if isinstance(one, Map) and str(one.get("operator")) == "In":
                asked += [(str(one.get("key")), [str(value) for value in rows(one.get("values"))])]
    return chosen(asked)


def chosen(asked: Iterable[tuple[str, list[str]]]) -> Cards:
    """The card among labels with their values."""
    best: tuple[int, list[str]] | None = None
    for key, values in asked:
        named = [value for value in values if value.lower() not in _NO_CARD and not has_mark(value)]
        if not named or key.endswith(("/arch", "/os", "hostname", "driver-version")):
            continue
        is_keyed, known = _CARD_KEYS.search(key) is not None, [value for value in named if is_card(value)]
        rank = (
            3 * bool(known and card_in(known[0]) and is_keyed)
            + 2 * bool(known)
            + (is_keyed and not key.endswith("/gpu"))
        )
        if rank and (best is None or rank > best[0]):
            best = (rank, known or named)
    if best is None:
        return Cards()
    return Cards(name=best[1][0], choices=tuple(best[1]) if len(best[1]) > 1 else ())


def of_resources(resources: object) -> tuple[int | None, str | None]:
    """How many cards a container may use, and what the resource's name says of them beyond NVIDIA's usual one.

    Example:
        >>> from kvcore.manifests.nodes import document
        >>> of_resources(document("limits: {amd.com/gpu: 1}")), of_resources(document("limits: {nvidia.com/gpu: 2}"))
        ((1, 'amd.com/gpu'), (2, None))
    """
    for kind in ("limits", "requests"):
        limits = at(resources, kind)
        for key, value in limits.items() if isinstance(limits, Map) else ():
            if _COUNTED.search(key.strip()) is None:
                continue
            count = whole(text_of(value))
            name = key.strip() if any(word in key.lower() for word in _VENDORED) else None
            return count, name
    return None, None
