"""The files of docs/hosting and the Dockerfile: read by the tools that will read them."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import streamlit
import yaml

from kvcore.workload import logs
from pages.ui.fair import limits
from pages.ui.shared import shell
from tools import replica

ROOT = Path(__file__).resolve().parents[1]
HOSTING = ROOT / "docs" / "hosting"
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((HOSTING / "compose.yaml").read_text())
KUBERNETES = list(yaml.safe_load_all((HOSTING / "kubernetes.yaml").read_text()))
UNIT = HOSTING / "kv-planner@.service"
PINNED = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


def inline_script_hashes() -> set[str]:
    """Hashes of all inline scripts of a page, as a content security policy names them."""
    index = (Path(streamlit.__file__).parent / "static" / "index.html").read_text()
    scripts = [*re.findall(r"<script>(.*?)</script>", index, re.DOTALL), shell.SCRIPT]
    digests = (hashlib.sha256(script.encode()).digest() for script in scripts)
    return {f"sha256-{base64.b64encode(digest).decode()}" for digest in digests}


def policy() -> dict[str, list[str]]:
    """The directives of the proxy's policy."""
    (text,) = re.findall(r'Content-Security-Policy "([^"]+)"', (HOSTING / "Caddyfile").read_text())
    directives = (part.split() for part in text.split(";"))
    return {name: values for name, *values in directives}


def test_the_policy_names_the_inline_scripts_and_no_others() -> None:
    script = policy()["script-src"]
    assert {one.strip("'") for one in script if one.startswith("'sha256-")} == inline_script_hashes()
    assert {one for one in script if not one.startswith("'sha256-")} == {"'self'", "'wasm-unsafe-eval'"}


def test_the_policy_lets_nothing_come_from_elsewhere() -> None:
    own = {
        "'self'",
        "'wasm-unsafe-eval'",
        "'none'",
        "data:",
        "blob:",
        "'unsafe-inline'",
        "{$KV_FRAME_ANCESTORS:'none'}",
    }
    assert policy()["default-src"] == ["'none'"]
    for name, values in policy().items():
        assert {value for value in values if not value.startswith("'sha256-")} <= own, name
    assert [name for name, values in policy().items() if "'unsafe-inline'" in values] == ["style-src"]


def test_the_dockerfile_passes_the_linter() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    assert hadolint.exists() or sys.platform == "win32"
    told = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (0, "")


def test_images_are_pinned_by_digest() -> None:
    (python,) = re.findall(r"^ARG PYTHON=(.*)$", DOCKERFILE, re.MULTILINE)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON}"}
    caddies = [COMPOSE["services"]["proxy"]["image"]]
    caddies += re.findall(r"image: (caddy\S*)", (HOSTING / "kubernetes.yaml").read_text())
    assert len(set(caddies)) == 1
    assert all(PINNED.fullmatch(image) for image in (python, *caddies))


def copied() -> list[str]:
    """Files of this repository in the image."""
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in sources for name in line.split()]


def test_the_build_context_has_only_files_that_are_copied() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert let_in == set(copied())
    assert all((ROOT / name).exists() for name in copied())


def test_the_image_has_all_that_it_imports(tmp_path: Path) -> None:
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from streamlit.testing.v1 import AppTest\n"
        "at = AppTest.from_file('app.py', default_timeout=300).run()\n"
        "assert not at.exception, at.exception\n"
        "import kvcore; print(kvcore.__file__, len(at.metric))"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
    file, cards = told.stdout.split()
    assert Path(file).is_relative_to(tmp_path)
    assert int(cards) >= 4


def test_compose_confines_services_and_restarts_them() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["restart"] == "unless-stopped", name
        assert {"mem_limit", "pids_limit"} <= set(service), name
    replicas = [name for name in COMPOSE["services"] if name != "proxy"]
    upstreams = COMPOSE["services"]["proxy"]["environment"]["KV_UPSTREAMS"].split()
    assert upstreams == [f"{name}:8501" for name in replicas]
    assert len(replicas) > 1


