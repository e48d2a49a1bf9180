"""The output functions that all commands share: results, errors, progress."""

import itertools

import click
import pytest
from click.testing import CliRunner

from deploy.cli import output


def test_a_result_is_json_only_on_request() -> None:
    @click.command()
    @output.json_option()
    def show() -> None:
        output.answer({"b": 1}, "text")

    assert [CliRunner().invoke(show, words).stdout for words in ([], ["--json"])] == ["text\n", '{"b":1}\n']


def test_an_expected_error_is_one_line_and_any_other_is_a_defect() -> None:
    @click.command()
    @click.argument("number")
    def halve(number: str) -> None:
        with output.failing_on(ZeroDivisionError, text=lambda error: f"not possible: {error}"):
            click.echo(1 / int(number))

    failed = CliRunner().invoke(halve, ["0"])
    assert (failed.exit_code, failed.stderr) == (1, "Error: not possible: division by zero\n")
    assert isinstance(CliRunner().invoke(halve, ["x"]).exception, ValueError)


def test_findings_that_are_not_shown_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_findings(output.console(40), [("lost", "payments.raw:0:1", "[no] outcome")], 1_235)
    assert capsys.readouterr().out == "lost payments.raw:0:1  [no] outcome\nand 1,234 more\n"


def test_progress_without_a_terminal_is_a_line_every_three_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("time.monotonic", itertools.count(100.0, 1.5).__next__)
    with output.progress("loading", "records") as report:
        for done in range(0, 600, 100):
            report(done, 1_000)
    assert capsys.readouterr().err.splitlines() == [
        "loading: 200 of 1,000 records, 67/s, 12 s left",
        "loading: 400 of 1,000 records, 67/s, 9 s left",
    ]


def test_progress_line_has_rate_and_time_left() -> None:
    line = output.progress_line("loading", "records", 500, 2000, 0.5)
    assert line == "loading: 500 of 2,000 records, 1,000/s, 2 s left"
    assert output.progress_line("loading", "records", 0, 2000, 0.0) == "loading: 0 of 2,000 records, 0/s"
