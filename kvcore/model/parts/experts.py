"""Routed experts, whatever configs and checkpoints of different makers call them.

An `ExpertTraits` has what is a family's own; `read_moe` gives the sizes, `expert_modules` the tensors of a layer.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kvcore.model.architecture import Experts, Linear, MixtureOfExperts, Module, Parameter
from kvcore.model.config import Section
from kvcore.model.parts.blocks import Flag, flag, gated_mlp, plain_mlp, replicated, with_expert_ranks
from kvcore.tables import Record

MAX_EXPERTS: Final = 65_536
"""Experts of a layer, above any that is published."""

ROUTER_DTYPES: Final[Mapping[str, str]] = {"": "", "fp32": "float32"}
"""Any other name means bfloat16. Source: vllm/model_executor/models/bailing_moe.py:BailingMoE (0.32)."""


class Part(StrEnum):
    """Parts that a layer with experts may have."""

    ROUTER = "router"
    CORRECTION = "correction"
    EXPERTS = "experts"
    SHARED = "shared"
    SHARED_GATE = "shared_gate"


class ExpertTraits(Record, frozen=True, kw_only=True):
    """One family's experts: keys of its config, names of its tensors.

    Of several keys the first that the file gives decides; without any it is the first: its class default is read, or
    the error names it. Names follow `prefix`.
    """

    experts_key: str | tuple[str, ...] = "num_experts"
    intermediate_key: str | tuple[str, ...] = "moe_intermediate_size"
    top_k_key: str | tuple[str, ...] = "num_experts_per_tok"
    shared_size_key: str = ""
    """The width of all shared experts together."""
    shared_count_key: str = ""
    """Number of shared experts, each as wide as a routed one unless a key gives another width."""
    shared_count: int = 0
    """How many without that key."""
    shared_width_key: str = "moe_shared_expert_intermediate_size"
    """The width of one shared expert."""

    prefix: str = "mlp"
    router: str = "gate"
    router_dtype: str = ""
    router_dtype_key: str = ""
    """The config key whose value is fp32 for a float32 router; no key or null leaves it in the model's dtype."""
    quantizes_router: bool = False
    correction_bias: Flag = False
    """A float32 bias an expert that only the routing uses."""
    correction: str = "gate.e_score_correction_bias"
    correction_dtype: str = "float32"
    biased: bool = False
    """Router and experts have biases."""
    gated: bool = True
    shared: str = "shared_experts"
    shared_gate: bool = False
    """A number a token scales the output of the shared expert."""
    gates_nothing: bool = False
    """Whether that gate is there without a shared expert too."""
    shared_whole: bool = False
    """Shared experts stay whole when experts are sharded over tensor and data parallel ranks at once."""
    order: tuple[Part, ...] = (Part.ROUTER, Part.EXPERTS, Part.CORRECTION, Part.SHARED, Part.SHARED_GATE)
    """Order in which the parts are offloaded."""


def read_moe(traits: ExpertTraits, section: Section) -> MixtureOfExperts:
    """The sizes of a model's experts.

    Raises ModelError for a missing or unusable size.

    Example:
        >>> config = Section({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64})
        >>> read_moe(ExpertTraits(), config).num_experts
        8
    """
    return MixtureOfExperts(
        num_experts=section.integer(first_given(section, traits.experts_key), maximum=MAX_EXPERTS),
        top_k=section.integer(first_given(section, traits.top_k_key), maximum=MAX_EXPERTS),
        moe_intermediate_size=section.integer(first_given(section, traits.intermediate_key)),
        shared_intermediate_size=shared_size(traits, section),
    )


def optional_moe(traits: ExpertTraits, section: Section, *, minimum: int = 1) -> MixtureOfExperts | None:
    """As `read_moe`; None for a config without experts, or with none of them where `minimum` is 0."""
    key = first_given(section, traits.experts_key)
    count = section.optional_integer(key, minimum=minimum, maximum=MAX_EXPERTS)
    return read_moe(traits, section) if count else None


