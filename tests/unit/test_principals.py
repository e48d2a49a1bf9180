"""The principals are the services, and brokers map only a whole subject to a name."""

import re

from deploy.local.supervisor.topology import SERVICES
from deploy.security.principals import CLIENTS, MAPPING_RULES, broker, super_users
from shared.kafka.admin.rules import PRINCIPALS, RECONCILIATION


def test_every_service_is_a_principal_and_no_name_is_taken_twice() -> None:
    assert set(PRINCIPALS) == {*SERVICES, RECONCILIATION}
    assert len(set(CLIENTS)) == len(CLIENTS)
    assert not {broker(i) for i in range(9)} & set(CLIENTS)


def test_super_users_are_the_brokers_and_the_operator() -> None:
    assert super_users([0, 1]) == "User:broker-0;User:broker-1;User:operator"


def test_the_mapping_takes_a_whole_common_name_and_nothing_else() -> None:
    pattern, replacement = MAPPING_RULES.removeprefix("RULE:").removesuffix("/").split("/")
    assert replacement == "$1"
    for name in (*CLIENTS, broker(0)):
        found = re.search(pattern, f"CN={name}")
        assert found
        assert found[1] == name
    for subject in ("CN=operator,O=elsewhere", "OU=x,CN=operator", "CN=operator\\,x", "CN=Operator", "O=operator"):
        assert re.search(pattern, subject) is None
