"""The frame around every page: navigation, language, style.

A folder named `pages/` next to the entrypoint makes Streamlit run a page file alone until some session has called
`st.navigation`. So `app.py` calls it before any widget, and every page begins with `guard()`.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from copy import copy
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from kvcore.base.words import Language, Words, msg, words
from pages.ui.shared import net, reconnect, state

ROOT = Path(__file__).resolve().parents[3]
LOGO = Path(__file__).with_name("logo.svg")
ICON = Path(__file__).with_name("icon.png")
TIMES_SAID = 2
"""Runs of a session that say the tab's name: what one has said is lost where the next begins before it was sent."""
_SAID = "_said"
"""Key of how many have."""
SWITCH_SECONDS = 0.0004
"""Longest time that one run keeps the interpreter from the event loop, other visitors and the health check.

The loop gives it away with each of the 70 messages of a run and waits as long to have it back: with 2 ms a flood of
one client's changes made another visitor's slider ten times slower, with 1 ms six, with 0.4 ms three to five, and one
and a half since runs give way (ui/fair/turns.py; `python -m benchmarks.fairness --attacks messages` on two cores).
With 0.1 ms some runs of Explore took more than a minute and a half under the flood and 50 visitors (`make soak`).
"""
ROUND_SECONDS = 10
"""Seconds between two full rounds of the garbage collector."""
AFTER_PAGE_SECONDS = 0.2
"""Seconds from the end of a run to the round: by then its page is sent."""
_TRIM = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
"""glibc's own; other C libraries have none."""
sys.setswitchinterval(SWITCH_SECONDS)


class PageSpec(NamedTuple):
    """One page: its script, and how the navigation names it."""

    script: str
    path: str
    title: str
    icon: str


PAGES = (
    PageSpec("plan.py", "", msg("Plan"), ":material/memory:"),
    PageSpec("explore.py", "explore", msg("Explore"), ":material/grid_view:"),
    PageSpec("compare.py", "compare", msg("Compare"), ":material/compare:"),
    PageSpec("workload.py", "workload", msg("Workload"), ":material/bar_chart:"),
    PageSpec("check.py", "check", msg("Check"), ":material/fact_check:"),
    PageSpec("learn.py", "learn", msg("Learn"), ":material/school:"),
    PageSpec("reference.py", "reference", msg("Reference"), ":material/menu_book:"),
    PageSpec("accuracy.py", "accuracy", msg("Accuracy"), ":material/target:"),
)
"""The pages in the order of the navigation. A new page is one file and one row here."""

SCRIPT = """{
const mark = (path, tries) => {
  const links = [...document.querySelectorAll(".st-key-navigation a")];
  const own = links.filter((link) => link.getAttribute("href").split("?")[0].split("/").pop() === path);
  links.forEach((link) => link.removeAttribute("aria-current"));
  own.forEach((link) => {
    link.setAttribute("aria-current", "page");
    const bar = link.closest(".st-key-navigation");
    const box = link.getBoundingClientRect(), frame = bar.getBoundingClientRect();
    if (box.width) bar.scrollLeft += box.left - frame.left - (frame.width - box.width) / 2;
  });
  if (tries && !own.some((link) => link.getBoundingClientRect().width)) setTimeout(mark, 150, path, tries - 1);
};
const loading = document.getElementById("kv-loading");
const rest = (calm) => {
  const comes = !document.querySelector("[data-testid=stApp][data-test-script-state=notRunning]")
    || document.querySelector("[data-testid=stSkeleton]");
  if (calm < 4) setTimeout(rest, 500, comes ? 0 : calm + 1);
  else loading.disabled = true;
};
const here = document.querySelector(".kv-here").dataset;
document.documentElement.lang = here.language;
if (window.kvPage !== here.path) document.querySelector(".stMain")?.scrollTo(0, 0);
window.kvPage = here.path;
mark(here.path, 100);
if (!window.kvGroups) {
  window.kvGroups = true;
  document.addEventListener("focusin", (event) => {
    const group = event.target.closest("[role=radiogroup]");
    if (!group || group.contains(event.relatedTarget) || !event.target.matches(":focus-visible")) return;
    group.querySelector("[aria-checked=true]")?.focus();
  });
  const hits = (kind) => [...document.querySelectorAll(`.st-key-${kind}_hits button`)];
  const take = (kind, field, tries) => {
    const answered = document.querySelector(`.st-key-${kind}_hits .kv-for`)?.dataset.text;
    const first = answered === field.value.trim() && hits(kind)[0];
    if (first) first.click();
    else if (tries && document.activeElement === field) setTimeout(take, 100, kind, field, tries - 1);
  };
  document.addEventListener("keydown", (event) => {
    const within = (one) => event.target.closest(`.st-key-${one}_search, .st-key-${one}_hits`);
    const kind = ["model", "accelerator"].find(within);
    if (!kind || event.isComposing) return;
    const found = hits(kind), at = found.indexOf(event.target.closest("button"));
    const field = document.querySelector(`.st-key-${kind}_search input`);
    if (event.key === "Enter" && event.target === field && field.value) take(kind, field, 300);
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key];
    if (!step || !found.length) return;
    event.preventDefault();
    (found[at + step] || (step < 0 ? field : found[at]))?.focus();
  });
}
if (loading) {
  loading.disabled = false;
  rest(0);
}
}"""
"""Names language and page to screen readers, shows another page from its top, moves its link into view on a phone, has
Tab enter a group of choices at the chosen one and the arrows and Enter choose below a search field, and takes the rules
for loading (loading.css) out of force once the page stands.

The same text for every page: a content security policy knows it by its hash (docs/hosting/Caddyfile).
"""