def first_given(section: Section, keys: str | tuple[str, ...]) -> str:
    """The first of several keys for the same thing that the file gives, else the first."""
    if isinstance(keys, str):
        return keys
    return next((key for key in keys if section.has(key)), keys[0])


def shared_size(traits: ExpertTraits, section: Section) -> int:
    """The width of all shared experts of a layer together; 0 without."""
    size = section.optional_integer(traits.shared_size_key) if traits.shared_size_key else None
    count = traits.shared_count
    if traits.shared_count_key:
        count = section.integer(traits.shared_count_key, count, minimum=0, maximum=MAX_EXPERTS)
    elif size is not None:
        return size
    if size is not None or not count:
        return (size or 0) if count else 0
    # A shared expert that no key counts is always there, so a width of 0 is an error and not the routed one's.
    width = section.optional_integer(traits.shared_width_key, minimum=0 if traits.shared_count_key else 1)
    return count * (width or section.integer(first_given(section, traits.intermediate_key)))


def expert_modules(
    traits: ExpertTraits,
    section: Section,
    hidden_size: int,
    moe: MixtureOfExperts,
    *,
    shared_bias: bool = False,
    inner_size: int | None = None,
) -> tuple[Module, ...]:
    """Router, routed and shared experts of one layer. The routed ones may work in a space of `inner_size`."""
    prefix, count, shared = traits.prefix, moe.num_experts, moe.shared_intermediate_size
    router = replicated(
        f"{prefix}.{traits.router}",
        hidden_size,
        count,
        bias=traits.biased,
        quantizable=traits.quantizes_router,
        dtype=router_dtype(traits, section),
    )
    parts: dict[Part, tuple[Module, ...]] = {
        Part.ROUTER: (router,),
        Part.EXPERTS: (routed_experts(traits, inner_size or hidden_size, moe),),
    }
    if flag(section, traits.correction_bias):
        name = f"{prefix}.{traits.correction}"
        parts[Part.CORRECTION] = (Parameter(name=name, replicated=count, dtype=traits.correction_dtype),)
    if shared:
        parts[Part.SHARED] = shared_experts(traits, hidden_size, shared, bias=shared_bias)
    if traits.shared_gate and (shared or traits.gates_nothing):
        gate = replicated(f"{prefix}.shared_expert_gate", hidden_size, 1, quantizable=False)
        parts[Part.SHARED_GATE] = (gate,)
    return tuple(module for part in traits.order for module in parts.get(part, ()))


def shared_experts(
    traits: ExpertTraits, hidden_size: int, width: int, *, bias: bool = False
) -> tuple[Linear, ...]:
    """The shared experts of one layer, as one MLP."""
    name = f"{traits.prefix}.{traits.shared}"
    if traits.gated:
        linears = gated_mlp(hidden_size, width, name, bias=bias)
    else:
        linears = plain_mlp(hidden_size, width, f"{name}.up_proj", f"{name}.down_proj", bias=bias)
    return with_expert_ranks(linears) if traits.shared_whole else linears


def routed_experts(traits: ExpertTraits, hidden_size: int, moe: MixtureOfExperts) -> Experts:
    """The routed experts of one layer."""
    return Experts(
        name=f"{traits.prefix}.experts".removeprefix("."),
        num_experts=moe.num_experts,
        hidden_size=hidden_size,
        intermediate_size=moe.moe_intermediate_size,
        gated=traits.gated,
        bias=traits.biased,
        top_k=moe.top_k,
    )


def router_dtype(traits: ExpertTraits, section: Section) -> str:
    """The dtype of the router, "" for the model's."""
    if not traits.router_dtype_key:
        return traits.router_dtype
    return ROUTER_DTYPES.get(section.string(traits.router_dtype_key, ""), "bfloat16")
