"""``edge-infer doctor``: what is right and wrong with this installation."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from edge_infer.cli.common import EXIT_ERROR, JsonOption, command, print_json


@command
def doctor(
    vllm: Annotated[
        bool,
        typer.Option("--vllm", help="vLLM is wanted: refuse where it or its torch is missing."),
    ] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also import torch and vLLM, in processes of their own.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine and what is installed; what is wrong comes with a remedy.

    Ends with 1 if something is refused. Without --deep only files and metadata are read.
    """
    from edge_infer.checkpoint.resolve import cache_dir
    from edge_infer.device.doctor import OK, REFUSED, extra_findings, machine_findings
    from edge_infer.vllm_plugin.doctor import vllm_findings

    findings = [
        *machine_findings(cache_dir()),
        *extra_findings(),
        *vllm_findings(wanted=vllm or deep, deep=deep),
    ]
    refused = [one for one in findings if one.status == REFUSED]
    if as_json:
        print_json({"ok": not refused, "findings": [one.as_dict() for one in findings]})
    else:
        width = max(len(one.subject) for one in findings) + 2
        for one in findings:
            mark = "" if one.status == OK else f"{one.status.upper()}: "
            print(f"{one.subject:<{width}}{mark}{one.text}")
            if one.remedy:
                print(textwrap.indent(one.remedy, " " * (width + 2)))
    if refused:
        raise typer.Exit(EXIT_ERROR)
