"""The plan as text for a ticket: Markdown that reads well unrendered."""

from __future__ import annotations

from kvcore.deploy.going_live import expected_log_lines
from kvcore.deploy.launch import launch_command
from kvcore.planning import Plan
from kvcore.scenario import link as links
from kvcore.texts.words import Words, concurrency_text, count, gib_text, msg
from kvcore.views.bar import difference_name
from kvcore.views.summary import model_name, requests_at_once, scenario_line, verdict_sentence, waiting_seats

PART_LABELS = {
    "total": msg("Memory of one GPU"),
    "system": msg("System"),
    "framework": msg("Framework"),
    "weights": msg("Weights"),
    "activations": msg("Activations"),
    "cuda_graphs": msg("CUDA graphs"),
    "kv_cache": msg("KV cache"),
    "unused": msg("Unused"),
}

NOT_CARRIED = msg(
    "The config.json of this model is too long for a link. Send the file along: the link alone, and a reload of this "
    "page, plan another model."
)


def ticket_text(plan: Plan, link: str, t: Words) -> str:
    """Verdict, memory table, capacity, command, log lines to expect, link. The model name stands in code marks."""
    line = " · ".join((f"`{model_name(plan.scenario)}`", *scenario_line(plan, t)))
    lines = [f"**{verdict_sentence(plan, t).text}**", "", line, ""]
    if plan.memory is not None:
        lines += [f"| {t('Part')} | GiB |", "|---|---:|"]
        labels = dict(PART_LABELS)
        if difference_name(plan):
            labels["unaccounted"] = difference_name(plan)
        lines += [
            f"| {t(label)} | {gib_text(getattr(plan.memory, name).value)} |" for name, label in labels.items()
        ]
        lines.append("")
    if plan.cache is not None:
        lines += [
            f"- {t('KV cache tokens')}: {count(plan.cache.tokens)}",
            f"- {t('Requests at once')}: {_requests(plan, t)}",
            f"- {t('Longest request')}: {count(plan.cache.longest_request_tokens)}",
            "",
        ]
    lines += [t("Start command:"), "", *_code(launch_command(plan))]
    expected = expected_log_lines(plan)
    if expected:
        lines += ["", t("Lines to expect in the log:"), "", *_code(*expected)]
    lines += ["", f"{t('The same plan as a link:')} <{link}>", ""]
    if not links.carries_configs(plan.scenario):
        lines += [t(NOT_CARRIED), ""]
    return "\n".join(lines)


def _requests(plan: Plan, t: Words) -> str:
    """As the verdict and the card say it."""
    requests = concurrency_text(requests_at_once(plan))
    if plan.cache is None or waiting_seats(plan) is None:
        return requests
    held = concurrency_text(plan.cache.max_concurrency)
    return t("{requests} (max_num_seqs; the KV cache has room for {held})", requests=requests, held=held)


def _code(*lines: str) -> list[str]:
    """An indented code block: no fence that a text could close."""
    return [f"    {line}" for line in lines]
