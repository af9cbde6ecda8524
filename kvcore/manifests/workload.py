"""One engine that a file starts, and what else stands in the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from kvcore.base.errors import Notice
from kvcore.manifests.arguments import Given
from kvcore.manifests.unknowns import has_mark

ALL_GPUS: Final = "all"

_SIZE: Final = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([kKmMgGtTpP]?)(i?)([bB]?)\s*")
_POWERS: Final = " KMGTP"


class Place(Struct, frozen=True):
    """A line of a file."""

    file: str
    line: int


class Workload(Struct, frozen=True, kw_only=True):
    """One engine: what it serves, on what, with which arguments, within which limits."""

    name: str | None
    engine: str
    """`vllm`, `vllm-ascend`, `vllm-mindspore`, `sglang`, `tensorrt-llm`, `mindie`."""
    release: str | None = None
    """Of the engine, where the file names it; other projects' tags are none."""
    model: str | None = None
    """As written: an id of the Hub, a path, the name of a preset."""
    served_name: str | None = None
    fallbacks: tuple[str, ...] = ()
    """Other names of the model in the file, the likeliest first: a download, a storage address, the served name."""
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a request as written; None for a value that an undefined variable hides."""
    planned: Mapping[str, Any] = field(default_factory=dict)
    """The same as a plan takes them."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Arguments and settings that are no fields of a request."""
    unusable: tuple[str, ...] = ()
    """Arguments whose value is none of theirs, as typed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Without secrets."""
    card: str | None = None
    """What the file says of the card: a product, an instance type, a resource."""
    card_choices: tuple[str, ...] = ()
    """Several cards of which any may serve."""
    gpus: int | str | None = None
    """Of one pod or container; `all` for every one of the machine."""
    replicas: int | None = None
    nodes: int = 1
    host_memory_gib: float | None = None
    shm_gib: float | None = None
    shares_ipc: bool = False
    """Whether its /dev/shm is the host's."""
    image: str | None = None
    image_vendor: str | None = None
    """The cards that the image is built for: `nvidia`, `amd`, `intel`, `huawei`."""
    undefined: tuple[str, ...] = ()
    """Variables that the file uses and does not define."""
    open_arguments: tuple[str, ...] = ()
    """Variables that stand for arguments and are not set: read as empty."""
    notices: tuple[Notice, ...] = ()
    arguments: tuple[Given, ...] = ()
    """The arguments as text, without secrets."""
    is_whole: bool = True
    """Whether its words are a command rather than prose about one: options, or nothing but a model with its owner."""
    place: Place = Place("", 0)
    kind: str = ""
    """What the file is: `Deployment`, `compose`, `shell`."""


class Other(Struct, frozen=True, kw_only=True):
    """Something in a file that is no engine to plan: a router, a sidecar, a client."""

    name: str
    role: str
    place: Place


def size_gib(text: object) -> float | None:
    """A size in GiB; None for what is none.

    Binary suffixes are Kubernetes' own (Gi); a bare G is decimal there. `binary_gib` reads Docker's, where g is GiB.

    Example:
        >>> size_gib("64Gi"), size_gib("512Mi"), round(size_gib("32G"), 2), size_gib("1000+")
        (64.0, 0.5, 29.8, None)
    """
    return _gib(text, is_binary=False)


def binary_gib(text: object) -> float | None:
    """A size as Docker reads it, in GiB: k, m and g are binary.

    Example:
        >>> binary_gib("16gb"), binary_gib("16g")
        (16.0, 16.0)
    """
    return _gib(text, is_binary=True)


def _gib(text: object, *, is_binary: bool) -> float | None:
    if not isinstance(text, str) or has_mark(text):
        return None
    found = _SIZE.fullmatch(text)
    if found is None:
        return None
    factor = 1024 if found[3] or is_binary else 1000
    if found[2] == "m" and not is_binary:
        return None  # thousandths
    value: float = float(found[1]) * factor ** _POWERS.index(found[2].upper() or " ") / 1024**3
    return round(value, 6)


def whole(text: object) -> int | None:
    """A count; None for what is none.

    Example:
        >>> whole("8"), whole("0.5"), whole(None)
        (8, None, None)
    """
    plain = str(text).strip() if isinstance(text, str | int) and not isinstance(text, bool) else ""
    return int(plain) if plain.isascii() and plain.isdigit() and len(plain) < 10 else None
