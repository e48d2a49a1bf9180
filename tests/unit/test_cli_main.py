"""The `once` command as a whole: its list of commands, and how it reports errors."""

import errno
import pkgutil
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

import deploy.cli
from deploy.cli import main as cli
from deploy.cli import output
from shared.kafka.client.errors import KafkaUnavailableError
from shared.settings import EXIT_CONFIG, SettingsError


def test_every_command_is_listed_with_one_line() -> None:
    result = CliRunner().invoke(cli.once, ["--help"], prog_name="once", terminal_width=110)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    for name in cli.COMMANDS:
        [line] = [words for words in lines if words[:1] == [name]]
        assert len(line) > 2, f"{name} has no help"
        assert line[-1].endswith("."), f"{name}'s help is not a sentence"
        assert not line[-1].endswith("..."), f"{name}'s help does not fit into a line"
    assert result.output.rstrip().endswith("a setting, or this principal, was refused")


def test_every_command_has_a_module_of_its_name_and_no_other_module_has_one() -> None:
    modules = {module.name for module in pkgutil.iter_modules(deploy.cli.__path__)}
    assert modules - {"cluster", "main", "output"} == {name.replace("-", "_") for name in cli.COMMANDS}
    for name in cli.COMMANDS:
        command = cli.once.get_command(click.Context(cli.once), name)
        assert isinstance(command, click.Command), name
        assert command.name == name


def test_without_spark_the_other_commands_are_there() -> None:
    code = "import sys; sys.modules |= {'pyspark': None, 'spark': None}; from deploy.cli.main import main; main()"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)

    shown = run("--help")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    assert all(f"\n  {name} " in shown.stdout for name in cli.COMMANDS)
    refused = run("breaks", "list", "--limit", "5")
    assert refused.returncode == 1
    assert "docker compose exec reconciliation once breaks" in refused.stderr
    assert "Traceback" not in refused.stderr


def commands(command: click.Command) -> Iterator[click.Command]:
    """A command and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below)


def test_every_json_option_is_the_one_of_the_output_module() -> None:
    @click.command()
    @output.json_option()
    def standard() -> None:
        """A command with that option alone."""

    [expected] = standard.params
    found = [
        (command, option) for command in commands(cli.once) for option in command.params if "--json" in option.opts
    ]
    assert len(found) >= 21
    for command, option in found:
        assert option.callback is expected.callback, command.name
        assert (option.opts, option.expose_value) == (expected.opts, expected.expose_value), command.name


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
    ends_with(error, exit_code, str(error), monkeypatch, capsys)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/root/.once"), "/root/.once: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
    ],
)
def test_an_error_of_the_operating_system_is_one_line(
    error: Exception, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends_with(error, 1, text, monkeypatch, capsys)


def ends_with(
    error: Exception,
    exit_code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Check the end of a command that fails with this error."""

    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli, "once", fail)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == exit_code
    assert capsys.readouterr() == ("", f"once: {text}\n")


@pytest.mark.parametrize("defect", [ZeroDivisionError, TimeoutError])
def test_a_defect_keeps_its_traceback(defect: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise defect

    monkeypatch.setattr(cli, "once", fail)
    with pytest.raises(defect):
        cli.main()


def test_an_unknown_command_is_wrong_usage() -> None:
    assert CliRunner().invoke(cli.once, ["explode"]).exit_code == 2
