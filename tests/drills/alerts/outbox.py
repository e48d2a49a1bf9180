"""Faults outside Kafka: destinations that refuse, drop connections or are down."""

from contextlib import ExitStack

from deploy.drills.sinks.mailbox import Action, MailFaults, Stage
from deploy.drills.sinks.processes import MailboxProcess, ReceiverProcess
from deploy.drills.sinks.receiver import Faults, Mode
from shared.events.effects import EffectKind
from tests.drills.alerts.fault import Fault
from tests.drills.site import Site
from tests.harness import wait_until

EFFECTS = 30


class RefusingWebhook(Fault):
    """A webhook answers 404."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        receiver = self._open.enter_context(ReceiverProcess(site.directory / "refusing"))
        receiver.fail(Faults(Mode.STATUS, status=404))
        site.subscribe("drill-refused", EffectKind.NOTICE, receiver.url)
        site.pay(3, creditor="drill-refused")

    def heal(self, site: Site) -> None:  # noqa: ARG002 # the fault's own
        """Nothing to heal: refused effects stay failed."""
        self._open.close()


class LostAnswer(Fault):
    """A mail server accepts a mail and drops the connection before it says so."""

    def __init__(self) -> None:
        self._open = ExitStack()

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        mailbox = self._open.enter_context(MailboxProcess(site.directory / "mailbox"))
        mailbox.fail(MailFaults(Stage.ACCEPTED, Action.DROP))
        site.subscribe("drill-doubt", EffectKind.NOTICE, "mailto:drill@example.org")
        site.restart(
            "outbox",
            SMTP_HOST="127.0.0.1",
            SMTP_PORT=str(mailbox.port),
            SMTP_CA_FILE=str(mailbox.ca_file),
            SMTP_SENDER="ledger@example.org",
        )
        site.pay(1, creditor="drill-doubt")

    def heal(self, site: Site) -> None:  # noqa: ARG002 # the same
        """Nothing to heal: an operator has to resolve the doubt."""
        self._open.close()


class UnreachableWebhook(Fault):
    """Effects are due at a webhook that is down."""

    def __init__(self) -> None:
        self._receiver: ReceiverProcess | None = None

    def inject(self, site: Site) -> None:
        """See `Fault.inject`."""
        self._receiver = ReceiverProcess(site.directory / "absent")
        site.subscribe("drill-absent", EffectKind.NOTICE, self._receiver.url)
        site.restart("outbox", OUTBOX_RETRY_MAX_S="5")  # for a quick end once the webhook is up
        site.pay(EFFECTS, creditor="drill-absent")

    def heal(self, site: Site) -> None:  # noqa: ARG002 # the fault's own
        """Start the webhook until all effects are delivered."""
        receiver = self._receiver
        if receiver is not None:
            with receiver:
                wait_until(lambda: receiver.counts().distinct == EFFECTS, "all are delivered")
