"""A ledger one version ahead: its requests have a field more. `test_outbox_later_ledger` runs it."""

import runpy
from typing import Any, Final

from services.ledger import service

FIELD: Final = b'"memo":{"by":"eva"}'


def extend() -> None:
    """Have the ledger write the field."""
    patched: Any = service
    encode = patched.encode_request
    patched.encode_request = lambda request: b"%b,%b}" % (encode(request)[:-1], FIELD)


if __name__ == "__main__":
    extend()
    runpy.run_module("services.ledger", run_name="__main__", alter_sys=True)
