"""Writes kvcore/flags/typed.py: the fields of a request as types, from the registry of flags.

    python -m tools.typed_flags

Type checkers and editors then know every flag of `kvcore.plan`, with its values and what it is for.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from kvcore.flags import FLAGS, Flag, Kind, explained, fields_of

FILE: Final = Path(__file__).resolve().parents[1] / "kvcore" / "flags" / "typed.py"
LINE: Final = 100
SWEEP: Final = ("model", "config", "hf_quant_config", "headers", "checkpoint", "accelerator", "tensor_parallel_size",
                "measured")  # fmt: skip
"""Fields that a sweep sets itself or leaves out: `kvcore.library.VARIED`."""
HEAD: Final = '''"""The fields of a request as types, for editors and type checkers; by tools/typed_flags.py.

Nothing here is edited by hand.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

# ruff: noqa: E501
# fmt: off
'''


def module() -> str:
    """The text of the module."""
    objects = [name for name in FLAGS if _is_record(FLAGS[name])]
    own = [flag for flag in fields_of().values() if flag.name not in SWEEP]
    rest = [flag for flag in fields_of().values() if flag.name in SWEEP]
    inner = sorted(objects, key=lambda name: -name.count("."))
    classes = (
        *(_class(_type_name(name), f"`{name}` of a request.", fields_of(name).values()) for name in inner),
        _class("Flags", "What one deployment may be asked with besides model and card.", own),
        _class("Request", "One deployment to plan: `model` or `config`, a card, flags.", rest, "Flags"),
    )
    parts = (HEAD, *("\n".join(lines) for lines in classes))
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _class(name: str, text: str, flags: Iterable[Flag], base: str = "TypedDict") -> Iterator[str]:
    yield f"class {name}({base}, total=False):"
    yield f'    """{text}"""'
    yield ""
    for flag in flags:
        yield f"    {flag.key}: {_type(flag)} | None"
        said = " ".join(explained(flag)).replace("\\", "\\\\").replace('"""', "")
        if said:
            spelled = f"{flag.spelling}: " if flag.cli else ""
            yield from textwrap.wrap(
                f'"""{spelled}{said}"""', LINE, initial_indent="    ", subsequent_indent="    "
            )


def _is_record(flag: Flag) -> bool:
    """Whether it is an object whose fields all have a row."""
    kinds = (Kind.OBJECT, Kind.TEXT_OR_OBJECT, Kind.COUNT)
    has_rows = any(other.parent == flag.name for other in FLAGS.values())
    return flag.kind in kinds and has_rows and not flag.is_open


def _type_name(name: str) -> str:
    words = name.replace(".", "_").split("_")
    return "".join(word.capitalize() for word in words)


def _type(flag: Flag) -> str:
    record = _type_name(flag.name) if _is_record(flag) else "Mapping[str, object]"
    named = ", ".join(json.dumps(choice) for choice in flag.choices)
    found = {
        Kind.INTEGER: "int" if flag.auto is None else 'int | Literal["auto"]',
        Kind.NUMBER: "float",
        Kind.BOOLEAN: "bool",
        Kind.CHOICE: f"Literal[{named}]",
        Kind.TEXT: "str",
        Kind.INTEGERS: "Sequence[int]",
        Kind.NAMES: f"Sequence[Literal[{named}]]",
        Kind.COUNT: f"int | {record}",
        Kind.OBJECT: record,
        Kind.TEXT_OR_OBJECT: f"str | {record}",
        Kind.ANY: "object",
    }[flag.kind]
    return "Mapping[str, str | int | float]" if flag.name == "env" else found


def main() -> int:
    """Writes the module."""
    FILE.write_text(module(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
