"""Credentials of the deployment: each holder gets its own, once; keys and certificates change only when asked to."""

import json
import stat
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from deploy.clients.keyring import KeyringError
from deploy.clients.local import LOCAL
from deploy.compose import credentials
from deploy.compose.credentials import (
    API_KEYS,
    BROKERS,
    CERTIFIED,
    HOLDERS,
    WEBHOOK_KEY,
    WEBHOOK_PREVIOUS_KEY,
    add_client,
    distribute,
    main,
    make,
    remove_client,
)
from deploy.security.certificates import certificate_of, hosts_of, open_authority
from deploy.security.files import replace
from deploy.security.principals import OPERATOR, REDIS, REDIS_EXPORTER
from services.outbox.connection import FileCredentials
from shared.events.clients import Scope
from shared.http.keys import KEYS_PER_CLIENT_MAX, KeyRefusedError, Keys, parse
from shared.kafka.client.access import Tls
from shared.settings import EXIT_CONFIG


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create the credentials and return the folder of the holders."""
    monkeypatch.setattr(credentials, "AUTHORITY", tmp_path / "authority")
    monkeypatch.setattr(credentials, "CREDENTIALS", tmp_path / "root")
    assert run().exit_code == 0
    return tmp_path / "root"


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_second_run_changes_nothing(made: Path) -> None:
    before = contents(made)
    again = run()
    assert again.exit_code == 0
    assert contents(made) == before
    assert again.stdout == "credentials: 0 written, the others are as they were\n"


def test_each_holder_has_its_own_credentials_and_none_has_the_authoritys_key(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == set(HOLDERS)
    for name in CERTIFIED:
        assert {path.name for path in (made / name).glob("*.pem")} == {"authority.pem", f"{name}.pem"}
        tls = Tls(str(made / name / "authority.pem"), str(made / name / f"{name}.pem"))
        tls.context()
        assert tls.principal == name
    issuing = (made.parent / "authority" / "authority.key.pem").read_bytes()
    assert not any(issuing.split(b"-----BEGIN CERTIFICATE")[0] in data for data in contents(made).values())


def test_files_are_for_the_owner_and_the_readers(made: Path) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.rglob("*") if path.is_file()} == {0o440}


def test_certificates_have_the_host_names_that_clients_use(made: Path) -> None:
    for name in (*BROKERS, REDIS):
        assert hosts_of(made / name / f"{name}.pem") == [name]
    assert hosts_of(made / "ledger" / "ledger.pem") == []


def test_brokers_share_one_cluster_id(made: Path) -> None:
    assert len({(made / name / "cluster.id").read_text() for name in BROKERS}) == 1
    assert len((made / "broker-0" / "cluster.id").read_text()) == 22


def test_redis_knows_its_users_by_the_digests_of_their_passwords(made: Path) -> None:
    users = (made / REDIS / "users.acl").read_text()
    outbox = FileCredentials("outbox", str(made / "outbox" / "redis.password")).get_credentials()[1]
    [exporter] = json.loads((made / REDIS_EXPORTER / "redis-exporter.json").read_text()).values()
    health = (made / REDIS / "operator.password").read_text()
    for name, password in (("outbox", outbox), ("exporter", exporter), ("operator", health)):
        [line] = [line for line in users.splitlines() if line.startswith(f"user {name} ")]
        assert line.endswith(f"#{sha256(password.encode()).hexdigest()}")
    assert "default reset off" in users


def client_of(keys: Keys, key: str) -> str | None:
    """Return the client that a key authenticates."""
    with suppress(KeyRefusedError):
        return keys.authenticate([f"Bearer {key}"], 0).client
    return None


def test_a_client_gets_a_key_that_the_gateway_accepts(made: Path) -> None:
    output = run("--client", "shop").stdout
    key = output.splitlines()[0].removeprefix("key of shop, shown this once: ")
    keys = parse((made / "gateway" / API_KEYS).read_bytes())
    assert client_of(keys, key) == "shop"
    local = keys.authenticate([f"Bearer {(made / OPERATOR / credentials.LOCAL_KEY).read_text()}"], 0)
    assert (local.client, local.scopes) == (LOCAL, frozenset(Scope))
    assert output.count(key) == 1
    assert "gateway/api-keys written" in output


def test_a_key_is_rotated_and_dropped(made: Path) -> None:
    authority = open_authority(made.parent / "authority")
    old, *_, new = [add_client(authority, "shop") for _ in range(KEYS_PER_CLIENT_MAX)]
    with pytest.raises(KeyringError, match="revoke the"):
        add_client(authority, "shop")
    remove_client(authority, "shop")
    distribute(make(authority), made)
    keys = parse((made / "gateway" / API_KEYS).read_bytes())
    assert client_of(keys, old) is None
    assert client_of(keys, new) == "shop"
    with pytest.raises(KeyringError, match="mall has no key"):
        remove_client(authority, "mall")
    refused = run("--drop-client", "mall")
    assert (refused.exit_code, "mall has no key" in refused.stderr) == (EXIT_CONFIG, True)


def test_a_deployment_from_before_keeps_its_clients_and_gets_the_local_one(made: Path) -> None:
    own = made.parent / "authority"
    (own / credentials.LOCAL_KEY).unlink()
    (own / credentials.FORMER_KEY).write_text("once_former")
    digest = sha256(b"once_former").hexdigest()
    replace(own / API_KEYS, f"{OPERATOR}:{digest}\n".encode())
    assert run().exit_code == 0
    keys = parse((made / "gateway" / API_KEYS).read_bytes())
    files = (made / OPERATOR / name for name in (credentials.FORMER_KEY, credentials.LOCAL_KEY))
    assert [client_of(keys, path.read_text()) for path in files] == [OPERATOR, LOCAL]


def test_the_key_of_webhooks_is_replaced_in_steps(made: Path) -> None:
    key, previous = (made / "outbox" / name for name in (WEBHOOK_KEY, WEBHOOK_PREVIOUS_KEY))
    old = key.read_text()
    assert previous.read_text() == old
    assert run("--webhook-key", "add").stdout.startswith("credentials: outbox/webhook.key written\n")
    new = key.read_text()
    assert (previous.read_text(), new == old) == (old, False)
    again = run("--webhook-key", "add")
    assert (again.exit_code, "--webhook-key drop" in again.stderr) == (EXIT_CONFIG, True)
    assert run("--webhook-key", "drop").exit_code == 0
    assert (key.read_text(), previous.read_text()) == (new, new)


@pytest.mark.parametrize("names", [("ledger",), ("ledger", "broker-1", "redis")])
def test_certificates_are_renewed_for_their_holders_alone(made: Path, names: tuple[str, ...]) -> None:
    before = contents(made)
    renewed = run("--renew", *names)
    after = contents(made)
    assert {name for name in after if after[name] != before[name]} == {f"{name}/{name}.pem" for name in names}
    assert all(f"credentials: {name}/{name}.pem written\n" in renewed.stdout for name in names)


def test_the_authority_is_replaced_in_steps(made: Path) -> None:
    assert run("--authority", "add").exit_code == 0
    trusted = (made / "ledger" / "authority.pem").read_text()
    assert trusted.count("BEGIN CERTIFICATE") == 2
    refused = run("--authority", "drop")
    assert refused.exit_code == EXIT_CONFIG
    assert "renew them first" in refused.stderr
    assert run("--renew", "all").exit_code == 0
    assert run("--authority", "drop").exit_code == 0
    [issuer] = {certificate_of(made / name / f"{name}.pem").issuer for name in CERTIFIED}
    assert certificate_of(made / "ledger" / "authority.pem").subject == issuer


def test_an_invalid_client_name_is_refused(made: Path) -> None:
    refused = run("--client", "a b")
    assert refused.exit_code == EXIT_CONFIG
    assert "cannot be a client's name" in refused.stderr


@pytest.mark.parametrize("words", [("ledger",), ("--renew",), ("--authority", "keep"), ("--client",)])
def test_wrong_usage_changes_nothing(made: Path, words: tuple[str, ...]) -> None:
    before = contents(made)
    assert run(*words).exit_code == 2
    assert contents(made) == before
