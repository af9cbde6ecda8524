"""Step 4: activations and framework, which are measured rather than computed, and what is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kvcore.engine.protocol import GraphApi
from kvcore.engine.rooms import find_engine
from kvcore.errors import KvPlannerError
from kvcore.explain.derivation.equation import equation
from kvcore.explain.derivation.lesson import Content, Option, Prediction, part
from kvcore.explain.derivation.parts_step import no_card
from kvcore.planning import Plan, plan
from kvcore.texts.words import Words, count, exact_gib_text, gib_text

FALL, SAME, RISE = "fall", "same", "rise"
NOTICEABLE: Final = 0.05
"""A smaller change is none."""


def overheads_content(base: Plan, t: Words) -> Content:
    """Why a dummy run is measured, and what the measurements leave for the KV cache."""
    words = {name: part(name) for name in ("activations", "framework", "cuda_graphs", "kv_cache")}
    seats, batch = base.resolved.max_num_seqs, base.resolved.max_num_batched_tokens
    options = (
        Option(name=FALL, label=t("They fall")),
        Option(name=SAME, label=t("They stay about the same")),
        Option(name=RISE, label=t("They rise")),
    )
    content = Content(
        question=t("Why does the engine run a dummy batch?"),
        idea=t(
            "{activations} are not in config.json: they depend on the kernels and on how many tokens one step "
            "computes. So the engine runs the largest step at start, with dummy tokens: `max_num_batched_tokens` "
            "of them, {batch} here, and the logits of {seats} sequences. It measures the peak and keeps that much "
            "free for good.",
            batch=count(batch),
            seats=count(min(seats, batch)),
            **words,
        ),
        prediction=Prediction(
            question=t("The context length is halved. What happens to the activations?"), options=options
        ),
        points=(
            t(
                "Here the peak is modelled and fitted to published start-up logs: that is why it has an interval. "
                "A log of your own replaces it, on the Check page."
            ),
            t("{framework} and {cuda_graphs} are measured in the same run.", **words),
        ),
    )
    variables = find_engine(base.resolved.engine).memory_variables
    if variables is not None:
        content = replace(
            content,
            question=t("Why is a run before the real one needed?"),
            idea=t(
                "{activations} are not in config.json: they depend on the kernels and on the longest prompt. "
                "{engine} does not measure them at start. Its variable {variable} says what weights, "
                "activations and framework may take together; one request of full length, sent by hand, shows in "
                "the log what they really take.",
                engine=base.resolved.engine,
                variable=f"`{variables.model}`",
                **words,
            ),
            points=(
                t(
                    "“actual peak used” in that log contains the KV cache as it was: subtract it to get the "
                    "model's own share."
                ),
            ),
        )
    memory = base.memory
    if memory is None:
        return replace(content, missing=no_card(t))
    shown = [memory.activations, memory.framework]
    if memory.cuda_graphs.value:
        shown.append(memory.counted_graphs if memory.counted_graphs.value else memory.cuda_graphs)
    if memory.unaccounted.value:
        shown += [replace(memory.remainder, name="remainder"), memory.unaccounted]
    effect = effect_of_half_length(base)
    return replace(
        content,
        prediction=replace(content.prediction, answer_option=effect),
        equations=tuple(equation(quantity, t) for quantity in (*shown, memory.available_kv)),
        remarks=(*_reasons(effect, base, t), *_remarks(base, t)),
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


def _reasons(effect: str, base: Plan, t: Words) -> Iterator[str]:
    """Why the activations fall or stay, why they are a maximum, and what a graph keeps."""
    memory = base.memory
    if memory is None:
        return
    if effect == SAME:
        yield t(
            "One step computes at most `max_num_batched_tokens` tokens, and a longer prompt takes several steps: so "
            "the context length does not set the {activations}.",
            activations=part("activations"),
        )
    elif effect == FALL:
        yield t(
            "Here one step computes a whole prompt: so the longest prompt sets the {activations}.",
            activations=part("activations"),
        )
    if memory.activations.formula.startswith("max("):
        yield t(
            "These peaks come one after the other in the same memory: so the largest counts, not the sum."
        )
    if "{compiling}" in memory.activations.formula:
        yield t(
            "One of them occurs in a first start alone: while kernels compile, a copy of the "
            "embedding table is kept. A restart that finds them compiled leaves more for the "
            "{kv_cache}.",
            kv_cache=part("kv_cache"),
        )
    if "{graphs}" in memory.cuda_graphs.formula and memory.cuda_graphs.value:
        yield t(
            "A graph is a recorded step. For each one the driver keeps some memory per layer; the"
            " activations of the largest batch, the parts of split attention and the workspaces "
            "exist once for all graphs."
        )
        if find_engine(base.resolved.engine).memory.graphs is GraphApi.ACL:
            yield t("On Ascend the recorded steps are ACL graphs.")


def _remarks(base: Plan, t: Words) -> tuple[str, ...]:
    memory, found = base.memory, []
    if memory is None:
        return ()
    if base.scenario.measured.peak_activation_gib is not None:
        found.append(
            t(
                "You gave the {activations} yourself: {size}, whatever you change. The answer "
                "above is for those that the engine would measure.",
                activations=part("activations"),
                size=exact_gib_text(memory.activations.value),
            )
        )
    graphs, counted = memory.cuda_graphs.value, memory.counted_graphs.value
    if graphs > counted:
        found.append(
            t(
                "{cuda_graphs} really take {size}. What the engine's estimate misses comes on top of "
                "its budget, after the KV cache is sized.",
                cuda_graphs=part("cuda_graphs"),
                size=gib_text(graphs),
            )
        )
    if memory.remainder.value <= 0:
        found.append(
            t(
                "The other parts need {size} more than the budget: nothing is left for the {kv_cache}.",
                size=gib_text(-memory.remainder.value),
                kv_cache=part("kv_cache"),
            )
        )
    parallel, left = base.scenario.parallel, base.available_kv_bytes or 0
    if left > 0 and parallel.tensor_parallel_size > 1 and parallel.pipeline_parallel_size == 1:
        found.append(
            t(
                "Over {ranks} GPUs that is {size} together. Divide one GPU's memory by what a token takes on one "
                "GPU, or the sum by what it takes on all of them: never one by the other.",
                ranks=str(parallel.tensor_parallel_size),
                size=gib_text(left * parallel.tensor_parallel_size),
            )
        )
    if base.scenario.measured.available_kv_gib is not None:
        found.append(
            t(
                "You gave the memory for the KV cache yourself: {size}. The next steps use it.",
                size=gib_text(base.available_kv_bytes or 0),
            )
        )
    return tuple(found)
