"""Facts of the models whose layers are not all alike, and how the tests of each room compare with them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.version import Version

from kvcore.base.units import gib
from kvcore.memory.lora import Slots, lora_bytes
from kvcore.memory.weights import WeightBytes, weight_bytes
from kvcore.model.architecture import Architecture
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.quantization import read_quantization
from kvcore.planning import Plan
from kvcore.scenario import Parallel
from tests.test_families_decoder import resolved

FACTS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data/special_models.jsonl").read_text().splitlines()
    if '"model"' in line
]


def facts_with(key: str) -> list:
    """The facts that have `key`, named by model."""
    return [pytest.param(fact, id=fact["model"]) for fact in FACTS if key in fact]


def fact_of(model: str) -> dict:
    """The facts of one model."""
    return next(fact for fact in FACTS if fact["model"] == model)


def config_of(fact: dict, **changes: Any) -> ModelConfig:
    """The config of a fact, with some keys changed."""
    return ModelConfig.from_mapping({**fact["config"], **changes}, fact.get("hf_quant_config"))


def read(fact: dict, **changes: Any) -> Architecture:
    """The architecture of a fact's config."""
    return read_architecture(config_of(fact, **changes))


def weigh(config: ModelConfig, engine_version: str = "0.32.0", **parallel: Any) -> WeightBytes:
    """The weights of one rank of the first stage; 32-bit checkpoints are served in 16 bits."""
    architecture = read_architecture(config)
    dtype = "bfloat16" if architecture.dtype == "float32" else architecture.dtype
    engine = replace(resolved(dtype), version=Version(engine_version), engine_version=engine_version)
    return weight_bytes(architecture, read_quantization(config, None), Parallel(**parallel), engine, 0)


def gib_of_log(fact: dict, logged: dict) -> float:
    """What the engine of a log prints of a fact's model."""
    ranks = logged["tensor_parallel_size"]
    return gib(weigh(config_of(fact), logged["engine_version"], tensor_parallel_size=ranks).total)


def parameters_per_rank(config: ModelConfig, tensor_parallel_size: int) -> int:
    """Bytes of all parameters of one rank."""
    return weigh(config, tensor_parallel_size=tensor_parallel_size).parameters


def cache_layers(architecture: Architecture) -> dict[str, int]:
    """How many caches of each kind the model has; an indexer is counted with the latent attention it serves."""
    counts = Counter(type(cache).__name__ for layer in architecture.layers for cache in layer.caches)
    indexers = counts.pop("SparseIndexer", 0)
    latents = counts.pop("Mla", 0)
    if latents:
        counts["Mla and SparseIndexer"] = latents + indexers
    return dict(counts)


def slots_by_stage(plan: Plan, slots: Slots) -> list[int]:
    """Bytes of the adapters' slots on a rank of each pipeline stage."""
    parallel, resolved = plan.scenario.parallel, plan.resolved
    return [
        lora_bytes(
            plan.scenario.config, plan.architecture, plan.quantization, parallel, resolved.engine,
            resolved.version, resolved.dtype, stage, slots,
        )
        for stage in range(parallel.pipeline_parallel_size)
    ]  # fmt: skip
