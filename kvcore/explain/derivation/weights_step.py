"""Step 3: parameters × bytes / TP, and what is replicated."""

from __future__ import annotations

from kvcore.engine.partition import stage_layers
from kvcore.explain.derivation.equation import equation
from kvcore.explain.derivation.lesson import Content, Prediction, Slip, part
from kvcore.memory.encoder_profile import loaded_architecture
from kvcore.memory.shares import WeightShares, weight_shares
from kvcore.model.quantization import NOT_QUANTIZED
from kvcore.planning import Plan
from kvcore.quantity import Grade, Quantity, Unit, given
from kvcore.texts.words import Words, count, gib_text
from kvcore.units import GB, MIB, gib

_SOURCE = "vllm/model_executor/models (0.32.0)"


def weights_content(plan: Plan, t: Words) -> Content:
    """The weights of one GPU: of the worst rank of the plan."""
    shares = _shares(plan)
    parallel = plan.scenario.parallel
    weights = plan.memory.weights if plan.memory is not None else plan.loaded_weights
    slips = [
        Slip(
            value=gib(shares.whole),
            reason=t("That is the whole model on one GPU: divide by the tensor parallel size."),
        ),
        Slip(value=weights.value / GB, reason=t("Those are GB of 10⁹ bytes; a GiB has 2³⁰.")),
    ]  # fmt: skip
    if parallel.tensor_parallel_size == 1:
        slips.pop(0)
    if plan.scenario.measured.weights_gib is not None:
        slips.append(
            Slip(
                value=gib(shares.per_rank),
                reason=t("That is what parameters and bytes give; this scenario has a figure of its own."),
            )
        )
    return Content(
        question=t("How large are the weights on one GPU?"),
        idea=t(
            "Parameters times bytes per parameter, divided by the tensor parallel size: that is the whole idea of "
            "{weights}. 16-bit formats take 2 bytes, fp8 takes 1, 4-bit formats a little more than half a byte, "
            "because of their scales. Mind the units: 64 GB are 59.6 GiB, and the engine's log counts in GiB.",
            weights=part("weights"),
        ),
        prediction=Prediction(
            question=t(
                "The model has {count} billion parameters and runs with tensor parallel size "
                "{ranks}. How much does one GPU store?",
                count=f"{shares.count / 1e9:.3g}",
                ranks=str(parallel.tensor_parallel_size),
            )
            if parallel.pipeline_parallel_size == 1
            else t(
                "This pipeline stage has {count} billion parameters and runs with tensor parallel"
                " size {ranks}. How much does one GPU store?",
                count=f"{shares.count / 1e9:.3g}",
                ranks=str(parallel.tensor_parallel_size),
            ),
            unit="GiB",
            answer=gib(weights.value),
            slips=tuple(slips),
        ),
        points=_points(plan, shares, t),
        equations=tuple(equation(quantity, t) for quantity in (*_quantities(plan, shares), weights)),
        remarks=_remarks(plan, shares, t),
    )


def _shares(plan: Plan) -> WeightShares:
    architecture = loaded_architecture(plan.architecture, plan.scenario, plan.resolved.version)
    return weight_shares(architecture, plan.quantization, plan.scenario.parallel, plan.resolved, plan.stage)


def _quantities(plan: Plan, shares: WeightShares) -> tuple[Quantity, ...]:
    staged = plan.scenario.parallel.pipeline_parallel_size > 1
    number = given("stage_parameter_count" if staged else "parameter_count", shares.count)
    whole = Quantity(
        name="whole_parameters" if shares.ranks > 1 else "parameters",
        value=shares.whole,
        unit=Unit.BYTES,
        formula="{" + number.name + "} × {bytes_per_parameter}",
        inputs=(number, given("bytes_per_parameter", shares.whole / shares.count, grade=Grade.DERIVED)),
        grade=Grade.EXACT,
        source=_SOURCE,
    )
    if shares.ranks == 1:
        return (whole,)
    divided = Quantity(
        name="divided",
        value=shares.divided,
        unit=Unit.BYTES,
        formula="{whole_parameters} − {replicated}" if not shares.otherwise else "",
        inputs=(whole, given("replicated", shares.replicated, Unit.BYTES)),
        grade=Grade.EXACT,
        source=_SOURCE,
    )
    per_rank = Quantity(
        name="parameters",
        value=shares.per_rank,
        unit=Unit.BYTES,
        formula="{divided} / {tensor_parallel_size} + {replicated}"
        + (" + {otherwise}" if shares.otherwise else ""),
        inputs=(
            divided,
            given("tensor_parallel_size", shares.ranks),
            given("replicated", shares.replicated, Unit.BYTES),
            given("otherwise", shares.otherwise, Unit.BYTES),
        ),
        grade=Grade.EXACT,
        source=_SOURCE,
    )
    return (whole, divided, per_rank)


def _points(plan: Plan, shares: WeightShares, t: Words) -> tuple[str, ...]:
    parallel, architecture = plan.scenario.parallel, plan.architecture
    found = []
    if shares.ranks > 1:
        found.append(
            t(
                "Not divided, but copied on every GPU: norms, biases after a divided input, routers "
                "of experts, and with MLA the projections down to the latent vector. Here that is "
                "{size}.",
                size=gib_text(shares.replicated),
            )
        )
    if shares.otherwise > MIB and parallel.enable_expert_parallel:
        found.append(
            t("Whole experts are distributed over {ranks} GPUs.", ranks=str(shares.ranks * parallel.data_parallel_size))
        )  # fmt: skip
    elif shares.otherwise > MIB and 0 < architecture.num_kv_heads < shares.ranks:
        found.append(
            t(
                "{ranks} GPUs share {heads} KV heads: each head is copied.",
                ranks=str(shares.ranks),
                heads=str(architecture.num_kv_heads),
            )
        )
    if parallel.pipeline_parallel_size > 1:
        layers = stage_layers(architecture.num_layers, parallel.pipeline_parallel_size, plan.stage)
        found.append(
            t(
                "Pipeline parallelism gives each GPU its own layers. The stage with the least memory to spare is "
                "number {stage} of {stages}, layers {first} to {last}.",
                stage=str(plan.stage + 1),
                stages=str(parallel.pipeline_parallel_size),
                first=str(layers.start + 1),
                last=str(layers.stop),
            )
        )
    if plan.quantization.method != NOT_QUANTIZED:
        found.append(
            t(
                "This checkpoint is quantized. Norms stay in 16 bits, and so do embedding and output head as a "
                "rule; scales come on top: the average is above the nominal size."
            )
        )
    if architecture.moe is not None:
        found.append(
            t(
                "All {count} experts of a layer are in memory, though one token uses only {used} of them: for "
                "memory all parameters count, not the active ones.",
                count=count(architecture.moe.num_experts),
                used=count(architecture.moe.top_k),
            )
        )
    return tuple(found)


def _remarks(plan: Plan, shares: WeightShares, t: Words) -> tuple[str, ...]:
    if plan.scenario.measured.weights_gib is not None:
        return (t("You gave the size of the weights yourself; it replaces the computed one."),)
    if shares.ranks == 1:
        return ()
    return (
        t(
            "An equal share of everything would be {equal}; one GPU stores {held} of parameters.",
            equal=gib_text(shares.whole / shares.ranks),
            held=gib_text(shares.per_rank),
        ),
    )
