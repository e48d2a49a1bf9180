"""Credentials of the deployment: each holder gets its own, once; keys and certificates change only when asked to."""

import json
import stat
from hashlib import sha256
from pathlib import Path

import pytest

from deploy.compose import credentials
from deploy.compose.credentials import (
    API_KEYS,
    BROKERS,
    CERTIFIED,
    HOLDERS,
    add_client,
    distribute,
    drop_client,
    main,
    make,
)
from deploy.security.certificates import CredentialsError, certificate_of, hosts_of, open_authority
from deploy.security.principals import OPERATOR, REDIS, REDIS_EXPORTER
from services.gateway.keys import parse
from services.outbox.connection import FileCredentials
from shared.kafka.client.access import Tls
from shared.settings import EXIT_CONFIG


@pytest.fixture
def made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Credentials made once; the folder of the holders'."""
    assert main([], tmp_path / "authority", tmp_path / "root") == 0
    capsys.readouterr()
    return tmp_path / "root"


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_second_time_changes_nothing(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(made)
    assert main([], made.parent / "authority", made) == 0
    assert contents(made) == before
    assert capsys.readouterr().out == "credentials: 0 written, the others are as they were\n"


def test_each_holder_has_its_own_and_nobody_the_authoritys_key(made: Path) -> None:
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


def test_servers_are_called_what_their_clients_call_them(made: Path) -> None:
    for name in (*BROKERS, REDIS):
        assert hosts_of(made / name / f"{name}.pem") == [name]
    assert hosts_of(made / "ledger" / "ledger.pem") == []


def test_brokers_share_one_cluster_id(made: Path) -> None:
    assert len({(made / name / "cluster.id").read_text() for name in BROKERS}) == 1
    assert len((made / "broker-0" / "cluster.id").read_text()) == 22


def test_redis_knows_its_users_by_digests_of_what_they_have(made: Path) -> None:
    users = (made / REDIS / "users.acl").read_text()
    outbox = FileCredentials("outbox", str(made / "outbox" / "redis.password")).get_credentials()[1]
    [exporter] = json.loads((made / REDIS_EXPORTER / "redis-exporter.json").read_text()).values()
    health = (made / REDIS / "operator.password").read_text()
    for name, password in (("outbox", outbox), ("exporter", exporter), ("operator", health)):
        [line] = [line for line in users.splitlines() if line.startswith(f"user {name} ")]
        assert line.endswith(f"#{sha256(password.encode()).hexdigest()}")
    assert "default reset off" in users


def test_a_client_is_given_a_key_that_the_gateway_takes(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--client", "shop"], made.parent / "authority", made) == 0
    told = capsys.readouterr().out
    key = told.splitlines()[0].removeprefix("key of shop, shown this once: ")
    keys = parse((made / "gateway" / API_KEYS).read_bytes())
    assert keys.client_of(key.encode()) == "shop"
    own = (made / OPERATOR / credentials.GATEWAY_KEY).read_bytes()
    assert keys.client_of(own) == OPERATOR
    assert told.count(key) == 1
    assert "gateway/api-keys written" in told


def test_a_key_is_changed_over_and_dropped(made: Path) -> None:
    authority = open_authority(made.parent / "authority")
    old, new = add_client(authority, "shop"), add_client(authority, "shop")
    with pytest.raises(CredentialsError, match="the gateway would refuse its keys"):
        add_client(authority, "shop")
    drop_client(authority, "shop")
    distribute(make(authority), made)
    keys = parse((made / "gateway" / API_KEYS).read_bytes())
    assert keys.client_of(old.encode()) is None
    assert keys.client_of(new.encode()) == "shop"
    with pytest.raises(CredentialsError, match="'mall' has no key"):
        drop_client(authority, "mall")


def test_a_certificate_is_renewed_for_its_holder_alone(made: Path) -> None:
    before = contents(made)
    assert main(["--renew", "ledger"], made.parent / "authority", made) == 0
    after = contents(made)
    assert {name for name in after if after[name] != before[name]} == {"ledger/ledger.pem"}


def test_the_authority_is_replaced_in_steps(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = made.parent / "authority"
    assert main(["--authority", "add"], authority, made) == 0
    trusted = (made / "ledger" / "authority.pem").read_text()
    assert trusted.count("BEGIN CERTIFICATE") == 2
    assert main(["--authority", "drop"], authority, made) == EXIT_CONFIG
    assert "renew them first" in capsys.readouterr().err
    assert main(["--renew", "all"], authority, made) == 0
    assert main(["--authority", "drop"], authority, made) == 0
    [issuer] = {certificate_of(made / name / f"{name}.pem").issuer for name in CERTIFIED}
    assert certificate_of(made / "ledger" / "authority.pem").subject == issuer


def test_a_name_that_cannot_be_one_is_refused(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--client", "a b"], made.parent / "authority", made) == EXIT_CONFIG
    assert "cannot be a client's name" in capsys.readouterr().err
