# The commands, and Spark with the jars of its Kafka source: master, worker and the nightly run.
FROM eclipse-temurin:17.0.13_11-jre-jammy AS java

FROM python:3.11.11-slim-bookworm AS packages
COPY deploy/images/services.txt /build/
RUN python -m venv /opt/once/venv \
 && /opt/once/venv/bin/python -m pip install --no-cache-dir --require-hashes -r /build/services.txt
# pyspark comes as source; what builds it is locked as well
COPY deploy/images/build.txt deploy/images/spark.txt /build/
RUN /opt/once/venv/bin/python -m pip install --no-cache-dir --require-hashes -r /build/build.txt \
 && /opt/once/venv/bin/python -m pip install --no-cache-dir --require-hashes --no-build-isolation -r /build/spark.txt \
 && ln -s "$(/opt/once/venv/bin/python -c 'import pyspark; print(pyspark.__path__[0])')" /opt/once/spark
# jgo keeps jars in the home; the image's is what the lock names, and is never written again
ENV HOME=/opt/once/home PYTHONPATH=/build
COPY deploy/__init__.py /build/deploy/
COPY deploy/local/__init__.py deploy/local/jars.py deploy/local/jgo.lock.toml /build/deploy/local/
COPY deploy/prometheus/jgo.lock.toml /build/deploy/prometheus/
COPY deploy/spark/jgo.lock.toml /build/deploy/spark/
RUN /opt/once/venv/bin/python -c 'from deploy.local.jars import spark_jars; print(*spark_jars(), sep="\n")'

FROM python:3.11.11-slim-bookworm
# What is mounted at these places begins with their owner
RUN groupadd --gid 10001 once && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /opt/once/home once \
 && install --directory --owner 10001 --group 10001 /var/lib/once/lake /var/lib/once/scratch /run/once
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY --from=packages /opt/once /opt/once
WORKDIR /opt/once/app
COPY deploy/images/once.sh /usr/local/bin/once
COPY pyproject.toml ./
COPY shared shared
COPY services services
COPY spark spark
COPY deploy deploy
# Readable, whatever the umask was under which this was checked out
RUN chmod -R a+rX . && chmod a+rx /usr/local/bin/once && /opt/once/venv/bin/python -m compileall -q .
ENV PATH=/opt/once/venv/bin:/opt/java/openjdk/bin:$PATH JAVA_HOME=/opt/java/openjdk SPARK_HOME=/opt/once/spark \
    PYTHONPATH=/opt/once/app PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/opt/once/home
USER 10001:10001
CMD ["once", "reconcile", "--help"]
