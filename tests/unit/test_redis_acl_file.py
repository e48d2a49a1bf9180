"""The ACL file as text: its users, and no passwords. Other tests load it into a real Redis."""

import pytest

from deploy.security.redis_users import USERS, acl_file, digest

DIGESTS = {user.name: [digest(user.name)] for user in USERS}


def test_the_default_user_is_off() -> None:
    assert acl_file(DIGESTS).splitlines()[0] == "user default reset off"


def test_a_user_is_reset_before_it_is_granted_its_rights() -> None:
    lines = acl_file(DIGESTS).splitlines()[1:]
    assert [line.split()[:4] for line in lines] == [["user", user.name, "reset", "on"] for user in USERS]
    for user, line in zip(USERS, lines, strict=True):
        assert line.split()[4:] == [
            *(f"~{key}" for key in user.keys),
            *(f"+{each}" for each in user.commands),
            "#" + digest(user.name),
        ]
        assert not any(word.startswith(("+@", "allcommands", "allkeys", "nopass", ">")) for word in line.split())


def test_a_new_password_and_the_old_one_are_valid_during_a_change() -> None:
    text = acl_file(DIGESTS | {"outbox": [digest("old"), digest("new")]})
    assert f"#{digest('old')} #{digest('new')}\n" in text


@pytest.mark.parametrize("wrong", [{"outbox": []}, {"stranger": [digest("s")]}])
def test_a_user_without_a_password_and_a_stranger_are_refused(wrong: dict[str, list[str]]) -> None:
    with pytest.raises(ValueError, match="each of outbox, exporter, operator needs one, no other"):
        acl_file(DIGESTS | wrong)


def test_a_digest_is_the_one_that_redis_expects() -> None:
    assert digest("pw") == "30c952fab122c3f9759f02a6d95c3758b246b4fee239957b2d4fee46e26170c4"
