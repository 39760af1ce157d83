"""Opening folders: what is accepted, and the name of every refusal."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from edge_infer.checkpoint import Checkpoint, layout
from edge_infer.checkpoint.reader import format_version
from edge_infer.checkpoint.safetensors_io import SafetensorsWriter, TensorSpec
from edge_infer.errors import CheckpointError, UnsupportedError


def plain(folder, arrays, config=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    save_file(arrays, folder / "model.safetensors")
    return folder


def packed(folder, edit=None, drop=(), reshape=None):
    """A packed folder with one 4-bit and one stacked 8-bit module; `edit` changes the config."""
    specs, modules = [], {}
    for name, bits, symmetric, experts in (("a.b", 4, False, None), ("e", 8, True, 3)):
        lead = (experts,) if experts else ()
        modules[name] = {"bits": bits, "group_size": 64, "symmetric": symmetric, "n": 20, "k": 96}
        if experts:
            modules[name]["experts"] = experts
        shape = lead + layout.scales_shape(20, 96, 64)
        specs.append(
            TensorSpec(
                f"{name}.codes",
                "U8" if bits == 4 else "I8",
                lead + layout.codes_shape(20, 96, bits, 64),
            )
        )
        specs.append(TensorSpec(f"{name}.scales", "F16", shape))
        if not symmetric:
            specs.append(TensorSpec(f"{name}.minimums", "F16", shape))
    config = {
        "model_type": "llama",
        "quantization_config": {
            "quant_method": "cpu_int4", "version": 1, "group_size": 64, "symmetric": False,
            "bits": 4, "modules": modules,
        },
    }  # fmt: skip
    if edit:
        edit(config["quantization_config"])
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    specs = [s for s in specs if s.name not in drop]
    if reshape:
        specs = [TensorSpec(s.name, s.dtype, reshape.get(s.name, s.shape)) for s in specs]
    with SafetensorsWriter(folder / "model.safetensors", specs) as w:
        for s in specs:
            w.write(s.name, 0, np.zeros(s.nbytes, np.uint8))
    return folder


def test_plain_folder(tmp_path):
    c = Checkpoint.open(plain(tmp_path / "m", {"x.weight": np.ones((3, 4), np.float16)}))
    assert c.matrices == {} and c.tensors["x.weight"].shape == (3, 4)
    assert c.tensors["x.weight"].dtype == "F16" and c.config["model_type"] == "llama"


def test_packed_folder(tmp_path):
    c = Checkpoint.open(packed(tmp_path / "m"))
    a, e = c.matrices["a.b"], c.matrices["e"]
    assert (a.n, a.k, a.bits, a.group_size, a.experts) == (20, 96, 4, 64, None)
    assert a.minimums is not None and a.codes.shape == (2, 16, 64) and a.codes.offset % 64 == 0
    assert e.minimums is None and e.experts == 3 and e.codes.shape == (3, 2, 32, 64)
    assert e.nbytes == e.codes.nbytes + e.scales.nbytes


def test_sharded_folder(tmp_path):
    folder = plain(tmp_path / "m", {"x": np.ones(3, np.float32)})
    (folder / "model.safetensors").rename(folder / "s1.safetensors")
    save_file({"y": np.ones(2, np.float32)}, folder / "s2.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "s1.safetensors", "y": "s2.safetensors"}}))
    c = Checkpoint.open(folder)
    assert set(c.tensors) == {"x", "y"} and [f.name for f in c.files] == [
        "s1.safetensors",
        "s2.safetensors",
    ]
    (folder / "s2.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 of 2 shards .* s2.safetensors"):
        Checkpoint.open(folder)
    index.write_text(json.dumps({"weight_map": {"z": "s1.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"'z' is not in s1.safetensors"):
        Checkpoint.open(folder)
    index.write_text(json.dumps({"weight_map": {"x": "../m/s1.safetensors"}}))
    with pytest.raises(CheckpointError, match="outside the folder"):
        Checkpoint.open(folder)
    index.write_text(json.dumps({"weight_map": []}))
    with pytest.raises(CheckpointError, match="no weight_map"):
        Checkpoint.open(folder)


def test_shards_without_an_index(tmp_path):
    folder = plain(tmp_path / "m", {"x": np.ones(3, np.float32)})
    (folder / "model.safetensors").rename(folder / "s1.safetensors")
    save_file({"x": np.ones(3, np.float32)}, folder / "consolidated.safetensors")
    assert set(Checkpoint.open(folder).tensors) == {"x"}
    save_file({"x": np.ones(3, np.float32)}, folder / "s2.safetensors")
    with pytest.raises(CheckpointError, match=r"both s1.safetensors and s2.safetensors"):
        Checkpoint.open(folder)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(CheckpointError, match="does not exist"):
        Checkpoint.open(tmp_path / "nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is a file"):
        Checkpoint.open(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"has no config.json"):
        Checkpoint.open(tmp_path / "empty")
    (tmp_path / "empty" / "m.gguf").write_text("")
    with pytest.raises(CheckpointError, match=r"1 GGUF files.*m\.gguf"):
        Checkpoint.open(tmp_path / "empty")
    (tmp_path / "empty" / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        Checkpoint.open(tmp_path / "empty")
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no safetensors"):
        Checkpoint.open(tmp_path / "only")
    (tmp_path / "only" / "pytorch_model.bin").write_text("")
    with pytest.raises(CheckpointError, match="pickle"):
        Checkpoint.open(tmp_path / "only")


@pytest.mark.parametrize(
    "text,message",
    [
        ("", "not valid JSON"),
        ("[1]", "not hold a JSON object"),
        ('{"a":1,"a":2}', "repeats"),
        ('{"a":' + "[" * 100_000, "nested|not valid"),
        (" " * ((16 << 20) + 1), "larger than"),
    ],
)
def test_broken_config(tmp_path, text, message):
    folder = plain(tmp_path / "m", {"x": np.ones(3, np.float32)})
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(folder)


def set_module(**values):
    return lambda q: q["modules"]["a.b"].update(values)


@pytest.mark.parametrize(
    "edit,message",
    [
        (lambda q: q.pop("modules"), "no modules"),
        (lambda q: q["modules"].pop("e"), "does not list"),
        (lambda q: q["modules"].update(e=[]), "not an object"),
        (set_module(bits=5), "bits 5"),
        (set_module(bits=8), r"U8 .* needs I8"),
        (set_module(group_size=48), "group_size 48"),
        (set_module(group_size=32), r"needs F16|needs U8"),
        (set_module(symmetric=1), "symmetric 1"),
        (set_module(symmetric=True), "minimums exists"),
        (set_module(n=0), "n 0"),
        (set_module(n=10**12), "n 1000000000000"),
        (set_module(n=33), r"needs U8 \(3, "),
        (set_module(k="96"), "k 96"),
        (set_module(experts=-1), "experts -1"),
    ],
)
def test_inconsistent_modules(tmp_path, edit, message):
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(packed(tmp_path / "m", edit))


@pytest.mark.parametrize("part", ["a.b.codes", "a.b.scales", "a.b.minimums", "e.codes"])
def test_missing_tensor_is_named(tmp_path, part):
    with pytest.raises(CheckpointError, match=f"{part} is missing"):
        Checkpoint.open(packed(tmp_path / "m", drop=(part,)))


def six(version):
    def edit(q):
        q["version"] = version
        q["modules"]["a.b"]["bits"] = 6

    return edit


def test_six_bits_need_the_version_that_has_them(tmp_path):
    shape = {"a.b.codes": (2, 24, 64)}
    a = Checkpoint.open(packed(tmp_path / "m", six(2), reshape=shape)).matrices["a.b"]
    assert (a.bits, a.codes.dtype, a.nbytes) == (6, "U8", 2 * (24 * 64 + 2 * 2 * 32))
    with pytest.raises(CheckpointError, match=r"'a\.b' has 6 bits, which version 1 .* not have"):
        Checkpoint.open(packed(tmp_path / "one", six(1), reshape=shape))
    with pytest.raises(CheckpointError, match=r"a\.b\.codes is U8 .* needs U8 \(2, 24, 64\)"):
        Checkpoint.open(packed(tmp_path / "short", six(2)))


def test_the_version_is_the_oldest_that_will_do():
    """A build from before 6 bits reads whatever has none, and refuses the rest by its version."""
    assert [format_version(b) for b in ([], [4, 8], [8], [6], [4, 6, 8])] == [1, 1, 1, 2, 2]


def test_wrong_shape_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"a.b.scales is F16 \(4, 1, 16\)"):
        Checkpoint.open(packed(tmp_path / "m", reshape={"a.b.scales": (4, 1, 16)}))


def test_misaligned_codes_are_refused(tmp_path):
    folder = packed(tmp_path / "m")
    with open(folder / "model.safetensors", "rb") as f:
        raw = f.read()
    length = int.from_bytes(raw[:8], "little")
    (folder / "model.safetensors").write_bytes(
        (length + 1).to_bytes(8, "little") + raw[8 : 8 + length] + b" " + raw[8 + length :]
    )
    with pytest.raises(CheckpointError, match="not a multiple of 64"):
        Checkpoint.open(folder)


@pytest.mark.parametrize(
    "values,message",
    [
        ({"quant_method": "gptq"}, "gptq"),
        ({"quant_method": None}, "None"),
        ({"version": 3}, "version 3"),
        ({"version": 0}, "version 0"),
        ({"version": True}, "version True"),
    ],
)
def test_other_quantizations_are_unsupported(tmp_path, values, message):
    with pytest.raises(UnsupportedError, match=message):
        Checkpoint.open(packed(tmp_path / "m", lambda q: q.update(values)))
