"""Kafka's own classes read the codec's bytes completely, and write the same: every message and version.

The definitions must be those of the brokers' jars. A newer Kafka that changes one of them fails here.
"""

import os
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from py4j.java_gateway import (  # type: ignore[import-untyped] # it ships no types
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)

from deploy.local import jars
from deploy.local.prerequisites import require_java
from shared.kafka.protocol.codec import Values, encode
from shared.kafka.protocol.definitions import DIRECTORY, definition, valid_versions
from tests.property.test_protocol import NAMES, versioned

EXAMPLES = 5


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """A Java virtual machine with the classes of the brokers' jars."""
    classpath = os.pathsep.join(map(str, jars.resolve()))
    port = launch_gateway(java_path=require_java(), classpath=classpath, die_on_exit=True)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    yield gateway.jvm
    gateway.shutdown()


def class_of(jvm: Any, name: str) -> Any:
    kind = definition(name)["type"]
    kafka = jvm.org.apache.kafka
    if kind.startswith("coordinator"):
        return getattr(kafka.coordinator.transaction.generated, name)
    return getattr(kafka.common.message, name if kind == "data" else f"{name}Data")


def written(jvm: Any, message: Any, version: int) -> bytes:
    accessor = jvm.org.apache.kafka.common.protocol.MessageUtil.toByteBufferAccessor(message, version)
    return bytes(accessor.buffer().array())


@pytest.mark.parametrize("name", NAMES)
def test_kafkas_class_reads_a_message_and_writes_the_same(jvm: Any, name: str) -> None:
    of_kafka = class_of(jvm, name)

    @settings(max_examples=EXAMPLES)
    @given(versioned(name))
    def same(case: tuple[int, Values]) -> None:
        version, values = case
        ours = encode(name, version, values)
        accessor = jvm.org.apache.kafka.common.protocol.ByteBufferAccessor(jvm.java.nio.ByteBuffer.wrap(ours))
        message = of_kafka(accessor, version)
        assert accessor.remaining() == 0
        assert written(jvm, message, version) == ours

    same()


@pytest.mark.parametrize("name", NAMES)
def test_defaults_are_those_of_kafkas_class(jvm: Any, name: str) -> None:
    for version in valid_versions(name):
        assert encode(name, version, {}) == written(jvm, class_of(jvm, name)(), version)


def test_definitions_are_those_of_the_brokers_jars() -> None:
    of_jars: dict[str, bytes] = {}
    for path in jars.resolve():
        with zipfile.ZipFile(path) as jar:
            for entry in jar.namelist():
                if re.fullmatch(r"common/message/\w+\.json", entry):
                    of_jars[entry.rpartition("/")[2]] = jar.read(entry)
    for path in DIRECTORY.iterdir():
        assert path.read_bytes() == of_jars[path.name], path.name
    assert len(of_jars) > len(NAMES) > 0
