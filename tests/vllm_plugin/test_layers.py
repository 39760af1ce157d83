"""vLLM's layers on packed matrices, one by one: results, loading, compilation, refusals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from config_support import config, entry  # noqa: E402
from foreign_support import module, settings  # noqa: E402
from vllm.config import VllmConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed import (  # noqa: E402
    cleanup_dist_env_and_memory,
    init_distributed_environment,
    initialize_model_parallel,
)
from vllm.model_executor.layers.linear import (  # noqa: E402
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (  # noqa: E402
    ParallelLMHead,
    VocabParallelEmbedding,
)

from edge_infer.checkpoint.quantize import quantize  # noqa: E402
from edge_infer.errors import CheckpointError, UnsupportedError  # noqa: E402
from edge_infer.vllm_plugin.config import CpuInt4Config  # noqa: E402
from edge_infer.vllm_plugin.foreign import ForeignConfig, forms  # noqa: E402

K = 64


@pytest.fixture(scope="module", autouse=True)
def vllm_environment(tmp_path_factory) -> Iterator[None]:
    """One process as vLLM sees a group of ranks."""
    with set_current_vllm_config(VllmConfig()):
        file = tmp_path_factory.mktemp("rendezvous") / "file"
        init_distributed_environment(1, 0, f"file://{file}", 0, "gloo")
        initialize_model_parallel(1, 1)
        yield
    cleanup_dist_env_and_memory()


def packed(n: int, k: int = K, seed: int = 0, **form) -> tuple[dict, dict, torch.Tensor]:
    """(config entry, tensors, the matrix they stand for) of a random module."""
    e = entry(n, k, **form)
    values = np.random.default_rng(seed).normal(size=(n, k)).astype(np.float32)
    p = quantize(
        values, "F32", bits=e["bits"], group_size=e["group_size"], symmetric=e["symmetric"],
        name="random", first_row=0,
    )  # fmt: skip
    parts = {"codes": p.codes, "scales": p.scales, "minimums": p.minimums}
    tensors = {kind: torch.from_numpy(a) for kind, a in parts.items() if a is not None}
    from edge_infer.checkpoint import layout

    dense = layout.dequantize(p.codes, p.scales, p.minimums, n=n, k=k, bits=e["bits"])
    return e, tensors, torch.from_numpy(dense)


def quant_config(modules: dict) -> CpuInt4Config:
    c = CpuInt4Config.from_config(config(modules))
    c.packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"],
        "gate_up_proj": ["gate_proj", "up_proj"],
    }
    return c


def load(layer, tensors: dict, *shard) -> None:
    for kind, tensor in tensors.items():
        param = getattr(layer, kind)
        param.weight_loader(param, tensor, *shard)


def finish(layer):
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def close(got: torch.Tensor, want: torch.Tensor, bound: float = 0.02) -> bool:
    return bool((got.float() - want.float()).norm() < bound * want.float().norm())


def merged(
    seed: int = 0, bias: bool = False, bits: int = 8
) -> tuple[torch.nn.Module, torch.Tensor]:
    gate = packed(48, seed=seed)
    up = packed(48, seed=seed + 1, bits=bits)
    c = quant_config({"l.gate_proj": gate[0], "l.up_proj": up[0]})
    layer = MergedColumnParallelLinear(
        K, [48, 48], bias=bias, quant_config=c, prefix="l.gate_up_proj", return_bias=False
    )
    load(layer, up[1], 1)  # in any order
    load(layer, gate[1], 0)
    if bias:
        layer.bias.data.copy_(torch.arange(96.0))
    return finish(layer), torch.cat([gate[2], up[2]])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("bits", [6, 8])
def test_merged_layer_of_mixed_bits(dtype, bits):
    layer, dense = merged(bias=True, bits=bits)
    for shape in ((1, K), (7, K), (2, 3, K), (0, K)):
        x = torch.randn(shape).to(dtype)
        y = layer(x)
        assert y.dtype == dtype and y.shape == (*shape[:-1], 96)
        want = x.float() @ dense.T + torch.arange(96.0)
        assert close(y, want) if x.numel() else y.numel() == 0
    wide = torch.randn(5, 2 * K).to(dtype)
    assert torch.equal(layer(wide[:, :K]), layer(wide[:, :K].contiguous()))
    assert torch.equal(layer(wide[:, ::2]), layer(wide[:, ::2].contiguous()))


def test_qkv_with_minimums_and_other_groups():
    parts = [packed(n, seed=n, group_size=g, symmetric=s) for n, g, s in
             ((64, 32, False), (32, 64, True), (32, 128, False))]  # fmt: skip
    names = ("a.q_proj", "a.k_proj", "a.v_proj")
    c = quant_config({name: p[0] for name, p in zip(names, parts, strict=True)})
    layer = QKVParallelLinear(
        K, 32, 2, 1, bias=False, quant_config=c, prefix="a.qkv_proj", return_bias=False
    )
    for shard, p in zip("qkv", parts, strict=True):
        load(layer, p[1], shard)
    x = torch.randn(4, K)
    assert close(finish(layer)(x), x @ torch.cat([p[2] for p in parts]).T)


def test_loaded_tensors_are_kept_not_copied():
    e, tensors, _ = packed(32)
    layer = RowParallelLinear(
        K, 32, bias=False, quant_config=quant_config({"o_proj": e}), prefix="o_proj"
    )
    load(layer, tensors)
    finish(layer)
    (segment,) = layer.edge_infer_segments
    assert segment.codes.data_ptr() == tensors["codes"].data_ptr()
    assert segment.scales.data_ptr() == tensors["scales"].data_ptr()
    assert set(dict(layer.named_parameters())) == {"edge_infer_handle"}


def test_rows_do_not_depend_on_company():
    layer, _ = merged()
    x = torch.randn(33, K, dtype=torch.bfloat16)
    together = layer(x)
    for row in (0, 17, 32):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("path", ["native", "tinygemm"])
def test_merged_layer_with_an_unquantized_part(path, bias, monkeypatch):
    monkeypatch.setenv("EDGE_INFER_WEIGHT_PATH", path)
    q, v = packed(64, seed=1), packed(32, seed=3)
    k = torch.randn(32, K, dtype=torch.bfloat16)
    c = quant_config({"a.q_proj": q[0], "a.v_proj": v[0]})
    layer = QKVParallelLinear(
        K, 32, 2, 1, bias=bias, quant_config=c, prefix="a.qkv_proj", return_bias=False
    )
    load(layer, {"weight": k}, "k")
    load(layer, v[1], "v")
    load(layer, q[1], "q")
    shift = torch.zeros(128)
    if bias:
        shift = torch.arange(128.0)
        layer.bias.data.copy_(shift)
    dense = torch.cat([q[2], k.float(), v[2]])
    finish(layer)
    assert layer.edge_infer_path.name == "native"  # others cannot read plain rows
    assert layer.edge_infer_segments[1].codes.data_ptr() == k.data_ptr()
    assert set(dict(layer.named_parameters())) <= {"edge_infer_handle", "bias"}
    for rows in (1, 5, 40):
        x = torch.randn(rows, K)
        assert close(layer(x), x @ dense.T + shift)


def test_unquantized_parts_that_are_missing_or_of_another_shape():
    modules = {"l.gate_proj": packed(48)[0]}

    def layer():
        return MergedColumnParallelLinear(
            K, [48, 32], bias=False, quant_config=quant_config(modules), prefix="l.gate_up_proj"
        )

    gate = packed(48)[1]
    other = layer()
    load(other, gate, 0)
    with pytest.raises(CheckpointError, match=r"1 of 2 matrices were loaded for l\.gate_proj"):
        finish(other)
    other = layer()
    load(other, gate, 0)
    load(other, {"weight": torch.zeros(48, K)}, 1)
    with pytest.raises(CheckpointError, match=r"l\.up_proj\.weight is torch.float32 \(48, 64\)"):
        finish(other)
    other = layer()
    load(other, gate, 0)
    load(other, {"weight": torch.zeros(32, K, dtype=torch.int8)}, 1)
    with pytest.raises(CheckpointError, match="has to be float32, bfloat16 or float16"):
        finish(other)


def embedding(bits: int = 4) -> tuple[VocabParallelEmbedding, ParallelLMHead, torch.Tensor]:
    e, tensors, dense = packed(100, bits=bits)  # vLLM pads the vocabulary to 128
    c = quant_config({"embed_tokens": e})
    c.tied = True
    embed = VocabParallelEmbedding(100, K, quant_config=c, prefix="embed_tokens")
    head = ParallelLMHead(100, K, quant_config=c, prefix="lm_head").tie_weights(embed)
    load(embed, tensors)
    return finish(embed), finish(head), dense


@pytest.mark.parametrize("bits", [4, 6])
def test_embedding_and_tied_head_read_one_copy(bits):
    embed, head, dense = embedding(bits)
    ids = torch.tensor([[0, 99], [50, 50]])
    assert torch.equal(embed(ids), dense[ids].to(embed(ids).dtype))
    x = torch.randn(3, K)
    logits = head.quant_method.apply(head, x)
    assert logits.shape == (3, 100) and close(logits, x @ dense.T)
    assert torch.equal(head.quant_method.apply(head, x, bias=torch.ones(100)), logits + 1)
    assert not list(head.parameters())


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_head_of_a_model_that_gives_them_no_name(tied, given, monkeypatch):
    from edge_infer.vllm_plugin.patches import embeddings

    modules = {"h.wte": packed(100, seed=1)} | ({} if tied else {"lm_head": packed(100, seed=2)})
    c = quant_config({name: module[0] for name, module in modules.items()})
    c.tied = tied
    embeddings.install(VocabParallelEmbedding.__module__)
    monkeypatch.setattr(embeddings, "_config", lambda: c)
    known = {"quant_config": c} if given else {}
    embed, head = VocabParallelEmbedding(100, K, **known), ParallelLMHead(100, K, **known)
    other = VocabParallelEmbedding(99, K)
    assert set(dict(other.named_parameters())) == {"weight"}
    load(embed, modules["h.wte"][1])
    if tied:
        head = head.tie_weights(embed)
    else:
        load(head, modules["lm_head"][1])
    finish(embed)
    finish(head)
    ids, x = torch.tensor([3, 99]), torch.randn(3, K)
    assert torch.equal(embed(ids), modules["h.wte"][2][ids].to(embed(ids).dtype))
    dense = modules["h.wte" if tied else "lm_head"][2]
    assert close(head.quant_method.apply(head, x), x @ dense.T)


def test_head_tied_to_an_embedding_that_is_not_packed():
    c = quant_config({"o_proj": packed(32)[0]})
    c.tied = True
    embed = VocabParallelEmbedding(100, K, quant_config=c, prefix="embed_tokens")
    head = ParallelLMHead(100, K, quant_config=c, prefix="lm_head").tie_weights(embed)
    embed.weight.data.normal_()
    finish(embed)
    finish(head)
    x = torch.randn(3, K)
    want = x @ embed.weight[:100].float().T
    assert head.weight is embed.weight
    assert close(head.quant_method.apply(head, x.to(embed.weight.dtype))[:, :100], want)


@pytest.mark.parametrize("tied", [False, True])
def test_bias_of_a_head_whose_vocabulary_is_padded(tied):
    e, tensors, dense = packed(100)
    c = quant_config({"embed_tokens" if tied else "lm_head": e})
    c.tied = tied
    head = ParallelLMHead(100, K, bias=True, quant_config=c, prefix="lm_head")
    assert head.bias.shape == (128,)
    head.bias.data.fill_(torch.nan)
    head.bias.data[:100] = torch.arange(100.0)
    if tied:
        embed = VocabParallelEmbedding(100, K, quant_config=c, prefix="embed_tokens")
        load(embed, tensors)
        head = head.tie_weights(finish(embed))
    else:
        load(head, tensors)
    finish(head)
    x = torch.randn(3, K)
    logits = head.quant_method.apply(head, x, bias=head.bias)
    assert close(logits, x @ dense.T + torch.arange(100.0))


def test_rows_that_share_memory():
    layer, _ = merged()
    row = torch.randn(1, K)
    assert torch.equal(layer(row.expand(5, K)), layer(row.repeat(5, 1)))
    overlapping = torch.randn(2 * K).as_strided((5, K), (3, 1))
    assert torch.equal(layer(overlapping), layer(overlapping.contiguous()))


@pytest.mark.parametrize("method", ["cpu_int4", "awq", "gptq"])
def test_fused_qkv_that_is_stored_head_by_head(method):
    """Falcon's own loader reorders what it is given: codes, scales and minimums alike."""
    from types import SimpleNamespace

    from vllm.model_executor.models.falcon import FalconModel

    heads, kv_heads, size = 4, 2, 16
    n, name = (heads + 2 * kv_heads) * size, "query_key_value"
    if method == "cpu_int4":
        e, tensors, dense = packed(n, symmetric=False)
        c = quant_config({name: e})
    else:
        tensors, values = module(method, n, K, 32)
        dense = values.float()
        c = ForeignConfig(settings(method, 32))
        shapes = {f"{name}.{kind}": tuple(t.shape) for kind, t in tensors.items()}
        c.forms = forms(method, c.settings, shapes)
    layer = ColumnParallelLinear(K, n, bias=False, quant_config=c, prefix=name, return_bias=False)
    shape = SimpleNamespace(
        num_attention_heads=heads, num_kv_heads=kv_heads, new_decoder_architecture=True
    )
    parameters = [(f"{name}.{kind}", p) for kind, p in layer.named_parameters()]
    model = SimpleNamespace(config=shape, named_parameters=lambda **_: parameters)
    model.named_modules = lambda: ()
    FalconModel.load_weights(model, [(f"{name}.{kind}", t) for kind, t in tensors.items()])
    groups = dense.view(kv_heads, heads // kv_heads + 2, size, K)
    parts = groups[:, :-2], groups[:, -2], groups[:, -1]
    want = torch.cat([part.reshape(-1, K) for part in parts])
    x = torch.randn(4, K)
    assert close(finish(layer)(x), x @ want.T)


def test_compiles_without_breaks_and_shares_graphs():
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head, _ = embedding()
            self.first, self.second = merged(1)[0], merged(2)[0]

        def layers(self, x, layer):
            return torch.nn.functional.silu(layer(x))[..., :K]

        def forward(self, ids):
            x = self.layers(self.embed(ids), self.first)
            return self.head.quant_method.apply(self.head, self.layers(x, self.second))

    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    model = Model()
    ids = torch.arange(9)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    assert torch.equal(compiled(ids), model(ids))
    assert torch.equal(compiled(ids[:4]), model(ids[:4]))
    assert len(graphs) == 1
    # no handle is a constant of the graph: what is cached holds in the next process
    code = graphs[0].code
    for part in (model.first, model.second, model.embed):
        assert str(int(part.edge_infer_handle)) not in code


def test_missing_tensors_are_named():
    e, tensors, _ = packed(32)
    layer = RowParallelLinear(
        K, 32, bias=False, quant_config=quant_config({"x.o_proj": e}), prefix="x.o_proj"
    )
    load(layer, {"codes": tensors["codes"]})
    with pytest.raises(CheckpointError, match=r"x\.o_proj\.scales is missing"):
        finish(layer)
    layer = RowParallelLinear(
        K, 32, bias=False, quant_config=quant_config({"x.o_proj": e}), prefix="x.o_proj"
    )
    with pytest.raises(CheckpointError, match=r"0 of 1 matrices were loaded for x\.o_proj"):
        finish(layer)


def test_loading_again_is_refused():
    e, tensors, _ = packed(32)
    layer = RowParallelLinear(
        K, 32, bias=False, quant_config=quant_config({"o_proj": e}), prefix="o_proj"
    )
    codes = layer.codes
    load(layer, tensors)
    finish(layer)
    with pytest.raises(UnsupportedError, match="cannot be loaded again"):
        codes.weight_loader(codes, tensors["codes"])


def test_tensors_of_another_form_are_refused():
    e, _, _ = packed(32)
    _, other, _ = packed(32, group_size=64)
    layer = RowParallelLinear(
        K, 32, bias=False, quant_config=quant_config({"o_proj": e}), prefix="o_proj"
    )
    load(layer, other)
    with pytest.raises(CheckpointError, match="in groups of 32 need"):
        finish(layer)


def test_shapes_that_the_model_does_not_have():
    e, _, _ = packed(48)
    with pytest.raises(CheckpointError, match=r"needs \[32, 64\] for o_proj; .* has \[48, 64\]"):
        RowParallelLinear(
            K, 32, bias=False, quant_config=quant_config({"o_proj": e}), prefix="o_proj"
        )


def test_parts_whose_sum_alone_fits():
    modules = {"l.gate_proj": packed(32)[0], "l.up_proj": packed(64)[0]}
    with pytest.raises(CheckpointError, match=r"needs \[48 \+ 48, 64\] for l\.gate_proj, "):
        MergedColumnParallelLinear(
            K, [48, 48], bias=False, quant_config=quant_config(modules), prefix="l.gate_up_proj"
        )


@pytest.mark.parametrize("change", [{"group_size": 48}, {"bits": 3}, {"n": -1}, {"k": None}])
def test_entries_that_make_no_sense(change):
    with pytest.raises(CheckpointError, match="of quantization_config has"):
        quant_config({"o_proj": entry(32) | change})


def test_tensor_parallelism_is_refused():
    e, _, _ = packed(32)
    with pytest.raises(UnsupportedError, match="over 2 ranks would cut the packed matrix up_proj"):
        ColumnParallelLinear(
            K, 32, quant_config=quant_config({"up_proj": e}), prefix="up_proj", tp_size=2, tp_rank=0
        )
