"""Chat templates for checkpoints that come without one, by the name of their format."""

from __future__ import annotations

_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' ~ message.role ~ '\n' ~ message.content ~ '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""

_LLAMA3 = """\
{{- bos_token | default('<|begin_of_text|>') -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' ~ message.role ~ '<|end_header_id|>\n\n' }}
{{- message.content | trim ~ '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif -%}
"""

# Gemma has no system role: its text goes in front of the first user turn.
_GEMMA = """\
{{- bos_token | default('<bos>') -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- if not loop.first -%}{{ raise_exception('a system message must come first') }}{%- endif -%}
{%- set ns.system = message.content | trim ~ '\n\n' -%}
{%- else -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{ '<start_of_turn>' ~ role ~ '\n' ~ ns.system ~ message.content | trim ~ '<end_of_turn>\n' }}
{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""

# Mistral's instruction format: turns must alternate; a system text joins the first user turn.
_MISTRAL = """\
{{- bos_token | default('<s>') -}}
{%- set ns = namespace(system='', expected='user') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- if not loop.first -%}{{ raise_exception('a system message must come first') }}{%- endif -%}
{%- set ns.system = message.content ~ '\n\n' -%}
{%- elif message.role != ns.expected -%}
{{ raise_exception('roles must alternate user, assistant, user, ...') }}
{%- elif message.role == 'user' -%}
{{ '[INST] ' ~ ns.system ~ message.content ~ ' [/INST]' }}
{%- set ns.system = '' -%}
{%- set ns.expected = 'assistant' -%}
{%- else -%}
{{ ' ' ~ message.content | trim ~ (eos_token | default('</s>')) }}
{%- set ns.expected = 'user' -%}
{%- endif -%}
{%- endfor -%}
"""

BUILTIN_TEMPLATES: dict[str, str] = {
    "chatml": _CHATML,
    "gemma": _GEMMA,
    "llama3": _LLAMA3,
    "mistral": _MISTRAL,
}
