"""Names of a partition's keys in Redis. Pure.

Marks are the fields of buckets: small hashes, which Redis keeps as listpacks. A mark of its own key would take three
times the memory. An effect is in the bucket that its id's last digits choose. Claims are few, and have keys of their
own. All keys of a partition share a hash tag.
"""

import re
from typing import Final

_INSTALLATION: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FORMER_ID: Final = re.compile(r"[0-9a-f]{32}")
_CHOOSING_DIGITS: Final = 8


class Keys:
    """The keys of one partition of an installation.

    Args:
        installation: its id, of letters, digits, `_` and `-`; ValueError for any other.
        partition: of effects.requests.
        buckets: how many the marks are spread over.
    """

    def __init__(self, installation: str, partition: int, buckets: int) -> None:
        if not _INSTALLATION.fullmatch(installation):
            raise ValueError(f"an installation's id has letters, digits, _ and - only, not {installation!r}")
        self.prefix = f"once:{{{installation}:{partition}}}:"
        self.trust = self.prefix + "trust"
        self.rebuild = self.prefix + "rebuild"
        self.probe = self.prefix + "probe"  # exists only within a script
        self._claim = self.prefix + "c:"
        self._bucket = f"{self.prefix}m:{buckets}:"
        self._buckets = buckets
        self._former = f"once:{{{partition}}}:"

    def of(self, effect_id: str) -> tuple[str, str]:
        """Return the key of an effect's claim, and the bucket of its mark."""
        number = int(effect_id[-_CHOOSING_DIGITS:], 16) % self._buckets
        return self._claim + effect_id, self._bucket + str(number)

    @property
    def every_bucket(self) -> str:
        """The pattern of all buckets, those of another number of buckets included."""
        return self.prefix + "m:*"

    def misplaces(self, bucket: str) -> bool:
        """Whether a key that `every_bucket` found belongs to another number of buckets."""
        return not bucket.startswith(self._bucket)

    @property
    def former_trust(self) -> str:
        """The trust key of the layout without installations, in which claims and marks were strings under their ids."""
        return self._former + "trust"

    @property
    def every_former(self) -> str:
        """The pattern of all keys of that layout."""
        return self._former + "*"

    def former_id(self, key: str) -> str | None:
        """Return the effect of a key that `every_former` found; None if it is no effect's."""
        effect_id = key.removeprefix(self._former)
        return effect_id if _FORMER_ID.fullmatch(effect_id) else None
