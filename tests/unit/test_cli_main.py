"""The `once` command as a whole: what it lists, and how errors come out."""

import importlib
import pkgutil

import click
import pytest
from click.testing import CliRunner

import deploy.cli
from deploy.cli import main as cli
from shared.kafka.client.errors import KafkaUnavailableError
from shared.settings import EXIT_CONFIG, SettingsError


def test_every_command_is_listed_with_one_line() -> None:
    result = CliRunner().invoke(cli.once, ["--help"], prog_name="once", terminal_width=110)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    for name in cli.COMMANDS:
        [line] = [words for words in lines if words[:1] == [name]]
        assert len(line) > 2, f"{name} has no help"
        assert line[-1].endswith("."), f"{name}'s help is no sentence"
        assert not line[-1].endswith("..."), f"{name}'s help does not fit into a line"
    assert result.output.rstrip().endswith("a setting, or this principal, was refused")


def test_no_command_is_left_out() -> None:
    found = {
        name.replace("_", "-")
        for module in pkgutil.iter_modules(deploy.cli.__path__)
        if module.name != "main"
        for name, value in vars(importlib.import_module(f"deploy.cli.{module.name}")).items()
        if isinstance(value, click.Command) and value.callback and value.callback.__module__.endswith(module.name)
        if not name.startswith("_") and not _belongs_to_a_group(value)
    }
    assert found == set(cli.COMMANDS)


def _belongs_to_a_group(command: click.Command) -> bool:
    """Whether it is a command of a group, of its own module's or of another's."""
    groups = [
        value
        for module in pkgutil.iter_modules(deploy.cli.__path__)
        for value in vars(importlib.import_module(f"deploy.cli.{module.name}")).values()
        if isinstance(value, click.Group) and value is not cli.once
    ]
    return any(command in group.commands.values() for group in groups)


def test_the_version_is_the_projects() -> None:
    result = CliRunner().invoke(cli.once, ["--version"])
    assert (result.exit_code, result.output) == (0, "once 0.1.0\n")


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(KafkaUnavailableError("no broker: `once up`"), 1), (SettingsError("ONCE_X is wrong: set it"), EXIT_CONFIG)],
)
def test_an_operators_error_is_one_line(
    error: Exception, exit_code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "once", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == exit_code
    assert capsys.readouterr() == ("", f"once: {error}\n")


def test_a_defect_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "once", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main()


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli.once, ["explode"]).exit_code == 2
