# One image for every service and command: the command says which.
FROM python:3.11.11-slim-bookworm AS packages
COPY deploy/images/services.txt /build/
RUN python -m venv /opt/once/venv \
 && /opt/once/venv/bin/python -m pip install --no-cache-dir --require-hashes -r /build/services.txt

FROM python:3.11.11-slim-bookworm
# What is mounted at these places begins with their owner
RUN groupadd --gid 10001 once && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp once \
 && install --directory --owner 10001 --group 10001 /var/lib/once/authority /var/lib/once/effects /var/lib/once/lake \
    /var/lib/once/view /run/once
RUN for holder in broker-0 broker-1 broker-2 redis gateway ingest transform ledger outbox balances monitor \
        redis-exporter grafana reconciliation operator; do \
        install --directory --owner 10001 --group 10001 "/var/lib/once/credentials/$holder"; \
    done
COPY --from=packages /opt/once/venv /opt/once/venv
WORKDIR /opt/once/app
COPY deploy/images/once.sh /usr/local/bin/once
COPY pyproject.toml ./
COPY shared shared
COPY services services
COPY deploy deploy
# Readable, whatever the umask was under which this was checked out
RUN chmod -R a+rX . && chmod a+rx /usr/local/bin/once && /opt/once/venv/bin/python -m compileall -q .
ENV PATH=/opt/once/venv/bin:$PATH PYTHONPATH=/opt/once/app PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
USER 10001:10001
CMD ["once", "--help"]
