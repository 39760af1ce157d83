"""What ``import edge_infer`` costs and drags in."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("torch", "transformers", "vllm", "onnxruntime")

PROGRAM = """
import json, sys, time

def anonymous():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(l.split()[1]) for l in file if l.startswith("Anonymous:")) * 1024

before = anonymous()
start = time.perf_counter()
import edge_infer
for name in getattr(edge_infer, "__all__", []):
    getattr(edge_infer, name)
seconds = time.perf_counter() - start
print(json.dumps({
    "seconds": seconds,
    "anonymous": anonymous(),
    "added": anonymous() - before,
    "modules": sorted(m for m in sys.modules if "." not in m),
}))
"""


def test_import_is_light(record_property) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    seen = json.loads(result.stdout)
    assert not [name for name in HEAVY if name in seen["modules"]]
    assert seen["anonymous"] < 80e6, f"{seen['anonymous'] / 1e6:.0f} MB anonymous after import"
    # Time is reported, not gated: the machine is shared.
    record_property("import_seconds", seen["seconds"])
    print(f"import edge_infer: {seen['seconds']:.2f} s, {seen['added'] / 1e6:.0f} MB anonymous")


def test_command_line_start_up_is_light() -> None:
    program = (
        "import sys; import edge_infer.cli.main; "
        "print([m for m in sys.argv[1:] if m in sys.modules])"
    )
    heavy = [*HEAVY, "numpy", "pydantic", "tokenizers", "huggingface_hub", "gguf"]
    result = subprocess.run(
        [sys.executable, "-c", program, *heavy],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert result.stdout.strip() == "[]"
