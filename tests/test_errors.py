"""A coded error is itself wherever it arrives."""

from __future__ import annotations

import copy
import pickle

import pytest

from kvcore.base import errors
from kvcore.base.errors import KvPlannerError, ScenarioError


def kinds(of: type[KvPlannerError] = KvPlannerError) -> list[type[KvPlannerError]]:
    return [of, *(one for kind in of.__subclasses__() for one in kinds(kind))]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_a_coded_error_passes_to_another_process_as_it_is(kind: type[KvPlannerError]) -> None:
    error = kind("invalid-value", field="max_num_seqs", value=[0], reason="it must be more")
    for found in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(found) is kind
        assert (found.code, found.field, found.value) == ("invalid-value", "max_num_seqs", [0])
        assert found.params == {"reason": "it must be more", "value": "[0]"}
        assert (str(found), found.args) == (str(error), error.args)
        assert found.next_step == error.next_step
    assert pickle.loads(pickle.dumps(kind("api-busy"))).code == "api-busy"


def test_every_kind_is_tried() -> None:
    declared = {one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)}
    assert set(kinds()) == declared


def test_a_value_that_no_process_takes_goes_as_its_words() -> None:
    error = ScenarioError("invalid-value", field="env", value=lambda: None, reason="it must be text")
    found = pickle.loads(pickle.dumps(error))
    assert found.value == found.params["value"] == error.params["value"]
    assert str(found) == str(error)
