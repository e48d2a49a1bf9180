"""The health check of this project's containers: 0 when a path on a loopback port answers 200, else 1.

It is started again and again in every container, so it imports next to nothing, and nothing of this project.
"""

import socket
import sys

_TIMEOUT_S = 5.0
_SHOWN_BYTES = 1_000


def main(port: int, path: str) -> int:
    """Ask once, saying on stdout what is wrong: Docker keeps it for `docker inspect`."""
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            while part := connection.recv(65_536):
                answer += part
    except OSError as error:
        print(f"port {port} does not answer: {error}")
        return 1
    status = answer.split(b"\r\n", 1)[0].split(b" ")[1:2]
    if status == [b"200"]:
        return 0
    print(answer[:_SHOWN_BYTES].decode(errors="replace"))
    return 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
