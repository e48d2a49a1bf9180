"""The runtime's operations on stores, for tests."""

from shared.eos.store import Change, Store


def commit(store: Store, changelog: list[Change]) -> None:
    """Commit the open transaction, its changes written to the changelog."""
    changelog.extend(store.changes())
    store.commit()


def restore(store: Store, changelog: list[Change]) -> None:
    """Give a store all records of a changelog."""
    for key, value in changelog:
        store.restore(key, value)


def compacted(changelog: list[Change], clean_until: int) -> list[Change]:
    """The changelog after Kafka's log cleaner went over its first `clean_until` records, tombstones taken away."""
    last = {key: position for position, (key, _) in enumerate(changelog)}
    return [
        (key, value)
        for position, (key, value) in enumerate(changelog)
        if position >= clean_until or (last[key] == position and value is not None)
    ]
