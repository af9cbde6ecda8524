"""Steps 1 to 4: what takes the memory of one GPU, and what that leaves for the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from kvcore.engine import stage_layers
from kvcore.engine.memory_rules import GraphApi
from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.versions import switches_of
from kvcore.errors import KvPlannerError
from kvcore.explain.derivation.equation import equations
from kvcore.explain.derivation.lesson import Content, Lesson, Option, StepName
from kvcore.memory.shares import WeightShares, weight_shares
from kvcore.memory.stages import loaded_architecture
from kvcore.model.quantization import NOT_QUANTIZED
from kvcore.planning import Plan, plan
from kvcore.quantity import Grade, Quantity, Unit, figure, given
from kvcore.texts.palette import PARTS
from kvcore.texts.words import count, exact_gib_text, gib_text
from kvcore.units import GB, MIB, gib

FALL, SAME, RISE = "fall", "same", "rise"
NOTICEABLE: Final = 0.05
"""A smaller change is none."""
_MODELS: Final = "vllm/model_executor/models (0.32.0)"


def parts_content(lesson: Lesson) -> Content:
    """What lives in the memory of one GPU, and which part is the largest."""
    memory, say = lesson.plan.memory, lesson.say
    options = tuple(Option(name=one.name, label=lesson.t(one.label)) for one in PARTS)
    content = lesson.content(StepName.PARTS).answered(options=options)
    if memory is None:
        return replace(content, missing=say("no-card"))
    held = [getattr(memory, one.name) for one in PARTS]
    if memory.unaccounted.value:
        held.insert(-2, memory.unaccounted)
    total = memory.total
    formula = " + ".join("{" + quantity.name + "}" for quantity in held)
    whole = figure("total", total.value, formula, *held, grade=total.grade, source=total.source)
    largest = max(PARTS, key=lambda one: getattr(memory, one.name).value)
    is_over = memory.unused.value < 0
    return replace(
        content.answered(answer_option=largest.name),
        equations=equations(lesson.t, whole),
        remarks=(say("parts-overrun", size=gib_text(-memory.unused.value)),) if is_over else (),
    )


def budget_content(lesson: Lesson) -> Content:
    """Total × utilization, and what utilization does not mean."""
    resolved, memory, say = lesson.plan.resolved, lesson.plan.memory, lesson.say
    points = ["budget-not-cache", "budget-not-limit", "budget-not-free"]
    looks = find_engine(resolved.engine).measures_memory_in(resolved.version)
    if looks and switches_of(resolved.version).checks_free_memory:
        points.append("budget-start-check")
    content = replace(lesson.content(StepName.BUDGET, unit="GiB"), points=tuple(map(say, points)))
    if memory is None:
        return replace(content, missing=say("no-card"))
    total, budget, system = memory.total, memory.budget, memory.system.value
    grade = budget.grade if budget.grade is not Grade.EXACT else Grade.DERIVED
    outside = figure("outside", total.value - budget.value, "{total} − {budget}", total, budget, grade=grade)
    content = content.answered(
        question=say(
            "budget-guess-of-card",
            total=exact_gib_text(total.value),
            share=f"{resolved.gpu_memory_utilization:g}",
        ),
        answer=gib(budget.value),
        slips=(
            lesson.slip(gib(total.value), "budget-slip-card"),
            lesson.slip(gib(memory.available_kv.value), "budget-slip-cache"),
            lesson.slip(budget.value / GB, "gigabytes"),
        ),
    )
    takes = "budget-system-fits" if system <= outside.value else "budget-system-exceeds"
    return replace(
        content,
        equations=equations(lesson.t, budget, outside),
        remarks=(say(takes, taken=gib_text(system), outside=gib_text(outside.value)),),
    )


def weights_content(lesson: Lesson) -> Content:
    """The weights of one GPU, of the worst rank of the plan: parameters × bytes / TP, and what is replicated."""
    base, parallel = lesson.plan, lesson.plan.scenario.parallel
    loaded = loaded_architecture(base.architecture, base.scenario, base.resolved.version)
    shares = weight_shares(loaded, base.quantization, parallel, base.resolved, base.stage)
    weights = base.memory.weights if base.memory is not None else base.loaded_weights
    slips = [lesson.slip(weights.value / GB, "gigabytes")]
    if parallel.tensor_parallel_size > 1:
        slips.insert(0, lesson.slip(gib(shares.whole), "weights-slip-whole"))
    if base.scenario.measured.weights_gib is not None:
        slips.append(lesson.slip(gib(shares.per_rank), "weights-slip-parameters"))
    sizes = {"count": f"{shares.count / 1e9:.3g}", "ranks": str(parallel.tensor_parallel_size)}
    content = lesson.content(StepName.WEIGHTS, unit="GiB", **sizes)
    if parallel.pipeline_parallel_size > 1:
        content = content.answered(question=lesson.say("weights-guess-stage", **sizes))
    return replace(
        content.answered(answer=gib(weights.value), slips=tuple(slips)),
        points=tuple(_weights_points(lesson, shares)),
        equations=equations(lesson.t, *_weights_quantities(base, shares), weights),
        remarks=tuple(_weights_remarks(lesson, shares)),
    )


def _weights_quantities(base: Plan, shares: WeightShares) -> tuple[Quantity, ...]:
    def exact(name: str, value: float, formula: str, *inputs: Quantity) -> Quantity:
        return figure(name, value, formula, *inputs, grade=Grade.EXACT, source=_MODELS)

    staged = base.scenario.parallel.pipeline_parallel_size > 1
    number = given("stage_parameter_count" if staged else "parameter_count", shares.count)
    each = given("bytes_per_parameter", shares.whole / shares.count, grade=Grade.DERIVED)
    product = f"{{{number.name}}} × {{bytes_per_parameter}}"
    if shares.ranks == 1:
        return (exact("parameters", shares.whole, product, number, each),)
    whole = exact("whole_parameters", shares.whole, product, number, each)
    replicated = given("replicated", shares.replicated, Unit.BYTES)
    rest = "" if shares.otherwise else "{whole_parameters} − {replicated}"
    divided = exact("divided", shares.divided, rest, whole, replicated)
    ranks = given("tensor_parallel_size", shares.ranks)
    otherwise = given("otherwise", shares.otherwise, Unit.BYTES)
    total = "{divided} / {tensor_parallel_size} + {replicated}" + " + {otherwise}" * bool(shares.otherwise)
    per_rank = exact("parameters", shares.per_rank, total, divided, ranks, replicated, otherwise)
    return (whole, divided, per_rank)


def _weights_points(lesson: Lesson, shares: WeightShares) -> Iterator[str]:
    base, say = lesson.plan, lesson.say
    parallel, architecture, ranks = base.scenario.parallel, base.architecture, shares.ranks
    if ranks > 1:
        yield say("weights-replicated", size=gib_text(shares.replicated))
    if shares.otherwise > MIB and parallel.enable_expert_parallel:
        yield say("weights-experts-shared", ranks=str(ranks * parallel.data_parallel_size))
    elif shares.otherwise > MIB and 0 < architecture.num_kv_heads < ranks:
        yield say("weights-heads-copied", ranks=str(ranks), heads=str(architecture.num_kv_heads))
    if parallel.pipeline_parallel_size > 1:
        layers = stage_layers(architecture.num_layers, parallel.pipeline_parallel_size, base.stage)
        yield say(
            "weights-stages",
            stage=str(base.stage + 1),
            stages=str(parallel.pipeline_parallel_size),
            first=str(layers.start + 1),
            last=str(layers.stop),
        )
    if base.quantization.method != NOT_QUANTIZED:
        yield say("weights-quantized")
    if architecture.moe is not None:
        moe = architecture.moe
        yield say("weights-experts", count=count(moe.num_experts), used=count(moe.top_k))


def _weights_remarks(lesson: Lesson, shares: WeightShares) -> Iterator[str]:
    if lesson.plan.scenario.measured.weights_gib is not None:
        yield lesson.say("weights-given")
    elif shares.ranks > 1:
        equal, held = gib_text(shares.whole / shares.ranks), gib_text(shares.per_rank)
        yield lesson.say("weights-equal", equal=equal, held=held)


def overheads_content(lesson: Lesson) -> Content:
    """Why a dummy run is measured, and what the measurements leave for the KV cache."""
    base, say = lesson.plan, lesson.say
    resolved, memory = base.resolved, base.memory
    seats, batch = resolved.max_num_seqs, resolved.max_num_batched_tokens
    variables = find_engine(resolved.engine).variables_in(resolved.version)
    content = lesson.content(
        StepName.OVERHEADS,
        options=(FALL, SAME, RISE),
        batch=count(batch),
        seats=count(min(seats, batch)),
    )
    if variables is None:
        content = replace(content, points=(say("overheads-modelled"), say("overheads-same-run")))
    else:
        content = replace(
            content,
            question=say("overheads-question-by-hand"),
            idea=say("overheads-idea-by-hand", engine=resolved.engine, variable=f"`{variables.model}`"),
            points=(say("overheads-log-by-hand"),),
        )
    if memory is None:
        return replace(content, missing=say("no-card"))
    shown = [memory.activations, memory.framework]
    if memory.cuda_graphs.value:
        shown.append(memory.counted_graphs if memory.counted_graphs.value else memory.cuda_graphs)
    if memory.unaccounted.value:
        shown += [replace(memory.remainder, name="remainder"), memory.unaccounted]
    effect = effect_of_half_length(base)
    return replace(
        content.answered(answer_option=effect),
        equations=equations(lesson.t, *shown, memory.available_kv),
        remarks=(*_overheads_reasons(lesson, effect), *_overheads_remarks(lesson)),
    )


def effect_of_half_length(base: Plan) -> str:
    """Whether the activations fall, stay or rise with half the context length; "" where it cannot be planned.

    A figure that the person gave does not move, so the modelled ones are compared.
    """
    modelled = replace(base.scenario, measured=replace(base.scenario.measured, peak_activation_gib=None))
    length = max(1, base.resolved.max_model_len // 2)
    try:
        whole, halved = plan(modelled), plan(replace(modelled, max_model_len=length))
    except KvPlannerError:
        return ""
    if whole.memory is None or halved.memory is None or not whole.memory.activations.value:
        return ""
    change = halved.memory.activations.value / whole.memory.activations.value - 1
    if abs(change) < NOTICEABLE:
        return SAME
    return FALL if change < 0 else RISE


def _overheads_reasons(lesson: Lesson, effect: str) -> Iterator[str]:
    """Why the activations fall or stay, why they are a maximum, and what a graph keeps."""
    memory, say = lesson.plan.memory, lesson.say
    assert memory is not None, "asked only of plans with a card"
    if effect in (SAME, FALL):
        yield say("overheads-why-same" if effect == SAME else "overheads-why-fall")
    if memory.activations.formula.startswith("max("):
        yield say("overheads-peaks")
    if "{compiling}" in memory.activations.formula:
        yield say("overheads-compiling")
    if "{graphs}" in memory.cuda_graphs.formula and memory.cuda_graphs.value:
        yield say("overheads-graphs")
        if find_engine(lesson.plan.resolved.engine).memory.graphs is GraphApi.ACL:
            yield say("overheads-acl")


def _overheads_remarks(lesson: Lesson) -> Iterator[str]:
    base, memory, say = lesson.plan, lesson.plan.memory, lesson.say
    assert memory is not None, "asked only of plans with a card"
    parallel, left = base.scenario.parallel, base.available_kv_bytes or 0
    ranks, graphs = parallel.tensor_parallel_size, memory.cuda_graphs.value
    if base.scenario.measured.peak_activation_gib is not None:
        yield say("overheads-given-activations", size=exact_gib_text(memory.activations.value))
    if graphs > memory.counted_graphs.value:
        yield say("overheads-graphs-outside", size=gib_text(graphs))
    if memory.remainder.value <= 0:
        yield say("overheads-nothing-left", size=gib_text(-memory.remainder.value))
    if left > 0 and ranks > 1 and parallel.pipeline_parallel_size == 1:
        yield say("overheads-together", ranks=str(ranks), size=gib_text(left * ranks))
    if base.scenario.measured.available_kv_gib is not None:
        yield say("overheads-given-kv", size=gib_text(left))
