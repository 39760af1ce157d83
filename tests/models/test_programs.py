"""Programs beyond the decoder: an encoder whose rows feed a decoder, and cross attention."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edge_infer import _native
from edge_infer.models.builder import ProgramBuilder
from edge_infer.models.rope import RopeTable
from edge_infer.models.values import KvGroup, KvLayout, Linear

torch = pytest.importorskip("torch")

HIDDEN, HEADS, DIM, VOCAB = 48, 3, 16, 61
RNG = np.random.default_rng(11)


def matrix(n: int, k: int) -> np.ndarray:
    return (RNG.standard_normal((n, k)) / math.sqrt(k)).astype(np.float32)


def linear(w: np.ndarray, b: np.ndarray | None = None) -> Linear:
    return Linear(_native.Weight.from_numpy(w), None if b is None else _native.Vector.from_numpy(b))


def vector(v: np.ndarray):
    return _native.Vector.from_numpy(v)


def pool_for(kv: KvLayout, blocks: int = 8):
    return _native.KvPool([(n, g.kv_heads, g.head_dim, blocks) for g, n in kv.groups()], "f16")


def run(
    program,
    tokens,
    tables,
    lengths,
    *,
    positions=None,
    outputs=None,
    embeds=None,
    visible=None,
    index=None,
):
    n = len(tokens)
    at = np.arange(n, dtype=np.int32) if index is None else np.asarray(index, np.int32)
    program.step(
        tokens=np.asarray(tokens, np.int32),
        decode_rows=0,
        positions=(at[None] if positions is None else np.asarray(positions, np.int32)),
        cache_index=at,
        visible_end=at + 1 if visible is None else np.asarray(visible, np.int32),
        sequence=np.zeros(n, np.int32),
        tables=[np.asarray([t], np.int32) for t in tables],
        lengths=[np.asarray([x], np.int32) for x in lengths],
        output_rows=np.arange(n, dtype=np.int32)
        if outputs is None
        else np.asarray(outputs, np.int32),
        embeds=embeds,
    )


def heads_of(x):
    return x.view(x.shape[0], HEADS, DIM).transpose(0, 1)


def attend(q, k, v, mask=None):
    k, v = k.half().float(), v.half().float()
    out = torch.nn.functional.scaled_dot_product_attention(
        heads_of(q)[None], heads_of(k)[None], heads_of(v)[None], attn_mask=mask
    )
    return out[0].transpose(0, 1).reshape(q.shape[0], HEADS * DIM)


class Encoder:
    """One bidirectional LayerNorm layer over embedding rows, in both forms."""

    def __init__(self) -> None:
        self.norm_w, self.norm_b = RNG.standard_normal((2, HIDDEN)).astype(np.float32)
        self.q, self.k, self.v = (matrix(HEADS * DIM, HIDDEN) for _ in range(3))
        self.o, self.up, self.down = (
            matrix(HIDDEN, HEADS * DIM),
            matrix(96, HIDDEN),
            matrix(HIDDEN, 96),
        )
        self.bias = RNG.standard_normal(96).astype(np.float32)

    def native(self, p: ProgramBuilder):
        x = p.embed(None, width=HIDDEN, rows=True)
        h = p.layer_norm(x, vector(self.norm_w), vector(self.norm_b), 1e-5)
        q, k, v = p.linear(h, [linear(self.q), linear(self.k), linear(self.v)])
        o = p.attention(q, k, v, heads=HEADS, group=KvGroup(HEADS, DIM), scale=DIM**-0.5, full=True)
        p.linear(o, linear(self.o), add_to=x)
        h = p.layer_norm(x, vector(self.norm_w), vector(self.norm_b), 1e-5)
        p.linear(
            p.activation(p.linear(h, linear(self.up, self.bias)), "gelu"),
            linear(self.down),
            add_to=x,
        )
        return x

    def torch(self, x):
        t = torch.from_numpy
        f = torch.nn.functional
        h = f.layer_norm(x, (HIDDEN,), t(self.norm_w), t(self.norm_b), 1e-5)
        x = x + attend(h @ t(self.q).T, h @ t(self.k).T, h @ t(self.v).T) @ t(self.o).T
        h = f.layer_norm(x, (HIDDEN,), t(self.norm_w), t(self.norm_b), 1e-5)
        return x + f.gelu(h @ t(self.up).T + t(self.bias)) @ t(self.down).T


def close(got, want) -> None:
    np.testing.assert_allclose(got, want.numpy(), atol=2e-3 * float(want.abs().max()))


def test_encoder_rows_feed_a_decoder_with_spans_and_three_position_axes() -> None:
    encoder, team = Encoder(), _native.Team(2)
    p = ProgramBuilder(max_rows=40, max_outputs=0)
    p.output("rows", encoder.native(p))
    program = p.create(team, pool_for(p.kv), [])
    patches = RNG.standard_normal((9, HIDDEN)).astype(np.float32)
    run(program, [-1] * 9, [[3]], [9], embeds=patches, outputs=[])
    rows = np.array(program.output(p.outputs["rows"]))
    want_rows = encoder.torch(torch.from_numpy(patches))
    close(rows, want_rows)

    # Decoder: tokens and the encoder's rows mixed, the rows seeing each other both ways.
    table, q, k, v = matrix(VOCAB, HIDDEN), *(matrix(HEADS * DIM, HIDDEN) for _ in range(3))
    head = matrix(VOCAB, HEADS * DIM)
    frequency = tuple(float(10000 ** (-i / 8)) for i in range(8))
    rope = RopeTable(frequency, axis=(0, 1, 2, 0, 1, 2, 0, 1))
    d = ProgramBuilder(max_rows=40, max_outputs=40, position_axes=3)
    x = d.store(d.scale(d.embed(linear(table), width=HIDDEN, rows=True), 1.5))
    qv, kv, vv = d.linear(x, [linear(q), linear(k), linear(v)])
    qv, kv = d.rope(qv, rope, HEADS), d.rope(kv, rope, HEADS)
    o = d.attention(qv, kv, vv, heads=HEADS, group=KvGroup(HEADS, DIM), scale=DIM**-0.5)
    d.output("logits", d.linear(d.gather(o), linear(head)))
    decoder = d.create(team, pool_for(d.kv), [])
    tokens = [5, 17, *[-1] * 9, 42, 8]
    visible = [1, 2, *[11] * 9, 12, 13]
    positions = RNG.integers(0, 30, (3, 13))
    run(decoder, tokens, [[1]], [13], positions=positions, embeds=rows, visible=visible)
    got = np.array(decoder.output(d.outputs["logits"]))

    t = torch.from_numpy
    x = torch.cat([t(table)[[5, 17]], t(rows), t(table)[[42, 8]]]) * 1.5
    angle = torch.stack(
        [t(positions[a]).float() * f for a, f in zip(rope.axis, frequency, strict=True)], -1
    )
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]

    def rotate(y):
        a, b = y.view(-1, HEADS, DIM).split(8, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).view(-1, HEADS * DIM)

    mask = torch.arange(13)[None, :] < torch.tensor(visible)[:, None]
    want = attend(rotate(x @ t(q).T), rotate(x @ t(k).T), x @ t(v).T, mask) @ t(head).T
    close(got, want)


def test_decoder_with_cross_attention() -> None:
    encoder, team = Encoder(), _native.Team(2)
    kv = KvLayout()
    cross = KvGroup(HEADS, DIM, cross=True)
    ck, cv = matrix(HEADS * DIM, HIDDEN), matrix(HEADS * DIM, HIDDEN)
    e = ProgramBuilder(kv=kv, max_rows=64, max_outputs=0)
    rows = encoder.native(e)
    key, value = e.linear(rows, [linear(ck), linear(cv)])
    layer = e.kv_store(key, value, cross)

    table, q, k, v = matrix(VOCAB, HIDDEN), *(matrix(HEADS * DIM, HIDDEN) for _ in range(3))
    o, cq, co = (
        matrix(HIDDEN, HEADS * DIM),
        matrix(HEADS * DIM, HIDDEN),
        matrix(HIDDEN, HEADS * DIM),
    )
    own = KvGroup(HEADS, DIM, window=6)
    d = ProgramBuilder(kv=kv, max_rows=16, max_outputs=16)
    x = d.embed(linear(table), width=HIDDEN)
    qv, kv_, vv = d.linear(x, [linear(q), linear(k), linear(v)])
    d.linear(d.attention(qv, kv_, vv, heads=HEADS, group=own, scale=DIM**-0.5), linear(o), add_to=x)
    c = d.attention(
        d.linear(x, linear(cq)),
        None,
        None,
        heads=HEADS,
        group=cross,
        scale=DIM**-0.5,
        full=True,
        layer=layer,
    )
    d.linear(c, linear(co), add_to=x)
    d.output("x", d.gather(x))
    pool = pool_for(kv)
    first, second = e.create(team, pool, []), d.create(team, pool, [])

    n = 45  # more than one block of the encoder's sequence
    patches = RNG.standard_normal((n, HIDDEN)).astype(np.float32)
    groups = [g for g, _ in kv.groups()]
    assert groups == [KvGroup(HEADS, DIM), cross, own]
    run(first, [-1] * n, [[0, 1], [5, 2], [-1, -1]], [n, n, 0], embeds=patches, outputs=[])
    tokens = [3, 9, 27, 50, 60, 1, 2, 30, 31, 32]
    run(second, tokens, [[-1, -1], [5, 2], [6, -1]], [0, n, 10])
    got = np.array(second.output(d.outputs["x"]))

    t = torch.from_numpy
    memory = encoder.torch(t(patches))
    x = t(table)[tokens]
    i = torch.arange(10)
    mask = (i[None, :] <= i[:, None]) & (i[None, :] > i[:, None] - 6)
    x = x + attend(x @ t(q).T, x @ t(k).T, x @ t(v).T, mask) @ t(o).T
    want = x + attend(x @ t(cq).T, memory @ t(ck).T, memory @ t(cv).T) @ t(co).T
    close(got, want)


def test_malformed_programs_and_steps_are_refused() -> None:
    from edge_infer.errors import ConfigError, ExecutionError

    team = _native.Team(1)
    p = ProgramBuilder(max_rows=4, max_outputs=4)
    x = p.embed(linear(matrix(VOCAB, HIDDEN)), width=HIDDEN)
    p.output("y", p.linear(p.gather(x), linear(matrix(VOCAB, HIDDEN))))
    program = p.create(team, None, [])
    good = {"tables": [], "lengths": []}
    run(program, [1, 2], **good)
    for tokens in ([VOCAB], [-1], [1] * 5, []):
        with pytest.raises(ConfigError):
            run(program, tokens, **good)
    with pytest.raises(ConfigError):
        run(program, [1], outputs=[3], **good)
    bad = ProgramBuilder(max_rows=4, max_outputs=4)
    x = bad.embed(linear(matrix(VOCAB, HIDDEN)), width=HIDDEN)
    bad.linear(x, linear(matrix(8, HIDDEN + 1)))
    with pytest.raises(ExecutionError):
        bad.create(team, None, [])


def test_steps_refuse_blocks_that_are_not_there() -> None:
    from edge_infer.errors import ConfigError

    p = ProgramBuilder(max_rows=4, max_outputs=4)
    x = p.embed(linear(matrix(VOCAB, HIDDEN)), width=HIDDEN)
    q, k, v = p.linear(x, [linear(matrix(HEADS * DIM, HIDDEN)) for _ in range(3)])
    p.output("o", p.attention(q, k, v, heads=HEADS, group=KvGroup(HEADS, DIM), scale=1.0))
    program = p.create(_native.Team(1), pool_for(p.kv, blocks=2), [])
    run(program, [1, 2], [[1]], [2])
    for table in ([2], [-1]):
        with pytest.raises(ConfigError):
            run(program, [1, 2], [table], [2])
    with pytest.raises(ConfigError):
        run(program, [1], [[1]], [33], index=[40])
