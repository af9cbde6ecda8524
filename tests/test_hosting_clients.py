"""Who a client is behind the shipped Caddy: at the edge, and behind an ingress that names the client."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.browser.test_proxy import proxy
from tools.server import running_server

FIRST, SECOND = "198.51.100.7", "198.51.100.8"
LIMITED = {"KVPLANNER_API_RATE": "0.01", "KVPLANNER_API_BURST": "10"}


def statuses(address: str, names: list[str]) -> list[int]:
    """The status of a question each, with what a client or an ingress wrote in X-Forwarded-For."""
    path = "/api/catalogue?kind=engines"
    with httpx2.Client(base_url=address, timeout=300) as client:
        return [client.get(path, headers={"X-Forwarded-For": name}).status_code for name in names]


@pytest.mark.parametrize(
    ("proxies", "trusted", "names", "refused"),
    [
        # At the edge one peer is one client, whatever it writes.
        ("1", None, [f"203.0.113.{number}" for number in range(11)], 1),
        # Behind an ingress each of its clients is one, whatever stands before the name that the ingress wrote.
        ("2", "private_ranges", [f"203.0.113.{number}, {FIRST}" for number in range(11)], 1),
        ("2", "private_ranges", [FIRST, SECOND] * 5 + [SECOND, FIRST], 0),
    ],
    ids=["edge", "one client behind an ingress", "two clients behind an ingress"],
)
def test_a_client_has_one_name(
    proxies: str, trusted: str | None, names: list[str], refused: int, tmp_path: Path
) -> None:
    environment = {**LIMITED, "KVPLANNER_PROXIES": proxies}
    more = {} if trusted is None else {"KV_TRUSTED_PROXIES": trusted}
    with (
        running_server(tmp_path / "server.log", environment=environment) as server,
        proxy((server,), tmp_path, **more) as address,
    ):
        found = statuses(address, names)
    assert found.count(429) == refused, found
    assert found.count(200) == len(names) - refused, found
