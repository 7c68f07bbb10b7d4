# Build:  docker build -t sidecar .
#         docker build -t sidecar:cuda --build-arg VARIANT=cuda .
# Run:    docker run --read-only --tmpfs /tmp --volume sockets:/run/sidecar sidecar
#
# BASE is an image with Python 3.11 or newer and its venv module, and either a C compiler and Python's headers
# or Debian's apt-get to install one with; it stays in the build stage. A release pins it by digest:
#         --build-arg BASE=docker.io/library/python:3.11.13-slim-bookworm@sha256:...
ARG BASE=docker.io/library/python:3.11.13-slim-bookworm

FROM ${BASE} AS build
ARG VARIANT=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
RUN command -v cc \
 || { apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists; }
RUN python3 -m venv /opt/sidecar

# Dependencies change less often than the code, so they are a layer of their own. torch is imported
# only where a CUDA device is used: the CPU variant goes without it.
COPY pyproject.toml constraints.txt ./
RUN /opt/sidecar/bin/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
      | { if [ "${VARIANT}" = cuda ]; then cat; else grep -v '^torch'; fi; } > requirements.txt \
 && /opt/sidecar/bin/python -m pip install --constraint constraints.txt --requirement requirements.txt

COPY README.md ./
COPY sidecar sidecar
RUN /opt/sidecar/bin/python -m pip install --no-deps . \
 && /opt/sidecar/bin/python -m pip uninstall --yes pip \
 && mkdir --parents /image/run/sidecar /image/etc/sidecar /image/srv
COPY config/container/sidecar.toml /image/etc/sidecar/sidecar.toml
COPY config/models /image/srv/config/models
COPY sidecar/demo/models /image/srv/demo/models
COPY sidecar/demo/requests.rec /image/srv/demo/requests.rec

FROM ${BASE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="ingest-sidecar" \
      org.opencontainers.image.description="Finishes and guards multimodal requests between an LLM frontend and an inference engine" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/sidecar /opt/sidecar
COPY --from=build /image/etc/sidecar /etc/sidecar
COPY --from=build /image/srv /srv
COPY --from=build --chown=65532:65532 /image/run/sidecar /run/sidecar

# Nothing is written but to /run/sidecar (the sockets) and /tmp, so the root can be read-only.
ENV HOME=/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /srv
USER 65532:65532
EXPOSE 9464
VOLUME ["/run/sidecar"]
HEALTHCHECK --interval=10s --timeout=4s --start-period=30s --retries=3 \
  CMD ["/opt/sidecar/bin/python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:9464/healthz', timeout=3)"]
ENTRYPOINT ["/opt/sidecar/bin/sidecar"]
CMD ["serve", "--config", "/etc/sidecar/sidecar.toml"]
