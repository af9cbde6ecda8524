"""The checklist: items that the plan answers, boxes in the link for the others, and the list as a file."""

from __future__ import annotations

import streamlit as st

from kvcore.base.words import Words
from kvcore.deploy.going_live import Item, Load, Thresholds, Tick, checklist, checklist_markdown, is_done
from kvcore.planning import Plan
from pages.ui.shared import elements, net, state

TICKED = "ticked"
ICONS = {Tick.ANSWERED: ":material/check_circle:", Tick.FAILS: ":material/cancel:"}


def panel(plan: Plan, load: Load, limits: Thresholds, t: Words) -> None:
    """The items, the number that is done, and the download."""
    items, ticked = checklist(plan, load, limits, t), state.page_parameter(TICKED)
    done = sum(is_done(item, ticked) for item in items)
    st.subheader(t("Checklist"), anchor=False)
    st.progress(done / len(items), t("{done} of {all} done", done=str(done), all=str(len(items))))
    st.caption(
        t(
            "The plan answers what has an icon. A box is for what only the deployment can: the link carries it."
        )
    )
    words = {Tick.ANSWERED: t("done"), Tick.FAILS: t("fails")}
    with st.container(key="checklist"):
        for item in items:
            with st.container(gap="xxsmall", key=f"checklist_{item.name}"):
                if item.tick is Tick.OPEN:
                    _box(item, ticked)
                else:
                    st.markdown(f"{ICONS[item.tick]} **{item.title}** · {words[item.tick]}")
                st.caption(item.detail)
    elements.download(
        t("Download {name}", name="checklist.md"),
        "checklist.md",
        checklist_markdown(plan, items, ticked, load, limits, t),
        key="download_checklist",
        icon=":material/download:",
    )


def _box(item: Item, ticked: tuple[str, ...]) -> None:
    is_ticked = item.name in ticked
    key = state.seed(f"ticked.{item.name}", is_ticked)
    st.checkbox(f"**{item.title}**", is_ticked, key=key, on_change=_tick, args=(item.name, key))


@net.callback
def _tick(name: str, key: str) -> None:
    """Ticks or clears one box; the other ticks stay, also those that the plan answers by now."""
    others = tuple(one for one in state.page_parameter(TICKED) if one != name)
    state.set_page_parameter(TICKED, (*others, name) if st.session_state[key] else others)
