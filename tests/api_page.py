"""The client of docs/api.md, as the page has it."""

import re
from typing import Any, Final

from tests.harness import ROOT

[SOURCE] = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/api.md").read_text(), re.DOTALL | re.MULTILINE)
LINES_MAX: Final = 30


def page_client(url: str, key: str) -> Any:
    """Return a client; its calls block."""
    names: dict[str, Any] = {}
    exec(compile(SOURCE, "docs/api.md", "exec"), names)  # noqa: S102 # the page's own code
    return names["Client"](url, key)
