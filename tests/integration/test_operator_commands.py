"""The operator's commands against real brokers, with real services where the commands affect them."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from deploy.cli.accounts import accounts
from deploy.cli.dead_letters import dead_letters
from deploy.cli.fees import fees
from deploy.cli.rates import rates
from deploy.cli.topics import topics
from deploy.local.kafka.cluster import LocalKafka
from shared.eos.records import Record
from shared.events.catalogue import LEDGER_POSTINGS, LEDGER_TRANSFERS, PAYMENTS_DEAD_LETTER, PAYMENTS_RAW
from shared.events.clients import BY_OPERATOR
from shared.events.headers import ORIGIN, RESUBMISSION_OF, SUBMITTED_BY, Coordinates, Headers, header
from shared.events.partitions import PARTITIONS_MAX
from shared.events.payments import MAX_AMOUNT_MINOR
from shared.events.postings import Posting, decode_ledger_event
from shared.events.transfers import AccountClosed, AccountOpened, decode_transfer
from shared.events.validation import key_of
from shared.kafka.admin.configs import TOPIC, alter_configs
from shared.kafka.client.cluster import Cluster
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.idempotent import IdempotentWriter
from shared.kafka.client.reader import read_topics
from shared.kafka.lineage.outcome import FINAL, Outcome, State, outcome
from tests.harness import services, wait_until
from tests.partitions import PARTITIONS, partition_for
from tests.tiers import mostly_full

UNREACHABLE = "127.0.0.1:1"


class Operator:
    """Runs commands against a cluster."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers

    def run(self, group: click.Group, *words: str, code: int = 0) -> Result:
        result = CliRunner().invoke(group, [*words, "--bootstrap-servers", self.brokers])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    def json(self, group: click.Group, *words: str) -> Any:
        return json.loads(self.run(group, *words, "--json").stdout)

    def record(self, at: str) -> Record:
        """Read the record at these coordinates."""
        topic, partition, offset = Coordinates.decode(at.encode())
        found: list[Record] = []
        start = {(topic, partition): offset}
        asyncio.run(
            read_topics(
                self.brokers,
                [topic],
                lambda _, number, records: found.extend(records) if number == partition else None,
                start=start,
            )
        )
        assert found[0].offset == offset
        return found[0]

    def pay(self, value: bytes, headers: Headers = BY_OPERATOR) -> tuple[int, int]:
        """Write a payment to payments.raw; return its partition and offset."""

        async def send() -> tuple[int, int]:
            key, partition = key_of(value, PARTITIONS)
            async with IdempotentWriter(self.brokers) as writer:
                return (await writer.send(PAYMENTS_RAW, partition, key, value, headers))[1:3]

        return asyncio.run(send())

    def outcome(self, at: tuple[int, int]) -> Outcome:
        """Wait for the payment's final outcome."""
        seen: list[Outcome] = []

        def is_final() -> bool:
            seen.append(asyncio.run(outcome(self.brokers, *at, deadline_s=10)))
            return seen[-1].state in FINAL

        wait_until(is_final, f"{at} in a final state")
        return seen[-1]

    def fate(self, at: tuple[int, int]) -> tuple[State, str | None]:
        """Wait for the payment's final state; returns it with its reason."""
        found = self.outcome(at)
        return found.state, found.reason

    def debit(self, origin: tuple[int, int]) -> Posting:
        """Read the payment's debit posting."""
        wanted = Coordinates(PAYMENTS_RAW, *origin).encode()
        found: list[Posting] = []

        def take(_topic: str, _partition: int, records: list[Record]) -> None:
            for record in records:
                if header(record.headers, ORIGIN) == wanted:
                    event = decode_ledger_event(record.value or b"")
                    if isinstance(event, Posting) and event.leg == "debit":
                        found.append(event)

        asyncio.run(read_topics(self.brokers, [LEDGER_POSTINGS], take))
        (posting,) = found
        return posting


@pytest.fixture
def operator(kafka: LocalKafka) -> Operator:
    return Operator(kafka.bootstrap_servers)


@pytest.fixture
def pipeline(kafka: LocalKafka, tmp_path: Path) -> Iterator[None]:
    with services(kafka.bootstrap_servers, tmp_path, "ingest", "transform", "ledger"):
        yield


