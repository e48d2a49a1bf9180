"""The documented loop of transactions, under a transactional.id that another application has as well.

It is wrong: each start fences the other application, whose supervisor starts it again, which fences this one.
"""

import asyncio
import os

from deploy.drills.clients.job import Job
from deploy.drills.clients.stock_hop import work

if __name__ == "__main__":
    asyncio.run(work(Job.from_environment(), os.environ["SHARED_ID"]))
