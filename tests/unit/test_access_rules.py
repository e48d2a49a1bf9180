"""The access rules: the catalogue's writers, no more rights than needed, and one writer of the postings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.events.catalogue import INSTALLATION, LEDGER_ACCOUNTS, LEDGER_POSTINGS, TOPICS
from shared.kafka.admin.rules import (
    CLUSTER,
    EVERY,
    MEMBERS,
    PRINCIPALS,
    PROCESSORS,
    Kind,
    Operation,
    Pattern,
    Rule,
    allows,
    rules,
    rules_of,
    transactional_ids,
)
from spark.manifest import INPUTS, LANDED_TOPICS

ALL = rules()


def holders(kind: Kind, name: str, operation: Operation) -> set[str]:
    """Return the principals that may perform an operation."""
    return {principal for principal in PRINCIPALS if allows(ALL, Rule(principal, kind, name, operation))}


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.name)
def test_writers_are_those_of_the_catalogue(topic: object) -> None:
    found = next(known for known in TOPICS if known is topic)
    services = {"reconciliation" if name == "once reconcile" else name for name in found.writers}
    assert holders(Kind.TOPIC, found.name, Operation.WRITE) == services & set(PRINCIPALS)


def test_the_postings_have_one_writer() -> None:
    assert holders(Kind.TOPIC, LEDGER_POSTINGS, Operation.WRITE) == {"ledger"}


def test_the_nightly_job_reads_what_it_lands_and_writes_its_outcome_only() -> None:
    own = rules_of("reconciliation")
    read = {rule.name for rule in own if rule.kind is Kind.TOPIC and rule.operation is Operation.READ}
    assert read == {*LANDED_TOPICS, INSTALLATION, LEDGER_ACCOUNTS}
    assert {rule.name for rule in own if rule.operation is Operation.WRITE} == {"reconciliation.runs"}
    assert {rule.name for rule in own if rule.kind is Kind.GROUP} == set(INPUTS)
    assert PROCESSORS == INPUTS


@pytest.mark.parametrize("instance", ["0", "blue", "ledger-0"])
def test_a_transactional_id_belongs_to_one_service(instance: str) -> None:
    """It is an instance's, or the outbox's for a partition."""
    for service, topic in PROCESSORS.items():
        for own in (f"{service}-{instance}", f"{service}-{topic}-3"):
            assert holders(Kind.TRANSACTIONAL_ID, own, Operation.WRITE) == {service}
    prefixes = [transactional_ids(service) for service in PROCESSORS]
    assert not any(one != other and one.startswith(other) for one in prefixes for other in prefixes)


def test_only_its_service_may_join_a_group() -> None:
    for group in MEMBERS:
        assert holders(Kind.GROUP, group, Operation.READ) == {group}


def test_observers_have_no_right_to_write() -> None:
    assert {rule.operation for rule in rules_of("monitor")} == {Operation.READ, Operation.DESCRIBE}
    assert Operation.WRITE not in {rule.operation for rule in rules_of("balances")}


def test_the_view_reads_the_postings_alone_and_joins_its_group() -> None:
    assert set(rules_of("balances")) == {
        Rule("balances", Kind.TOPIC, LEDGER_POSTINGS, Operation.READ),
        Rule("balances", Kind.GROUP, "balances", Operation.READ),
        Rule("balances", Kind.CLUSTER, CLUSTER, Operation.DESCRIBE),  # the clock check at its start
    }


def test_only_transactional_ids_are_prefixed_and_only_the_monitor_describes_all_of_them() -> None:
    assert {rule.kind for rule in ALL if rule.pattern is Pattern.PREFIXED} == {Kind.TRANSACTIONAL_ID}
    assert not any(rule.name == "" for rule in ALL)
    assert [rule for rule in ALL if rule.name == EVERY] == [
        Rule("monitor", Kind.TRANSACTIONAL_ID, EVERY, Operation.DESCRIBE)
    ]
    assert holders(Kind.TRANSACTIONAL_ID, "another-0", Operation.DESCRIBE) == {"monitor"}
    assert {rule.principal for rule in ALL} == set(PRINCIPALS)


def test_no_rule_is_redundant() -> None:
    redundant = [rule for rule in ALL if allows(ALL - {rule}, rule) and rule.pattern is Pattern.LITERAL]
    assert redundant == []


operations = st.sampled_from(Operation)
names = st.sampled_from(["ledger", "ledger-", "ledger-1", "ledge", "", "other", EVERY])
some = st.builds(Rule, st.sampled_from(["a", "b"]), st.sampled_from(Kind), names, operations, st.sampled_from(Pattern))


@given(st.frozensets(some, max_size=6), some, some)
def test_an_added_rule_revokes_nothing_and_grants_only_its_own_rights(
    granted: frozenset[Rule], more: Rule, asked: Rule
) -> None:
    wanted = asked._replace(pattern=Pattern.LITERAL)
    before, after = allows(granted, wanted), allows(granted | {more}, wanted)
    assert after or not before
    if after and not before:
        assert (more.principal, more.kind) == (wanted.principal, wanted.kind)
        assert wanted.name.startswith(more.name) or (more.name, more.pattern) == (EVERY, Pattern.LITERAL)
        assert wanted.operation in {more.operation, Operation.DESCRIBE}