def payment(payment_id: str, debtor: str, creditor: str, amount_minor: int, currency: str, **more: object) -> bytes:
    fields = {
        "schema_version": 2,
        "payment_id": payment_id,
        "debtor": debtor,
        "creditor": creditor,
        "amount_minor": amount_minor,
        "currency": currency,
    }
    return json.dumps(fields | more).encode()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("open", "op-1"), AccountOpened("op-1", 0)),
        (("open", "op-1", "--overdraft-minor", "500"), AccountOpened("op-1", 500)),
        (("open", "op-1", "--unlimited"), AccountOpened("op-1", None)),
        (("open", "op-1", "--owner", "alpha"), AccountOpened("op-1", 0, "alpha")),
        (("open", "op-1", "--expected-version", "3"), AccountOpened("op-1", 0, expected_version=3)),
        (("close", "op-1"), AccountClosed("op-1")),
    ],
)
def test_account_events_go_to_the_accounts_partition(
    operator: Operator, words: tuple[str, ...], expected: AccountOpened | AccountClosed
) -> None:
    answer = operator.json(accounts, *words)
    record = operator.record(answer["at"])
    assert (record.topic, record.partition) == (LEDGER_TRANSFERS, partition_for("op-1"))
    assert (record.key, decode_transfer(record.value or b"")) == (b"op-1", expected)
    assert answer["type"] == ("account_closed" if words[0] == "close" else "account_opened")


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (accounts, ("open", "cash@0")),
        (accounts, ("close", "in-transit@9")),
        (accounts, ("open", "no spaces")),
        (accounts, ("open", "")),
        (accounts, ("open", "op-1", "--unlimited", "--overdraft-minor", "1")),
        (accounts, ("open", "op-1", "--overdraft-minor", "-1")),
        (accounts, ("open", "op-1", "--owner", "al:pha")),
        (accounts, ("open", "op-1", "--overdraft-minor", str(MAX_AMOUNT_MINOR + 1))),
        (accounts, ("open", "op-1", "--expected-version", "-1")),
        (accounts, ("open", "op-1", "--expected-version", str(MAX_AMOUNT_MINOR + 1))),
        (fees, ("set", "XXQ", "--fixed-minor", "1")),
        (fees, ("set", "ISK")),
        (fees, ("set", "ISK", "--max-minor", "10")),
        (fees, ("set", "ISK", "--basis-points", "10001")),
        (fees, ("set", "ISK", "--min-minor", "9", "--max-minor", "8")),
        (fees, ("clear", "isk")),
        (rates, ("set", "EUR", "EUR", "1")),
        (rates, ("set", "EUR", "ISK", "0.000")),
        (rates, ("set", "EUR", "ISK", "1,5")),
        (rates, ("set", "EUR", "ISK", "1e3")),
        (rates, ("set", "EUR", "ISK", "1\n")),
        (dead_letters, ("show", "payments.accepted:1:1")),
        (dead_letters, ("show", f"{PARTITIONS_MAX}:1")),
        (dead_letters, ("resubmit", "one:two")),
        (dead_letters, ("list", "--reason", "bad")),
        (topics, ("create",)),
        (topics, ("create", PAYMENTS_RAW)),
        (topics, ("create", "own", "--changelog", PAYMENTS_RAW)),
    ],
)
def test_wrong_usage_is_refused_before_the_cluster_is_asked(group: click.Group, words: tuple[str, ...]) -> None:
    Operator(UNREACHABLE).run(group, *words, code=2)


