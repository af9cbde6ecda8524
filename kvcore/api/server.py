"""kvcore api: the API by itself, without the pages."""

from __future__ import annotations

import os

import uvicorn
from starlette.applications import Starlette

from kvcore.api.routes import Api
from kvcore.api.settings import Settings


def application() -> Starlette:
    """The API as a Starlette application, set by the environment."""
    return Starlette(routes=Api(Settings.of(os.environ)).routes())


def serve(host: str, port: int) -> None:
    """Answers until it is ended. No request is written to a log."""
    uvicorn.run(application(), host=host, port=port, access_log=False, log_level="warning")
