"""GGUF to the packed format: exactness, names, conventions, configuration."""

import numpy as np
import pytest
from model_files import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, VOCAB, gguf_values, write_gguf

from edge_infer.checkpoint import Checkpoint
from edge_infer.checkpoint.convert import convert
from edge_infer.checkpoint.gguf_config import llama3_factors
from edge_infer.checkpoint.gguf_names import hf_name
from edge_infer.errors import CheckpointError, UnsupportedError

pytestmark = pytest.mark.usefixtures("no_tokenizer")


def converted(tmp_path, *args, options=None, **kw):
    stored = write_gguf(tmp_path / "m.gguf", *args, **kw)
    folder = convert(tmp_path / "m.gguf", tmp_path / "out", **(options or {}))
    return stored, Checkpoint.open(folder)


def halves(w, heads):
    """Interleaved rows back in halves: what the GGUF exporter of Llama did, undone."""
    return w.reshape(heads, HEAD_DIM // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def reference(arch, name, kind, raw):
    w = gguf_values(kind, raw)
    if arch == "llama" and ".attn_q." in name:
        w = halves(w, HEADS)
    elif arch == "llama" and ".attn_k." in name:
        w = halves(w, KV_HEADS)
    if arch == "gemma3" and "norm" in name:
        w = w - np.float32(1)
    return w


EXACT = {"Q4_0": (4, True), "Q4_1": (4, False), "Q5_0": (6, True), "Q5_1": (6, False),
         "Q8_0": (8, True)}  # fmt: skip


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3", "gemma3"])
@pytest.mark.parametrize("kind", EXACT)
def test_repacking_is_exact(tmp_path, values, arch, kind):
    stored, c = converted(tmp_path, arch, [kind])
    for name, (k, raw) in stored.items():
        got = values(c, hf_name(arch, name))
        assert np.array_equal(got.reshape(-1), reference(arch, name, k, raw).reshape(-1)), name
    m = c.matrices["model.layers.0.mlp.down_proj"]
    assert (m.bits, m.minimums is None, m.group_size) == (*EXACT[kind], 32)


@pytest.mark.parametrize("kind,bits", [("Q4_K", 4), ("Q5_K", 6)])
def test_k_types_keep_their_codes(tmp_path, values, kind, bits):
    stored, c = converted(tmp_path, "qwen3", [kind])
    for name, (k, raw) in stored.items():
        expected = reference("qwen3", name, k, raw)
        got = values(c, hf_name("qwen3", name)).reshape(expected.shape)
        if k == "F32":
            assert np.array_equal(got, expected)
            continue
        assert c.matrices[hf_name("qwen3", name).removesuffix(".weight")].bits == bits
        # a 6-bit factor times an fp16 scale, rounded to fp16: 2^-11 of each of the two terms
        d = np.abs(raw.reshape(-1, 144 if bits == 4 else 176)[:, :4].copy().view(np.float16))
        bound = d.astype(np.float32) @ [63 * (15 if bits == 4 else 31), 63] * 2.0**-11 + 1e-6
        assert (np.abs(got - expected).reshape(-1, 256).max(1) <= bound).all()


@pytest.mark.parametrize("kind", ["Q6_K", "F32", "F16", "BF16"])
@pytest.mark.parametrize("bits,bound", [(None, 0.006), (8, 0.006), (6, 0.03), (4, 0.12)])
def test_other_types_are_quantized(tmp_path, values, kind, bits, bound):
    stored, c = converted(tmp_path, "qwen2", [kind], tied=False, options={"bits": bits})
    assert {m.bits for m in c.matrices.values()} == {bits or 8}
    for name, (k, raw) in stored.items():
        expected = reference("qwen2", name, k, raw)
        got = values(c, hf_name("qwen2", name)).reshape(expected.shape)
        error = np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean())
        assert error <= (bound if k == kind and expected.shape[0] > 1 else 0), name


def test_four_bits_on_request(tmp_path, values):
    kinds = ["Q4_0", "Q8_0", "Q5_1", "Q4_K", "F16"]
    _, c = converted(tmp_path, "llama", kinds, options={"bits": 4, "symmetric": False})
    assert {m.bits for m in c.matrices.values()} == {4}
    kept = c.matrices["model.embed_tokens"]  # the first: Q4_0, which keeps its symmetric codes
    assert kept.minimums is None
    assert sum(m.minimums is None for m in c.matrices.values()) == 3
    q = c.config["quantization_config"]
    assert (q["bits"], q["symmetric"], q["group_size"]) == (4, False, 32)


