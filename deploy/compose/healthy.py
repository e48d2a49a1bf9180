"""The health check of this project's containers: 0 when an address answers 200, else 1. Standard library only."""

import http.client
import sys
from urllib.parse import urlsplit

_TIMEOUT_S = 3.0


def main(url: str) -> int:
    """Ask once, saying on stdout what is wrong: Docker keeps it for `docker inspect`."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.netloc, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", address.path)
        answer = connection.getresponse()
        told = answer.read(1_000).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        print(f"{url} does not answer: {error}")
        return 1
    finally:
        connection.close()
    if answer.status != http.client.OK:
        print(f"{url} answers {answer.status}: {told}")
    return int(answer.status != http.client.OK)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
