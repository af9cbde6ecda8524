# docker build -t kv-planner . && docker run --rm --read-only --tmpfs /tmp --memory 2g -p 8501:8501 kv-planner
# Behind a proxy, with several replicas: docs/hosting.md
#
# The tag says what the digest is; to renew it: docker buildx imagetools inspect python:3.13-slim
ARG PYTHON=python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b

FROM ${PYTHON} AS packages
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# --build-arg AGENTS=yes: with /mcp, for agents over HTTP
ARG AGENTS=no
COPY requirements.txt requirements-agents.txt /
RUN python -m venv --without-pip /opt/planner \
    && python -m pip --python /opt/planner/bin/python install --require-hashes --only-binary :all: -r /requirements.txt \
    && if [ "$AGENTS" = yes ]; then python -m pip --python /opt/planner/bin/python install --require-hashes \
        --only-binary :all: -r /requirements-agents.txt; fi \
    && find /opt/planner -type d -name tests -prune -exec rm -rf {} +

FROM ${PYTHON}
ENV PYTHONUNBUFFERED=1 PATH=/opt/planner/bin:$PATH HOME=/tmp
COPY --from=packages /opt/planner /opt/planner
WORKDIR /app
COPY app.py LICENSE ./
COPY .streamlit .streamlit
COPY kvcore kvcore
COPY locale locale
COPY pages pages
COPY tools/watchdog.py tools/watchdog.py
# Nothing is written once it runs: not even bytecode.
RUN python -m compileall -q app.py kvcore pages tools && python -m kvcore.base.toml_files
ENV PYTHONDONTWRITEBYTECODE=1

USER 10001:10001
EXPOSE 8501

# Every other path answers 200 with the page's frame, whatever state the server is in.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=8)"]

# A server that no longer answers is stopped: with a restart policy a new one takes its place.
ENTRYPOINT ["python", "tools/watchdog.py", "--", "python", "-m", "streamlit", "run", "app.py"]
CMD ["--server.address=0.0.0.0", "--server.port=8501"]
