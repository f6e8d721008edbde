# docker build -t capplan . && docker run --rm -v "$PWD:/work" capplan fleet support-chat
# docker build --build-arg CONSTRAINTS=serve -t capplan-serve . adds what `capplan serve` needs: docs/examples/serve
# The digest is that of docker-library/repo-info@9abea64, repos/python/remote/3.12.14-slim-trixie.md; `docker buildx imagetools inspect` prints a newer one.
FROM python:3.12.14-slim-trixie@sha256:e5c9fa26ffb76e11e0f054f30dc2523a2f9693f0c36c0cf1e39b27e152d899fc AS base

FROM base AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
COPY . /src
WORKDIR /src
ARG CONSTRAINTS=plan
RUN python -m venv /capplan \
 && /capplan/bin/pip install --quiet --no-compile --require-hashes --requirement constraints/${CONSTRAINTS:-plan}.txt \
 && /capplan/bin/pip install --quiet --no-compile --no-deps --no-build-isolation . \
 && /capplan/bin/pip uninstall --quiet --yes cython hatchling editables pip \
 && rm -rf /capplan/lib/python3.12/site-packages/pandas/tests /capplan/lib/python3.12/site-packages/numpy/*/tests

FROM base
COPY --from=build /capplan /capplan
ENV PATH="/capplan/bin:$PATH" PYTHONDONTWRITEBYTECODE=1
RUN useradd --create-home capplan
USER capplan
WORKDIR /work
ENTRYPOINT ["capplan"]
CMD ["--help"]