def navigation(t: Words) -> StreamlitPage:
    """Declares the pages and returns the one to run."""
    pages = _pages(t)
    page = st.navigation(pages, position="hidden")
    st.session_state["_shell"], st.session_state["_pages"] = True, pages
    st.session_state["_path"] = page.url_path
    return page


def keep_modules() -> None:
    """Takes imported modules out of the garbage collector's rounds, again whenever a page has imported more.

    Called before a page, and after it for what it has read: tables and the sweep that a crowd of visitors shares.

    A full round looks at every object: with the modules and tables of this app it stopped the whole process, the health
    check with it, for 0.13 s; without them it takes 0.02 s. Streamlit would make one after every run, a quarter of what
    a run takes (.streamlit/config.toml): here is one every ROUND_SECONDS, as long as anybody uses the app, so that a
    log which is part of a cycle does not stay.
    """
    _kept.freeze(len(sys.modules))
    _collect(int(time.monotonic() / ROUND_SECONDS))


def page_at(path: str) -> StreamlitPage:
    """The page with this path, for a link to it."""
    pages: list[StreamlitPage] = st.session_state["_pages"]
    return next(page for spec, page in zip(PAGES, pages, strict=True) if spec.path == path)


def guard() -> None:
    """The first line of every page: runs the page inside the app where Streamlit started it alone."""
    if not st.session_state.pop("_shell", False):
        with reconnect.replayed():
            st.navigation(_pages(words(Language.ENGLISH)), position="hidden")
            st.rerun()


def links() -> None:
    """Links to the other pages; each carries the scenario, so that it is one step in the browser's history."""
    if len(PAGES) > 1:
        params = state.params()
        with st.container(horizontal=True, key="navigation"):
            for spec, page in zip(PAGES, st.session_state["_pages"], strict=True):
                st.page_link(page, icon=spec.icon, query_params=params)


def frame() -> None:
    """The name of the app, in its corner and in the browser's tab.

    The browser keeps the tab's name, icon and width as long as the document: they are said until it must have heard
    of them, for each time the icon is fetched and the page drawn once more.
    """
    said = st.session_state.get(_SAID, 0)
    if said < TIMES_SAID or st.session_state[reconnect.REPEATED]:
        st.set_page_config(page_title="KV Planner", page_icon=str(ICON), layout="wide")
        st.session_state[_SAID] = said + 1
    st.logo(LOGO, size="large")


def language_switch(t: Words) -> None:
    """The languages by their own names; the document says which one it is in."""
    key = state.seed("language_switch", t.language.value)
    languages = {language.value: language for language in Language}
    st.segmented_control(
        "Language / 语言",
        list(languages),
        format_func=lambda value: languages[value].endonym,
        default=t.language.value,
        key=key,
        required=True,
        on_change=net.taking(key, lambda value: state.set_language(languages[value])),
    )
    path = next(spec.path for spec in PAGES if spec.path == st.session_state["_path"])
    here = f'<i class="kv-here" hidden data-language="{t.language.tag}" data-path="{path}"></i>'
    st.html(f"{here}<script>{SCRIPT}</script>", unsafe_allow_javascript=True)


@lru_cache(maxsize=1)
def _collect(_round: int) -> None:
    """Runs a full round of the garbage collector once the page has been sent."""
    timer = threading.Timer(AFTER_PAGE_SECONDS, _give_back)
    timer.daemon = True
    timer.start()


def _give_back() -> None:
    """Frees what nobody uses, and gives the pages of it back to the system.

    Each run is a thread, and glibc keeps what threads have freed in heaps of their own until it is asked.
    """
    gc.collect()
    if _TRIM is not None:
        _TRIM(0)


class _Kept:
    """How many modules are out of the collector's rounds: one visitor moves them, others go on meanwhile."""

    def __init__(self) -> None:
        self._modules = 0
        self._lock = threading.Lock()

    def freeze(self, modules: int) -> None:
        if modules <= self._modules or not self._lock.acquire(blocking=False):
            return
        try:
            gc.collect()
            gc.freeze()
            self._modules = modules
        finally:
            self._lock.release()


_kept = _Kept()


def _pages(t: Words) -> list[StreamlitPage]:
    """The pages of this run: Streamlit notes on each whether it may run."""
    return [copy(page) for page in _declared(t.language)]


@cache
def _declared(language: Language) -> tuple[StreamlitPage, ...]:
    """Without icons: a browser would fetch that of the present page from Google's fonts to show it in its tab."""
    t = words(language)
    return tuple(
        st.Page(
            ROOT / "pages" / spec.script,
            title=t(spec.title),
            url_path=spec.path,
            default=not spec.path,
        )
        for spec in PAGES
    )
