"""How far a page's elements jump while it loads: the browser's layout shift, summed up over the whole visit.

A sum does not depend on how fast a machine is; the usual figure takes the worst five seconds of it, so it is at most
the sum. Above 0.25 that figure is called poor, up to 0.1 good (web.dev/articles/cls).
"""

from __future__ import annotations

from typing import Final, cast

from playwright.sync_api import Page

LIMIT: Final = 0.1
_SUMMED: Final = """() => new Promise((done) => {
  let sum = 0;
  const add = (entries) => entries.forEach((entry) => { if (!entry.hadRecentInput) sum += entry.value; });
  const observer = new PerformanceObserver((list) => add(list.getEntries()));
  observer.observe({type: "layout-shift", buffered: true});
  setTimeout(() => { add(observer.takeRecords()); done(sum); }, 500);
})"""


def shift_of(page: Page) -> float:
    """The layout shifts of `page` since it was opened, but for those that a person's own input made."""
    return cast("float", page.evaluate(_SUMMED))
