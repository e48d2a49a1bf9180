# Apache Kafka as it is published, the agent that shows its figures to Prometheus, and how it is started.
FROM python:3.11.11-slim-bookworm AS agent
COPY deploy/images/services.txt /build/
RUN python -m venv /opt/once/venv \
 && /opt/once/venv/bin/python -m pip install --no-cache-dir --require-hashes -r /build/services.txt
ENV HOME=/opt/once/home PYTHONPATH=/build
COPY deploy/__init__.py /build/deploy/
COPY deploy/local/__init__.py deploy/local/jars.py deploy/local/jgo.lock.toml /build/deploy/local/
COPY deploy/prometheus/jgo.lock.toml /build/deploy/prometheus/
COPY deploy/spark/jgo.lock.toml /build/deploy/spark/
RUN /opt/once/venv/bin/python -c 'import shutil; from deploy.local.jars import jmx_agent; shutil.copy(jmx_agent(), "/build/agent.jar")'

FROM apache/kafka:4.3.1
USER root
# What is mounted at these places begins with their owner
RUN mkdir -p /var/lib/once/kafka /run/once /opt/once && chown 10001:10001 /var/lib/once/kafka /run/once
COPY --from=agent /build/agent.jar /opt/once/
COPY deploy/prometheus/jmx.yml deploy/images/broker.sh /opt/once/
# Whatever the umask was under which this was checked out
RUN chmod -R a+r /opt/once
USER 10001:10001
ENTRYPOINT ["/bin/sh", "/opt/once/broker.sh"]
