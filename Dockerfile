# The image of every pod: trainer, kernels and workflows. Needs nothing but a base with Python >= 3.11 and a package index.
#
#   docker build -t foxhunt:cpu --build-arg COMMIT=$(git rev-parse HEAD) --build-arg BRANCH=$(git branch --show-current) .
#   docker build -t foxhunt:gpu --build-arg EXTRA=gpu ...      CUDA 13 libraries from the index; EXTRA=gpu-cu12 for older drivers
#
# The driver itself comes from the node (NVIDIA's container runtime or device plugin), so CPU and GPU share one base.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

# What the image needs, and no word more: the heavy layer below is built again when this list changes, and not for a
# change of the code or of what only developers install.
FROM ${BASE} AS requirements
# "" or an optional dependency group of pyproject.toml: gpu, gpu-cu12
ARG EXTRA=""
WORKDIR /build
COPY pyproject.toml .
RUN python3 -c "import sys, tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; extra = sys.argv[1]; print(*p['dependencies'], *(p['optional-dependencies'][extra] if extra else []), sep='\n')" "${EXTRA}" > requirements.txt

FROM ${BASE} AS dependencies
# Not defaults but permissions: a mirror of the package index, given at build time, reaches pip by these names.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
COPY --from=requirements /build/requirements.txt /build/requirements.txt
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --requirement /build/requirements.txt

FROM ${BASE}
COPY --from=dependencies /opt/venv /opt/venv
# A pod mounts volumes over /caches and /tmp, because its root is read-only. Writable for all: clusters that choose the
# uid themselves have it so, and a tmpfs takes over the mode of the folder that it hides.
RUN printf 'foxhunt:x:1000:1000:foxhunt:/caches/home:/usr/sbin/nologin\n' >> /etc/passwd \
 && printf 'foxhunt:x:1000:\n' >> /etc/group \
 && mkdir -p -m 1777 /caches && mkdir -m 1777 /caches/home
WORKDIR /app
COPY trainer trainer
COPY kernels kernels
COPY workflows workflows
# Compiled once here; a pod writes no bytecode. Unchecked: the sources in an image do not change.
RUN /opt/venv/bin/python -m compileall -q --invalidation-mode unchecked-hash /app
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONPATH=/app \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/caches/home \
    CUPY_CACHE_DIR=/caches/cupy \
    NUMBA_CACHE_DIR=/caches/numba \
    MPLCONFIGDIR=/caches/matplotlib \
    MPLBACKEND=Agg \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# Last, so that another commit of the same files rebuilds nothing above.
ARG COMMIT=""
ARG BRANCH=""
ENV FOXHUNT_COMMIT=${COMMIT} FOXHUNT_BRANCH=${BRANCH}
LABEL org.opencontainers.image.title="foxhunt" \
      org.opencontainers.image.description="Walk-forward reinforcement learning of trading policies, judged out of sample" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.ref.name="${BRANCH}"
USER 1000:1000
# No entrypoint: a pod says the whole command, `python -m trainer ...` or `python -m workflows.NAME ...`.
CMD ["python", "-m", "trainer", "--help"]