def pods() -> dict[str, dict[str, Any]]:
    return {
        one["metadata"]["name"]: one["spec"]["template"]["spec"]
        for one in KUBERNETES
        if one["kind"] in ("Deployment", "StatefulSet")
    }


def test_kubernetes_accepts_every_document() -> None:
    validator = Path(sys.executable).with_name("kubernetes-validate")
    told = subprocess.run(
        [validator, "--strict", HOSTING / "kubernetes.yaml"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.count("passed") + told.stderr.count("passed") == len(KUBERNETES)


def test_kubernetes_confines_every_pod_and_replaces_one_that_is_stuck() -> None:
    for name, pod in pods().items():
        assert pod["securityContext"]["runAsNonRoot"], name
        (container,) = pod["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"], name
        assert container["securityContext"]["capabilities"]["drop"] == ["ALL"], name
        assert "memory" in container["resources"]["limits"], name
        assert "livenessProbe" in container, name
    (planner,) = pods()["kv-planner"]["containers"]
    assert planner["livenessProbe"]["httpGet"]["path"] == "/_stcore/health"


def test_the_proxy_of_kubernetes_knows_every_replica() -> None:
    (replicas,) = (one for one in KUBERNETES if one["kind"] == "StatefulSet")
    (proxy,) = pods()["kv-planner-proxy"]["containers"]
    (upstreams,) = (entry["value"] for entry in proxy["env"] if entry["name"] == "KV_UPSTREAMS")
    assert upstreams.split() == [
        f"{replicas['metadata']['name']}-{number}.{replicas['spec']['serviceName']}:8501"
        for number in range(replicas["spec"]["replicas"])
    ]
    generated = yaml.safe_load((HOSTING / "kustomization.yaml").read_text())["configMapGenerator"]
    assert [(one["name"], one["files"]) for one in generated] == [("kv-planner-proxy", ["Caddyfile"])]


def memory_limits() -> dict[str, int]:
    """Memory of a replica, in bytes."""
    (planner,) = pods()["kv-planner"]["containers"]
    (unit,) = re.findall(r"^MemoryMax=(\w+)$", UNIT.read_text(), re.MULTILINE)
    written = {
        "kubernetes": planner["resources"]["limits"]["memory"],
        "systemd": unit,
        **{name: one["mem_limit"] for name, one in COMPOSE["services"].items() if name != "proxy"},
    }
    return {name: int(re.sub(r"(?i)gi?$", "", text)) << 30 for name, text in written.items()}


def test_everything_at_its_limit_fits_into_a_replica() -> None:
    """The kernel ends what a container takes above its limit, on Kubernetes all of it."""
    found = memory_limits()
    assert len(found) >= 4
    assert set(found.values()) == {replica.REPLICA_BYTES}
    assert sum(row.size for row in replica.rows()) <= replica.REPLICA_BYTES
    text = (ROOT / "docs" / "hosting.md").read_text("utf-8")
    assert replica.written(text) == text, "python -m tools.replica --write"
    assert replica.table() in text
    for one in (logs.MEMORY_BYTES, logs.PARQUET_MEMORY_BYTES):
        assert f"{one >> 20} MiB" in text


def test_uploads_that_arrive_fit_into_the_temporary_folder_of_every_replica() -> None:
    written = [one["tmpfs"][0] for name, one in COMPOSE["services"].items() if name != "proxy"]
    sizes = [int(re.search(r"size=(\d+)m", text)[1]) << 20 for text in written]  # type: ignore[index]
    (volume,) = pods()["kv-planner"]["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    sizes.append(int(volume["emptyDir"]["sizeLimit"].removesuffix("Mi")) << 20)
    assert set(sizes) == {replica.TEMPORARY_BYTES}
    assert limits.SPOOL_BYTES < replica.TEMPORARY_BYTES
    assert limits.SPOOL_BYTES > 2 * 40 << 20


def test_limits_of_streamlit_and_of_the_proxy_are_those_of_the_code() -> None:
    server = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())["server"]
    assert server["maxUploadSize"] << 20 == limits.FILE_BYTES
    assert server["maxWidgetStateSize"] == server["maxMessageSize"] == limits.MESSAGE_BYTES / 1e6
    caddyfile = (HOSTING / "Caddyfile").read_text()
    (size,) = re.findall(r"max_size (\d+)MB", caddyfile)
    assert limits.FILE_BYTES <= int(size) * 1_000_000 < 1.1 * limits.FILE_BYTES
    assert f"read_body {limits.UPLOAD_SECONDS:g}s" in caddyfile
    told = (ROOT / "docs" / "hosting.md").read_text("utf-8")
    for text in (
        f"{limits.SESSION_BYTES >> 20} MiB of a session, {limits.CLIENT_BYTES >> 20} MiB of a client, "
        f"{limits.KEPT_BYTES >> 20} MiB in all",
        f"{limits.SPOOL_BYTES >> 20} MiB at a time, {limits.CLIENT_SPOOL_BYTES >> 20} MiB of a client; "
        f"others wait up to {limits.SPOOL_WAIT_SECONDS:g} s; {limits.UPLOAD_SECONDS:g} s each",
        f"{limits.CLIENT_SOCKETS} of a client, {limits.SOCKETS} in all; {limits.OPENED_BURST} opened at once, "
        f"then {limits.OPENED_RATE:g} a second",
        f"{limits.MESSAGE_BYTES / 1e6:g} MB; {limits.MESSAGES_BURST} at once, then {limits.MESSAGES_RATE:g} a second; "
        f"one that goes on is told so, and closed after {limits.CLOSE_SECONDS:g} s",
    ):
        assert text in told, text


def test_logs_are_bounded_and_nobody_gains_privileges() -> None:
    for name, service in COMPOSE["services"].items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert set(service["logging"]["options"]) == {"max-size", "max-file"}, name


def test_a_client_is_known_by_as_many_proxies_as_there_are() -> None:
    for name, service in COMPOSE["services"].items():
        if name != "proxy":
            assert service["environment"]["KVPLANNER_PROXIES"] == "${KV_PROXIES:-1}", name
    env = {one["name"]: one.get("value") for one in pods()["kv-planner"]["containers"][0]["env"]}
    assert env["KVPLANNER_PROXIES"] == "2"
    assert "FORWARDED_ALLOW_IPS" not in env
    assert "KVPLANNER_PROXIES=1" in UNIT.read_text()
    assert "--server.address=127.0.0.1" in UNIT.read_text()
    assert "trusted_proxies {$KV_TRUSTED_PROXIES:" in (HOSTING / "Caddyfile").read_text()


def test_kubernetes_lets_only_the_proxy_reach_a_replica() -> None:
    (policy,) = (one["spec"] for one in KUBERNETES if one["kind"] == "NetworkPolicy")
    names = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in KUBERNETES
        if one["kind"] in ("Deployment", "StatefulSet")
    }
    assert policy["podSelector"]["matchLabels"] == names["kv-planner"]
    ((source,),) = (rule["from"] for rule in policy["ingress"])
    assert source == {"podSelector": {"matchLabels": names["kv-planner-proxy"]}}
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_a_process_that_is_out_of_memory_does_not_take_the_service_with_it() -> None:
    assert re.findall(r"^OOMPolicy=(\w+)$", UNIT.read_text(), re.MULTILINE) == ["continue"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_systemd_reads_the_unit_and_finds_it_confined(tmp_path: Path) -> None:
    unit = tmp_path / "kv-planner@8501.service"
    unit.write_text(UNIT.read_text().replace("/opt/kv-planner/.venv/bin/python", sys.executable))
    told = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (0, "")
    told = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", unit],
        capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout[-300:]


def test_the_unit_has_a_limit_and_a_watchdog_slower_than_our_own() -> None:
    unit = dict(line.split("=", 1) for line in UNIT.read_text().splitlines() if re.match(r"[A-Z]\w+=", line))
    assert unit["MemoryMax"]
    assert unit["Restart"] == "always"
    assert int(unit["WatchdogSec"]) > 3 * (10 + 10)
