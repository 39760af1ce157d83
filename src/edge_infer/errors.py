"""Every error that edge-infer raises on purpose: a stable code, the numbers, and a remedy."""

from __future__ import annotations


class EdgeInferError(Exception):
    """Base of the hierarchy.

    ``code`` is stable and part of the public API; ``message`` says what is wrong with the numbers;
    ``remedy`` says what the reader can do about it.
    """

    code = "error"

    def __init__(self, message: str, *, remedy: str = "", code: str | None = None) -> None:
        if code is not None:
            self.code = code
        self.message = message
        self.remedy = remedy
        super().__init__(f"[{self.code}] {message}" + (f" {remedy}" if remedy else ""))


class CheckpointError(EdgeInferError):
    """A model file or folder is missing, damaged, hostile or inconsistent."""

    code = "checkpoint_invalid"


class UnsupportedError(EdgeInferError):
    """A well-formed input asks for something that this build does not have."""

    code = "unsupported"


class ConfigError(EdgeInferError):
    """A parameter, or a combination of parameters, makes no sense."""

    code = "invalid_parameter"


class CapacityError(EdgeInferError):
    """A request or model does not fit the memory, context or pool; the message has both numbers."""

    code = "capacity_exceeded"


class DeviceError(EdgeInferError):
    """The machine lacks what was asked of it (an ISA level, memory, CPUs)."""

    code = "device_unsuitable"


class StorageError(EdgeInferError):
    """Reading or writing the disk failed (no space, no permission)."""

    code = "storage_failed"


class WeightsLostError(EdgeInferError):
    """The mapped weight file was truncated or became unreadable while the engine ran."""

    code = "weights_lost"


class ExecutionError(EdgeInferError):
    """A step produced something unusable (NaN logits) or the executor was used wrongly."""

    code = "execution_failed"


class QueueFullError(EdgeInferError):
    """More requests wait than the engine queues; ``retry_after``: seconds until it is worth asking
    again."""

    code = "queue_full"

    def __init__(self, message: str, *, retry_after: int, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after = retry_after


class EngineStoppedError(EdgeInferError):
    """The engine is stopping or has stopped, and takes no new requests."""

    code = "engine_stopped"


BY_CODE: dict[str, type[EdgeInferError]] = {
    cls.code: cls
    for cls in (
        CheckpointError,
        UnsupportedError,
        ConfigError,
        CapacityError,
        DeviceError,
        StorageError,
        WeightsLostError,
        ExecutionError,
    )
}
