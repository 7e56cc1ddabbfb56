# A machine of a thunder-tune cluster, and a place to run studies from: see docs/cluster.md.
#
#     docker build -t thunder-tune .
#     docker run --gpus all --network host --shm-size 8g thunder-tune worker HEAD:6379
#
# For CPUs alone: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
FROM python:3.11-slim-bookworm

# Inductor and Triton compile with it while trials run.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ git \
    && rm -rf /var/lib/apt/lists/*

ARG TORCH_INDEX=https://download.pytorch.org/whl/cu128
ARG EXTRAS=hf,postgres
COPY constraints.txt /build/
RUN pip install --no-cache-dir --index-url ${TORCH_INDEX} torch torchvision --constraint /build/constraints.txt

# Everything else is small, and changes more often.
COPY . /build/thunder-tune
RUN pip install --no-cache-dir --constraint /build/constraints.txt "/build/thunder-tune[${EXTRAS}]" \
    && rm -rf /build

RUN useradd --create-home tune
USER tune
WORKDIR /home/tune
ENTRYPOINT ["thunder-tune"]
CMD ["doctor"]
