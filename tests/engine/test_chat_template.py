"""Chat templates: what Hugging Face's offer to templates, the built-in formats, and the bounds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_infer.engine import chat_template
from edge_infer.engine.chat_template import ChatTemplate
from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import ConfigError, UnsupportedError

USER = [{"role": "user", "content": "Hi"}]
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]


def render(source: str, messages=USER, **variables) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(
        messages, **variables
    )


def folder(tmp_path: Path, config: dict) -> Tokenizer:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer.from_folder(tmp_path)


class TestSemantics:
    def test_messages_special_tokens_and_generation_prompt(self):
        source = (
            "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}] {{ m.content }}{{ eos_token }}"
            "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
        )
        assert render(source) == "<s>[user] Hi</s>[assistant]"
        assert render(source, add_generation_prompt=False) == "<s>[user] Hi</s>"

    def test_blocks_are_trimmed(self):
        assert (
            render("{% if true %}\n    {% if true %}\na\n    {% endif %}\n{% endif %}\nb") == "a\nb"
        )

    def test_tojson_keeps_text_and_does_not_escape_html(self):
        tools = [{"name": "größe", "about": "<b> & 日本"}]
        assert render("{{ tools | tojson }}", tools=tools) == json.dumps(tools, ensure_ascii=False)
        assert render("{{ {'b': 1, 'a': [2]} | tojson(indent=2, sort_keys=true) }}") == (
            '{\n  "a": [\n    2\n  ],\n  "b": 1\n}'
        )

    def test_tools_documents_and_variables_are_seen(self):
        source = "{{ tools is none }} {{ documents | length }} {{ enable_thinking }}"
        assert render(source, documents=[{"t": 1}], enable_thinking=False) == "True 1 False"

    def test_loop_controls_generation_tag_and_namespace(self):
        source = (
            "{% set ns = namespace(n=0) %}{% for i in range(9) %}{% if i == 1 %}{% continue %}"
            "{% endif %}{% if i == 4 %}{% break %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}"
            "{% generation %}{{ ns.n }}{% endgeneration %}"
        )
        assert render(source) == "5"

    def test_strftime_now(self):
        assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10

    def test_raise_exception_blames_the_messages(self):
        with pytest.raises(ConfigError, match="roles must alternate"):
            render("{{ raise_exception('roles must alternate') }}")

    def test_text_parts_are_joined_and_other_parts_kept(self):
        text = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert render("{{ messages[0].content }}", [{"role": "user", "content": text}]) == "a\nb"
        mixed = [{"type": "image"}, {"type": "text", "text": "b"}]
        source = "{% for p in messages[0].content %}{{ p.type }},{% endfor %}"
        assert render(source, [{"role": "user", "content": mixed}]) == "image,text,"

    def test_filters_that_are_wrapped_work(self):
        assert render("{{ ['a', 1] | join('-') }}{{ 'aXbX' | replace('X', 'y', 1) }}") == "a-1aybX"
        assert render("{{ messages | join('-', attribute='role') }}", TALK[:2]) == "system-user"
        assert render("{{ 'a\nb' | indent(2) }}") == "a\n  b"

    @pytest.mark.parametrize(
        "messages",
        ["Hi", {"role": "user"}, ["Hi"], [{"content": "Hi"}], [{"role": "user", "content": 3}]],
    )
    def test_malformed_messages_are_refused(self, messages):
        with pytest.raises(ConfigError):
            render("x", messages)


class TestBounds:
    @pytest.mark.parametrize(
        "source",
        [
            # each would run for hours or take gigabytes
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            "{% for a in range(10 ** 9) %}{% endfor %}",
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
            "{{ f(90) }}",
            "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
            "{% endfor %}",
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
            "{% endfor %}",
            "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}"
            "{% endfor %}",
            "{{ 'a' * 10 ** 10 }}",
            "{{ 9 ** 99999999 }}",
            "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}"
            "{% endfor %}",
            "{{ '%9999999999s' % 'a' }}",
            "{{ '{:>9999999999}'.format('a') }}",
            "{{ '{:{w}}'.format('a', w=10 ** 10) }}",
            "{{ ['{:>9999999999}'] | map(attribute='format') | list }}",
            "{{ '%*s' % (10 ** 10, 'a') }}",
            "{{ '%9999999999s' | format('a') }}",
            "{{ 'a'.ljust(10 ** 10) }}",
            "{{ ('a' * 9999999).replace('a', 'b' * 9999999) }}",
            "{{ ('a' * 9999999) | replace('a', 'b' * 9999999) }}",
            "{% set x = 'a' * 9999999 %}{{ ([x, x, x, x] * 1000) | join }}",
            "{{ 'a' | indent(10 ** 10) }}",
            "{% set x = 'a' * 999999 %}{% for i in range(99) %}{{ x }}{% endfor %}",
        ],
    )
    def test_runaway_templates_are_stopped(self, source):
        with pytest.raises(UnsupportedError, match=r"was stopped.*--chat-template"):
            render(source)

    def test_formatting_works(self):
        source = "{{ '%03d' % 7 }}{{ '{:02d}|{}'.format(5, 'x') }}{{ '%s-%s' | format(1, 2) }}"
        assert render(source) == "00705|x1-2"

    def test_internals_are_undefined(self):
        assert render("{{ raise_exception.__globals__ }}") == ""

    @pytest.mark.parametrize(
        "source",
        [
            "{{ ''.__class__.__mro__ }}",
            "{{ messages.append(1) }}",
            "{{ self.__init__.__globals__ }}",
            "{{ cycler.__init__.__globals__ }}",
        ],
    )
    def test_the_sandbox_holds(self, source):
        with pytest.raises((UnsupportedError, ConfigError)):
            render(source)

    @pytest.mark.parametrize(
        "source", ["{% if %}", "{{ x", "{% nosuchtag %}", "{{ 'a' | nosuch }}"]
    )
    def test_broken_templates_are_named_errors(self, source):
        with pytest.raises(UnsupportedError, match="--chat-template"):
            render(source)

    def test_deeply_nested_source_is_a_named_error(self):
        with pytest.raises(UnsupportedError):
            render("{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}")

    def test_oversized_source_is_refused(self):
        with pytest.raises(UnsupportedError, match="characters"):
            ChatTemplate("a" * (chat_template.MAX_SOURCE_CHARS + 1))

    def test_budget_is_per_rendering(self):
        template = ChatTemplate("{% for i in range(90000) %}{% endfor %}ok")
        assert [template.render(USER) for _ in range(5)] == ["ok"] * 5


class TestBuiltins:
    def test_chatml(self):
        assert ChatTemplate(chat_template.BUILTIN_TEMPLATES["chatml"]).render(TALK) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n"
        )

    def test_llama3(self):
        assert ChatTemplate(chat_template.BUILTIN_TEMPLATES["llama3"]).render(TALK[:2]) == (
            "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n"
        )

    def test_gemma(self):
        assert ChatTemplate(chat_template.BUILTIN_TEMPLATES["gemma"]).render(TALK) == (
            "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n"
            "<start_of_turn>model\nHello<end_of_turn>\n"
            "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
        )

    def test_mistral(self):
        template = ChatTemplate(chat_template.BUILTIN_TEMPLATES["mistral"])
        assert template.render(TALK) == (
            "<s>[INST] Be brief.\n\nHi [/INST] Hello</s>[INST] Bye [/INST]"
        )
        with pytest.raises(ConfigError, match="alternate"):
            template.render([*USER, *USER])


class TestLoad:
    def test_own_template(self, tmp_path):
        tokenizer = folder(tmp_path, {"chat_template": "own {{ bos_token }}", "bos_token": "<b>"})
        assert chat_template.load(tokenizer).render(USER) == "own <b>"

    def test_special_token_objects(self, tmp_path):
        config = {"chat_template": "{{ bos_token }}", "bos_token": {"content": "<b>", "id": 1}}
        assert chat_template.load(folder(tmp_path, config)).render(USER) == "<b>"

    def test_named_templates_and_tools(self, tmp_path):
        named = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
        tokenizer = folder(tmp_path, {"chat_template": named})
        assert chat_template.load(tokenizer).render(USER) == "d"
        assert chat_template.load(tokenizer, with_tools=True).render(USER) == "t"

    def test_template_file_wins_over_config(self, tmp_path):
        (tmp_path / "chat_template.jinja").write_text("file")
        assert chat_template.load(folder(tmp_path, {"chat_template": "c"})).render(USER) == "file"

    def test_override_by_name_and_by_file(self, tmp_path):
        tokenizer = folder(tmp_path, {})
        assert "<start_of_turn>" in chat_template.load(tokenizer, "gemma").render(USER)
        (tmp_path / "mine.jinja").write_text("mine")
        assert chat_template.load(tokenizer, tmp_path / "mine.jinja").render(USER) == "mine"

    def test_base_model_error_has_the_remedy(self, tmp_path):
        with pytest.raises(UnsupportedError, match=r"--chat-template FILE\|NAME") as e:
            chat_template.load(folder(tmp_path, {}))
        assert e.value.code == "chat_template_missing"

    def test_unknown_name_lists_the_known(self, tmp_path):
        with pytest.raises(ConfigError, match="chatml, gemma, llama3, mistral"):
            chat_template.load(folder(tmp_path, {}), "nosuch")
