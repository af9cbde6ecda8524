"""What shells, HTTP and agents are answered: a request as text -> the contract's result, and the catalogue's rows."""

from __future__ import annotations

from typing import Any

from kvcore import catalogue
from kvcore.base.errors import KvPlannerError, defect
from kvcore.base.untrusted import utf8_text
from kvcore.contract.result import error_of, needs_fixes, result_of
from kvcore.engines.registry import engine_names
from kvcore.library import from_hub
from kvcore.model.config import ModelConfig
from kvcore.planning import Plan, plan
from kvcore.wire.request import ReadConfig, id_of, parse_request, scenario_from_request


def answer(given: str | bytes, read_config: ReadConfig = ModelConfig.from_mapping) -> dict[str, Any]:
    """The contract's result for one request as text; a bad request is a result too, and so is a defect of ours.

    `read_config` is that of one `SharedConfigs` for all requests of a batch.

    Example:
        >>> answer(b"\\xff")["error"]["code"]
        'not-utf8'
    """
    request_id: object = None
    try:
        request = parse_request(utf8_text(given) if isinstance(given, bytes) else given)
        request_id = id_of(request)
        return planned_result(plan(scenario_from_request(request, from_hub, read_config)), request_id)
    except Exception as error:  # the last net: one request must not end a batch
        return error_of(error if isinstance(error, KvPlannerError) else defect(error), request_id)


def planned_result(planned: Plan, request_id: object = None) -> dict[str, Any]:
    """The contract's result for one plan, with fixes where it does not fit."""
    if not needs_fixes(planned):
        return result_of(planned, request_id)
    from kvcore.advice.fixes import fixes

    return result_of(planned, request_id, fixes(planned))


def catalogue_rows() -> dict[str, list[dict[str, Any]]]:
    """The catalogue as plain rows, by kind."""
    from kvcore.controls.edit import engine_versions

    return {
        "models": [
            {"id": entry.id, "source": entry.source, "checked": entry.checked}
            for entry in catalogue.load_models()
        ],
        "accelerators": [
            {
                "id": card.id,
                "name": card.name,
                "vendor": card.vendor.value,
                "memory_gib": card.memory_gib,
                "grade": card.memory_grade.value,
                "source": card.source,
            }
            for card in catalogue.load_accelerators()
        ],
        "engines": [
            {"engine": engine, "version": version}
            for engine in engine_names()
            for version in engine_versions(engine)
        ],
    }
