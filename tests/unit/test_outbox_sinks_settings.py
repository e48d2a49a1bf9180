"""The sinks that settings configure, and the errors for wrong settings."""

import itertools
import time
from pathlib import Path

import pytest

from deploy.drills.sinks.receiver import LOOPBACK
from services.outbox.sinks.channels import open_sinks
from services.outbox.sinks.credentials import (
    FILE_BYTES_MAX,
    KEY_BYTES_MIN,
    LOOK_S,
    SigningKeys,
    load_key,
    load_password,
)
from services.outbox.sinks.smtp import Server
from shared.events.effects import Channel
from shared.settings import OutboxSettings, load

BASE = {"BOOTSTRAP_SERVERS": f"{LOOPBACK}:1", "REDIS_URL": f"redis://{LOOPBACK}:1/0"}
SECRET = "wordsthatarenotsaid" * 2


def settings(**variables: str) -> OutboxSettings:
    return load(OutboxSettings, {f"ONCE_{name}": value for name, value in {**BASE, **variables}.items()})


def mail(directory: Path, **variables: str) -> OutboxSettings:
    password = directory / "password"
    password.write_text(f"{SECRET}\n")
    given = {"SMTP_HOST": "mail.example.org", "SMTP_SENDER": "ledger@example.org"}
    login = {"SMTP_USER": "once", "SMTP_PASSWORD_FILE": str(password)}
    return settings(**{**given, **login, **variables})


def refused(given: OutboxSettings) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        open_sinks(given, time.time)
    assert SECRET not in str(caught.value)
    return str(caught.value)