@pytest.mark.parametrize(
    ("group", "words"),
    mostly_full([FIRST := (accounts, ("close", "op-1")), (fees, ("list",)), (dead_letters, ("list",))], [FIRST]),
)
def test_an_unreachable_cluster_raises(group: click.Group, words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(group, [*words, "--bootstrap-servers", UNREACHABLE])
    assert isinstance(result.exception, KafkaUnavailableError)
    assert "once up" in str(result.exception)


def test_topics_of_ones_own_are_created_and_read(operator: Operator) -> None:
    names = ("own.alerts", "--changelog", "own.state")
    assert operator.json(topics, "create", *names) == {"created": ["own.alerts", "own.state"], "partitions": PARTITIONS}
    assert operator.run(topics, "create", *names).stdout == "own.alerts: exists\nown.state: exists\n"
    assert operator.run(topics, "read", "own.alerts").stdout == ""

    async def send() -> None:
        async with IdempotentWriter(operator.brokers) as writer:
            for value in (b'{"n": 1}', b"\xff\x1b[2J", None):
                await writer.write("own.alerts", 2, b"key", value)

    asyncio.run(send())
    text = operator.run(topics, "read", "own.alerts").stdout
    assert "\x1b" not in text
    read = [json.loads(line) for line in text.splitlines()]
    assert [record["value"] for record in read] == [{"n": 1}, "\\xff\x1b[2J", None]
    assert [(record["partition"], record["offset"], record["key"]) for record in read] == [
        (2, n, "key") for n in range(3)
    ]


def test_topics_are_brought_up_to_date(operator: Operator) -> None:
    async def compress(value: str) -> None:
        async with Cluster(operator.brokers) as cluster:
            await alter_configs(cluster, TOPIC, {PAYMENTS_RAW: {"compression.type": value}})

    def found() -> list[dict[str, str]]:
        rows: list[dict[str, str]] = operator.json(topics, "configure", "--dry-run")["settings"]
        return rows

    asyncio.run(compress("lz4"))
    row = {"topic": PAYMENTS_RAW, "setting": "compression.type", "found": "lz4", "wanted": "uncompressed"}
    wait_until(lambda: found() == [row], "the difference is shown")
    assert operator.json(topics, "configure") == {"changed": True, "settings": [row]}
    wait_until(lambda: not found(), "nothing differs")
    assert "every topic has the settings of this version" in operator.run(topics, "configure").stderr


def test_fees_are_set_listed_and_cleared(operator: Operator) -> None:
    operator.run(fees, "set", "ISK", "--fixed-minor", "5")
    set_again = operator.json(fees, "set", "ISK", "--basis-points", "25", "--min-minor", "2", "--max-minor", "90")
    operator.run(fees, "set", "CLP", "--fixed-minor", "1")
    isk = {"currency": "ISK", "fixed_minor": 0, "basis_points": 25, "min_minor": 2, "max_minor": 90}
    listed = {fee["currency"]: fee for fee in operator.json(fees, "list")}
    assert (listed["ISK"], listed["CLP"]["max_minor"]) == (isk, None)
    assert set_again["key"] == "ISK"
    assert "ISK" in operator.run(fees, "list").stdout
    operator.run(fees, "clear", "ISK")
    operator.run(fees, "clear", "CLP")
    assert not {"ISK", "CLP"} & {fee["currency"] for fee in operator.json(fees, "list")}


def test_rates_are_set_listed_and_cleared(operator: Operator) -> None:
    operator.run(rates, "set", "ISK", "CLP", "6.5")
    operator.run(rates, "set", "ISK", "CLP", "6.75")
    assert {"pair": "ISK/CLP", "rate": "6.75"} in operator.json(rates, "list")
    assert "CLP/ISK" not in {rate["pair"] for rate in operator.json(rates, "list")}
    operator.run(rates, "clear", "ISK", "CLP")
    assert "ISK/CLP" not in {rate["pair"] for rate in operator.json(rates, "list")}


@pytest.fixture
def priced(operator: Operator) -> Iterator[None]:
    """Reference data written before transform starts: it loads all of it, then follows changes."""
    operator.run(fees, "set", "ISK", "--fixed-minor", "7", "--basis-points", "100")
    operator.run(rates, "set", "ISK", "CLP", "6.5")
    yield
    operator.run(fees, "clear", "ISK")
    operator.run(rates, "clear", "ISK", "CLP")


def test_terms_fees_and_rates_apply(operator: Operator, priced: None, pipeline: None) -> None:
    operator.run(accounts, "open", "op-payer", "--overdraft-minor", "1000")
    # The account's events precede the payment's debit leg on the same partition
    paid = operator.pay(payment("op-1", "op-payer", "op-payee", 800, "ISK", credit_currency="CLP"))
    assert operator.outcome(paid).state is State.COMPLETED
    posting = operator.debit(paid)
    assert (posting.fee_minor, posting.rate) == (15, "6.5")
    above = operator.pay(payment("op-2", "op-payer", "op-payee", 200, "ISK"))
    assert operator.fate(above) == (State.DECLINED, "insufficient_funds")
    operator.run(accounts, "close", "op-payer")
    closed = operator.pay(payment("op-3", "op-payer", "op-payee", 1, "ISK"))
    assert operator.fate(closed) == (State.DECLINED, "debtor_closed")


def test_an_account_keeps_its_owner_until_it_gets_another(operator: Operator, pipeline: None) -> None:
    opened = operator.json(accounts, "open", "op-owned", "--owner", "alpha", "--unlimited")
    assert opened["owner"] == "alpha"
    by_operator = operator.pay(payment("op-4", "op-owned", "op-payee", 1, "ISK"))
    assert operator.fate(by_operator) == (State.DECLINED, "not_authorised")
    # The decline follows the opening on the same partition, so ledger.accounts has the account
    assert operator.json(accounts, "open", "op-owned", "--unlimited", "--expected-version", "0")["owner"] == "alpha"
    assert operator.json(accounts, "open", "op-owned", "--unlimited", "--owner", "operator")["owner"] == "operator"
    paid = operator.pay(payment("op-5", "op-owned", "op-payee", 1, "ISK"))
    assert operator.outcome(paid).state is State.COMPLETED


def test_a_dead_letter_is_listed_shown_corrected_and_accepted(
    operator: Operator, pipeline: None, tmp_path: Path
) -> None:
    bad = payment("op-dead", "cash@2", "op-payee", 0, "CZK")
    at = operator.pay(bad)
    assert operator.fate(at) == (State.DEAD_LETTERED, "amount_not_positive")
    origin = f"{PAYMENTS_RAW}:{at[0]}:{at[1]}"

    listed = operator.json(dead_letters, "list", "--reason", "amount_not_positive")
    assert listed["total"] == listed["by_reason"]["amount_not_positive"] >= 1
    (letter,) = [letter for letter in listed["dead_letters"] if letter["origin"] == origin]
    assert (letter["service"], letter["key"], letter["value_bytes"]) == ("ingest", "cash@2", len(bad))
    assert letter["at"].startswith(f"{PAYMENTS_DEAD_LETTER}:{at[0]}:")
    assert origin in operator.run(dead_letters, "list").stdout
    assert len(operator.json(dead_letters, "list", "--limit", "1")["dead_letters"]) == 1

    assert operator.run(dead_letters, "show", origin, "--value").stdout_bytes == bad
    assert operator.json(dead_letters, "show", f"{at[0]}:{at[1]}")["value"] == bad.decode()

    unchanged = operator.run(dead_letters, "resubmit", origin)
    assert "refused again for amount_not_positive" in unchanged.stderr
    corrected = tmp_path / "value.json"
    corrected.write_bytes(payment("op-dead", "cash@2", "op-payee", 3, "CZK"))
    answer = operator.json(dead_letters, "resubmit", origin, "--value-file", str(corrected))
    assert (answer["resubmission_of"], answer["warning"]) == (origin, None)
    record = operator.record(answer["at"])
    assert (record.value, record.key) == (corrected.read_bytes(), b"cash@2")
    assert header(record.headers, RESUBMISSION_OF) == origin.encode()
    assert header(record.headers, SUBMITTED_BY) == header(BY_OPERATOR, SUBMITTED_BY)
    assert operator.outcome((record.partition, record.offset)).state is State.COMPLETED


def test_a_binary_value_is_shown_and_resubmitted_unchanged(operator: Operator, pipeline: None) -> None:
    bad = b"\xff\xfe op"
    at = operator.pay(bad, ((SUBMITTED_BY, b"alpha:0123456789abcdef"),))
    assert operator.outcome(at).reason == "not_utf8"
    origin = f"{at[0]}:{at[1]}"
    assert operator.json(dead_letters, "show", origin)["value_base64"] == "//4gb3A="
    assert operator.run(dead_letters, "show", origin, "--value").stdout_bytes == bad
    answer = operator.json(dead_letters, "resubmit", origin)
    record = operator.record(answer["at"])
    assert record[4:6] == (None, bad)
    assert header(record.headers, SUBMITTED_BY) == b"alpha:0123456789abcdef"


def test_an_unknown_dead_letter_is_not_found(operator: Operator, tmp_path: Path) -> None:
    assert "no dead letter" in operator.run(dead_letters, "show", "0:999999999", code=3).stderr
    operator.run(dead_letters, "resubmit", "0:999999999", code=3)
