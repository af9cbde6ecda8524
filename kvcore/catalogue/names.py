"""Names as people have them, and the bundled model that each means: paths of the Hub's cache and of ModelScope's, local
paths, Kaggle's handles, owners on other hubs, names without an owner and names of renamed repositories.

    recognized("/root/.cache/huggingface/hub/models--Qwen--Qwen3-32B/snapshots/9216db5781bf")

An id is never guessed: where a name fits several models, all of them are named and none is taken.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import cache
from typing import Final

from msgspec import Struct

from kvcore.base.errors import CatalogueError, Notice, checked_text, notice, shorten
from kvcore.base.words import msg
from kvcore.catalogue.models import ModelEntry, own_id
from kvcore.catalogue.siblings import bundled_model, known_ids
from kvcore.tables import Record, Source, TableFile

LONGEST: Final = 1000
"""Characters of a name; paths are shorter."""
MOST_CANDIDATES: Final = 6
"""Models that an error about a name of several lists."""


class Recognition(StrEnum):
    """How a name was recognized."""

    ID = "id"
    CACHE = "cache-path"
    """A path of the cache of a hub, which states owner and name."""
    PATH = "path"
    """A path that ends in the name of a bundled model."""
    NAME = "name"
    """A name without an owner."""
    MIRROR = "mirror"
    """The same repository under its owner's name on another hub."""
    RENAMED = "renamed"
    """A name that the repository had before."""
    SERVED = "served-name"
    """The name that an engine serves it under, where its path says nothing."""


HOW: Final[Mapping[Recognition, str]] = {
    Recognition.CACHE: msg("the path of a hub's cache states owner and name"),
    Recognition.PATH: msg("the path ends in its name"),
    Recognition.NAME: msg("it is the only bundled model of that name"),
    Recognition.MIRROR: msg("the owner keeps it there under the same name"),
    Recognition.RENAMED: msg("the repository was renamed"),
    Recognition.SERVED: msg("the engine serves it under that name"),
}


class Named(Struct, frozen=True):
    """The model that a name means."""

    model: str
    """Its id: of a bundled model, or with CACHE of any."""
    how: Recognition


class Mirror(Record, frozen=True, kw_only=True):
    """An owner on another hub that keeps repositories of owners on the Hugging Face Hub, under the same names."""

    source: Source
    of: tuple[str, ...] = ()
    """The owners; where none is given of any, and only what they publish in 16 bits."""


class Names(Record, frozen=True, kw_only=True):
    """names.toml."""

    mirror: Mapping[str, Mirror]
    folders: tuple[str, ...]
    """Last parts of paths that say nothing of the model."""
    dropped: tuple[str, ...]
    """Beginnings of names that a repository had before it was renamed, or has since."""


NAMES: Final = TableFile("kvcore.catalogue", "names.toml", Names)

_CACHED: Final = re.compile(r"(?:^|[/\\])models--([^/\\]+?)--([^/\\]+)(?=[/\\]|$)")
_MODELSCOPE: Final = re.compile(
    r"modelscope[/\\](?:.*[/\\])?(?:hub|models)[/\\](?:models[/\\])?([^/\\]+)[/\\]([^/\\]+)"
)
_PATH: Final = re.compile(r"^(?:[/~.\\]|[A-Za-z]:[/\\]|file:|hf:|s3:|gs:)")
_FORMAT: Final = re.compile(r"fp8|fp4|int[48]|w\d+a\d+|awq|gptq|gguf|bnb|\d-?bit", re.IGNORECASE)
"""A format in a name: many quantize a model themselves and give it the same name."""
_HUB_ID: Final = re.compile(r"([A-Za-z0-9][\w.-]{0,95})/[A-Za-z0-9][\w.-]{0,95}")
_REVISION: Final = re.compile(r"\d+|v\d+|[0-9a-f]{7,64}")
_DOT: Final = "___"
"""What ModelScope's cache writes for a dot."""


