"""Faults that are broken off or show nothing, and what they leave behind, without brokers."""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, Self

import pytest

from deploy.drills import workload
from deploy.drills.alerts import outbox
from deploy.drills.alerts.alert import SiteFault
from deploy.drills.alerts.outbox import DeadMailServer, DisabledEndpoint, LostAnswer, UnreachableWebhook
from deploy.drills.drill import COMPOSE, Drill, Verdict
from deploy.drills.faults import configs
from deploy.drills.faults.configs import TopicConfig
from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.inside import ComposeTarget, Link
from deploy.drills.run import run_on
from deploy.drills.sinks.receiver import Counts
from deploy.drills.stage import Stage
from deploy.drills.target import NoSuchRoleError, Target
from deploy.drills.workload import RECEIPTS, subscribed
from deploy.local.supervisor.stack import StackNotReadyError
from shared.events.effects import EVERY_ACCOUNT, Subscription, Subscriptions
from shared.kafka.client.access import Access
from shared.kafka.client.errors import DeniedError, KafkaUnavailableError
from shared.kafka.client.requests import Request

TOPIC, DEFAULT, SET, DELETE = 1, 5, 0, 1
"""Of Kafka's sources of a setting, and its operations."""


class Brokers:
    """A cluster with one topic, and the setting of each of its two brokers."""

    some_broker = 0
    brokers = (0, 1)

    def __init__(self, source: int) -> None:
        self.access = self
        self.source = source
        self.values = ["1000", "1000"]
        self.asked: list[tuple[int, str | None]] = []
        self.is_slow = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def retry(self, attempt: Any, _: str) -> Any:
        return await attempt()

    async def send(self, node_id: int, _: Request) -> dict[str, Any]:
        found = {"Value": self.values[node_id], "ConfigSource": self.source}
        return {"Results": [{"ErrorCode": 0, "Configs": [found]}]}

    async def send_to_any(self, request: Request) -> dict[str, Any]:
        [config] = request.values["Resources"][0]["Configs"]
        self.asked.append((config["ConfigOperation"], config["Value"]))
        value = "1000" if config["ConfigOperation"] == DELETE else config["Value"]
        self.values = [value, self.values[1]] if self.is_slow else [value, value]
        return {"Responses": [{"ErrorCode": 0, "ErrorMessage": "", "ResourceName": "topic"}]}


def stage_on(target: object, directory: Path) -> Stage:
    target_: Target = target  # type: ignore[assignment] # all that is asked of it
    return Stage(target_, directory, "planted", 1, AsyncExitStack(), lambda _: None)


@pytest.mark.parametrize(("source", "healed"), [(TOPIC, (SET, "1000")), (DEFAULT, (DELETE, None))])
@pytest.mark.parametrize("is_slow", [False, True])
async def test_a_setting_is_as_it_was_also_where_a_broker_never_had_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: int, healed: tuple[int, str | None], *, is_slow: bool
) -> None:
    brokers = Brokers(source)
    brokers.is_slow = is_slow
    monkeypatch.setattr(configs, "Cluster", lambda _: brokers)

    async def eventually(reached: Any, what: str) -> None:
        if not await reached():
            raise TimeoutError(what)

    monkeypatch.setattr(configs, "eventually", eventually)
    stage = stage_on(brokers, tmp_path)
    try:
        async with stage.fault(TopicConfig("topic", "max.message.bytes", "600")):
            brokers.source = TOPIC
            assert brokers.values == ["600", "600"]
    except TimeoutError:
        assert is_slow
    assert brokers.asked == [(SET, "600"), healed]
    assert brokers.values == ["1000", "1000"]


class Rule:
    """A fault whose evidence comes later, if at all."""

    name = "answer lost"

    async def inject(self, _: Target) -> str:
        return ""

    async def heal(self, _: Target) -> None:
        pass


async def test_a_rule_that_never_acts_is_no_evidence(tmp_path: Path) -> None:
    stage = stage_on(None, tmp_path)
    stage.target = stage  # type: ignore[assignment] # nothing is asked of it
    with pytest.raises(NoEvidenceError, match="answer lost"):
        async with stage.fault(Rule()):
            stage.evidence("another fault", "it acted")
    assert [one.fault for one in stage.journal.faults] == ["another fault"]
    async with stage.fault(Rule()) as rule:
        stage.evidence(rule.name, "1 of 1 requests")
    [other, lost] = stage.journal.faults
    assert (other.healed_s, lost.what) == (None, "1 of 1 requests")
    assert lost.healed_s is not None


