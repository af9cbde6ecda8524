"""What a button says that makes the engine take a refused deployment."""

from __future__ import annotations

from kvcore.advice.refusals import Accepted
from kvcore.present.text import Words


def accepted_label(accepted: Accepted, t: Words) -> str:
    """The change in words."""
    value = f"{accepted.value}"
    match accepted.field:
        case "tensor_parallel_size":
            return t("Tensor parallel size {value}", value=value)
        case "enable_expert_parallel":
            return t("Whole experts on each rank")
        case "engine_version":
            return t("Release {value}", value=value)
        case "accelerator":
            return t("Another card: {value}", value=accepted.plan.accelerator.name)
        case "quantization":
            return t("Weights as the checkpoint has them")
        case field:
            return t("Without {field}", field=field)
