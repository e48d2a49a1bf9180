"""Requests to group coordinators, as the one member of each group sends them, and others that are refused."""

import random
from typing import Any, Final

from shared.events import catalogue
from shared.kafka.protocol.codec import Values
from tests.simulation.symbols import VERSIONS, Fault, Given, Member, Session, Step, places_of

_ASSIGNORS: Final = ("range", "roundrobin")
_SUBSCRIBED: Final = catalogue.PAYMENTS_RAW
_SUBSCRIPTION: Final = bytes(5) + b"\x01" + bytes((0, len(_SUBSCRIBED))) + _SUBSCRIBED.encode() + b"\xff" * 4
"""To one topic, as ConsumerProtocolSubscription version 0 has it: the group's coordinator reads it."""
_ALL_SINCE, _STABLE_SINCE = 2, 7
"""The first versions of OffsetFetch that can ask for all offsets, and for stable ones (KIP-447)."""


class GroupRequests:
    """A sequence as it is made, with its groups.

    Attributes:
        steps: those made so far.
    """

    def __init__(self, seed: int, prefix: str, *, faults: bool) -> None:
        self.steps: list[Step] = []
        self._chance = random.Random(seed)
        self._faults = faults
        self._topics, self._numbers = places = places_of(seed)
        self._targets = places.targets
        self._members = [Member(f"{prefix}-{name}") for name in ("group", "other-group")]

    def _likely(self, share: float) -> bool:
        return self._chance.random() < share

    def _ask(
        self, api: str, values: Values, *, may_fail: bool = True, newest: bool = False, **since: tuple[int, Any]
    ) -> Fault | None:
        """Add a request.

        Args:
            may_fail: whether it may have a fault.
            newest: whether it has the newest version.
            since: further fields, each with its first version.
        """
        version = VERSIONS[api][-1] if newest else self._chance.choice(VERSIONS[api])
        later = {name: value for name, (first, value) in since.items() if version >= first}
        fault = self._chance.choice(list(Fault)) if self._faults and may_fail and self._likely(0.2) else None
        self.steps.append(Step(api, version, values | later, fault))
        return fault

    def _offsets(self) -> list[Values]:
        topic, number = self._chance.choice(self._targets)
        part = {"PartitionIndex": number, "CommittedOffset": self._chance.randrange(100), "CommittedMetadata": "m"}
        return [{"Name": topic, "Partitions": [part]}]

    def _any_group(self) -> str:
        return self._chance.choice(self._members).group

    def join(self) -> None:
        self._enter(self._chance.choice(self._members))

    def _enter(self, member: Member) -> None:
        if member.given is None:
            member.given = len(self.steps)
            self._join(member, "")
            if self._likely(0.2):
                return
        self._join(member, Given(member.given, "MemberId"))
        if self._likely(0.8):
            self._sync(member)

    def _join(self, member: Member, member_id: Given | str) -> None:
        assignors = self._chance.choice((_ASSIGNORS, _ASSIGNORS[:1]))
        values = {
            "GroupId": member.group,
            "SessionTimeoutMs": 30_000,
            "RebalanceTimeoutMs": 30_000,
            "MemberId": member_id,
            "ProtocolType": "consumer",
            "Protocols": [{"Name": name, "Metadata": _SUBSCRIPTION} for name in assignors],
        }
        # Two member ids that were given out would have the group wait for both
        step = len(self.steps)
        self._ask("JoinGroup", values, may_fail=False)
        if member_id:
            member.joined = Session(step)

    def _of_member(self) -> Values:
        """A member, or one that the group does not know, or one of another generation."""
        member = self._chance.choice(self._members)
        if member.joined is None and self._likely(0.6):
            self._enter(member)
        if member.joined is None or self._likely(0.1):
            return {"GroupId": member.group, "GenerationId": 1, "MemberId": "unknown"}
        step, copy = member.joined
        more = self._chance.choice((-1, 1)) if self._likely(0.1) else 0
        generation = Given(step, "GenerationId", copy, more)
        return {"GroupId": member.group, "GenerationId": generation, "MemberId": Given(step, "MemberId", copy)}

    def _sync(self, member: Member) -> None:
        assert member.joined is not None
        step, copy = member.joined
        member_id = Given(step, "MemberId", copy)
        values = {
            "GroupId": member.group,
            "GenerationId": Given(step, "GenerationId", copy),
            "MemberId": member_id,
            "Assignments": [{"MemberId": member_id, "Assignment": b"assigned in %d" % len(self.steps)}],
        }
        self._ask("SyncGroup", values)

    def sync(self) -> None:
        values = self._of_member()
        assignments = [{"MemberId": values["MemberId"], "Assignment": b"assigned in %d" % len(self.steps)}]
        self._ask("SyncGroup", values | {"Assignments": assignments})

    def heartbeat(self) -> None:
        self._ask("Heartbeat", self._of_member())

    def leave(self) -> None:
        values = self._of_member()
        self._ask("LeaveGroup", {"GroupId": values["GroupId"], "MemberId": values["MemberId"]})
        for member in self._members:
            if member.group == values["GroupId"] and values["MemberId"] != "unknown":
                member.given = None

    def commit(self) -> None:
        """By a member, or without one, as an operator does."""
        values = self._of_member()
        if self._likely(0.4):
            values |= {"GenerationId": -1, "MemberId": ""}
        generation = values.pop("GenerationId")
        values |= {"GenerationIdOrMemberEpoch": generation, "Topics": self._offsets()}
        self._ask("OffsetCommit", values, newest=self._likely(0.4))

    def fetch_offsets(self) -> None:
        self._fetch_offsets()

    def _fetch_offsets(self, group: str | None = None) -> None:
        """Fetch a group's offsets; by default of any group, by any version."""
        topics = [{"Name": topic, "PartitionIndexes": list(self._numbers)} for topic in self._topics]
        everything = self._likely(0.3)
        values: Values = {"GroupId": group or self._any_group(), "Topics": None if everything else topics}
        version = self._chance.choice([one for one in VERSIONS["OffsetFetch"] if one >= _ALL_SINCE or not everything])
        if group is not None or self._likely(0.4):
            version = _STABLE_SINCE
        if version >= _STABLE_SINCE:
            values["RequireStable"] = self._likely(0.8)
        self.steps.append(Step("OffsetFetch", version, values))
