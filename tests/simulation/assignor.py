"""Kafka's uniform assignor: as few partitions as possible move, and the members' shares differ by one at most."""

from collections.abc import Callable, Mapping

Target = tuple[str, int]
Assignments = dict[str, set[Target]]
"""Partitions by member id."""


def uniform(
    subscriptions: Mapping[str, frozenset[str]],
    before: Mapping[str, frozenset[Target]],
    sizes: Callable[[str], int],
) -> Assignments:
    """Assign every partition of the subscribed topics.

    Args:
        subscriptions: topics by member id. The order of members counts: in Kafka it follows from hashes.
        before: the assignment to keep as much of as possible.
        sizes: the partitions of a topic; 0 for one that does not exist.
    """
    topics = set().union(*subscriptions.values())
    everything = [(topic, number) for topic in sorted(topics) for number in range(sizes(topic))]
    held = {member: sorted(before.get(member, ())) for member in subscriptions}
    if len(set(subscriptions.values())) == 1:
        return _equal_subscriptions(everything, held)
    return _different_subscriptions(everything, held, subscriptions)


def _equal_subscriptions(everything: list[Target], held: Mapping[str, list[Target]]) -> Assignments:
    """The algorithm of UniformHomogeneousAssignmentBuilder."""
    assigned = set().union(*held.values())
    free = [target for target in everything if target not in assigned]
    least, extra = divmod(len(everything), len(held))
    result: Assignments = {}
    room: dict[str, int] = {}
    for index, (member, own) in enumerate(held.items()):
        quota, takes_extra = (least + 1, True) if extra else (least, False)
        kept = [target for target in own if target in set(everything)]
        free += kept[quota:]
        result[member] = set(kept[:quota])
        left = quota - len(result[member])
        if left and takes_extra and len(held) - index > extra:
            left, takes_extra = left - 1, False  # a later member can have the extra partition
        extra -= takes_extra
        room[member] = left
    for member, left in room.items():
        result[member].update(free[:left])
        free = free[left:]
    return result


def _different_subscriptions(
    everything: list[Target], held: Mapping[str, list[Target]], subscriptions: Mapping[str, frozenset[str]]
) -> Assignments:
    """A balanced and sticky assignment. Kafka's own may choose other partitions for it."""
    result = {member: {one for one in own if one[0] in subscriptions[member]} for member, own in held.items()}
    owner = {target: member for member, own in result.items() for target in own}
    while True:
        moved = False
        for target in everything:
            able = [member for member, topics in subscriptions.items() if target[0] in topics]
            poorest = min(able, key=lambda member: len(result[member]))
            now = owner.get(target)
            if now is not None and len(result[now]) - len(result[poorest]) <= 1:
                continue
            if now is not None:
                result[now].discard(target)
            result[poorest].add(target)
            owner[target] = poorest
            moved = True
        if not moved:
            return result
