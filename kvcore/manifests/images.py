"""Container images: the engine inside, and its release where the tag is the engine's own."""

import re
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from kvcore.manifests.unknowns import has_mark
from kvcore.tables import Record, Reviewed, Source, TableFile

_TAG: Final = re.compile(
    r"v?(0\.\d{1,4}\.\d{1,4}(?:\.\d{1,2})?(?:\.?(?:rc|post|dev)\d{1,4}|\+\w{1,20})?)(?=$|[-_.@+])|v?(0\.\d{1,3}\.\d{1,3})[a-z]"
)
_INSIDE: Final = re.compile(r"vllm[-_]?v?(\d{1,2}\.\d{1,3}\.\d{1,3}(?:\.?(?:rc|post|dev)\d{1,4})?)")
"""A tag that names vLLM's release among others: `dynamo-1.4.1-vllm0.26.0`."""
_PIN: Final = re.compile(
    r"(?:^|[\s'\"=])(vllm|vllm-ascend|sglang)(?:\[[\w, -]{0,60}\])?={2,3}(\d{1,3}\.\d{1,3}[\w.+!]{0,40})"
)
_FILE: Final = re.compile(
    r"(vllm-openai|vllm-ascend|sglang|vllm)[-_:]v?(0\.\d{1,3}\.\d{1,3}(?:\.?(?:rc|post)\d{1,3})?)"
)


Words = Annotated[str, Meta(pattern=r"^[a-z0-9./-]{2,60}$")]
Engine = Annotated[str, Meta(pattern=r"^[a-z.-]{0,40}$")]


class ImageRow(Record, frozen=True, kw_only=True):
    """Images by words of their name."""

    words: tuple[Words, ...]
    engine: Engine
    role: Annotated[str, Meta(pattern=r"^[a-z ]{0,40}$")] = ""
    release: bool = False
    source: Source


class Images(Reviewed, frozen=True, kw_only=True):
    """`images.toml`."""

    image: tuple[ImageRow, ...]


IMAGES: Final = TableFile("kvcore.manifests", "images.toml", Images)


class Image(Struct, frozen=True, kw_only=True):
    """What an image says."""

    engine: str = ""
    """"" where it names no engine that is known."""
    release: str | None = None
    role: str = ""
    """What it is where it is known to be no engine: `router`, `sidecar`."""
    is_own: bool = False
    """Whether it is the engine's own image, which starts the engine by itself."""


_BARE: Final = Image(engine="vllm")
"""The engine whose release tags of other people's images name."""


def image_of(text: str | None) -> Image:
    """The engine of an image, and the release that its tag names.

    Example:
        >>> [image_of(text).release for text in ("vllm/vllm-openai:v0.11.0", "lmcache/vllm-openai:v0.3.5")]
        ['0.11.0', None]
        >>> image_of("reg/ax:dynamo-1.4.1-vllm0.26.0-p1@sha256:00").release
        '0.26.0'
    """
    if not text:
        return Image()
    name, tag = split_image(text)
    own = name.lower()
    last = own.rsplit("/", 1)[-1]
    row = next((one for one in IMAGES.load().image if _matches(one, own, last)), None)
    inside = _INSIDE.search(tag.lower())
    if row is None:
        if inside is not None:
            return replace(_BARE, release=inside[1])
        return Image(engine="sglang" if "sglang" in tag.lower() else "vllm" if "vllm" in tag.lower() else "")
    release = None
    if row.release and not has_mark(tag):
        found = _TAG.match(tag)
        release = (found[1] or found[2]) if found is not None else None
    if release is None and inside is not None and row.engine == _BARE.engine:
        release = inside[1]
    return Image(engine=row.engine, release=release, role=row.role, is_own=row.release)


_VENDORS: Final = (
    (re.compile(r"rocm|(?:^|/)amd/"), "amd"),
    (re.compile(r"gaudi|hpu|xpu|(?:^|/)intel/"), "intel"),
    (re.compile(r"ascend|npu"), "huawei"),
    (re.compile(r"^vllm/vllm-openai$|^lmsysorg/sglang$|^nvcr\.io/nvidia/"), "nvidia"),
)
_ELSEWHERE: Final = re.compile(r"cpu|tpu|neuron|musa|spyre|rocm|xpu|hpu|npu|ascend|gaudi")
"""Words of a tag that name other processors than the image's usual ones."""


def built_for(text: str | None) -> str | None:
    """The vendor of the cards that an image is built for, where its name says so.

    Example:
        >>> [built_for(one) for one in ("vllm/vllm-openai:v0.11.0", "rocm/vllm:latest", "me/vllm:1")]
        ['nvidia', 'amd', None]
    """
    if not text:
        return None
    name, tag = split_image(text.lower())
    found = next((vendor for pattern, vendor in _VENDORS if pattern.search(name)), None)
    if found == "nvidia" and _ELSEWHERE.search(tag) is not None:
        return next((vendor for pattern, vendor in _VENDORS if pattern.search(tag)), None)
    return found


def _matches(row: ImageRow, name: str, last: str) -> bool:
    """Whether a row is about an image; a row of one word without a slash is about the repository, not its owner."""
    if len(row.words) == 1 and "/" not in row.words[0]:
        return row.words[0] in last
    return all(word in name for word in row.words)


def split_image(text: str) -> tuple[str, str]:
    """Name without the registry's host, and tag."""
    name = text.strip().removeprefix("docker:").removeprefix("docker://").split("@")[0]
    name, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        name, tag = text.strip().split("@")[0], ""
    host, slash, rest = name.partition("/")
    is_host = slash and ("." in host or ":" in host or host == "localhost")
    if is_host and host not in ("ghcr.io", "quay.io", "nvcr.io", "docker.io") and "/" not in rest:
        return rest, tag
    return (rest if is_host else name), tag


def pinned(text: str, engine: str) -> str | None:
    """The release of an engine that an installation pins: `pip install vllm==0.11.0`."""
    found = [version for name, version in _PIN.findall(text) if name == engine]
    return found[-1].rstrip(".") if found else None


def release_in_file(name: str) -> str | None:
    """The release in the name of an image's file: `vllm-openai_v0.8.5.sif`."""
    found = _FILE.search(name)
    return found[2] if found is not None else None
