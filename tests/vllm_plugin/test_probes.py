"""The timers of a worker's steps; needs no vLLM (the probes themselves: test_patches.py)."""

from __future__ import annotations

import time

import pytest

from edge_infer.vllm_plugin.probes import Timers


class Model:
    def compute_logits(self) -> str:
        time.sleep(0.002)
        return "logits"


class Runner:
    def __init__(self, model: Model) -> None:
        self.model = model

    def execute_model(self) -> str:
        self._update_states()
        self._prepare_inputs()
        self._model_forward()
        return self.model.compute_logits()

    def sample_tokens(self) -> None:
        self._sample()

    def _model_forward(self) -> None:
        time.sleep(0.005)

    def _update_states(self) -> None: ...

    def _prepare_inputs(self) -> None: ...

    def _determine_batch_execution_and_padding(self) -> None: ...

    def _get_slot_mappings(self) -> None: ...

    def _build_attention_metadata(self) -> None: ...

    def _preprocess(self) -> None: ...

    def _bookkeeping_sync(self) -> None: ...

    def _sample(self) -> None:
        raise ValueError("no logits")


def test_parts_are_inside_the_whole_and_timers_come_off() -> None:
    model = Model()
    runner = Runner(model)
    timers = Timers()
    timers.watch(runner, model)
    for _ in range(3):
        assert runner.execute_model() == "logits"
        time.sleep(0.004)
    with pytest.raises(ValueError, match="no logits"):  # errors pass through
        runner.sample_tokens()
    found = timers.stop()
    assert found["steps"] == 3
    assert found["forward"] >= 0.015
    assert found["logits"] >= 0.006
    assert found["between"] >= 0.012  # three pauses; there is none before the first call
    assert found["runner"] >= found["forward"] + found["logits"] + found["inputs"]
    assert not vars(model)
    assert set(vars(runner)) == {"model"}
