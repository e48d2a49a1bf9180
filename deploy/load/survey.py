"""A first look at a file, before anything is sent: how many records; for the data set, accounts and the oracle."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from deploy.load import pkdd99
from deploy.load.files import Format, records_of
from deploy.load.oracle import Chain, Histories, chains
from shared.events.reference import ExpectedBalance


class Survey(msgspec.Struct):
    """Contents of a file.

    Attributes:
        records: lines that are not empty.
        accounts: client accounts, in the order of their first transactions.
        expected: the new expected balances by account.
        unexplained: accounts whose balances form no chain, or no single one, or none that continues the file before:
            their expected balance is left as it is, or missing.
    """

    records: int = 0
    empty_lines: int = 0
    accounts: list[str] = []
    expected: dict[str, ExpectedBalance] = {}
    unexplained: list[str] = []


def survey(path: Path, file_format: Format, known: Mapping[str, ExpectedBalance]) -> Survey:
    """Read the file once.

    Args:
        known: expected balances of files loaded before, by account: a file may continue them. The same file once more
            leaves them as they are.

    Raises:
        LoadError: the file cannot be read.
    """
    result = Survey()
    histories = Histories()
    for line in records_of(path, file_format):
        if not line:
            result.empty_lines += 1
            continue
        result.records += 1
        if file_format is Format.PKDD99:
            _note(histories, line)
    result.accounts = list(histories)
    before = {account: Chain(balance.opening_minor, balance.closing_minor) for account, balance in known.items()}
    for account, chain in chains(histories, before):
        if chain is not None:
            result.expected[account] = ExpectedBalance(
                pkdd99.CURRENCY, chain.opening_minor, chain.closing_minor, path.name
            )
        elif account not in known or known[account].file != path.name:
            result.unexplained.append(account)
    return result


def _note(histories: Histories, line: bytes) -> None:
    try:
        transaction = pkdd99.parse_line(line)
    except pkdd99.MalformedLineError:
        return  # it goes in as it is, and into no account's history
    histories.add(transaction.account_id, transaction.day, transaction.change_minor, transaction.balance_minor)