def repository_of(path: str) -> str | None:
    """Owner and name that a path of a hub's cache states; None for any other text.

    Source: huggingface_hub/file_download.py:repo_folder_name (models--OWNER--NAME/snapshots/REVISION).

    Example:
        >>> repository_of("/root/.cache/huggingface/hub/models--Qwen--Qwen3-32B/snapshots/9216db5781bf")
        'Qwen/Qwen3-32B'
        >>> repository_of("/root/.cache/modelscope/hub/models/Qwen/Qwen2___5-7B-Instruct")
        'Qwen/Qwen2.5-7B-Instruct'
    """
    found = _CACHED.search(path[:LONGEST]) or _MODELSCOPE.search(path[:LONGEST])
    return None if found is None else f"{found[1]}/{found[2]}".replace(_DOT, ".")


def recognized(text: str, *, any_owner: bool = False) -> Named | None:
    """The model that `text` means; None where nothing bundled has that name.

    The repository of an owner that is not known is another model than the bundled one of the same name, unless
    `any_owner` says that the text may be a path. Raises CatalogueError `ambiguous-model` for a name of several models.

    Example:
        >>> recognized("meta-llama/Meta-Llama-3.1-8B-Instruct")
        Named(model='meta-llama/Llama-3.1-8B-Instruct', how=<Recognition.RENAMED: 'renamed'>)
        >>> recognized("/data/models/qwen3-32b/").model, recognized("LLM-Research/gemma-2-9b").how.value
        ('Qwen/Qwen3-32B', 'mirror')
        >>> recognized("somebody/Qwen3-32B") is None
        True
    """
    name = text[:LONGEST].strip().rstrip("/\\")
    known = own_id(name) or _by_lower_id().get(name.lower())
    if known is not None:
        return Named(known, Recognition.ID)
    cached = repository_of(name)
    if cached is not None:
        return Named(_by_lower_id().get(cached.lower(), cached), Recognition.CACHE)
    parts = [part for part in re.split(r"[/\\]+", name) if part not in ("", ".", "..", "~")]
    if not parts:
        return None
    is_path = any_owner or len(parts) > 2 or _PATH.match(name) is not None or _is_folder(parts[0])
    if "kaggle" in (part.lower() for part in parts) or (len(parts) > 2 and _REVISION.fullmatch(parts[-1])):
        found = _of_kaggle(parts)
        if found is not None:
            return found
    if len(parts) == 2 and not is_path:
        return _of_owner(*parts)
    while len(parts) > 1 and (_REVISION.fullmatch(parts[-1]) or _is_folder(parts[-1])):
        parts.pop()
    if len(parts) > 1:
        pair = "/".join(parts[-2:]).replace(_DOT, ".")
        known = _by_lower_id().get(pair.lower())
        if known is not None:
            return Named(known, Recognition.PATH)
        owned = _of_owner(*pair.split("/"))
        if owned is not None:
            return Named(owned.model, Recognition.PATH)
    return _only(
        text, _named(parts[-1].replace(_DOT, ".")), Recognition.PATH if is_path else Recognition.NAME
    )


def find_model(model: str) -> ModelEntry:
    """The model with this id, in any case, or that a path or a name means.

    Raises CatalogueError `unknown-model` with near matches, `ambiguous-model` for a name of several.

    Example:
        >>> find_model("qwen/qwen3-32b").id, find_model("/models/Qwen3-32B").id
        ('Qwen/Qwen3-32B', 'Qwen/Qwen3-32B')
    """
    known = bundled_model(checked_text("model", model))
    if known is None:
        from difflib import get_close_matches

        named = recognized(model)
        known = None if named is None else bundled_model(named.model)
    if known is None:
        near = get_close_matches(model[:200], known_ids(), n=3, cutoff=0.5)
        raise CatalogueError(
            "unknown-model", field="model", value=model, near=", ".join(near) or msg("a bundled model")
        )
    return known


def recognized_start(name: str | None, served: str | None) -> Named | None:
    """The model of a start of an engine: what its name or path means, else the name that it is served under.

    An id of the Hub that is not bundled is another model, whatever it is served as.

    Raises CatalogueError `ambiguous-model` for a name of several models, of which no name it is served under tells one.

    Example:
        >>> recognized_start("/models/current", "Qwen/Qwen3-32B")
        Named(model='Qwen/Qwen3-32B', how=<Recognition.SERVED: 'served-name'>)
    """
    unclear = None
    try:
        named = None if name is None else recognized(name, any_owner=True)
    except CatalogueError as error:
        named, unclear = None, error
    if named is None and served is not None and served != name and not is_hub_id(name):
        with suppress(CatalogueError):
            meant = recognized(served)
            named = None if meant is None else Named(meant.model, Recognition.SERVED)
    if named is None and unclear is not None:
        raise unclear
    return named


