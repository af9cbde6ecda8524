"""The app with all slides of a step below each other, before its answer and after it, so that one visit measures them.

A script for a server of the tests: Learn alone is another, and only where it chooses which slide to show.
"""

import runpy
import sys
from pathlib import Path

import streamlit as st
from streamlit import runtime

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

if not runtime.exists():
    from starlette.middleware import Middleware

    from pages.ui.shared.document import StyledDocument

    app = st.App(__file__, middleware=[Middleware(StyledDocument)])
else:
    from pages.ui.learn import guess, slides

    if not hasattr(slides, "of_one"):
        slides.of_one = slides.show
        slides.of_all = guess._shows_all

        def show(slide, step, is_revealed, t):
            for number, one in enumerate(slides.slides(step, True, t)):
                # A question with its field is higher than one with its answer.
                guess._shows_all = (lambda: False) if one.kind is slides.Kind.GUESS else slides.of_all
                with st.container(key=f"slide_{number}_{one.kind}", gap="small"):
                    slides.of_one(one, step, True, t)
            guess._shows_all = slides.of_all
            st.html(f'<i class="kv-all-of-{step.name}"></i>')

        slides.show = show
        slides.number = lambda of: len(of) - 1
    runpy.run_path(str(ROOT / "app.py"))
