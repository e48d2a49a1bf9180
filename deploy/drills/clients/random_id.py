"""The documented loop of transactions, with a random transactional.id at each start.

It is wrong: the id is how a process ends the transaction that its predecessor left open. Under another id
it stays open for transaction.timeout.ms, readers wait for so long, and a predecessor that still runs is not fenced.
"""

import asyncio
import uuid

from deploy.drills.clients.job import Job
from deploy.drills.clients.stock_hop import work

if __name__ == "__main__":
    job = Job.from_environment()
    asyncio.run(work(job, f"{job.group}-{uuid.uuid4()}"))
