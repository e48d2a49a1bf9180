"""Making the archive of the brokers' classes: what keeps it from being made is said, and breaks nothing."""

import pytest

from deploy.local import jars
from deploy.local.kafka import archive


@pytest.mark.parametrize("error", [jars.JarError("no jars here"), PermissionError("no room here")])
def test_an_archive_that_cannot_be_made_is_said_and_no_error(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def resolve() -> None:
        raise error

    monkeypatch.setattr(jars, "resolve", resolve)
    assert archive.main() == 0
    assert f"brokers start more slowly: {error}" in capsys.readouterr().err
