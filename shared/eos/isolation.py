"""Isolation of a record that no topic takes: transactions over ever fewer records, until one alone is refused. Pure."""


class Isolation:
    """How many records the next transaction may take.

    Attributes:
        records_max: None while nothing was refused.
        alone: offset of the record that was refused alone; None while there is none.
    """

    def __init__(self) -> None:
        self.records_max: int | None = None
        self.alone: int | None = None
        self._end = 0

    def refused(self, first: int, next_offset: int, records: int) -> None:
        """Take note of a transaction that was refused for the size of its records.

        Args:
            first, next_offset: the input offsets that it spanned.
            records: how many it had.
        """
        self._end = max(self._end, next_offset)
        self.records_max = max(records // 2, 1)
        if records == 1:
            self.alone = first

    def committed(self, next_offset: int) -> None:
        """Take note of a commit: the next transaction may be larger, and behind what was refused as large as any."""
        self.alone = None
        if self.records_max is not None:
            self.records_max = None if next_offset >= self._end else 2 * self.records_max
