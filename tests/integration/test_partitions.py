"""Installations of 3 and 12 partitions on real brokers: services, commands, the view, refusals of another number."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.compose import topics
from deploy.local.ports import free_ports
from shared.events import catalogue
from shared.events.partitions import partition_for
from shared.kafka.client.reader import partition_count, stable_offsets
from shared.settings import EXIT_CONFIG
from tests.commands import once
from tests.harness import Service, cluster, services, wait_until
from tests.integration.test_reconcile import Operator
from tests.integration.test_verify import BANK_FILE
from tests.keys import AUTHORIZATION
from tests.payments import payments
from tests.proof import assert_exactly_once, send_raw, verdict
from tests.tiers import full, mostly_full

pytestmark = pytest.mark.timeout(600)


class Site:
    """The installation.

    Attributes:
        last: the last partition.
        gateway, view: their ports.
    """

    def __init__(self, brokers: str, directory: Path, partitions: int) -> None:
        self.brokers = brokers
        self.partitions = partitions
        self.last = partitions - 1
        self.gateway, self.view = free_ports(2)
        self.settings = {
            "GATEWAY_PORT": str(self.gateway),
            "VIEW_PORT": str(self.view),
            "VIEW_DATABASE": f"sqlite:///{directory / 'view.sqlite'}",
        }

    def once(self, *words: object) -> Any:
        """Run a command; the answer of `--json`."""
        done = once(*words, "--json", "--bootstrap-servers", self.brokers)
        assert done.exit_code == 0, (done.output, done.exception)
        return json.loads(done.stdout)

    def ask(self, port: int, path: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        """The status and the JSON of an answer."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # to this test's own port
            f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json", **AUTHORIZATION}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 # likewise
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as refused:
            return refused.code, json.loads(refused.read())

    def pay(self, payment_id: str, debtor: str, creditor: str) -> tuple[int, Any]:
        """Send a payment to the gateway."""
        line = {"schema_version": 2, "payment_id": payment_id, "debtor": debtor, "creditor": creditor}
        return self.ask(self.gateway, "/payments", line | {"amount_minor": 100, "currency": "CZK"})


@pytest.fixture(scope="module", params=mostly_full([3, 12], [3]))
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("partitions")
    with cluster(directory / "kafka", partitions=request.param) as kafka:
        yield Site(kafka.bootstrap_servers, directory, request.param)


@pytest.fixture(scope="module")
def worked(site: Site, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The verdict after payments by every way in; the view and the gateway are asked while they run."""
    names = ("ingest", "transform", "ledger", "balances", "gateway")
    directory = tmp_path_factory.mktemp("services")
    file = directory / "bank.csv"
    file.write_text(BANK_FILE)
    with services(site.brokers, directory, *names, PARTITIONS=str(site.partitions), **site.settings):
        site.once("fees", "set", "CZK", "--fixed-minor", "1")
        opened = site.once("accounts", "open", "anna", "--unlimited")
        assert opened["at"].startswith(f"{catalogue.LEDGER_TRANSFERS}:{partition_for('anna', site.partitions)}:")
        site.once("load", file)
        asyncio.run(send_raw(site.brokers, payments("many", 200, partitions=site.partitions), site.partitions))
        _pay_by_the_gateway(site)
        found = verdict(site.brokers)
        wait_until(
            lambda: site.ask(site.view, "/api/digest")[1]["digest"] == found["balances_digest"], "the view has it"
        )
        _ask_the_view(site)
    return found


def _pay_by_the_gateway(site: Site) -> None:
    status, accepted = site.pay("by-http", f"cash@{site.last}", "anna")
    assert (status, accepted["partition"]) == (202, site.last)
    path = f"/payments/by-http?partition={site.last}&offset={accepted['offset']}"
    wait_until(lambda: site.ask(site.gateway, path)[1].get("state") == "completed", "it is booked")
    status, refused = site.pay("elsewhere", f"cash@{site.partitions}", "anna")
    assert (status, refused["error"]) == (422, "account_invalid")
    assert f"@0 to @{site.last}" in refused["detail"]
    assert site.ask(site.gateway, f"/payments/by-http?partition={site.partitions}&offset=0")[0] == 400


def _ask_the_view(site: Site) -> None:
    status, account = site.ask(site.view, f"/api/accounts/cash@{site.last}")
    assert (status, account["partition"]) == (200, site.last)
    assert site.ask(site.view, f"/api/accounts/cash@{site.partitions}")[1]["error"] == "account_invalid"
    assert len(site.ask(site.view, "/api/freshness")[1]["as_of"]) == site.partitions
    assert site.ask(site.view, "/api/totals")[1]["conserved"] is True


def test_every_payment_is_booked_once_on_all_partitions(site: Site, worked: dict[str, Any]) -> None:
    assert_exactly_once(worked)
    assert (worked["accepted"], worked["dead_lettered"]) == (206, 1)
    assert asyncio.run(partition_count(site.brokers, [topic.name for topic in catalogue.TOPICS])) == site.partitions
    ends = asyncio.run(stable_offsets(site.brokers, [catalogue.LEDGER_POSTINGS]))
    assert len(ends) == site.partitions
    assert all(ends.values())


@pytest.mark.usefixtures("worked")
def test_commands_take_the_number_of_partitions_from_the_topics(site: Site) -> None:
    (way,) = site.once("trace", "by-http", "--debtor", f"cash@{site.last}")["ways"]
    assert way["origin"].startswith(f"{catalogue.PAYMENTS_RAW}:{site.last}:")
    (letter,) = site.once("dead-letters", "list")["dead_letters"]
    again = site.once("dead-letters", "resubmit", letter["origin"])
    assert again["resubmission_of"] == letter["origin"]
    beyond = once("dead-letters", "show", f"{site.partitions}:0", "--bootstrap-servers", site.brokers)
    assert beyond.exit_code == 3


@pytest.mark.parametrize("name", ["ingest", "balances", "gateway"])
@pytest.mark.parametrize("partitions", [None, "24"])
def test_a_service_with_another_number_of_partitions_refuses_to_start(
    site: Site, tmp_path: Path, name: str, partitions: str | None
) -> None:
    own = {} if partitions is None else {"PARTITIONS": partitions}
    service = Service(name, site.brokers, tmp_path, **site.settings, **own).start()
    assert service.wait_exit(60) == EXIT_CONFIG
    (reason,) = (str(line["reason"]) for line in service.log() if "ONCE_PARTITIONS" in str(line.get("reason")))
    assert f"ONCE_PARTITIONS is {partitions or 6}, and " in reason
    assert f"set ONCE_PARTITIONS to {site.partitions}, or use an empty cluster" in reason


def test_topics_of_another_number_of_partitions_are_refused_by_the_command_that_creates_them(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONCE_BOOTSTRAP_SERVERS", site.brokers)
    monkeypatch.setenv("ONCE_PARTITIONS", "7")
    assert topics.main() == EXIT_CONFIG
    assert f"set ONCE_PARTITIONS to {site.partitions}" in capsys.readouterr().err


@full
def test_the_reconciliation_agrees(site: Site, worked: dict[str, Any], tmp_path: Path) -> None:
    with Operator(site.brokers, tmp_path) as operator:
        report = operator.json("--full")
    assert (report["verdict"], report["breaks"]["total"]) == ("clean", 0)
    assert report["totals"]["digest"] == worked["balances_digest"]
