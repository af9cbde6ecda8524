"""The checklist before going live as a file to keep: Markdown with a box for every item."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from kvcore.deploy.going_live import Item, Load, Thresholds, Tick
from kvcore.deploy.launch import launch_command
from kvcore.planning import Plan
from kvcore.texts.words import Words, count


def is_done(item: Item, ticked: Collection[str]) -> bool:
    """Whether the plan answers an item, or a person has ticked one that only the deployment can answer."""
    return item.tick is Tick.ANSWERED or (item.tick is Tick.OPEN and item.name in ticked)


def checklist_markdown(
    plan: Plan, items: Sequence[Item], ticked: Collection[str], load: Load, limits: Thresholds, t: Words
) -> str:
    """The list with what is planned, the load and the thresholds that it is about."""
    boxes = [_line(item, ticked, t) for item in items]
    head = t("Before going live: {model}", model=_plain(plan.scenario.model))
    about = t(
        "{requests} requests at once, prompts of {prompt} and answers of {answer} tokens.",
        requests=count(load.requests),
        prompt=count(load.prompt_tokens),
        answer=count(load.answer_tokens),
    )
    alerts = t(
        "Alerts: KV cache above {usage} %, more than {waiting} waiting, first token above {first} s, request above "
        "{seconds} s.",
        usage=f"{limits.kv_cache_usage * 100:g}",
        waiting=count(limits.waiting_requests),
        first=f"{limits.first_token_seconds:g}",
        seconds=f"{limits.request_seconds:g}",
    )
    command = f"```bash\n{launch_command(plan)}\n```"
    return "\n\n".join((f"# {head}", about, command, "\n".join(boxes), alerts)) + "\n"


def _line(item: Item, ticked: Collection[str], t: Words) -> str:
    box = "x" if is_done(item, ticked) else " "
    by = {Tick.ANSWERED: t("by the plan"), Tick.FAILS: t("fails")}.get(item.tick, "")
    return f"- [{box}] **{item.title}**{f' ({by})' if by else ''}: {item.detail}"


def _plain(name: str) -> str:
    """A name without what Markdown would read as its own."""
    return "".join(letter if letter.isalnum() or letter in " ./_-" else "_" for letter in name)
