"""Launch and export: the plan as a command, a file, a ticket, a report. The link of a page is in `share_link.py`."""

from __future__ import annotations

import json
from contextlib import suppress

import streamlit as st

from kvcore.base.errors import ScenarioError
from kvcore.base.words import Words, msg
from kvcore.catalogue.documented import modelslim_repository
from kvcore.charts.plan_report import curve_picture, memory_picture, report_html, ticket_text
from kvcore.contract.result import planned_result
from kvcore.deploy.going_live import expected_log_lines
from kvcore.deploy.launch import launch_environment, machines_of, modelslim_name
from kvcore.deploy.launch_files import CONTAINERS, FILE_NAMES, Artefact, artefact
from kvcore.deploy.server_start import has_image, machine_variables, no_image
from kvcore.planning import Plan
from kvcore.texts import LABELS as TEXTS
from pages.ui.shared import elements, labels, net, share_link, shell, state
from pages.ui.shared.elements import fold

EXPORTS = TEXTS["exports"]
VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
TICKET, RESULT = "ticket", "json"
LABELS = {
    Artefact.COMMAND: msg("Command"),
    Artefact.YAML: "YAML",
    Artefact.DOCKER: "Docker",
    Artefact.COMPOSE: "Compose",
    Artefact.KUBERNETES: "Kubernetes",
    Artefact.SYSTEMD: "systemd",
    TICKET: msg("Ticket"),
    RESULT: "JSON",
}
NAMES_OF_FILES = {
    **{form.value: name for form, name in FILE_NAMES.items()},
    TICKET: "ticket.md",
    RESULT: "kv-plan.json",
}
CODE_LANGUAGES = {
    Artefact.COMMAND: "bash",
    Artefact.YAML: "yaml",
    Artefact.DOCKER: "bash",
    Artefact.COMPOSE: "yaml",
    Artefact.KUBERNETES: "yaml",
    Artefact.SYSTEMD: "ini",
    RESULT: "json",
}


def panel(plan: Plan, t: Words) -> None:
    """The choice of a form, its text with a copy button, and a download."""
    box, is_opened = fold(t("Launch and export"), "share", ":material/terminal:")
    if not is_opened:
        return
    with box:
        form = st.session_state.get("share_chosen", Artefact.COMMAND)
        st.segmented_control(
            t("Form"),
            list(LABELS),
            format_func=lambda option: t(LABELS[option]),
            default=form,
            key=state.seed("share_form", form),
            required=True,
            label_visibility="collapsed",
            on_change=_choose,
        )
        if form in CONTAINERS and not has_image(plan):
            missing = no_image(plan)
            st.text(f"{t.error(missing)}\n→ {t.next_step(missing)}")
            return
        every_flag = False
        if form in tuple(Artefact):
            every_flag = st.toggle(t("Write resolved defaults too"), key="share_every_flag")
        expected = expected_log_lines(plan)
        if form == TICKET:
            share_link.config_to_send("share_config", t)
        try:
            text = _text(plan, form, every_flag, t)
        except ScenarioError as error:
            st.text(f"{t.error(error)}\n→ {t.next_step(error)}")
            return
        if form in tuple(Artefact):
            _explained(plan, t)
        st.code(text, language=CODE_LANGUAGES.get(form))
        if form == Artefact.COMMAND and expected:
            st.caption(t("Lines to expect in the log:"))
            st.code("\n".join(expected), language=None, wrap_lines=True)
        if form in NAMES_OF_FILES:
            elements.download(
                t("Download {name}", name=NAMES_OF_FILES[form]),
                NAMES_OF_FILES[form],
                text,
                key="share_download",
                mime="text/plain",
            )
        going_live(t)
        if plan.memory is not None:
            elements.download(
                t("Memory bar as a picture (SVG)"),
                "kv-memory.svg",
                lambda: memory_picture(plan, t),
                key="share_picture",
                icon=":material/image:",
            )
        if plan.cache is not None and plan.cache.max_concurrency > 0:
            elements.download(
                t("Curve as a picture (SVG)"),
                "kv-curve.svg",
                lambda: curve_picture(plan, t),
                key="share_curve",
                icon=":material/show_chart:",
            )
        # The report is written when it is asked for, outside a page's run: the address is known only here.
        address = share_link.address("")
        elements.download(
            t("Printable report (one page, HTML)"),
            "kv-plan.html",
            lambda: report_html(plan, address, t),
            key="share_report",
            icon=":material/print:",
        )


def command(plan: Plan, t: Words) -> None:
    """The launch command, to be copied beside the verdict, and the way to what comes after it."""
    key = f"command.{t.language}"
    box = st.popover(
        t("Command"), icon=":material/content_copy:", key=key, on_change="rerun", width="content",
        help=t("The command that starts this plan"),
    )  # fmt: skip
    if not box.open:
        return
    with box:
        try:
            st.code(
                artefact(Artefact.COMMAND, plan), language=CODE_LANGUAGES[Artefact.COMMAND], wrap_lines=True
            )
        except ScenarioError as error:
            st.text(f"{t.error(error)}\n→ {t.next_step(error)}")
        going_live(t)


def going_live(t: Words) -> None:
    """The link to the checklist, first request, load test and alerts of this plan."""
    st.page_link(
        shell.page_at("reference"),
        label=t("Then go live: checklist, first request, load test, alerts"),
        icon=":material/rocket_launch:",
        query_params={**state.params(), "section": "going-live"},
    )


def _explained(plan: Plan, t: Words) -> None:
    """Which checkpoint is started, where it is not the model's own, and what the start's variables are for."""
    scenario = plan.scenario
    other = modelslim_name(scenario)
    if other:
        which = "modelslim-repository" if modelslim_repository(scenario.model) else "modelslim-place"
        model = scenario.model if labels.ID.fullmatch(scenario.model) else "config.json"
        st.caption(t(EXPORTS[which], name=f"`{other}`", model=f"`{model}`"))
    known = {name: EXPORTS[name] for name in launch_environment(plan) if name in EXPORTS}
    with suppress(ScenarioError):
        machines = machines_of(plan)
        known |= {name: EXPORTS[name] for name in machine_variables(plan) if name in EXPORTS}
        if plan.resolved.engine.facts.main_flags and machines[0].cards < plan.accelerator.devices_per_node:
            known |= {VISIBLE: EXPORTS[VISIBLE]}
    for name, text in known.items():
        st.caption(f"`{name}` – {t(text)}")


@net.callback
def _choose() -> None:
    """Callback: keeps the chosen form apart from the widget, whose labels change with the language."""
    st.session_state["share_chosen"] = st.session_state["share_form"]


def _text(plan: Plan, form: str, every_flag: bool, t: Words) -> str:
    if form == TICKET:
        return ticket_text(plan, share_link.address(""), t)
    if form == RESULT:
        return json.dumps(planned_result(plan, plan.scenario.model), indent=2, ensure_ascii=False)
    return artefact(Artefact(form), plan, every_flag=every_flag)
