"""Faults of offsets: a consumer group is set back."""

import asyncio

from deploy.drills.faults.fault import NoEvidenceError
from deploy.drills.target import Target
from shared.kafka.admin.topics import set_group_offsets
from shared.kafka.client.reader import group_offsets


class Rewind:
    """The committed offsets of a service's group, set to 0 while the service is stopped."""

    def __init__(self, service: str, topic: str) -> None:
        self.name = f"group {service} rewound"
        self._service = service
        self._topic = topic

    async def inject(self, target: Target) -> str:
        """Stop the service, set its offsets and start it again; returns when it is ready."""
        before = await group_offsets(target.access, self._service, self._topic)
        if not any(before.values()):
            raise NoEvidenceError(f"group {self._service} has committed nothing that could be rewound")
        await asyncio.to_thread(target.stop, self._service)
        await set_group_offsets(target.access, self._service, self._topic, dict.fromkeys(before, 0))
        after = await group_offsets(target.access, self._service, self._topic)
        if any(after.values()):
            raise NoEvidenceError(f"group {self._service} has the offsets {after}, not 0")
        await asyncio.to_thread(target.bring_back, self._service)
        await target.ready(self._service)
        return f"offsets of {len(before)} partitions, {sum(before.values())} in all, set to 0"

    async def heal(self, target: Target) -> None:
        """Start the service, if setting the offsets failed."""
        if self._service in target.taken:
            await asyncio.to_thread(target.bring_back, self._service)
        await target.settle()
