"""`once effects` and `once subscriptions` against real brokers. The tests write the outbox's records."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from deploy.cli.effects import effects
from deploy.cli.subscriptions import subscriptions
from shared.eos.records import Record
from shared.events.catalogue import (
    EFFECTS_DEAD_LETTER,
    EFFECTS_REQUESTS,
    EFFECTS_RESULTS,
    REFERENCE_SUBSCRIPTIONS,
)
from shared.events.effects import (
    Resolution,
    Subscription,
    Subscriptions,
    decode_request,
    decode_subscriptions,
)
from shared.events.headers import ORIGIN, SOURCE, Coordinates, header
from shared.kafka.client.errors import KafkaUnavailableError
from shared.kafka.client.reader import read_topics
from tests.effects_written import (
    ASKED,
    BARE,
    DOUBTFUL,
    FAILED,
    HELD,
    ORIGIN_AT,
    PARTITION,
    RESENT,
    SENT,
    WAITING,
    request,
    write_everything,
)
from tests.harness import cluster
from tests.partitions import partition_for
from tests.tiers import mostly_full

UNREACHABLE = "127.0.0.1:1"
UNKNOWN = "f" * 32


class Operator:
    """Runs commands against a cluster."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers

    def run(self, group: click.Group, *words: str, code: int = 0) -> Result:
        given = CliRunner().invoke(group, [*words, "--bootstrap-servers", self.brokers])
        assert given.exit_code == code, (given.output, given.exception)
        return given

    def json(self, group: click.Group, *words: str) -> Any:
        return json.loads(self.run(group, *words, "--json").stdout)

    def last(self, topic: str, at: str) -> Record:
        """Read the record at these coordinates; it must be the last of its partition."""
        found: list[Record] = []
        partition = Coordinates.decode(at.encode()).partition
        asyncio.run(
            read_topics(
                self.brokers,
                [topic],
                lambda _, number, records: found.extend(records) if number == partition else None,
            )
        )
        assert str(Coordinates(topic, partition, found[-1].offset)) == at
        return found[-1]


