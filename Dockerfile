# syntax=docker/dockerfile:1
# hgld in a container. It runs as user 1000, who must be able to write to the folder mounted at /work:
#
#     docker build -t hgld .
#     docker run --rm -v "$PWD:/work" hgld demo
#
# For a GPU: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128, and docker run --gpus all.
#
# The digest fixes the base image. A newer one: docker buildx imagetools inspect python:3.11-slim
FROM python:3.11-slim@sha256:9c900dea9e8fb7e16277c179b555cc72d29a352dbc33cff48ad5a0412fd5bfc7

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

RUN useradd --create-home --uid 1000 hgld \
    && pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch>=2.6,<3" "torchvision>=0.21,<1"
RUN --mount=type=bind,target=/src,rw pip install --no-cache-dir /src

USER 1000
WORKDIR /work
ENTRYPOINT ["hgld"]
CMD ["--help"]
