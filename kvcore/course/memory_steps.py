"""Steps 1 to 5: the parts of the memory of one GPU, and the rest for the KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import trunc
from typing import Any, Final

from msgspec.structs import replace

from kvcore.base.errors import KvPlannerError
from kvcore.base.numbers import count, exact_gib_text, gib_text
from kvcore.base.parts import ACTIVATIONS, FRAMEWORK, PARTS
from kvcore.base.quantity import Grade, Quantity, Unit, explained, figure, given
from kvcore.base.term import added, left_of
from kvcore.base.units import GB, MIB, gib
from kvcore.course.equation import equations
from kvcore.course.lesson import Content, Lesson, Option, StepName
from kvcore.engine import stage_layers
from kvcore.engine.overheads import GraphApi
from kvcore.engine.rank_memory import RankMemory
from kvcore.memory.activations import peak_bytes
from kvcore.memory.graphs import graph_bytes
from kvcore.memory.shares import WeightShares, weight_shares
from kvcore.memory.stages import loaded_architecture
from kvcore.model.quantization import NOT_QUANTIZED
from kvcore.planning import Plan, plan

FALL, SAME, RISE = "fall", "same", "rise"
NOTICEABLE: Final = 0.05
"""Smaller changes are shown as no change."""
_MODELS: Final = "vllm/model_executor/models (0.32.0)"


def parts_content(lesson: Lesson) -> Content:
    """The parts of the memory of one GPU, and the largest of them."""
    memory, say = lesson.plan.memory, lesson.say
    options = tuple(Option(name=one.name, label=lesson.t(one.label)) for one in PARTS)
    content = lesson.content(StepName.PARTS).answered(options=options)
    if memory is None:
        return replace(content, missing=say("no-card"))
    held = [getattr(memory, one.name) for one in PARTS]
    if memory.unaccounted.value:
        held.insert(-2, memory.unaccounted)
    total = memory.total
    whole = explained("total", added, tuple(held), grade=total.grade, source=total.source)
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
    looks = resolved.engine.measures_memory_in(resolved.version)
    if looks and resolved.switches.checks_free_memory:
        points.append("budget-start-check")
    content = replace(lesson.content(StepName.BUDGET, unit="GiB"), points=tuple(map(say, points)))
    if memory is None:
        return replace(content, missing=say("no-card"))
    total, budget, system = memory.total, memory.budget, memory.system.value
    grade = budget.grade if budget.grade is not Grade.EXACT else Grade.DERIVED
    outside = explained("outside", left_of, total, (budget,), grade=grade)
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
    loaded = loaded_architecture(base.architecture, base.scenario, base.resolved)
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
    exact = partial(explained, grade=Grade.EXACT, source=_MODELS)
    staged = base.scenario.parallel.pipeline_parallel_size > 1
    number = given("stage_parameter_count" if staged else "parameter_count", shares.count)
    each = given("bytes_per_parameter", shares.whole / shares.count, grade=Grade.DERIVED)
    if shares.ranks == 1:
        return (exact("parameters", parameter_bytes, number, each),)
    whole = exact("whole_parameters", parameter_bytes, number, each)
    replicated = given("replicated", shares.replicated, Unit.BYTES)
    divided = figure("divided", shares.divided, source=_MODELS)
    if not shares.otherwise:
        divided = exact("divided", left_of, whole, (replicated,))
    ranks = given("tensor_parallel_size", shares.ranks)
    others = (given("otherwise", shares.otherwise, Unit.BYTES),) if shares.otherwise else ()
    per_rank = exact("parameters", rank_bytes, divided, ranks, (replicated, *others))
    return (whole, divided, per_rank)


def parameter_bytes(parameter_count: int, bytes_per_parameter: float) -> int:
    """Bytes of all parameters."""
    return round(parameter_count * bytes_per_parameter)


def rank_bytes(divided: int, tensor_parallel_size: int, whole: tuple[int, ...]) -> int:
    """Bytes of one rank: its share of the divided tensors, and those it stores whole."""
    return trunc(divided / tensor_parallel_size) + added(whole)


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
        layers = stage_layers(architecture.num_layers, parallel, base.stage)
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


def activations_content(lesson: Lesson) -> Content:
    """Why a dummy run is measured, and what sets its peak."""
    base, say = lesson.plan, lesson.say
    resolved, memory = base.resolved, base.memory
    seats, batch = resolved.max_num_seqs, resolved.max_num_batched_tokens
    variables = resolved.engine.variables_in(resolved.version)
    content = lesson.content(
        StepName.ACTIVATIONS,
        options=(FALL, SAME, RISE),
        batch=count(batch),
        seats=count(min(seats, batch)),
    )
    if variables is None:
        content = replace(content, points=(say("activations-modelled"),))
    else:
        content = replace(
            content,
            question=say("activations-question-by-hand"),
            idea=say(
                "activations-idea-by-hand", engine=resolved.engine.name, variable=f"`{variables.model}`"
            ),
            points=(say("activations-log-by-hand"),),
        )
    if memory is None:
        return replace(content, missing=say("no-card"))
    effect = effect_of_half_length(base)
    return replace(
        content.answered(answer_option=effect),
        equations=equations(lesson.t, memory.activations),
        remarks=tuple(_activations_remarks(lesson, memory, effect)),
    )


def effect_of_half_length(base: Plan) -> str:
    """Whether the activations fall, stay or rise with half the context length; "" where it cannot be planned.

    A figure that the person gave does not move, so the modelled ones are compared.
    """
    length = max(1, base.resolved.max_model_len // 2)
    return _effect(base, "activations", ACTIVATIONS.field, max_model_len=length)


def effect_of_twice_the_cards(base: Plan) -> str:
    """Whether the framework's share of a GPU falls, stays or rises with twice the ranks; "" where it cannot be planned.

    A figure that the person gave does not move, so the modelled ones are compared.
    """
    ranks = 2 * base.scenario.parallel.tensor_parallel_size
    parallel = replace(base.scenario.parallel, tensor_parallel_size=ranks)
    return _effect(base, "framework", FRAMEWORK.field, parallel=parallel)


def _effect(base: Plan, part: str, measured: str, **changes: Any) -> str:
    modelled = replace(base.scenario, measured=replace(base.scenario.measured, **{measured: None}))
    try:
        before, after = (plan(one).memory for one in (modelled, replace(modelled, **changes)))
    except KvPlannerError:
        return ""
    if before is None or after is None or not getattr(before, part).value:
        return ""
    change = getattr(after, part).value / getattr(before, part).value - 1
    if abs(change) < NOTICEABLE:
        return SAME
    return FALL if change < 0 else RISE


def _activations_remarks(lesson: Lesson, memory: RankMemory, effect: str) -> Iterator[str]:
    """Why the activations fall or stay, and why they are a maximum."""
    say = lesson.say
    if effect in (SAME, FALL):
        yield say("activations-why-same" if effect == SAME else "activations-why-fall")
    if memory.activations.rule is peak_bytes:
        yield say("activations-peaks")
    if any(part.name == "compiling" for part in memory.activations.inputs):
        yield say("activations-compiling")
    if lesson.plan.scenario.measured.peak_activation_gib is not None:
        yield say("activations-given", size=exact_gib_text(memory.activations.value))


def framework_content(lesson: Lesson) -> Content:
    """Memory of a process whatever it serves, of captured graphs, and the rest for the KV cache."""
    base, say, memory = lesson.plan, lesson.say, lesson.plan.memory
    resolved = base.resolved
    content = lesson.content(StepName.FRAMEWORK, options=(FALL, SAME, RISE))
    if resolved.engine.variables_in(resolved.version) is None:
        content = replace(content, points=(say("framework-same-run"),))
    if memory is None:
        return replace(content, missing=say("no-card"))
    shown = [memory.framework]
    if memory.cuda_graphs.value:
        shown.append(memory.counted_graphs if memory.counted_graphs.value else memory.cuda_graphs)
    if memory.unaccounted.value:
        shown += [replace(memory.remainder, name="remainder"), memory.unaccounted]
    effect = effect_of_twice_the_cards(base)
    return replace(
        content.answered(answer_option=effect),
        equations=equations(lesson.t, *shown, memory.available_kv),
        remarks=(*_framework_reasons(lesson, memory, effect), *_framework_remarks(lesson, memory)),
    )


def _framework_reasons(lesson: Lesson, memory: RankMemory, effect: str) -> Iterator[str]:
    """Why the framework's share stays or rises, and what a graph keeps."""
    say = lesson.say
    if effect in (SAME, RISE):
        yield say("framework-why-same" if effect == SAME else "framework-why-rise")
    if memory.cuda_graphs.rule is graph_bytes and memory.cuda_graphs.value:
        yield say("framework-graphs")
        if lesson.plan.resolved.engine.graph_api is GraphApi.ACL:
            yield say("framework-acl")


def _framework_remarks(lesson: Lesson, memory: RankMemory) -> Iterator[str]:
    base, say = lesson.plan, lesson.say
    parallel, left = base.scenario.parallel, base.available_kv_bytes or 0
    ranks, graphs = parallel.tensor_parallel_size, memory.cuda_graphs.value
    if base.scenario.measured.non_torch_gib is not None:
        yield say("framework-given", size=exact_gib_text(memory.framework.value))
    if graphs > memory.counted_graphs.value:
        yield say("framework-graphs-outside", size=gib_text(graphs))
    if memory.remainder.value <= 0:
        yield say("framework-nothing-left", size=gib_text(-memory.remainder.value))
    if left > 0 and ranks > 1 and parallel.pipeline_parallel_size == 1:
        yield say("framework-together", ranks=str(ranks), size=gib_text(left * ranks))
    if base.scenario.measured.available_kv_gib is not None:
        yield say("framework-given-kv", size=gib_text(left))
