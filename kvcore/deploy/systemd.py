"""The planned start as a systemd service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kvcore.catalogue.accelerators import Vendor
from kvcore.deploy.launch import (
    PORT,
    TOKEN,
    launch_argv,
    launch_environment,
    launch_program,
    needs_token,
    served_model,
    start_seconds,
)
from kvcore.planning import Plan

USER: Final = "vllm"
TOKEN_FILE: Final = "/etc/vllm/huggingface.env"
_CACHES: Final = {"HF_HOME": "/var/cache/vllm/huggingface", "VLLM_CACHE_ROOT": "/var/cache/vllm/kernels"}
"""Checkpoints and compiled kernels, in the folder that CacheDirectory= makes."""
_DEVICE_GROUPS: Final[Mapping[Vendor, str]] = {Vendor.AMD: "render video", Vendor.HUAWEI: "HwHiAiUser"}
"""Who may open the cards where not everybody may."""


def systemd_text(plan: Plan, every_flag: bool) -> str:
    """A unit that runs as a user of its own; the token of a gated model is read from a file of root's."""
    argv = [*launch_program(plan), served_model(plan), *launch_argv(plan, every_flag=every_flag)[2:]]
    given = launch_environment(plan)
    asks_for_token = needs_token(plan) and TOKEN not in given
    head = [f"# useradd --system --create-home {USER}"]
    if asks_for_token:
        head.append(f"# {TOKEN_FILE}, mode 600, with one line: {TOKEN}=hf_...")
    groups = _DEVICE_GROUPS.get(plan.accelerator.vendor)
    lines = [
        *head,
        "[Unit]",
        # The name stands inside the line: a backslash at its end would continue it.
        f"Description=vLLM server for {_specifiers(served_model(plan))} on port {PORT}",
        "After=network-online.target",
        "Wants=network-online.target",
        "",
        "[Service]",
        "Type=exec",
        f"User={USER}",
        *([f"SupplementaryGroups={groups}"] if groups else []),
        "CacheDirectory=vllm",
        *(f"Environment={_word(f'{name}={value}')}" for name, value in {**_CACHES, **given}.items()),
        *([f"EnvironmentFile={TOKEN_FILE}"] if asks_for_token else []),
        "ExecStart=/usr/bin/env " + " ".join(_word(word).replace("$", "$$") for word in argv),
        f"TimeoutStartSec={start_seconds(plan)}",
        "Restart=on-failure",
        "RestartSec=10",
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    return "\n".join(lines) + "\n"


def _specifiers(text: str) -> str:
    return text.replace("%", "%%")


def _word(word: str) -> str:
    """Quoted as systemd.syntax(7) wants it: % doubled, C-style escapes in double quotes.

    A dollar sign is doubled in commands only: Environment= expands nothing (systemd.exec(5)).
    """
    escaped = _specifiers(word.replace("\\", "\\\\").replace('"', '\\"'))
    return f'"{escaped}"' if re.search(r"[^A-Za-z0-9_@%+=:,./$-]", word) else escaped
