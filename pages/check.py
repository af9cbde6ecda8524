"""Check: a start-up log against the plan, files that are deployed, and the guided pre-run for MindSpore on Ascend."""

import streamlit as st

from kvcore.base.errors import KvPlannerError, LogError
from kvcore.evidence.calibration import compare
from kvcore.evidence.card_guess import guessed_cards
from kvcore.evidence.recognized import scenario_from_log
from kvcore.planning import plan
from pages.ui.check import files, prerun, result, tabs, taken
from pages.ui.check import log as check_log
from pages.ui.shared import notes, shell, state

shell.guard()
t = state.translator()

notes.repairs(t)
st.header(t("Check a start against its plan"), anchor=False)
log_tab, files_tab, prerun_tab = tabs.shown(t)
with log_tab:
    kept = check_log.kept_log()
    log = None if kept is None else kept.read
    if kept is None or isinstance(log, LogError):
        check_log.ask(t)
    else:
        check_log.checked(kept, t)
    if kept is not None and log is not None and not isinstance(log, LogError):
        prerun.offer(kept.content, log, t)
        t = state.translator(log.engine)
        try:
            found = check_log.with_its_room(scenario_from_log(log, state.scenario()), kept)
            planned = plan(found.scenario)
        except KvPlannerError as error:
            result.failure(log, state.scenario(), error, t)
            notes.refusal(error, t)
            check_log.found(kept, log, t)
            notes.notices(log.notices, t)
        else:
            compared = compare(log, planned)
            is_known = check_log.knows_model(found)
            result.failure(log, found.scenario, planned, t, offers_fixes=is_known)
            # Once a fix was made, the log's own scenario is no longer the plan's: what was done stands alone.
            is_fixed = taken.is_fixed()
            if not is_fixed:
                result.headline(compared, log, planned, t, is_known=is_known)
            result.surroundings(log, t)
            check_log.unknown_model(found, t)
            check_log.found(kept, log, t)
            guess = guessed_cards(log, found.scenario)
            notes.notices(log.notices if guess is None else (*log.notices, guess.notice), t)
            if not is_fixed:
                result.recognized(found, planned, t)
            if log.failure is None:
                taken.outcome(t)
            if compared.measured_parts and is_known and not is_fixed:
                result.comparison(compared, planned, t)
                result.use_measurements(log, found, planned, t)
        check_log.another(t)
with files_tab:
    files.section(state.translator())
with prerun_tab:
    prerun.section(t)
