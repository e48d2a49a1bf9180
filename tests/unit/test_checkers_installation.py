"""The audit of effect ids: in the form that the event names, and with the installation's own id."""

from dataclasses import dataclass

import msgspec
import pytest

from deploy.checkers.verdict import Kind
from shared.events import catalogue
from shared.events.effects import EffectState, effect_id, encode_request
from shared.events.headers import ORIGIN, SOURCE, Coordinates, header
from shared.events.installation import Installation, encode_installation
from shared.events.postings import (
    OF_INSTALLATION,
    OF_ORIGIN,
    Decline,
    Posting,
    decode_ledger_event,
    encode_ledger_event,
)
from tests.installation import INSTALLATION
from tests.planted import Clean
from tests.world import found

ANOTHER = "0" * 32


@dataclass(frozen=True)
class Case:
    """What the topic, the notice's event and its request say."""

    made: tuple[str, ...] = (INSTALLATION,)
    form: str = OF_INSTALLATION
    of: str = INSTALLATION


def world_of(case: Case) -> Clean:
    world = Clean()
    for identity in case.made:
        value = encode_installation(Installation(identity, 1))
        world.append(catalogue.INSTALLATION, 0, value, identity.encode())
    trail = world.notice
    record = world.at(trail.request)
    source = Coordinates.decode(header(record.headers, SOURCE) or b"")
    [posted] = [
        Coordinates(catalogue.LEDGER_POSTINGS, partition, one.offset)
        for (topic, partition), records in world.logs.items()
        if topic == catalogue.LEDGER_POSTINGS
        for one in records
        if header(one.headers, SOURCE) == source.encode()
    ]
    event = decode_ledger_event(world.at(posted).value or b"")
    assert isinstance(event, Posting | Decline)
    assert event.notified_by is not None
    by = msgspec.structs.replace(event.notified_by, effect_ids=case.form)
    world.change(posted, encode_ledger_event(msgspec.structs.replace(event, notified_by=by)))
    origin, asked = header(record.headers, ORIGIN) or b"", trail.effect
    identity = effect_id(origin, asked.kind, asked.event, asked.destination, installation=case.of)
    effect = msgspec.structs.replace(asked, effect_id=identity)
    world.change(trail.request, encode_request(effect))
    world.remove(trail.result)
    world.decide(effect, trail.result.partition, EffectState.SENT)
    return world


@pytest.mark.parametrize(
    "case",
    [
        Case(),
        Case(made=(INSTALLATION, ANOTHER)),
        Case(form=OF_ORIGIN, of=""),
        Case(made=(), form=OF_ORIGIN, of=""),
    ],
    ids=["its own", "the first of two makers", "of a former version", "before there was an id"],
)
def test_ids_of_the_form_that_the_event_names_are_right(case: Case) -> None:
    assert world_of(case).audit().verdict == "pass"


@pytest.mark.parametrize(
    "case",
    [
        Case(of=""),
        Case(of=ANOTHER),
        Case(made=(ANOTHER, INSTALLATION)),
        Case(form=OF_ORIGIN),
        Case(made=()),
    ],
    ids=["the former form", "another installation's", "the second maker's", "the event names none", "there is none"],
)
def test_ids_of_any_other_form_are_found(case: Case) -> None:
    world = world_of(case)
    verdict = world.audit()
    assert (Kind.EFFECT_ALTERED.value, str(world.notice.request)) in found(verdict)
    assert verdict.kinds == {Kind.EFFECT_ALTERED: 1}