def test_six_bits_on_request(tmp_path, values):
    kinds = ["Q4_0", "Q8_0", "Q5_1", "Q5_K", "F16"]
    _, c = converted(tmp_path, "llama", kinds, options={"bits": 6})
    assert {m.bits for m in c.matrices.values()} == {4, 6}
    assert c.matrices["model.embed_tokens"].bits == 4  # smaller ones keep their codes
    assert c.config["quantization_config"]["version"] == 2


def test_kept_codes_say_so_when_another_group_is_asked_for(tmp_path):
    write_gguf(tmp_path / "m.gguf", "llama", ["Q4_0", "F16"])
    notes = []
    convert(tmp_path / "m.gguf", tmp_path / "out", group_size=64, notes=notes)
    assert any("keep the codes" in n for n in notes)
    c = Checkpoint.open(tmp_path / "out")
    assert {(m.bits, m.group_size) for m in c.matrices.values()} == {(4, 32), (8, 64)}


def test_a_minus_128_is_rescaled(tmp_path, values):
    def edit(name, kind, raw):
        if name == "blk.0.ffn_up.weight":
            raw[3, 2] = 128
        return raw

    stored, c = converted(tmp_path, "qwen3", ["Q8_0"], edit=edit)
    expected = gguf_values(*stored["blk.0.ffn_up.weight"])
    got = values(c, "model.layers.0.mlp.up_proj.weight")
    same = got == expected
    same[3, :32] = True
    assert same.all()
    step = np.abs(expected[3, :32]).max() / 127
    assert np.abs(got[3, :32] - expected[3, :32]).max() <= 0.51 * step + 1e-3 * 127 * step


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K", "Q6_K", "F16"])
def test_a_scale_that_is_no_number_is_named(tmp_path, kind, bad):
    def edit(name, k, raw):
        if name == "blk.1.ffn_up.weight":
            at = 208 if k == "Q6_K" else 0
            raw[200, at : at + 2] = np.array([bad], np.float16).view(np.uint8)
        return raw

    with (
        np.errstate(invalid="ignore"),
        pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"),
    ):
        converted(tmp_path, "qwen3", [kind], edit=edit)
    assert not (tmp_path / "out").exists() and len(list(tmp_path.iterdir())) == 1


def test_interleaved_biases_follow_their_rows(tmp_path, values):
    stored, c = converted(tmp_path, "llama", ["F32"], attention_bias=True)
    assert c.config["attention_bias"] is True
    for part, heads in (("q", HEADS), ("k", KV_HEADS)):
        bias = gguf_values(*stored[f"blk.1.attn_{part}.bias"]).reshape(-1, 1)
        got = values(c, f"model.layers.1.self_attn.{part}_proj.bias")
        assert np.array_equal(got, halves(bias, heads)[:, 0]) and not np.array_equal(
            got, bias[:, 0]
        )


def test_llama_rotary_form_is_undone(tmp_path, values):
    """Pairs that GGUF puts side by side lie half a head apart in Hugging Face's form."""

    def edit(name, kind, raw):
        if name == "blk.0.attn_q.weight":
            raw.view(np.float32)[:] = np.arange(HEADS * HEAD_DIM)[:, None]
        return raw

    _, c = converted(tmp_path, "llama", ["F32"], edit=edit, options={"exclude": ["*q_proj"]})
    rows = values(c, "model.layers.0.self_attn.q_proj.weight")[:, 0]
    half = HEAD_DIM // 2
    assert rows[0] == 0 and rows[half] == 1 and rows[1] == 2 and rows[HEAD_DIM] == HEAD_DIM


def test_excluded_matrices_become_floats(tmp_path, values):
    kinds = ["Q8_0", "F16", "BF16"]
    stored, c = converted(
        tmp_path, "qwen3", kinds, options={"exclude": ["model.layers.0.*", "model.embed_tokens"]}
    )
    assert all(n.startswith("model.layers.1.") for n in c.matrices)
    for name, (kind, raw) in stored.items():
        hf = hf_name("qwen3", name)
        if hf in c.tensors and c.tensors[hf].shape[-1:] != () and kind != "F32":
            assert c.tensors[hf].dtype == ("F32" if kind == "Q8_0" else kind)
            got = values(c, hf)
            if kind == "BF16":
                got = (got.astype(np.uint32) << 16).view(np.float32)
            assert np.array_equal(got, gguf_values(kind, raw))


