"""What is served, on what, with which flags: frozen inputs, and what reads, writes or changes them."""

from kvcore.scenario.scenario import (
    AUTO,
    DEFAULT_ENGINE,
    MEASURED_PARTS,
    PARALLEL,
    CudagraphMode,
    Measured,
    Origin,
    Parallel,
    Runner,
    Scenario,
    SpeculativeConfig,
    value_of,
    without_state_flags,
)

__all__ = [
    "AUTO",
    "DEFAULT_ENGINE",
    "MEASURED_PARTS",
    "PARALLEL",
    "CudagraphMode",
    "Measured",
    "Origin",
    "Parallel",
    "Runner",
    "Scenario",
    "SpeculativeConfig",
    "value_of",
    "without_state_flags",
]
