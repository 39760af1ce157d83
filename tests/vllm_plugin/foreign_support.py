"""Random AWQ and GPTQ modules, packed as the formats' documentation says, and their values."""

from __future__ import annotations

import torch

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(codes: torch.Tensor, order: list[int] | None = None) -> torch.Tensor:
    """Codes [rows, columns] -> int32 [rows, columns/8]: nibble i holds the code order[i]."""
    eights = codes.long().view(codes.shape[0], -1, 8)
    packed = sum(
        eights[:, :, channel] << 4 * nibble for nibble, channel in enumerate(order or range(8))
    )
    return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).int()


def module(
    method: str, n: int, k: int, group: int, *, symmetric: bool = False, v2: bool = False, seed=0
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(tensors by kind, values f64 [n, k]) of a random module of 4 bits."""
    generator = torch.Generator().manual_seed(seed + n + k)
    codes = torch.randint(0, 16, (k, n), generator=generator)
    zeros = torch.randint(1, 16, (k // group, n), generator=generator)
    if symmetric:
        zeros.fill_(8)
    scales = torch.rand(k // group, n, generator=generator).mul(0.02).add(0.004).half()
    repeated = (part.repeat_interleave(group, 0).double() for part in (zeros, scales))
    z, s = repeated
    values = (s * (codes - z)).T
    if method == "awq":
        return {
            "qweight": words(codes, AWQ_ORDER),
            "qzeros": words(zeros, AWQ_ORDER),
            "scales": scales,
        }, values
    return {
        "qweight": words(codes.T.contiguous()).T.contiguous(),
        "qzeros": words(zeros if v2 else zeros - 1),
        "scales": scales,
        "g_idx": (torch.arange(k) // group).int(),
    }, values


def settings(method: str, group: int, **changes) -> dict:
    """The quantization_config of such a checkpoint."""
    if method == "awq":
        base = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm"}
        return base | {"zero_point": True} | changes
    base = {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False}
    return base | {"sym": False, "checkpoint_format": "gptq"} | changes
