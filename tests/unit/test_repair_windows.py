"""A repair with smaller windows than the services' would forget what these remember: it is refused."""

import pytest

from deploy.repairs.evidence import Evidence
from deploy.repairs.menders import Mender, Sizes, mender_of
from deploy.repairs.reference import History, Reference
from services.ingest.service import IngestHandler
from services.ledger.service import LedgerHandler
from services.transform.domain import ReferenceData
from shared.eos.errors import UnsafeSettingsError
from shared.eos.records import Record
from shared.eos.store import Change, Store
from shared.events.catalogue import LEDGER_TRANSFERS, PAYMENTS_RAW
from shared.events.clients import OPERATOR, encode_submitted_by
from shared.events.effects import decode_subscriptions
from shared.events.headers import ORIGIN, SUBMITTED_BY
from shared.events.payments import SCHEMA_VERSION, Payment, encode_instruction
from shared.events.transfers import AccountOpened, TransferRecord, encode_transfer
from tests.installation import INSTALLATION
from tests.ledgers import CREDITOR, DEBTOR, P, transfer
from tests.partitions import PARTITIONS
from tests.stores import commit, restore

WINDOW = 5
PAYMENTS = 7
REFERENCE = Reference(ReferenceData({}, {}), History(decode_subscriptions), INSTALLATION, (0,) * PARTITIONS)


def ingest(capacity: int) -> IngestHandler:
    return IngestHandler(P, capacity, partitions=PARTITIONS)


def ledger(capacity: int) -> LedgerHandler:
    return LedgerHandler(P, capacity, {}, partitions=PARTITIONS, installation=INSTALLATION)


def accept(handler: IngestHandler, number: int) -> None:
    value = encode_instruction(Payment(f"p-{number}", DEBTOR, CREDITOR, 1, "EUR", SCHEMA_VERSION))
    by = ((SUBMITTED_BY, encode_submitted_by(OPERATOR)),)
    handler.process(Record(PAYMENTS_RAW, P, number, 0, DEBTOR.encode(), value, by))


def book(handler: LedgerHandler, number: int) -> None:
    event: TransferRecord = transfer(f"p-{number}", 1) if number else AccountOpened(DEBTOR, None)
    headers = ((ORIGIN, b"payments.raw:%d:%d" % (P, number)),) if number else ()
    handler.process(Record(LEDGER_TRANSFERS, P, number, 0, b"", encode_transfer(event), headers))


def changelog_of(service: str, capacity: int = WINDOW, before: list[Change] | None = None) -> list[Change]:
    """Process records, each in a transaction of its own; `before` is the changelog that was there."""
    changelog = before or list[Change]()
    begin = PAYMENTS if before else 0
    for number in range(begin, begin + PAYMENTS + 1):
        store: Store
        if service == "ingest":
            store = restored(handler := ingest(capacity), changelog)
            accept(handler, number)
        else:
            store = restored(booking := ledger(capacity), changelog)
            book(booking, number)
        commit(store, changelog)
    return changelog


def restored(handler: IngestHandler | LedgerHandler, changelog: list[Change]) -> Store:
    restore(handler.store, changelog)
    return handler.store


def mender(service: str, capacity: int, changelog: list[Change]) -> Mender:
    evidence = Evidence("127.0.0.1:1", service, [], PARTITIONS, capacity)
    made = mender_of(service, P, Sizes(capacity, capacity, PARTITIONS), REFERENCE, evidence, 0)
    restore(made.store, changelog)
    return made


SETTINGS = {"ingest": "ONCE_INGEST_WINDOW", "ledger": "ONCE_LEDGER_REVERSAL_WINDOW"}


@pytest.mark.parametrize("service", SETTINGS)
def test_a_smaller_window_than_the_services_is_refused(service: str) -> None:
    changelog = changelog_of(service)
    with pytest.raises(UnsafeSettingsError, match=f"1 entries more than {SETTINGS[service]}={WINDOW - 1}"):
        mender(service, WINDOW - 1, changelog).begin()


@pytest.mark.parametrize("service", SETTINGS)
@pytest.mark.parametrize("capacity", [WINDOW, WINDOW + 1])
def test_the_services_window_and_a_larger_one_are_used(service: str, capacity: int) -> None:
    mender(service, capacity, changelog_of(service)).begin()


@pytest.mark.parametrize("service", SETTINGS)
def test_a_window_that_was_lowered_is_used_when_the_service_has_deleted_the_others(service: str) -> None:
    changelog = changelog_of(service, WINDOW - 2, changelog_of(service))
    mender(service, WINDOW - 2, changelog).begin()