@pytest.fixture(scope="module")
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A cluster for this module only: its effects must not reach tests that verify."""
    with cluster(tmp_path_factory.mktemp("own-kafka")) as kafka:
        asyncio.run(write_everything(kafka.bootstrap_servers))
        yield Operator(kafka.bootstrap_servers)


def ids(listed: dict[str, Any]) -> list[str]:
    return [effect["effect_id"] for effect in listed["effects"]]


def test_effects_that_need_a_decision_are_listed(operator: Operator) -> None:
    listed = operator.json(effects, "list")
    assert ids(listed) == [BARE, FAILED, DOUBTFUL]
    assert (listed["in_doubt"], listed["failed"], listed["waiting"]) == (1, 2, 2)
    assert listed["effects"][1] == {
        "effect_id": FAILED,
        "state": "failed",
        "time": "2026-01-05T08:01:00.000+00:00",
        "attempts": 2,
        "kind": "receipt",
        "account": "anna",
        "destination": "mailto:anna@example.org",
        "reason": "refused",
        "detail": "said so",
    }
    shown = operator.run(effects, "list")
    assert FAILED in shown.stdout
    assert "rent" not in shown.stdout
    assert "1 in doubt, 2 failed, 2 waiting" in shown.stderr


@pytest.mark.parametrize(
    ("state", "expected"),
    [("sent", [HELD, SENT]), ("failed", [BARE, FAILED]), ("in_doubt", [DOUBTFUL]), ("waiting", [WAITING, RESENT])],
)
def test_effects_of_one_state_are_listed(operator: Operator, state: str, expected: list[str]) -> None:
    listed = operator.json(effects, "list", "--state", state)
    assert sorted(ids(listed)) == sorted(expected)
    assert {effect["state"] for effect in listed["effects"]} == {state}
    youngest = operator.json(effects, "list", "--state", state, "--limit", "1")
    assert len(youngest["effects"]) == 1
    assert state == "waiting" or ids(youngest) == expected[-1:]


@pytest.mark.parametrize(
    ("effect_id", "expected"),
    [
        (SENT, {"state": "sent", "revision": 2, "dead_letter": None}),
        (DOUBTFUL, {"state": "in_doubt", "revision": 4}),
        (FAILED, {"state": "failed", "reason": "refused", "dead_letter": f"{EFFECTS_DEAD_LETTER}:{PARTITION}:0"}),
        (WAITING, {"state": "waiting", "attempts": 3, "detail": "no answer", "decided_at": None}),
        (RESENT, {"state": "waiting", "revision": 1, "next_try": "2026-01-05T08:00:00.000+00:00"}),
        (ASKED, {"state": "requested", "asked_at": f"{EFFECTS_REQUESTS}:{PARTITION}:5", "decided_at": None}),
    ],
)
def test_an_effect_is_shown_with_its_request(operator: Operator, effect_id: str, expected: dict[str, object]) -> None:
    shown = operator.json(effects, "show", effect_id)
    assert {name: shown[name] for name in expected} == expected
    assert (shown["request"]["reference"], shown["request"]["amount_minor"]) == ("rent [may]", -500)
    assert "rent [may]" in operator.run(effects, "show", effect_id).stdout


def test_an_effect_is_shown_with_its_last_calls(operator: Operator) -> None:
    call = {"at": "2026-01-05T08:00:00.000+00:00", "took_ms": 12, "answer": "unknown: no answer"}
    assert operator.json(effects, "show", WAITING)["tried"] == [call]
    assert operator.json(effects, "show", DOUBTFUL)["tried"] == []
    shown = operator.run(effects, "show", WAITING).stdout.splitlines()
    assert shown[-1].split(maxsplit=2) == [call["at"], "12", call["answer"]]


def test_an_expired_request_is_reported(operator: Operator) -> None:
    assert operator.json(effects, "show", HELD)["request"] is None
    assert "no longer kept" in operator.run(effects, "show", HELD).stderr


@pytest.mark.parametrize("words", [("show",), ("resolve", "--confirm")])
def test_an_unknown_effect_is_not_found(operator: Operator, words: tuple[str, ...]) -> None:
    assert "once effects list" in operator.run(effects, words[0], UNKNOWN, *words[1:], code=3).stderr


@pytest.mark.parametrize(
    ("effect_id", "action", "revision"), [(DOUBTFUL, "confirm", 4), (DOUBTFUL, "resend", 4), (FAILED, "abandon", 1)]
)
def test_a_decision_is_written_to_the_partition_of_its_result(
    operator: Operator, effect_id: str, action: str, revision: int
) -> None:
    answer = operator.json(effects, "resolve", effect_id, f"--{action}")
    assert (answer["effect_id"], answer["action"], answer["revision"]) == (effect_id, action, revision)
    record = operator.last(EFFECTS_REQUESTS, answer["at"])
    assert (record.partition, record.key) == (PARTITION, b"anna")
    assert decode_request(record.value or b"") == Resolution(
        effect_id, revision, action, request(effect_id), revision - 1, effect_id == DOUBTFUL
    )
    assert header(record.headers, ORIGIN) == ORIGIN_AT
    assert str(header(record.headers, SOURCE)).startswith(f"b'{EFFECTS_RESULTS}:{PARTITION}:")
    assert operator.json(effects, "show", effect_id)["asked_at"].endswith(f":{int(effect_id, 16)}")


@pytest.mark.parametrize(
    ("effect_id", "what_to_do"),
    [
        (SENT, "nothing to resolve"),
        (WAITING, "--state waiting"),
        (RESENT, "--state waiting"),
        (ASKED, "once status"),
        (BARE, "no outbox wrote it"),
    ],
)
def test_an_effect_that_cannot_be_decided_is_refused(operator: Operator, effect_id: str, what_to_do: str) -> None:
    assert what_to_do in operator.run(effects, "resolve", effect_id, "--resend", code=1).stderr


def test_subscriptions_are_set_replaced_listed_and_cleared(operator: Operator) -> None:
    operator.run(subscriptions, "set", "anna", "--notice", "file:old")
    uris = ("--receipt", "file:receipts", "--receipt", "mailto:a@example.org", "--event", "https://example.org/hook")
    answer = operator.json(subscriptions, "set", "anna", *uris, "--receipt", "file:receipts", "--ordered")
    record = operator.last(REFERENCE_SUBSCRIPTIONS, answer["at"])
    assert (record.partition, record.key) == (partition_for("anna"), b"anna")
    assert decode_subscriptions(record.value or b"") == Subscriptions(
        (
            Subscription("receipt", "file:receipts", True),
            Subscription("receipt", "mailto:a@example.org", True),
            Subscription("event", "https://example.org/hook", True),
        )
    )
    every = operator.json(subscriptions, "set", "*", "--decline-notice", "http://127.0.0.1:1/x")
    assert operator.last(REFERENCE_SUBSCRIPTIONS, every["at"]).partition == 0
    listed = operator.json(subscriptions, "list")
    assert [(row["account"], row["kind"]) for row in listed] == [
        ("*", "decline_notice"),
        ("anna", "receipt"),
        ("anna", "receipt"),
        ("anna", "event"),
    ]
    assert listed[0] == {
        "account": "*",
        "kind": "decline_notice",
        "destination": "http://127.0.0.1:1/x",
        "ordered": False,
    }
    assert "mailto:a@example.org" in operator.run(subscriptions, "list").stdout
    for account in ("anna", "*"):
        operator.run(subscriptions, "clear", account)
    assert operator.json(subscriptions, "list") == []


@pytest.mark.parametrize(
    ("group", "words"),
    [
        (effects, ("show", "f" * 31)),
        (effects, ("show", "F" * 32)),
        (effects, ("resolve", UNKNOWN)),
        (effects, ("list", "--state", "lost")),
        (effects, ("list", "--limit", "0")),
        (subscriptions, ("set", "anna")),
        (subscriptions, ("set", "anna", "--ordered")),
        (subscriptions, ("set", "cash@0", "--receipt", "file:x")),
        (subscriptions, ("set", "no spaces", "--receipt", "file:x")),
        (subscriptions, ("set", "anna", "--receipt", "file:../x")),
        (subscriptions, ("set", "anna", "--event", "https://user:secret@example.org/")),
        (subscriptions, ("set", "anna", "--event", "https://example.org:99999/")),
        (subscriptions, ("set", "anna", "--receipt", "mailto:anna@exa_mple.örg")),
        (subscriptions, ("clear", "fees@1")),
    ],
)
def test_wrong_usage_is_refused_before_the_cluster_is_asked(group: click.Group, words: tuple[str, ...]) -> None:
    Operator(UNREACHABLE).run(group, *words, code=2)


@pytest.mark.parametrize(
    ("group", "words"),
    mostly_full(
        [FIRST := (effects, ("list",)), (effects, ("show", UNKNOWN)), (subscriptions, ("clear", "anna"))], [FIRST]
    ),
)
def test_an_unreachable_cluster_raises(group: click.Group, words: tuple[str, ...]) -> None:
    given = CliRunner().invoke(group, [*words, "--bootstrap-servers", UNREACHABLE])
    assert isinstance(given.exception, KafkaUnavailableError)


@pytest.mark.parametrize(
    ("words", "secret"),
    [
        # HMAC-SHA256 over b"https://example.org:443/hook" under the key, by openssl
        ((), "whsec_gP6pYLDfKSkv2wZ550iwxc1y8SEiX2aXWG3KCiH8ufw="),
        (("--format", "once"), "80fea960b0df29292fdb0679e748b0c5cd72f121225f6697586dca0a21fcb9fc"),
    ],
)
def test_a_webhooks_secret_is_printed(tmp_path: Path, words: tuple[str, ...], secret: str) -> None:
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    uri = "https://example.org/hook"
    given = CliRunner().invoke(subscriptions, ["secret", uri, "--key-file", str(key), *words])
    assert (given.exit_code, given.stdout) == (0, f"{secret}\n")


@pytest.mark.parametrize(
    ("uri", "key", "code"),
    [("mailto:a@example.org", bytes(32), 2), ("https:///x", bytes(32), 2), ("https://example.org/", b"short", 1)],
)
def test_no_secret_without_a_webhook_and_a_key(tmp_path: Path, uri: str, key: bytes, code: int) -> None:
    file = tmp_path / "key"
    file.write_bytes(key)
    given = CliRunner().invoke(subscriptions, ["secret", uri, "--key-file", str(file)])
    assert (given.exit_code, given.stdout) == (code, "")
    assert "short" not in given.stderr
