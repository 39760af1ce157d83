"""cpu_int4 in unmodified vLLM: the quantization method, its weight paths, and patches.

vLLM calls `register` in each of its processes through the entry point group
``vllm.general_plugins``; nothing here needs to be imported by hand. Torch and vllm are imported
where they are used, so importing this package costs nothing.
"""

from __future__ import annotations

_registered = False


def register() -> None:
    """Makes ``quantization="cpu_int4"`` known to vLLM in this process, and applies the patches.

    Safe to call again. Raises UnsupportedError beside a vLLM that the plugin was not tested with,
    ConfigError for an EDGE_INFER_VLLM_ variable that is none of its flags.
    """
    global _registered
    if _registered:
        return
    from edge_infer.vllm_plugin import flags, patches, storages, version

    version.check()
    flags.check_names()
    storages.listen()
    patches.apply_all()
    from edge_infer.vllm_plugin.config import register_config

    register_config()
    _registered = True


def before_platform() -> None:
    """What has to happen before vLLM knows its platform; None: this is no platform.

    vLLM calls it through the entry point group ``vllm.platform_plugins``, earlier than `register`.
    """
    from edge_infer.vllm_plugin import distribution

    distribution.provide()
