"""``edge-infer ledger`` on a process, and its errors."""

from __future__ import annotations

import json
import os


def test_a_process_by_its_number(cli) -> None:
    result = cli("ledger", str(os.getpid()), "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["pid"] == os.getpid()
    assert found["anonymous"] > 5_000_000
    names = [line["name"] for line in found["lines"]]
    assert "Python interpreter" in names and names[-1] == "unexplained"
    text = cli("ledger", str(os.getpid()))
    assert "Python interpreter" in text.stdout


def test_named_errors(cli) -> None:
    gone = cli("ledger", "4194999", "--json")
    assert gone.returncode == 1
    assert json.loads(gone.stderr)["error"]["code"] == "storage_failed"
    for arguments in ((str(os.getpid()), "--max-tokens", "4"), ("model", "--max-tokens", "0")):
        wrong = cli("ledger", *arguments, "--json")
        assert json.loads(wrong.stderr)["error"]["code"] == "invalid_parameter"
