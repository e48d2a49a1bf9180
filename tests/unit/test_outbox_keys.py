"""Names of keys in Redis: each installation and partition has its own, and former names are recognised."""

from collections import Counter

import pytest

from deploy.security.redis_users import KEY_PATTERN
from services.outbox.marks import Keys
from tests.redis import effect_id, random_id

KEYS = Keys("site-a", 3, 40)


def test_golden_names() -> None:
    assert (KEYS.trust, KEYS.rebuild) == ("once:{site-a:3}:trust", "once:{site-a:3}:rebuild")
    assert KEYS.of(effect_id(43)) == (f"once:{{site-a:3}}:c:{effect_id(43)}", "once:{site-a:3}:m:40:3")


def test_installations_and_partitions_share_no_key() -> None:
    names = [
        {keys.trust, keys.rebuild, keys.probe, *keys.of(effect_id(1))}
        for keys in (KEYS, Keys("site-b", 3, 40), Keys("site-a", 4, 40), Keys("site", 3, 40))
    ]
    assert len(set().union(*names)) == sum(map(len, names))
    assert not any(name.startswith(KEYS.every_former.rstrip("*")) for name in set().union(*names))


def test_the_keys_are_those_that_the_user_may_reach() -> None:
    before, _, after = KEY_PATTERN.partition("*")
    assert all(name.startswith(before) and after[0] in name for name in (KEYS.trust, KEYS.former_trust))


def test_ids_are_spread_evenly() -> None:
    filled = Counter(KEYS.of(random_id(number))[1] for number in range(4000))
    assert len(filled) == 40
    assert max(filled.values()) < 160


def test_buckets_of_another_number_are_recognised() -> None:
    other = Keys("site-a", 3, 4)
    assert not KEYS.misplaces(KEYS.of(effect_id(1))[1])
    assert KEYS.misplaces(other.of(effect_id(1))[1])
    assert other.misplaces(KEYS.of(effect_id(1))[1])


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (f"once:{{3}}:{effect_id(7)}", effect_id(7)),
        ("once:{3}:trust", None),
        ("once:{3}:rebuild", None),
        (f"once:{{4}}:{effect_id(7)}", None),
    ],
)
def test_former_keys_are_recognised(key: str, found: str | None) -> None:
    assert KEYS.former_id(key) == found


@pytest.mark.parametrize("installation", ["", "a:b", "a}b", "a*", "a b", "ä", "x" * 65])
def test_an_id_that_could_be_confused_is_refused(installation: str) -> None:
    with pytest.raises(ValueError, match="an installation's id"):
        Keys(installation, 3, 40)