@pytest.mark.parametrize("own", [None, Subscriptions((Subscription("event", "file:own"),))])
@pytest.mark.parametrize("is_taken", [False, True])
async def test_the_subscription_of_every_account_is_as_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: Subscriptions | None, *, is_taken: bool
) -> None:
    """Also where the answer to the first write is lost."""
    written: list[Subscriptions | None] = []

    async def read(*_: object) -> dict[str, Subscriptions]:
        return {} if own is None else {EVERY_ACCOUNT: own}

    @asynccontextmanager
    async def writing(_: object) -> AsyncIterator[None]:
        yield

    async def subscribe(_: object, subscriptions: Subscriptions | None) -> None:
        written.append(subscriptions)
        if len(written) == 1 and not is_taken:
            raise TimeoutError

    monkeypatch.setattr(workload, "read_table", read)
    monkeypatch.setattr(workload, "IdempotentWriter", writing)
    monkeypatch.setattr(workload, "subscribe", subscribe)
    stage = stage_on(Ledger(), tmp_path)
    try:
        async with subscribed(stage):
            assert written == [RECEIPTS]
    except TimeoutError:
        assert not is_taken
    assert written == [RECEIPTS, own]


class Ledger:
    """A target with a ledger."""

    access = None

    def kill(self, _: str) -> str:
        return "killed"

    async def ready(self, _: str) -> None:
        pass


async def test_one_container_that_cannot_be_started_leaves_no_other_one_down(tmp_path: Path) -> None:
    started: list[str] = []

    class OnCompose(ComposeTarget):
        def bring_back(self, name: str) -> None:
            started.append(name)
            if name != "redis":
                raise StackNotReadyError(f"{name} has no container")

    target = OnCompose(Link(BytesIO(), BytesIO()), Access("127.0.0.1:1", None), tmp_path)
    target.taken = {"redis", "ledger", "outbox"}
    with pytest.raises(StackNotReadyError, match="ledger has no container"):
        await target.heal()
    assert started == ["ledger", "outbox", "redis"]


@pytest.mark.parametrize(
    "error", [KafkaUnavailableError("no broker answers"), DeniedError("denied"), NoSuchRoleError("no broker answers")]
)
async def test_a_target_that_cannot_be_healed_does_not_end_the_run(tmp_path: Path, error: Exception) -> None:
    class Ill(ComposeTarget):
        async def heal(self) -> None:
            raise error

    async def steps(stage: Stage) -> None:
        stage.expect("copies", 1, 1)

    drill = Drill(row="A1", name="shown", claim="It is shown.", steps=steps, targets=(COMPOSE,))
    said: list[str] = []
    target = Ill(Link(BytesIO(), BytesIO()), Access("127.0.0.1:1", None), tmp_path)
    results = await run_on(target, [drill, drill], seed=1, say=said.append)
    assert [one.verdict for one in results] == [Verdict.AS_EXPECTED] * 2
    assert said.count(f"the target could not be healed: {error}") == 2


# Faults outside Kafka


class Sink(AbstractContextManager["Sink"]):
    """A receiver or mailbox that is not started, and has all its effects."""

    port = 1
    url = "http://127.0.0.1:1/hook"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca_file = directory / "ca.pem"

    def __exit__(self, *_: object) -> None: ...

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def fail(self, _: object) -> None: ...

    def counts(self) -> Counts:
        count = outbox.HOOKS if self.directory.name == "webhooks" else outbox.EFFECTS
        return Counts(count, count, count, {}, {})

    def mails(self) -> list[None]:
        return [None] * outbox.EFFECTS


class Bank:
    """A site that notes the settings of its outbox."""

    def __init__(self, directory: Path) -> None:
        self.files = directory
        self.settings: dict[str, str] = {}

    async def subscribe(self, *_: object) -> None: ...

    async def pay(self, *_: object, **__: object) -> None: ...

    async def write(self, *_: object) -> None: ...

    async def restart(self, name: str, **settings: str) -> None:
        assert name == "outbox"
        self.settings = settings

    def value(self, _: str) -> float:
        return outbox.EFFECTS + outbox.HOOKS


@pytest.mark.parametrize("fault", [UnreachableWebhook, DeadMailServer, LostAnswer, DisabledEndpoint])
async def test_a_healed_fault_leaves_the_outbox_with_its_usual_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: type[SiteFault]
) -> None:
    monkeypatch.setattr(outbox, "ReceiverProcess", Sink)
    monkeypatch.setattr(outbox, "MailboxProcess", Sink)
    bank, made = Bank(tmp_path), fault()
    await made.inject(bank)  # type: ignore[arg-type] # all that is asked of it
    assert bank.settings
    await made.heal(bank)  # type: ignore[arg-type] # the same
    assert bank.settings == {}


async def test_a_webhook_that_is_down_knows_no_effects_of_an_earlier_drill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[Path] = []

    def sink(directory: Path) -> Sink:
        made.append(directory)
        return Sink(directory)

    monkeypatch.setattr(outbox, "ReceiverProcess", sink)
    for _ in range(2):
        await UnreachableWebhook().inject(Bank(tmp_path))  # type: ignore[arg-type] # all that is asked of it
    assert len(set(made)) == 2
