"""Keeps the catalogues in step with the texts: `python tools/messages.py` rewrites locale/*/LC_MESSAGES/kvplanner.po.

A text is the first argument of `t(...)` in a page or in kvcore, of `msg(...)` anywhere, a text of kvcore/texts, a
label or a help of kvcore/flags, what the json module says, or the `{reason}` that an error carries. New texts appear
with an empty translation, texts that are gone disappear, translations stay. English is its own translation.
"""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.pofile import read_po, write_po

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kvcore.base.untrusted import JSON_REASONS  # noqa: E402
from kvcore.base.words import LOCALE_ROOT, REASON, Language  # noqa: E402
from kvcore.flags import FLAGS  # noqa: E402
from kvcore.texts import ALL  # noqa: E402

TRANSLATORS = ("t", "msg")
REFUSERS = {"refuse": 1, "invalid": 2, "contradicting": 1}
"""Methods that raise with a reason, and which argument it is."""

Key = tuple[str, str]


def wanted() -> dict[Key, None]:
    """Every text that a person may see, as (context, English), in a stable order."""
    keys: dict[Key, None] = {("", text): None for texts in ALL for text in texts.shown}
    keys |= {("", text): None for flag in FLAGS.values() for text in (flag.label, flag.help) if text}
    keys |= {(REASON, text): None for text in JSON_REASONS}
    files = [
        ROOT / "app.py",
        *sorted((ROOT / "pages").rglob("*.py")),
        *sorted((ROOT / "kvcore").rglob("*.py")),
    ]
    for path in files:
        for key in _texts(ast.parse(path.read_text(encoding="utf-8"))):
            keys[key] = None
    return keys


def _texts(tree: ast.AST) -> Iterator[Key]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in TRANSLATORS and isinstance(node.func, ast.Name) and node.args:
            text = _template(node.args[0])
            if text is not None:
                yield "", text
        for keyword in node.keywords:
            if keyword.arg == REASON:
                yield from _reasons(keyword.value)
        if name in REFUSERS and len(node.args) > REFUSERS[name]:
            yield from _reasons(node.args[REFUSERS[name]])


def _reasons(node: ast.expr) -> Iterator[Key]:
    for choice in (node.body, node.orelse) if isinstance(node, ast.IfExp) else (node,):
        text = _template(choice)
        if text:
            yield REASON, text


def _template(node: ast.expr) -> str | None:
    """The text of a literal; in an f-string `{expression}` becomes `{its last name}`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        elif isinstance(part, ast.FormattedValue):
            text += "{" + next(_names(part.value), "value") + "}"
    return text


def _names(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute):
            yield part.attr
        elif isinstance(part, ast.Name):
            yield part.id


def read(language: Language) -> dict[Key, str]:
    """The translations of a catalogue."""
    path = LOCALE_ROOT / language.locale / "LC_MESSAGES" / "kvplanner.po"
    if not path.exists():
        return {}
    with path.open("rb") as source:
        return {(m.context or "", str(m.id)): str(m.string) for m in read_po(source) if m.id}


def write(language: Language, texts: dict[Key, str]) -> None:
    """A catalogue in gettext's form, in the order of the texts."""
    catalogue = Catalog(locale=language.locale, project="KV Planner", fuzzy=False, charset="utf-8")
    catalogue.header_comment = f"# KV Planner: {language.endonym}. Kept in step by tools/messages.py."
    catalogue.revision_date = catalogue.creation_date = None
    for (context, msgid), text in texts.items():
        catalogue.add(msgid, text, context=context or None)
    out = io.BytesIO()
    write_po(out, catalogue, width=0, omit_header=True)
    path = LOCALE_ROOT / language.locale / "LC_MESSAGES" / "kvplanner.po"
    path.parent.mkdir(parents=True, exist_ok=True)
    head = (
        f'{catalogue.header_comment}\nmsgid ""\nmsgstr ""\n'
        f'"Language: {language.locale}\\n"\n"Content-Type: text/plain; charset=utf-8\\n"\n\n'
    )
    path.write_bytes(head.encode() + out.getvalue())


def main() -> int:
    """Exit status 1 when a translation is missing."""
    keys = wanted()
    write(Language.ENGLISH, {key: key[1] for key in keys})
    is_complete = True
    for language in Language:
        if language is Language.ENGLISH:
            continue
        texts = read(language)
        write(language, {key: texts.get(key, "") for key in keys})
        missing = [key[1] for key in keys if not texts.get(key)]
        print(f"{len(keys)} texts, {len(missing)} without {language.name.title()}")
        for text in missing:
            print(f"  {text}")
        is_complete &= not missing
    return 0 if is_complete else 1


if __name__ == "__main__":
    sys.exit(main())
