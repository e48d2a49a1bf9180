"""The chain of balances, on made-up days and on the whole sample."""

from pathlib import Path

import pytest

from deploy.load.files import Format, records_of, survey
from deploy.load.oracle import ORDERS_MAX, Chain, Histories, chain, chains, closings, ends_of_day
from deploy.load.pkdd99 import parse_line
from shared.events.reference import ExpectedBalance

SAMPLE = Path(__file__).parents[2] / "deploy" / "sample" / "trans_1993.csv.gz"


@pytest.fixture(scope="module")
def sample() -> tuple[Histories, dict[str, int], dict[str, int]]:
    """Histories, sums and last balances of the sample, by account."""
    histories, sums, last = Histories(), dict[str, int](), dict[str, int]()
    for line in records_of(SAMPLE, Format.PKDD99):
        row = parse_line(line)
        histories.add(row.account_id, row.day, row.change_minor, row.balance_minor)
        sums[row.account_id] = sums.get(row.account_id, 0) + row.change_minor
        last[row.account_id] = row.balance_minor
    return histories, sums, last


def test_sample_has_one_chain_for_each_account(
    sample: tuple[Histories, dict[str, int], dict[str, int]],
) -> None:
    histories, sums, last = sample
    found = dict(chains(histories, {}))
    assert len(found) == 1139
    assert sum(sums.values()) == 3_657_594_610
    closing = {account: chain.closing_minor for account, chain in found.items() if chain and chain.opening_minor == 0}
    assert len(closing) == 1139
    differences = [abs(sums[account] - closing[account]) for account in closing]
    assert sum(difference == 0 for difference in differences) == 681
    assert sum(0 < difference <= 100 for difference in differences) == 458
    assert sum(last[account] != closing[account] for account in closing) == 350


def test_lines_of_a_day_are_put_in_order() -> None:
    assert ends_of_day({0}, [(-200, 300), (500, 500)]) == {300}
    assert ends_of_day({0}, [(500, 500), (-200, 300), (50, 350)]) == {350}


def test_every_possible_end_is_kept() -> None:
    # Up and back, down and back, in either order
    assert ends_of_day({1000}, [(500, 1500), (-500, 1000), (-500, 500), (500, 1000)]) == {1000}
    # Both lines leave the balance about where it was, so that either may be the last
    assert ends_of_day({0}, [(5, 5), (10, 10)]) == {5, 10}
    assert ends_of_day({0, 1000}, [(500, 500)]) == {500}
    assert ends_of_day({0}, [(500, 500), (-500, 0), (500, 500)]) == {500}


def test_only_rounding_is_tolerated() -> None:
    assert ends_of_day({0}, [(100, 111)]) == {111}
    assert ends_of_day({0}, [(100, 112)]) == set()
    assert ends_of_day({0}, [(100, 89)]) == {89}


def test_day_without_a_possible_order_has_no_end() -> None:
    assert ends_of_day({0}, [(500, 500), (100, 700)]) == set()
    assert closings(0, [[(500, 500)], [(100, 700)]]) == set()


def test_day_with_too_many_orders_is_given_up() -> None:
    free = [(0, 0)] * 18  # any order is possible
    assert ORDERS_MAX < 2**18
    assert ends_of_day({0}, free) == set()


def test_new_account_starts_at_zero() -> None:
    assert chain([[(700, 700)], [(-100, 600)]]) == Chain(0, 600)


def test_opening_balance_is_inferred() -> None:
    assert chain([[(700, 1700)], [(-100, 1600)]]) == Chain(1000, 1600)
    assert chain([[(-100, 1600), (700, 1700)]]) == Chain(1000, 1600)


def test_known_chain_is_continued() -> None:
    assert chain([[(50, 650)]], Chain(20, 600)) == Chain(20, 650)
    assert chain([[(50, 50)]], Chain(20, 600)) is None


def test_account_without_a_single_chain_has_none() -> None:
    assert chain([[(500, 500)], [(100, 700)]]) is None
    # From 0 both lines may come first, and the day may end at either balance
    assert chain([[(5, 5), (10, 10)]]) is None


def write(path: Path, *rows: str) -> Path:
    header = "trans_id;account_id;date;type;operation;amount;balance;k_symbol;bank;account"
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def test_survey_lists_accounts_without_a_chain(tmp_path: Path) -> None:
    path = write(
        tmp_path / "two.csv",
        '1;11;930101;"PRIJEM";"VKLAD";7.00;7.00;"";;',
        '2;22;930101;"PRIJEM";"VKLAD";7.00;7.00;"";;',
        "",
        "not a transaction",
        '3;22;930102;"PRIJEM";"VKLAD";1.00;9.50;"";;',
    )
    found = survey(path, Format.PKDD99, {})
    assert (found.records, found.empty_lines) == (4, 1)
    assert found.accounts == ["11", "22"]
    assert found.expected == {"11": ExpectedBalance("CZK", 0, 700, "two.csv")}
    assert found.unexplained == ["22"]


def test_survey_continues_the_file_before(tmp_path: Path) -> None:
    path = write(tmp_path / "1994.csv", '9;11;940101;"VYDAJ";"VYBER";2.00;5.00;"";;')
    known = {"11": ExpectedBalance("CZK", 50, 700, "1993.csv")}
    assert survey(path, Format.PKDD99, known).expected == {"11": ExpectedBalance("CZK", 50, 500, "1994.csv")}


def test_survey_of_the_same_file_again_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "1993.csv", '1;11;930101;"PRIJEM";"VKLAD";7.00;7.00;"";;')
    first = survey(path, Format.PKDD99, {})
    again = survey(path, Format.PKDD99, first.expected)
    assert (again.expected, again.unexplained) == ({}, [])


def test_survey_names_accounts_that_do_not_continue(tmp_path: Path) -> None:
    path = write(tmp_path / "1995.csv", '1;11;950101;"PRIJEM";"VKLAD";7.00;7.00;"";;')
    known = {"11": ExpectedBalance("CZK", 0, 90_000, "1993.csv")}
    found = survey(path, Format.PKDD99, known)
    assert (found.expected, found.unexplained) == ({}, ["11"])
