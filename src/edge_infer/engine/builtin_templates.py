"""Chat templates for checkpoints that come without one, by the name of their format.

Each takes tools and shows calls in the format that ``server.tools`` reads for it.
"""

from __future__ import annotations

# What a model that was not trained on tools is told; CALL is how it is to call one.
_TOOLS = """\
{%- macro tool_text() -%}
{{ 'You can call these functions, given as JSON schemas, one a line:\\n' }}
{%- for tool in tools -%}
{{ (tool.function if tool.function is defined else tool) | tojson ~ '\\n' }}
{%- endfor -%}
{{ 'To call one, answer with CALL' }}
{%- endmacro -%}
"""

# Hermes's tags in ChatML's turns, as Qwen has them.
_CHATML = (
    _TOOLS.replace(
        "CALL",
        r"""a line of JSON between tags:\n<tool_call>\n"""
        r"""{"name": "the function", "arguments": {}}\n</tool_call>""",
    )
    + """\
{%- if tools -%}
{%- set first = messages[0].content ~ '\n\n' if messages[0].role == 'system' else '' -%}
{{ '<|im_start|>system\n' ~ first ~ tool_text() ~ '<|im_end|>\n' }}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{ '<|im_start|>user\n<tool_response>\n' ~ message.content ~ '\n</tool_response><|im_end|>\n' }}
{%- elif not (tools and loop.first and message.role == 'system') -%}
{{ '<|im_start|>' ~ message.role ~ '\n' ~ (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}{{ '\n' }}{%- endif -%}
{{ '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- call.function.arguments | tojson ~ '}\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}
"""
)

_JSON_CALL = r"""JSON alone: {"name": "the function", "parameters": {}}"""

_JSON_CALLS = """\
{%- macro calls(message) -%}
{%- for call in message.tool_calls or [] -%}
{%- if not loop.first -%}{{ '; ' }}{%- endif -%}
{{ '{"name": "' ~ call.function.name ~ '", "parameters": ' }}
{{- call.function.arguments | tojson ~ '}' }}
{%- endfor -%}
{%- endmacro -%}
"""

_LLAMA3 = (
    _TOOLS.replace("CALL", _JSON_CALL)
    + _JSON_CALLS
    + """\
{{- bos_token | default('<|begin_of_text|>') -}}
{%- if tools -%}
{%- set first = messages[0].content | trim ~ '\n\n' if messages[0].role == 'system' else '' -%}
{{ '<|start_header_id|>system<|end_header_id|>\n\n' ~ first ~ tool_text() ~ '<|eot_id|>' }}
{%- endif -%}
{%- for message in messages -%}
{%- if not (tools and loop.first and message.role == 'system') -%}
{%- set role = 'ipython' if message.role == 'tool' else message.role -%}
{{ '<|start_header_id|>' ~ role ~ '<|end_header_id|>\n\n' }}
{{- (message.content or '') | trim ~ calls(message) ~ '<|eot_id|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif -%}
"""
)

# Gemma has no system role: its text, and the tools, go in front of the first user turn.
_GEMMA = (
    _TOOLS.replace("CALL", _JSON_CALL)
    + _JSON_CALLS
    + """\
{{- bos_token | default('<bos>') -}}
{%- set ns = namespace(system=tool_text() ~ '\n\n' if tools else '') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- if not loop.first -%}{{ raise_exception('a system message must come first') }}{%- endif -%}
{%- set ns.system = message.content | trim ~ '\n\n' ~ ns.system -%}
{%- else -%}
{%- set role = {'assistant': 'model', 'tool': 'user'}.get(message.role, message.role) -%}
{%- set result = 'Result: ' if message.role == 'tool' else '' -%}
{{ '<start_of_turn>' ~ role ~ '\n' ~ ns.system ~ result }}
{{- (message.content or '') | trim ~ calls(message) ~ '<end_of_turn>\n' }}
{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}
"""
)

# Mistral's instruction format: turns must alternate; a system text joins the first user turn.
_MISTRAL = """\
{{- bos_token | default('<s>') -}}
{%- set ns = namespace(system='', expected='user', last=0) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}
{%- if not loop.first -%}{{ raise_exception('a system message must come first') }}{%- endif -%}
{%- set ns.system = message.content ~ '\n\n' -%}
{%- elif message.role == 'tool' -%}
{%- set result = {'content': message.content, 'call_id': message.tool_call_id} -%}
{{ '[TOOL_RESULTS] ' ~ result | tojson ~ '[/TOOL_RESULTS]' }}
{%- set ns.expected = 'assistant' -%}
{%- elif message.role != ns.expected -%}
{{ raise_exception('roles must alternate user, assistant, user, ...') }}
{%- elif message.role == 'user' -%}
{%- if tools and loop.index0 == ns.last -%}
{{ '[AVAILABLE_TOOLS] ' ~ tools | tojson ~ '[/AVAILABLE_TOOLS]' }}
{%- endif -%}
{{ '[INST] ' ~ ns.system ~ message.content ~ ' [/INST]' }}
{%- set ns.system = '' -%}
{%- set ns.expected = 'assistant' -%}
{%- elif message.tool_calls -%}
{{ '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls -%}
{%- if not loop.first -%}{{ ', ' }}{%- endif -%}
{{ '{"name": "' ~ call.function.name ~ '", "arguments": ' }}
{{- call.function.arguments | tojson ~ ', "id": "' ~ call.id ~ '"}' }}
{%- endfor -%}
{{ ']' ~ (eos_token | default('</s>')) }}
{%- set ns.expected = 'user' -%}
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