def is_hub_id(name: str | None) -> bool:
    """Whether a name is owner/name, and no path of two folders.

    Example:
        >>> is_hub_id("somebody/GLM-5.1-MTP"), is_hub_id("models/current"), is_hub_id("/models/current")
        (True, False, False)
    """
    owner = _HUB_ID.fullmatch(name or "")
    return owner is not None and not _is_folder(owner[1])


def recognized_notice(given: str, named: Named) -> Notice:
    """What to say of a name that was recognized as a model."""
    return notice("model-recognized", "model", given=given, model=named.model, how=HOW[named.how])


def candidates(text: str) -> tuple[str, ...]:
    """The bundled models that `text` may mean as a name or a path: none, one, or several of the same name.

    Example:
        >>> candidates("Qwen3-30B-A3B-NVFP4")
        ('nvidia/Qwen3-30B-A3B-NVFP4', 'RedHatAI/Qwen3-30B-A3B-NVFP4')
    """
    try:
        named = recognized(text)
    except CatalogueError as error:
        return tuple(error.params["near"].split(", "))
    known = None if named is None else _by_lower_id().get(named.model.lower())
    return () if known is None else (known,)


def _of_owner(owner: str, name: str) -> Named | None:
    """The model of an owner who renamed it, or who keeps it on another hub."""
    known = [model for model in _named(name) if model.split("/")[0].lower() == owner.lower()]
    if known:
        return _only(f"{owner}/{name}", known, Recognition.RENAMED)
    mirror = _mirrors().get(owner.lower())
    if mirror is None:
        return None
    owners = [one.lower() for one in mirror.of]
    if not owners and _FORMAT.search(name):
        return None
    kept = [model for model in _named(name) if not owners or model.split("/")[0].lower() in owners]
    return _only(f"{owner}/{name}", kept, Recognition.MIRROR)


def _of_kaggle(parts: Sequence[str]) -> Named | None:
    """The model of a handle of Kaggle: OWNER/MODEL/FRAMEWORK/VARIATION/VERSION, a path of it without the owner."""
    rest = [part for part in parts if not _is_folder(part)]
    if len(rest) > 1 and _REVISION.fullmatch(rest[-1]):
        rest.pop()
    if len(rest) < 2:
        return None
    model, variation = rest[-2:]
    for name in (variation, f"{model}-{variation}"):
        key = _squeezed(name.lower().removesuffix("-hf"))
        found = [known for known in known_ids() if _squeezed(known.split("/")[1]) == key]
        if found:
            return _only("/".join(parts), found, Recognition.PATH)
    return None


def _only(text: str, found: Sequence[str], how: Recognition) -> Named | None:
    """The one model found; None for none. Raises CatalogueError for several."""
    if len(found) > 1:
        near = ", ".join(found[:MOST_CANDIDATES])
        raise CatalogueError("ambiguous-model", field="model", value=shorten(text), near=near)
    return Named(found[0], how) if found else None


def _named(name: str) -> tuple[str, ...]:
    """The bundled models of that name, of whatever owner; else those that had it before they were renamed."""
    for spelling in _spellings(name):
        found = _by_name().get(spelling)
        if found:
            return found
    return ()


def _spellings(name: str) -> Iterator[str]:
    key = _key(name)
    yield key
    for beginning in NAMES.load().dropped:
        yield key.removeprefix(beginning) if key.startswith(beginning) else beginning + key


def _is_folder(part: str) -> bool:
    return part.lower() in NAMES.load().folders


@cache
def _mirrors() -> Mapping[str, Mirror]:
    return {owner.lower(): mirror for owner, mirror in NAMES.load().mirror.items()}


@cache
def _by_lower_id() -> Mapping[str, str]:
    return {model.lower(): model for model in known_ids()}


@cache
def _by_name() -> Mapping[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for model in known_ids():
        key = _key(model.split("/", 1)[1])
        found[key] = (*found.get(key, ()), model)
    return found


def _key(name: str) -> str:
    """`name` in the form in which names are compared: case and separators do not count."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())
