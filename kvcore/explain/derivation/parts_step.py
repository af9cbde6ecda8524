"""Step 1, the parts of memory, and step 2, the budget."""

from __future__ import annotations

from dataclasses import replace

from kvcore.engine.rooms import find_engine
from kvcore.engine.vllm.versions import switches_of
from kvcore.explain.derivation.equation import equation
from kvcore.explain.derivation.lesson import Content, Option, Prediction, Slip, part
from kvcore.planning import Plan
from kvcore.quantity import Grade, Quantity, Unit
from kvcore.texts.palette import PARTS
from kvcore.texts.words import Words, exact_gib_text, gib_text
from kvcore.units import gib


def parts_content(plan: Plan, t: Words) -> Content:
    """What lives in the memory of one GPU, and which part is the largest."""
    question = t("What lives in GPU memory?")
    idea = t(
        "Before the first request arrives, the engine has divided the GPU. {weights} come from the "
        "checkpoint. {activations} are the temporary buffers of one step. {framework} is what "
        "kernels, communication and buffers take, {cuda_graphs} are recorded steps. All that is left "
        "becomes the {kv_cache}, one pool for all requests. {system} is what it does not count, and "
        "{unused} what it may not take.",
        **{one.name: part(one.name) for one in PARTS},
    )
    memory = plan.memory
    options = tuple(Option(name=one.name, label=t(one.label)) for one in PARTS)
    prediction = Prediction(question=t("Which part of this GPU is the largest?"), options=options)
    if memory is None:
        return Content(question=question, idea=idea, prediction=prediction, missing=no_card(t))
    held = [getattr(memory, one.name) for one in PARTS]
    if memory.unaccounted.value:
        held.insert(-2, memory.unaccounted)
    whole = Quantity(
        name="total",
        value=memory.total.value,
        unit=Unit.BYTES,
        formula=" + ".join("{" + quantity.name + "}" for quantity in held),
        inputs=tuple(held),
        grade=memory.total.grade,
        source=memory.total.source,
    )
    largest = max(PARTS, key=lambda one: getattr(memory, one.name).value)
    remarks: tuple[str, ...] = ()
    if memory.unused.value < 0:
        remarks = (
            t(
                "{unused} is negative: the parts need {size} more than the card has. Expect an "
                "out-of-memory error.",
                unused=part("unused"),
                size=gib_text(-memory.unused.value),
            ),
        )
    return Content(
        question=question,
        idea=idea,
        prediction=replace(prediction, answer_option=largest.name),
        equations=(equation(whole, t),),
        remarks=remarks,
    )


def budget_content(plan: Plan, t: Words) -> Content:
    """Total × utilization, and what utilization does not mean."""
    question = t("How much of it may the engine spend?")
    idea = t(
        "At start the engine multiplies the memory of the card by `--gpu-memory-utilization`. The product is its "
        "budget for everything that it keeps: {weights}, {activations}, {framework} and the {kv_cache}.",
        **{name: part(name) for name in ("weights", "activations", "framework", "kv_cache")},
    )
    points = (
        t(
            "It is not the share of the {kv_cache}: the cache gets what the other parts leave of the budget.",
            kv_cache=part("kv_cache"),
        ),
        t(
            "It is not a limit on what requests use: the budget is taken at start and kept, so the GPU looks full "
            "with no request at all."
        ),
        t(
            (
                "It is not a share of what is free: {system} and other processes have to fit outside the "
                "budget."
            ),
            system=part("system"),
        ),
        *_start_check(plan, t),
    )
    memory = plan.memory
    prediction = Prediction(question=t("How much may the engine spend on one GPU?"), unit="GiB")
    if memory is None:
        return Content(question=question, idea=idea, prediction=prediction, points=points, missing=no_card(t))
    outside = Quantity(
        name="outside",
        value=memory.total.value - memory.budget.value,
        unit=Unit.BYTES,
        formula="{total} − {budget}",
        inputs=(memory.total, memory.budget),
        grade=memory.budget.grade if memory.budget.grade is not Grade.EXACT else Grade.DERIVED,
    )
    prediction = replace(
        prediction,
        question=t(
            "The card has {total}, utilization is {share}. How much may the engine spend on one GPU?",
            total=exact_gib_text(memory.total.value),
            share=f"{plan.resolved.gpu_memory_utilization:g}",
        ),
        answer=gib(memory.budget.value),
        slips=(
            Slip(value=gib(memory.total.value), reason=t("That is the whole card.")),
            Slip(value=gib(memory.available_kv.value), reason=t("That is what the KV cache gets of it.")),
            Slip(
                value=memory.budget.value / 1e9,
                reason=t("Those are GB of 10⁹ bytes; a GiB has 2³⁰."),
            ),
        ),
    )
    return Content(
        question=question,
        idea=idea,
        points=points,
        prediction=prediction,
        equations=(equation(memory.budget, t), equation(outside, t)),
        remarks=_outside_remarks(memory.system.value, outside.value, t),
    )


def _start_check(plan: Plan, t: Words) -> tuple[str, ...]:
    resolved = plan.resolved
    if (
        not find_engine(resolved.engine).measures_memory
        or not switches_of(resolved.version).checks_free_memory
    ):
        return ()
    return (t("The engine refuses to start when less is free at start than the budget."),)


def _outside_remarks(system_bytes: float, outside_bytes: float, t: Words) -> tuple[str, ...]:
    sizes = {"system": part("system"), "taken": gib_text(system_bytes), "outside": gib_text(outside_bytes)}
    if system_bytes <= outside_bytes:
        return (t("{system} takes {taken} of the {outside} outside the budget.", **sizes),)
    return (
        t(
            "{system} takes {taken}, more than the {outside} outside the budget: less is free than the engine may "
            "spend.",
            **sizes,
        ),
    )


def no_card(t: Words) -> str:
    """Why steps about the memory of the card have no numbers."""
    return t("This scenario names no card. Choose an accelerator in the sidebar to see the numbers.")
