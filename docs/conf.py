"""How Sphinx makes a site of these documents and of kvcore's docstrings: `make site`, into build/site."""

import re

from msgspec import Struct

from kvcore.version import VERSION
from tools import reference

project = "KV Planner"
project_copyright = "the authors of KV Planner, Apache-2.0"
release = VERSION
extensions = ["myst_parser", "sphinx.ext.autodoc"]
suppress_warnings = [
    "ref.python",  # a type in a signature that several modules have; links in documents are checked all the same
    "misc.highlighting_failure",  # a line of a file, shown alone
]

myst_heading_anchors = 3
default_role = "literal"  # `name` in a docstring is code, as it is in Markdown

autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True}
python_maximum_signature_line_length = 90
python_use_unqualified_type_names = True
toc_object_entries = (
    False  # the index has them; copied into the tree of each page they take a third of the time
)

html_theme = "furo"  # light and dark; fonts and scripts are its own
html_title = f"KV Planner {VERSION}"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

_GENERATED = re.compile(r"<!-- generated: (\w+) -->")
_CODE = re.compile(r"(?<![`\w:])`([^`\n]+)`(?!`)")
_EXAMPLE = re.compile(r"^Example:\n((?:(?: .*)?\n)+)", re.MULTILINE)


def _as_restructured_text(app, what, name, obj, options, lines):
    """Code in Markdown's way may touch the word after it: `Plan`s. An example is not a quotation."""
    text = _CODE.sub(r"``\1``\\ ", "\n".join([*lines, ""]))
    example = _EXAMPLE.search(text)
    if example:
        shown = "\n".join(line[4:] for line in example[1].split("\n"))
        text = f"{text[: example.start()]}.. rubric:: Example\n\n{shown}\n{text[example.end() :]}"
    lines[:] = text.split("\n")


def _without_fields(app, what, name, obj, options, signature, annotation):
    """A record's fields are listed below its name, each with what it means: not a second time behind it."""
    return ("", None) if isinstance(obj, type) and issubclass(obj, Struct) else None


def _generated(app, docname, source):
    """Puts what the program says of itself in its place."""
    source[0] = _GENERATED.sub(lambda found: reference.PAGES[found[1]](), source[0])


def setup(app):
    app.connect("source-read", _generated)
    app.connect("autodoc-process-docstring", _as_restructured_text)
    app.connect("autodoc-process-signature", _without_fields)