def test_config_of_llama(tmp_path):
    _, c = converted(tmp_path, "llama", ["Q4_0"], tied=False, fields={"rope.freq_base": 250000.0})
    assert c.config["architectures"] == ["LlamaForCausalLM"] and c.config["model_type"] == "llama"
    expected = {
        "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
        "rms_norm_eps": 1e-5, "rope_theta": 250000.0, "rope_scaling": None, "hidden_act": "silu",
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
        "max_position_embeddings": 1024, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    assert {k: c.config[k] for k in expected} == expected
    assert "lm_head" in c.matrices


def test_config_of_the_others(tmp_path):
    _, c = converted(tmp_path, "gemma3", ["Q4_0"], layers=7, fields={
        "rope.scaling.type": "linear", "rope.scaling.factor": 8.0})  # fmt: skip
    assert c.config["model_type"] == "gemma3_text"
    assert c.config["layer_types"] == ["sliding_attention"] * 5 + [
        "full_attention",
        "sliding_attention",
    ]
    assert c.config["sliding_window"] == 128 and c.config["rope_local_base_freq"] == 10000.0
    assert c.config["query_pre_attn_scalar"] == HEAD_DIM and c.config["tie_word_embeddings"] is True
    assert c.config["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    assert c.config["hidden_activation"] == "gelu_pytorch_tanh"
    (tmp_path / "q").mkdir()
    _, c = converted(tmp_path / "q", "qwen2", ["Q4_0"], fields={
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 256})  # fmt: skip
    assert c.config["rope_scaling"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}  # fmt: skip
    assert c.config["attention_bias"] is True
    assert "model.layers.1.self_attn.k_proj.bias" in c.tensors
    (tmp_path / "m").mkdir()
    _, c = converted(tmp_path / "m", "llama", ["Q4_0"], fields={"attention.sliding_window": 64})
    assert (c.config["model_type"], c.config["sliding_window"]) == ("mistral", 64)


def test_llama3_rope_factors(tmp_path):
    def with_factors(factors, name):
        (tmp_path / name).mkdir()
        extra = {"rope_freqs.weight": np.array(factors, np.float32)}
        return converted(tmp_path / name, "llama", ["Q4_0"], extra_tensors=extra)[1].config

    for factor, context in ((8.0, 8192), (32.0, 8192), (4.0, 2048)):
        factors = llama3_factors(500000.0, HEAD_DIM, factor, 1.0, 4.0, context)
        got = with_factors(factors, f"f{factor}")["rope_scaling"]
        assert got == {
            "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": context,
        }  # fmt: skip
    assert with_factors([1.0] * (HEAD_DIM // 2), "ones")["rope_scaling"] is None
    with pytest.raises(UnsupportedError, match="frequency factors"):
        with_factors(np.linspace(1, 3, HEAD_DIM // 2), "odd")
    with pytest.raises(CheckpointError, match="rope_freqs"):
        with_factors([1.0] * 5, "short")


@pytest.mark.parametrize(
    "fields,error,message",
    [
        ({"attention.head_count": 0}, CheckpointError, "head_count = 0"),
        ({"attention.head_count": "4"}, CheckpointError, "head_count = 4"),
        ({"attention.head_count": [4, 2]}, UnsupportedError, "layer to layer"),
        ({"attention.head_count_kv": 3}, CheckpointError, "3 key-value heads"),
        ({"embedding_length": 128}, CheckpointError, "shape"),
        ({"embedding_length": 1 << 30}, CheckpointError, "embedding_length"),
        ({"embedding_length": None}, CheckpointError, "lacks llama.embedding_length"),
        ({"block_count": 3}, CheckpointError, r"lacks 9 tensors.*layers\.2"),
        ({"block_count": 1}, UnsupportedError, "blk.1"),
        ({"block_count": 4000}, CheckpointError, "claims 4000 layers"),
        ({"attention.value_length": 32}, UnsupportedError, "different lengths"),
        ({"rope.dimension_count": 32}, UnsupportedError, "a part of each head"),
        ({"attention.layer_norm_rms_epsilon": float("nan")}, CheckpointError, "epsilon = nan"),
        ({"rope.freq_base": float("inf")}, CheckpointError, "freq_base = inf"),
        ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, UnsupportedError, "longr"),
        ({"expert_count": 8}, UnsupportedError, "8 experts"),
        ({"context_length": 0}, CheckpointError, "context_length = 0"),
    ],
)
def test_absurd_metadata(tmp_path, fields, error, message):
    with pytest.raises(error, match=message):
        converted(tmp_path, "llama", ["Q4_0"], fields=fields)


@pytest.mark.parametrize(
    "key,value,error,message",
    [
        ("split.count", 3, UnsupportedError, "one part of 3"),
        ("tokenizer.ggml.tokens", ["x"] * (VOCAB + 1), CheckpointError, "301 tokens and 300"),
    ],
)
def test_split_files_and_more_tokens_than_rows(tmp_path, key, value, error, message):
    with pytest.raises(error, match=message):
        converted(tmp_path, "llama", tokens=False, top={key: value})
