"""Facts that publishers state next to the weights: license, YaRN, ModelSlim's checkpoint, gated download."""

import datetime
from fnmatch import fnmatchcase
from typing import Annotated, Final

from msgspec import Meta

from kvcore.catalogue.models import model_ids
from kvcore.model.rope import Yarn
from kvcore.tables import Record, Source, TableFile


class Row(Record, frozen=True, kw_only=True):
    """A fact that one source states about some models."""

    source: Source
    checked: datetime.date
    models: tuple[str, ...]
    """Ids; for gates, fnmatch patterns that ignore case."""


class License(Row, frozen=True, kw_only=True):
    """The license of the weights of bundled models."""

    name: Source


class Series(Row, frozen=True, kw_only=True):
    """The length that a rope was trained for, and the factor that was validated."""

    yarn: Yarn


class Repository(Row, frozen=True, kw_only=True):
    """ModelSlim's 8-bit checkpoint of some models."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+/[A-Za-z0-9._-]+$")]


class Documented(Record, frozen=True, kw_only=True):
    """The tables of documented.toml."""

    license: tuple[License, ...]
    series: tuple[Series, ...]
    modelslim: tuple[Repository, ...]
    gated: Row

    def __post_init__(self) -> None:
        for rows in (self.license, self.modelslim):
            named = [model for row in rows for model in row.models]
            if wrong := set(named).difference(model_ids()):
                raise ValueError(f"{min(wrong)} is not bundled")
            if twice := {model for model in named if named.count(model) > 1}:
                raise ValueError(f"{min(twice)} is named twice")


DOCUMENTED: Final = TableFile("kvcore.catalogue", "documented.toml", Documented)


def license_of(model: str) -> str:
    """The license of a bundled model's weights, "" if no source states it.

    Example:
        >>> license_of("Qwen/Qwen3-32B"), license_of("no/such-model")
        ('Apache-2.0', '')
    """
    return next((row.name for row in DOCUMENTED.load().license if model in row.models), "")


def modelslim_repository(model: str) -> str:
    """ModelSlim's W8A8 checkpoint of a bundled model on ModelScope, "" if no guide names one.

    Example:
        >>> modelslim_repository("Qwen/Qwen3-32B"), modelslim_repository("Qwen/Qwen3-8B")
        ('vllm-ascend/Qwen3-32B-W8A8', '')
    """
    return next((row.name for row in DOCUMENTED.load().modelslim if model in row.models), "")


def is_gated(model: str) -> bool:
    """Whether the table lists `model` as a download for accounts that accepted its terms.

    Example:
        >>> is_gated("meta-llama/Llama-3.3-70B-Instruct"), is_gated("Qwen/Qwen3-32B")
        (True, False)
    """
    return any(fnmatchcase(model.lower(), pattern.lower()) for pattern in DOCUMENTED.load().gated.models)


def documented_yarn(model: str) -> Yarn | None:
    """The stretched rope in the model card of `model`; None if none is documented.

    Example:
        >>> documented_yarn("Qwen/Qwen3-32B").max_model_len, documented_yarn("Qwen/Qwen3-0.6B")
        (131072, None)
    """
    return next((row.yarn for row in DOCUMENTED.load().series if model in row.models), None)
