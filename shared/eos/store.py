"""State of one input partition: an overlay over the committed state. Pure.

A transaction's changes are visible to itself at once, merge into the committed state on `commit` and vanish on
`rollback`. `changes` gives them as changelog records, which the runtime writes in the same transaction.
"""

from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Generic, Protocol, TypeVar

Change = tuple[bytes, bytes | None]  # store key, value; None is a tombstone


class Store(Protocol):
    """The state of a service, as the runtime uses it. Its length is the number of committed entries."""

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Take one record of the changelog, in its order."""
        ...

    def changes(self) -> Iterable[Change]:
        """The open transaction's changes, each key once."""
        ...

    def commit(self) -> None:
        """Merge the open transaction's changes."""
        ...

    def rollback(self) -> None:
        """Drop the open transaction's changes."""
        ...

    def __len__(self) -> int: ...


class PrefixedStore(Store, Protocol):
    """A store whose changelog keys all begin with one prefix, so that several can share a changelog."""

    @property
    def prefix(self) -> bytes:
        """The prefix of its changelog keys; no store's prefix begins with another's."""
        ...


V = TypeVar("V")


class Table(Generic[V]):
    """Values by name, under one key prefix.

    What `get` returns must not be changed in place; what `edit` returns may be, until the transaction ends.

    Args:
        prefix: of its changelog keys; the name follows it, in UTF-8.
        encode, decode: between a value and its changelog record; decode must give what was encoded.
        copy: a value that shares nothing changeable with the one given; only `edit` calls it.
    """

    def __init__(
        self,
        prefix: bytes,
        encode: Callable[[V], bytes],
        decode: Callable[[bytes], V],
        copy: Callable[[V], V] = deepcopy,
    ) -> None:
        self.prefix = prefix
        self._encode = encode
        self._decode = decode
        self._copy = copy
        self._committed: dict[str, V] = {}
        self._changed: dict[str, V] = {}

    def get(self, name: str) -> V | None:
        """Return the value as the open transaction sees it."""
        value = self._changed.get(name)
        return self._committed.get(name) if value is None else value

    def put(self, name: str, value: V) -> None:
        """Set the value for the open transaction; nothing removes a name again."""
        self._changed[name] = value

    def edit(self, name: str) -> V | None:
        """Return the value for the open transaction to change in place, or None if there is none.

        It is copied once in a transaction, however many records change it: a house account changes with nearly every
        record.
        """
        value = self._changed.get(name)
        if value is None and (committed := self._committed.get(name)) is not None:
            value = self._changed[name] = self._copy(committed)
        return value

    def restore(self, key: bytes, value: bytes | None) -> None:
        name = key[len(self.prefix) :].decode()
        if value is None:
            self._committed.pop(name, None)
        else:
            self._committed[name] = self._decode(value)

    def changes(self) -> Iterator[Change]:
        for name, value in self._changed.items():
            yield self.prefix + name.encode(), self._encode(value)

    def commit(self) -> None:
        self._committed.update(self._changed)
        self._changed.clear()

    def rollback(self) -> None:
        self._changed.clear()

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield committed names and values, in no promised order."""
        yield from self._committed.items()

    def __len__(self) -> int:
        return len(self._committed)


class Stores:
    """Several stores as one, distinguished by their key prefixes."""

    def __init__(self, *stores: PrefixedStore) -> None:
        self._stores = stores

    def restore(self, key: bytes, value: bytes | None) -> None:
        """Pass a changelog record to the store with its prefix.

        Raises ValueError where there is none: the changelog is another service's, or of another version.
        """
        for store in self._stores:
            if key.startswith(store.prefix):
                store.restore(key, value)
                return
        raise ValueError(f"no store for changelog key {key[:32]!r}")

    def changes(self) -> Iterator[Change]:
        for store in self._stores:
            yield from store.changes()

    def commit(self) -> None:
        for store in self._stores:
            store.commit()

    def rollback(self) -> None:
        for store in self._stores:
            store.rollback()

    def __len__(self) -> int:
        return sum(len(store) for store in self._stores)
