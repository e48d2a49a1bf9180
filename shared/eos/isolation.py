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
        self._grows = False  # since the refused record was found; until then, halves alone lead to it

    def refused(self, first: int, next_offset: int, records: int) -> None:
        """Take note of a transaction that was refused for the size of its records.

        Args:
            first, next_offset: the input offsets that it spanned.
            records: how many it had.
        """
        self._end = max(self._end, next_offset)
        self.records_max = max(records // 2, 1)
        self._grows = False
        if records == 1:
            self.alone = first

    def committed(self, next_offset: int) -> None:
        """Take note of a commit. Behind a record that was refused alone, transactions grow again."""
        self._grows |= self.alone is not None
        self.alone = None
        if self.records_max is None:
            return
        if next_offset >= self._end:
            self.records_max, self._grows = None, False
        elif self._grows:
            self.records_max *= 2
