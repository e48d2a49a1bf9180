"""Kafka's frames on a stream: a length, and a request or response."""

import asyncio
from typing import Final

from shared.kafka.protocol.headers import LENGTH, framed

FRAME_BYTES_MAX: Final = 256 * 1024 * 1024
_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""The first bytes of an alert and of a handshake in TLS."""


class NotAKafkaFrameError(Exception):
    """The peer speaks another protocol, or TLS."""


async def read_frame(reader: asyncio.StreamReader) -> bytes | None:
    """Read a frame without its length; None at the end of the stream, or when the connection is lost.

    Raises:
        NotAKafkaFrameError: the bytes are no frame.
    """
    try:
        head = await reader.readexactly(LENGTH.size)
        if head[:2] in _TLS_RECORDS:
            raise NotAKafkaFrameError("TLS: not on this target. The proxy reads plaintext frames: use PLAINTEXT")
        (size,) = LENGTH.unpack(head)
        if not 0 < size <= FRAME_BYTES_MAX:
            raise NotAKafkaFrameError(f"a frame of {size} bytes: the peer does not speak Kafka's protocol")
        return await reader.readexactly(size)
    except (asyncio.IncompleteReadError, OSError):
        return None


async def write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Write a frame; to a peer that is gone, nothing is written."""
    if writer.is_closing():
        return
    writer.write(framed(frame))
    try:
        await writer.drain()
    except OSError:
        writer.close()
