"""What stands next to a name where people choose: size, length and license of a model, memory and link of a card."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from kvcore.catalogue.accelerators import Accelerator, Interconnect
from kvcore.catalogue.documented import license_of
from kvcore.catalogue.models import Checkpoint, find_model
from kvcore.engine.vllm.versions import vllm_releases
from kvcore.errors import KvPlannerError
from kvcore.model.architecture import Architecture, elements
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.rope import derived_max_model_len
from kvcore.texts.words import Words, count, msg

LINK_NAMES: Final = {
    Interconnect.NVLINK: "NVLink",
    Interconnect.XGMI: "xGMI",
    Interconnect.HCCS: "HCCS",
    Interconnect.PCIE: "PCIe",
    Interconnect.NONE: msg("single card"),
}
_SEPARATOR: Final = " · "


def model_facts(config: ModelConfig, checkpoint: Checkpoint, license_name: str, t: Words) -> str:
    """Parameters, longest context and license, as far as they are known; "" where the config cannot be read.

    Example:
        >>> from kvcore.texts.words import Language, words
        >>> entry = find_model("Qwen/Qwen3-32B")
        >>> model_facts(entry.config, entry.checkpoint, "Apache-2.0", words(Language.ENGLISH))
        '32.8B · 40,960 tokens · Apache-2.0'
    """
    try:
        architecture = read_architecture(config)
    except KvPlannerError:
        return license_name
    total = checkpoint.total_parameters or parameters(architecture)
    length = derived_max_model_len(architecture.context, vllm_releases()[-1])
    parts = [short_count(total), t("{tokens} tokens", tokens=count(length)), license_name]
    return _SEPARATOR.join(part for part in parts if part)


@lru_cache(maxsize=2048)
def bundled_facts(model: str, t: Words) -> str:
    """The same of a bundled model."""
    entry = find_model(model)
    return model_facts(entry.config, entry.checkpoint, license_of(model), t)


def accelerator_facts(card: Accelerator, t: Words) -> str:
    """Memory, link and memory bandwidth.

    Example:
        >>> from kvcore.catalogue import find_accelerator
        >>> from kvcore.texts.words import Language, words
        >>> accelerator_facts(find_accelerator("H100-80GB"), words(Language.ENGLISH))
        '79.19 GiB · NVLink · 3,350 GB/s'
    """
    bandwidth = card.memory_bandwidth_gb_s
    parts = [f"{card.memory_gib:g} GiB", t(LINK_NAMES[card.interconnect])]
    if bandwidth is not None:
        parts.append(f"{count(round(bandwidth))} GB/s")
    return _SEPARATOR.join(parts)


def parameters(architecture: Architecture) -> int:
    """Numbers in the weights of the whole model."""
    per_layer = {id(layer): sum(map(elements, layer.modules)) for layer in architecture.layers}
    around = (*architecture.first, *architecture.every, *architecture.last)
    return sum(per_layer[id(layer)] for layer in architecture.layers) + sum(map(elements, around))


def short_count(total: int) -> str:
    """A number of parameters as names of models have it.

    Example:
        >>> short_count(32_762_123_264), short_count(751_632_384), short_count(1_026_900_000_000)
        ('32.8B', '752M', '1.03T')
    """
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6)):
        if total >= size:
            return f"{total / size:.3g}{unit}"
    return count(total)
