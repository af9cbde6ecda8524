# docker build -t kv-planner . && docker run --rm -p 8501:8501 kv-planner
FROM python:3.13-slim

ENV PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN useradd --create-home --uid 1000 planner
WORKDIR /app

# The pins change less often than the code: their layer is kept.
COPY requirements.txt ./
RUN pip install -r requirements.txt

COPY app.py LICENSE ./
COPY .streamlit .streamlit
COPY kvcore kvcore
COPY locale locale
COPY pages pages

USER planner
EXPOSE 8501

# Every other path answers 200 with the page's frame, whatever state the server is in.
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8501/_stcore/health', timeout=4)"]

CMD ["python", "-m", "streamlit", "run", "app.py", "--server.address=0.0.0.0", "--server.port=8501"]
