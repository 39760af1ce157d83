"""Usage, exit codes and error output of the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
import typer
from typer.testing import CliRunner

from edge_infer.cli import common
from edge_infer.cli.__main__ import main
from edge_infer.cli.commands import COMMANDS, make_app
from edge_infer.errors import CapacityError


def test_help_lists_commands(cli) -> None:
    result = cli("--help")
    assert result.returncode == 0
    assert "device" in result.stdout


def test_a_command_alone_is_the_same_command() -> None:
    runner = CliRunner()
    whole = make_app()
    for name in COMMANDS:
        alone = runner.invoke(make_app(name), [name, "--help"], prog_name="edge-infer")
        assert alone.exit_code == 0
        assert alone.output == runner.invoke(whole, [name, "--help"], prog_name="edge-infer").output


def test_a_command_imports_no_other() -> None:
    program = (
        "import sys; from edge_infer.cli.commands import make_app; make_app('serve'); "
        "print([m for m in sys.modules if m.startswith('edge_infer.cli.')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "edge_infer.cli.serve" in done.stdout and "edge_infer.cli.grid" not in done.stdout


def test_no_command_is_a_usage_error(cli) -> None:
    assert cli().returncode == 2


def test_unknown_command_is_a_usage_error(cli) -> None:
    result = cli("fly")
    assert result.returncode == 2
    assert "fly" in result.stderr


def test_version(cli) -> None:
    assert cli("--version").stdout.strip() == version("edge-infer")


def test_device_json(cli) -> None:
    result = cli("device", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["isa"]["active"] in document["isa"]["available"]
    assert document["isa"]["available"][0] == "scalar"
    assert document["threads"] >= 1
    assert 0 < document["memory"]["available_bytes"] <= document["memory"]["total_bytes"]


def test_device_text_names_the_level(cli) -> None:
    result = cli("device", env={"EDGE_INFER_ISA": "scalar"})
    assert result.returncode == 0
    assert "ISA       scalar" in result.stdout


def test_impossible_isa_is_an_error_with_a_remedy(cli) -> None:
    plain = cli("device", env={"EDGE_INFER_ISA": "z80"})
    assert plain.returncode == 1
    assert "device_unsuitable" in plain.stderr
    assert "Traceback" not in plain.stderr
    in_json = cli("device", "--json", env={"EDGE_INFER_ISA": "z80"})
    assert in_json.returncode == 1
    assert in_json.stdout == ""
    error = json.loads(in_json.stderr)["error"]
    assert error["code"] == "device_unsuitable"
    assert "z80" in error["message"]


def _app(raises: BaseException) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @common.command
    def boom(as_json: common.JsonOption = False) -> None:
        raise raises

    return app


def test_error_has_code_message_and_remedy() -> None:
    error = CapacityError("Needs 9 bytes, 4 are free.", remedy="Use a smaller model.")
    result = CliRunner().invoke(_app(error), [])
    assert result.exit_code == 1
    assert "Needs 9 bytes, 4 are free. [capacity_exceeded]" in result.stderr
    assert "Use a smaller model." in result.stderr


def test_interrupt_exits_130() -> None:
    result = CliRunner().invoke(_app(KeyboardInterrupt()), [])
    assert result.exit_code == 130
    assert "interrupted" in result.stderr


def test_a_bug_is_not_dressed_up_as_an_error() -> None:
    result = CliRunner().invoke(_app(ZeroDivisionError()), [])
    assert isinstance(result.exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 MB"), (412e6, "412 MB"), (999.4e6, "999 MB"), (1.25e9, "1.25 GB")]
)
def test_megabytes(size: float, text: str) -> None:
    assert common.megabytes(size) == text


def test_a_full_disk_under_stdout_has_a_name() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "edge_infer.cli", "device", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert json.loads(done.stderr)["error"]["code"] == "storage_failed"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])
def test_json_is_valid_in_every_encoding(cli, encoding: str) -> None:
    done = cli("inspect", "/\u00e9\udcff", "--json", env={"PYTHONIOENCODING": encoding})
    assert done.returncode == 1
    assert json.loads(done.stderr)["error"]["message"] == "/\u00e9\udcff does not exist."


def test_memory_that_is_used_up_has_a_name() -> None:
    result = CliRunner().invoke(_app(MemoryError()), [])
    assert result.exit_code == 1
    assert "[capacity_exceeded]" in result.stderr


def test_interrupt_while_importing(monkeypatch, capsys) -> None:
    class Interrupting:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "edge_infer.cli.commands":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "edge_infer.cli.commands", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit, match="130"):
        main()
    assert "interrupted" in capsys.readouterr().err
