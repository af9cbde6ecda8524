"""The storage format of a scenario's weights: of the checkpoint, of the flag, or of a GGUF file by its name."""

from __future__ import annotations

from typing import Final

from kvcore.errors import ModelError
from kvcore.kept import kept
from kvcore.model.architecture import Module, Parameter, elements
from kvcore.model.config import ModelConfig
from kvcore.model.families import read_architecture
from kvcore.model.quantization import Quantization, read_quantization
from kvcore.model.quantization.gguf import METHOD, file_type, gguf, gguf_of_rate, names_gguf
from kvcore.model.quantization.gguf_mixtures import FILE_TYPES
from kvcore.scenario import Scenario

RATES: Final = (1.5, 9.0)
"""Bits a weight of GGUF files, from IQ1_S to Q8_0: another size is that of another checkpoint."""

FLOAT32_BYTES: Final = 4
"""Of what GGUF does not quantize."""


def storage_of(scenario: Scenario) -> Quantization:
    """The storage format of the weights.

    GGUF where the flag, the config or the model's name says so: of the file type in the name, or at the average rate
    that the checkpoint's size comes to. `--quantization gguf` overrules what the config of the repository declares.

    Raises ModelError `gguf-type-unknown` without either, `unknown-quantization`; EngineRefusalError
    `quantization-mismatch`, `torchao-quant-type`.

    Source: vllm/model_executor/layers/quantization/gguf.py:GGUFConfig.override_quantization_method (0.20.2, 0.23.0).
    """
    config, asked = scenario.config, scenario.quantization
    is_gguf = asked == METHOD or (asked is None and (names_gguf(scenario.model) or declares_gguf(config)))
    if not is_gguf:
        return read_quantization(config, asked)
    named = file_type(scenario.model)
    known = _gguf(config, named if named in FILE_TYPES else "", scenario.checkpoint.total_size)
    if known is None:
        raise ModelError("gguf-type-unknown", field="model", value=scenario.model[:200])
    return known


@kept
def declares_gguf(config: ModelConfig) -> bool:
    """Whether config.json says that the weights are GGUF."""
    section = config.root.optional_section("quantization_config")
    return section is not None and section.get("quant_method") == METHOD


@kept
def _gguf(config: ModelConfig, kind: str, stored: int | None) -> Quantization | None:
    architecture = read_architecture(config)
    if kind in FILE_TYPES:
        return gguf(architecture, kind)
    if stored is not None:
        layers = [module for layer in architecture.layers for module in layer.modules]
        modules: list[Module] = [*architecture.first, *layers, *architecture.last]
        kept = sum(elements(module) for module in modules if isinstance(module, Parameter))
        rest = sum(elements(module) for module in modules if not isinstance(module, Parameter))
        bits = 8 * (stored - FLOAT32_BYTES * kept) / max(1, rest)
        if RATES[0] <= bits <= RATES[1]:
            return gguf_of_rate(bits)
    return None
