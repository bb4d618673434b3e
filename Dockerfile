# braid for CPUs: docker build -t braid . && docker run --rm -v "$PWD:/work" braid train run.toml
FROM debian:12 AS build
WORKDIR /braid
COPY scripts scripts
RUN scripts/setup.sh
COPY . .
RUN BRAID_CUDA=OFF scripts/build_deb.sh

FROM debian:12-slim
COPY --from=build /braid/build/deb/packages/*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/*.deb && rm -rf /tmp/*.deb /var/lib/apt/lists/*
WORKDIR /work
ENTRYPOINT ["braid"]
CMD ["--help"]