def test_there_is_a_sink_for_each_channel_that_is_configured(tmp_path: Path) -> None:
    assert open_sinks(settings(), time.time) == {}
    key = tmp_path / "key"
    key.write_bytes(bytes(KEY_BYTES_MIN))
    assert set(open_sinks(settings(WEBHOOK_KEY_FILE=str(key)), time.time)) == {Channel.WEBHOOK}
    assert set(open_sinks(mail(tmp_path), time.time)) == {Channel.EMAIL}
    files = tmp_path / "a" / "b"
    sinks = open_sinks(mail(tmp_path, WEBHOOK_KEY_FILE=str(key), OUTBOX_FILE_DIRECTORY=str(files)), time.time)
    assert {channel: sink.takes_keys for channel, sink in sinks.items()} == {
        Channel.WEBHOOK: True,
        Channel.EMAIL: False,
        Channel.FILE: True,
    }
    assert files.is_dir()


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"SMTP_SENDER": ""}, "ONCE_SMTP_SENDER"),
        ({"SMTP_SENDER": "Ledger <ledger@example.org>"}, "ONCE_SMTP_SENDER"),
        ({"SMTP_SENDER": "zoë@example.org"}, "ONCE_SMTP_SENDER"),
        ({"SMTP_STARTTLS": "false"}, "ONCE_SMTP_STARTTLS"),
        ({"SMTP_STARTTLS": "false", "SMTP_HOST": "10.0.0.1"}, "ONCE_SMTP_STARTTLS"),
        ({"SMTP_PORT": "0"}, "ONCE_SMTP_PORT"),
        ({"SMTP_PORT": "65536"}, "ONCE_SMTP_PORT"),
        ({"SMTP_USER": ""}, "ONCE_SMTP_USER"),
        ({"SMTP_PASSWORD_FILE": ""}, "ONCE_SMTP_PASSWORD_FILE"),
        ({"SMTP_PASSWORD_FILE": "{missing}"}, "ONCE_SMTP_PASSWORD_FILE"),
        ({"SMTP_CA_FILE": "{missing}"}, "ONCE_SMTP_CA_FILE"),
        ({"SMTP_CA_FILE": "{secret}"}, "ONCE_SMTP_CA_FILE"),
        ({"WEBHOOK_KEY_FILE": "{missing}"}, "ONCE_WEBHOOK_KEY_FILE"),
        ({"WEBHOOK_KEY_FILE": "{short}"}, "ONCE_WEBHOOK_KEY_FILE"),
        ({"WEBHOOK_KEY_FILE": "{long}", "WEBHOOK_PREVIOUS_KEY_FILE": "{short}"}, "ONCE_WEBHOOK_PREVIOUS_KEY_FILE"),
        ({"WEBHOOK_KEY_FILE": "{long}", "WEBHOOK_ALLOWED_NETWORKS": "10.0.0.1/8"}, "ONCE_WEBHOOK_ALLOWED_NETWORKS"),
        ({"WEBHOOK_KEY_FILE": "{long}", "WEBHOOK_PROXY": "proxy:3128"}, "ONCE_WEBHOOK_PROXY"),
        ({"WEBHOOK_KEY_FILE": "{long}", "WEBHOOK_PROXY": "https://proxy:3128"}, "ONCE_WEBHOOK_PROXY"),
        ({"WEBHOOK_KEY_FILE": "{long}", "WEBHOOK_PROXY": f"http://u:{SECRET}@proxy:3128"}, "ONCE_WEBHOOK_PROXY"),
        ({"OUTBOX_FILE_DIRECTORY": "{secret}"}, "ONCE_OUTBOX_FILE_DIRECTORY"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, variables: dict[str, str], named: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    short = tmp_path / "short"
    short.write_text(SECRET[: KEY_BYTES_MIN - 1])
    paths = {name: str(tmp_path / name) for name in ("missing", "secret", "short", "long")}
    (tmp_path / "long").write_bytes(bytes(KEY_BYTES_MIN))
    given = {name: value.format(**paths) for name, value in variables.items()}
    assert named in refused(mail(tmp_path, **given))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.8.8", "::1"])
def test_mail_without_tls_stays_on_the_machine(tmp_path: Path, host: str) -> None:
    assert set(open_sinks(mail(tmp_path, SMTP_HOST=host, SMTP_STARTTLS="false"), time.time)) == {Channel.EMAIL}


def test_a_key_is_read_verbatim_and_never_shown(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for content in (b"\n" * KEY_BYTES_MIN, bytes(FILE_BYTES_MAX)):
        path.write_bytes(content)
        assert load_key(str(path), "VARIABLE") == content
    for content in (b"", SECRET.encode()[: KEY_BYTES_MIN - 1], SECRET.encode() * 200):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="VARIABLE: ") as caught:
            load_key(str(path), "VARIABLE")
        assert "words" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_keys_that_change_are_read_again_and_what_is_no_key_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = (bytes([number]) * KEY_BYTES_MIN for number in range(2))
    file, previous = tmp_path / "key", tmp_path / "previous"
    file.write_bytes(old)
    keys = SigningKeys(str(file), str(previous))
    now_s = itertools.count(step=LOOK_S)
    assert keys.current(next(now_s)) == (old,)
    previous.write_bytes(old)
    assert keys.current(next(now_s)) == (old,)  # one key, so one signature
    (tmp_path / "new").write_bytes(new)
    (tmp_path / "new").replace(file)
    assert keys.current(next(now_s)) == (new, old)
    file.write_text(SECRET[: KEY_BYTES_MIN - 1])  # half written
    for _ in range(3):
        assert keys.current(next(now_s)) == (new, old)
    assert [record.message for record in caplog.records] == ["webhook keys refused"]
    assert SECRET[:8] not in caplog.text + str(vars(caplog.records[0]))
    file.unlink()
    assert keys.current(next(now_s)) == (new, old)
    file.write_bytes(new)
    previous.unlink()
    at_s = next(now_s)
    assert keys.current(at_s) == (new,)
    file.write_bytes(old + old)
    assert keys.current(at_s + LOOK_S / 2) == (new,)  # not looked at yet
    assert keys.current(at_s + LOOK_S) == (old + old,)


def test_a_previous_key_needs_no_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(bytes(KEY_BYTES_MIN))
    given = settings(WEBHOOK_KEY_FILE=str(tmp_path / "key"), WEBHOOK_PREVIOUS_KEY_FILE=str(tmp_path / "absent"))
    assert set(open_sinks(given, time.time)) == {Channel.WEBHOOK}


def test_a_password_is_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "password"
    for content in (SECRET, f"{SECRET}\n", f"{SECRET}\r\nnotes\n"):
        path.write_text(content)
        assert load_password(str(path), "VARIABLE") == SECRET
    for wrong in (b"", b"\nsecond\n", b"\xff" + SECRET.encode()):
        path.write_bytes(wrong)
        with pytest.raises(ValueError, match="VARIABLE: ") as caught:
            load_password(str(path), "VARIABLE")
        assert SECRET not in str(caught.value)
        assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_server_does_not_show_its_password() -> None:
    assert SECRET not in repr(Server("h", 587, "example.org", None, "once", SECRET))
