# docker build --tag grpo . && docker run --rm --volume grpo-outputs:/grpo/outputs grpo
# `tools` is what a fresh Linux lacks; a devcontainer takes that stage alone and installs into the opened folder.
FROM python:3.12-slim-bookworm AS tools
RUN apt-get update && apt-get install --yes --no-install-recommends git make && rm -rf /var/lib/apt/lists/*

FROM tools
WORKDIR /grpo
COPY . .
RUN make install
CMD ["make", "reproduce"]
