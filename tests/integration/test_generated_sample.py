"""The generated sample on real services and brokers, with kills, against the plain model."""

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from deploy.cli.fees import fees
from deploy.cli.rates import rates
from deploy.local.kafka.cluster import LocalKafka
from shared.eos import crash
from shared.eos.records import Record
from shared.events import catalogue
from shared.events.postings import ACCOUNT_PREFIX, Account, LedgerEvent, decode_account, decode_ledger_event
from shared.events.transfers import AccountClosed, AccountOpened, encode_transfer
from shared.kafka.admin.groups import wait_drained
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from tests import observed
from tests.generate import CURRENCIES, FEES, Phase, Sample, expected, generate
from tests.harness import Service, cluster, services
from tests.model import Books, Intake
from tests.partitions import partition_for
from tests.proof import assert_exactly_once, send_raw, verdict

pytestmark = [pytest.mark.timeout(480)]  # fixtures start a cluster and process the whole sample

SEED = 20_260_105
KILLED = {"spending": "ledger", "closing": "transform", "reopening": "ingest"}
DRAIN_S = 60.0


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A cluster for this module only: its fees and rates would apply to payments of other tests."""
    with cluster(tmp_path_factory.mktemp("own-kafka")) as running:
        yield running


@dataclass
class Run:
    """The model's expectations and the topics' content.

    Attributes:
        exits: the exit code of each killed service, by phase.
        accounts: the last state of each account in the changelog.
    """

    bootstrap_servers: str
    intake: Intake
    books: Books
    exits: dict[str, int] = field(default_factory=dict)
    events: list[LedgerEvent] = field(default_factory=list)
    accounts: dict[str, Account] = field(default_factory=dict)
    verdict: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def run(own_kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Process the whole sample phase by phase, then verify."""
    servers = own_kafka.bootstrap_servers
    sample = generate(SEED)
    set_reference(servers, sample)
    done = Run(servers, *expected(sample))
    directory = tmp_path_factory.mktemp("services")
    with services(servers, directory, "ingest", "transform", "ledger") as running:
        for phase in sample.phases:
            asyncio.run(write_terms(servers, phase))
            name = KILLED.get(phase.name)
            if name is None:
                asyncio.run(send_raw(servers, phase.lines))
            else:
                done.exits[phase.name] = send_and_kill(servers, phase, running[name], directory)
            asyncio.run(wait_drained(servers, deadline_s=DRAIN_S))
        done.verdict = verdict(servers)
    asyncio.run(read_ledger(done))
    return done


def set_reference(servers: str, sample: Sample) -> None:
    """Set fees and rates by the operator's commands."""
    at = ["--bootstrap-servers", servers]
    for currency, fee in sample.fees.items():
        bounds = [] if fee.max_minor is None else ["--max-minor", str(fee.max_minor)]
        charges = ["--fixed-minor", fee.fixed_minor, "--basis-points", fee.basis_points, "--min-minor", fee.min_minor]
        invoked = CliRunner().invoke(fees, ["set", currency, *map(str, charges), *bounds, *at])
        assert invoked.exit_code == 0, invoked.output
    for pair, rate in sample.rates.items():
        invoked = CliRunner().invoke(rates, ["set", *pair.split("/"), rate, *at])
        assert invoked.exit_code == 0, invoked.output


async def write_terms(servers: str, phase: Phase) -> None:
    """Open and close accounts, acknowledged before the phase's first payment."""
    async with IdempotentWriter(servers) as writer:
        for event in phase.terms:
            account = event.account
            await writer.write(
                catalogue.LEDGER_TRANSFERS, partition_for(account), account.encode(), encode_transfer(event)
            )


def send_and_kill(servers: str, phase: Phase, service: Service, directory: Path) -> int:
    """Send a phase's payments to a service that is killed in its third transaction, then start its successor."""
    service.process.terminate()
    doomed = Service(service.name, servers, directory, CRASH_POINT=f"{crash.AFTER_OFFSETS}=kill:1")
    try:
        doomed.start().wait_ready()
        asyncio.run(send_raw(servers, phase.lines))
        return doomed.wait_exit()
    finally:
        doomed.process.kill()
        service.start().wait_ready()


async def read_ledger(done: Run) -> None:
    """Read all of ledger.postings and ledger.balances."""

    def take(topic: str, _partition: int, records: list[Record]) -> None:
        for record in records:
            if topic == catalogue.LEDGER_POSTINGS:
                done.events.append(decode_ledger_event(record.value or b""))
            elif record.key is not None and record.key.startswith(ACCOUNT_PREFIX):
                done.accounts[record.key.removeprefix(ACCOUNT_PREFIX).decode()] = decode_account(record.value or b"")

    await read_topics(done.bootstrap_servers, [catalogue.LEDGER_POSTINGS, catalogue.LEDGER_BALANCES], take)


def test_a_service_was_killed_in_the_middle_of_each_phase(run: Run) -> None:
    assert run.exits == dict.fromkeys(KILLED, -signal.SIGKILL)


def test_each_payment_ends_as_the_model_says(run: Run) -> None:
    found = observed.outcomes(run.events)
    assert set(found) == set(run.intake.accepted)
    different = {identity: found[identity] for identity in found if found[identity] != run.books.outcomes[identity]}
    assert different == {}


def test_each_account_ends_as_the_model_says(run: Run) -> None:
    assert observed.balances(run.accounts.items()) == run.books.balances
    clients = {name: account for name, account in run.accounts.items() if "@" not in name}
    assert {name for name, account in clients.items() if account.closed} == run.books.closed
    for name, account in clients.items():
        assert account.overdraft_minor == run.books.limits_minor.get(name, 0), name


def test_house_accounts_sum_to_what_the_model_says(run: Run) -> None:
    found: dict[tuple[str, str], int] = {}
    for (account, currency), amount in observed.balances(run.accounts.items()).items():
        if "@" in account:
            name = account.rpartition("@")[0], currency
            found[name] = found.get(name, 0) + amount
    sums = run.books.sums()
    assert {key: amount for key, amount in found.items() if amount} == {key: n for key, n in sums.items() if n}
    assert all(sums["in-transit", currency] == 0 for currency in CURRENCIES)
    assert all(sums["fees", currency] > 0 for currency in FEES)
    assert any(amount for (name, _), amount in sums.items() if name == "suspense")


def test_terms_are_events_too(run: Run) -> None:
    terms = [event for event in run.events if isinstance(event, AccountOpened | AccountClosed)]
    assert sorted((msgspec.structs.replace(event, version=0) for event in terms), key=str) == sorted(
        (event for phase in generate(SEED).phases for event in phase.terms), key=str
    )
    versions: dict[str, list[int]] = {}
    for event in terms:
        versions.setdefault(event.account, []).append(event.version)
    assert all(found == list(range(1, len(found) + 1)) for found in versions.values())


def test_the_verdict_is_the_models(run: Run) -> None:
    assert_exactly_once(run.verdict)
    declines = sum(outcome.declined is not None for outcome in run.books.outcomes.values())
    assert declines > 0
    figures = ("accepted", "deduplicated", "dead_lettered", "declines", "postings", "drift_minor")
    assert {name: run.verdict[name] for name in figures} == {
        "accepted": len(run.intake.accepted),
        "deduplicated": run.intake.repeats,
        "dead_lettered": run.intake.conflicts,
        "declines": declines,
        "postings": run.books.legs,
        "drift_minor": 0,
    }
