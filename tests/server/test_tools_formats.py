"""Tool calls of every family: what is read, however the text is cut, and what grammars enforce."""

from __future__ import annotations

import json
import logging
import random

import pytest
from grammar_support import byte_tokenizer, generate, may_end, plausible_logits

from edge_infer.engine.builtin_templates import BUILTIN_TEMPLATES
from edge_infer.engine.chat_template import ChatTemplate
from edge_infer.errors import ConfigError, ExecutionError, UnsupportedError
from edge_infer.server.grammar import GrammarCompiler, GrammarSpec
from edge_infer.server.tools import (
    FORMATS,
    CallArguments,
    CallStart,
    TextPart,
    declared,
    format_for,
)

pytest.importorskip("llguidance", reason="extra [serve] is not installed")
jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="extra [test] is not installed")

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
MOVE = {
    "type": "object",
    "properties": {
        "to": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": "number"}},
            "required": ["x", "y"],
            "additionalProperties": False,
        },
        "via": {"type": "array", "items": {"type": "string"}},
        "fast": {"type": "boolean"},
    },
    "required": ["to"],
    "additionalProperties": False,
}
OPENAI = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "move", "parameters": MOVE}},
    {"type": "function", "function": {"name": "stop"}},
]
TOOLS = declared(OPENAI)
PARIS = {"city": 'Paris "x" {é}\n日本', "unit": "celsius", "days": 3}
GO = {"to": {"x": 1.5, "y": -2}, "via": ["a", "b, c]"], "fast": True}


def dumps(value) -> str:
    return json.dumps(value, ensure_ascii=False)


def gemma(value, quote: str) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{gemma(v, quote)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma(v, quote) for v in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else dumps(value)


def xml_text(value) -> str:
    return value if isinstance(value, str) else dumps(value)


def spark(name: str, args: dict) -> str:
    pairs = (f"<arg_key>{k}</arg_key><arg_value>{xml_text(v)}</arg_value>" for k, v in args.items())
    return f"<tool_call>{name}{''.join(pairs)}</tool_call>"


def qwen_xml(name: str, args: dict) -> str:
    pairs = (f"<parameter={k}>\n{xml_text(v)}\n</parameter>\n" for k, v in args.items())
    return f"<tool_call>\n<function={name}>\n{''.join(pairs)}</function>\n</tool_call>"


#: How each family writes calls, as a template of the family shows it to the model.
WRITE = {
    "hermes": lambda calls: "\n".join(
        f'<tool_call>\n{{"name": "{n}", "arguments": {dumps(a)}}}\n</tool_call>' for n, a in calls
    ),
    "llama3": lambda calls: "; ".join(
        f'{{"name": "{n}", "parameters": {dumps(a)}}}' for n, a in calls
    ),
    "mistral": lambda calls: "".join(f"[TOOL_CALLS]{n}[ARGS]{dumps(a)}" for n, a in calls),
    "mistral-list": lambda calls: (
        "[TOOL_CALLS]["
        + ", ".join(f'{{"name": "{n}", "arguments": {dumps(a)}}}' for n, a in calls)
        + "]"
    ),
    "gemma": lambda calls: "".join(
        f"<start_function_call>call:{n}{gemma(a, '<escape>')}<end_function_call>" for n, a in calls
    ),
    "gemma4": lambda calls: "".join(
        f"<|tool_call>call:{n}{gemma(a, chr(60) + '|' + chr(34) + '|>')}<tool_call|>"
        for n, a in calls
    ),
    "spark": lambda calls: "".join(spark(n, a) for n, a in calls),
    "qwen-xml": lambda calls: "\n".join(qwen_xml(n, a) for n, a in calls),
}
ALL = sorted(FORMATS)
JSON_FORMATS = ("hermes", "llama3", "mistral", "mistral-list")
TWO = [("get_weather", PARIS), ("move", GO)]


def fold(events) -> tuple[str, list[tuple[str, str]]]:
    """(text, calls as name and arguments); checks the order of the events."""
    text, calls = "", []
    for event in events:
        if isinstance(event, TextPart):
            assert event.text
            text += event.text
        elif isinstance(event, CallStart):
            assert event.call_index == len(calls) and event.id
            calls.append((event.name, ""))
        else:
            assert isinstance(event, CallArguments) and event.call_index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + event.text)
    return text, calls


def read(name: str, pieces: list[str], constrained: bool = False):
    stream = FORMATS[name].stream(TOOLS, constrained)
    events = [e for piece in pieces for e in stream.feed(piece)] + stream.finish()
    return fold(events)


def read_any_cut(name: str, text: str, constrained: bool = False):
    expected = read(name, [text], constrained)
    assert read(name, list(text), constrained) == expected
    for i in range(1, len(text)):
        assert read(name, [text[:i], text[i:]], constrained) == expected, i
    rng = random.Random(0)
    for _ in range(20):
        cuts = sorted(rng.choices(range(len(text) + 1), k=5))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert read(name, pieces, constrained) == expected
    return expected


def decoded(calls) -> list[tuple[str, dict]]:
    return [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_calls_are_read_however_the_text_is_cut(name, constrained) -> None:
    written = WRITE[name](TWO)
    lead = "" if name == "llama3" else "Let me look.\n\n"
    text, calls = read_any_cut(name, lead + written, constrained)
    assert text == lead.strip()
    assert decoded(calls) == TWO


@pytest.mark.parametrize(
    ("number", "constrained"),
    [("1e999", False), ("1e999", True), ("NaN", False), ("-Infinity", False)],  # no grammar has NaN
)
@pytest.mark.parametrize("name", ALL)
def test_arguments_are_json_whatever_number_stands_in_them(name, number, constrained) -> None:
    def no_json(constant: str) -> None:
        pytest.fail(f"{constant} in arguments")

    written = WRITE[name]([("move", {"to": {"x": 1.5, "y": -2}})])
    assert "1.5" in written
    _, calls = read_any_cut(name, written.replace("1.5", number), constrained)
    assert calls or number != "1e999"
    for _, arguments in calls:
        json.loads(arguments, parse_constant=no_json)


def test_ids_that_a_model_repeats_are_dropped() -> None:
    written = WRITE["mistral-list"](TWO).replace("}}", '}, "id": "abcdefghi"}')
    assert written.count("abcdefghi") == 2
    assert decoded(read_any_cut("mistral-list", written)[1]) == TWO


@pytest.mark.parametrize("name", sorted(BUILTIN_TEMPLATES))
def test_built_in_templates_write_calls_as_their_format_reads_them(name) -> None:
    template = ChatTemplate(BUILTIN_TEMPLATES[name])
    asked = {"role": "user", "content": "Go."}
    calls = [
        {"id": f"call0000{i}", "function": {"name": n, "arguments": a}}
        for i, (n, a) in enumerate(TWO)
    ]
    answer = {"role": "assistant", "content": "", "tool_calls": calls}
    before = template.render([asked], tools=OPENAI)
    assert all(tool["function"]["name"] in before for tool in OPENAI)
    after = template.render([asked, answer], tools=OPENAI, add_generation_prompt=False)
    assert after.startswith(before)
    written = after[len(before) :].removesuffix("\n")
    for end in ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "</s>"):
        written = written.removesuffix(end)
    text, read_calls = read(format_for(template.source).name, list(written))
    assert (text, decoded(read_calls)) == ("", TWO)
    result = {"role": "tool", "tool_call_id": "call00000", "content": "42 degrees"}
    assert "42 degrees" in template.render([asked, answer, result], tools=OPENAI)


@pytest.mark.parametrize("name", ALL)
def test_calls_without_arguments(name) -> None:
    assert decoded(read(name, [WRITE[name]([("stop", {})])])[1]) == [("stop", {})]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "text",
    [
        "Hello there.\n",
        "  {not json} <b>bold</b> [1, 2] \n\n",
        '{"answer": 42}',
        "",
        "a < b, <tool, [TOOL",
        '{"name": "Ada", "age": 36}',
    ],
)
def test_plain_text_is_unchanged(name, text) -> None:
    assert read_any_cut(name, text) == (text, [])


@pytest.mark.parametrize("name", ALL)
def test_unknown_tools_come_back_as_text(name, caplog) -> None:
    written = WRITE[name]([("destroy", {"city": "Paris"})])
    with caplog.at_level(logging.WARNING):
        assert read_any_cut(name, written) == (written, [])
    assert "destroy" in caplog.text


@pytest.mark.parametrize("name", ALL)
def test_calls_that_are_cut_off_come_back_as_text(name, caplog) -> None:
    written = WRITE[name]([("get_weather", PARIS)])
    end = written.index("日")
    with caplog.at_level(logging.WARNING):
        assert read_any_cut(name, written[:end]) == (written[:end], [])
    assert "cut off" in caplog.text


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_a_missing_end_is_forgiven_once_the_arguments_are_complete(name) -> None:
    written = WRITE[name]([("move", GO)])
    end = written.rindex("true}") + 5
    for cut in range(end, len(written)):
        assert decoded(read_any_cut(name, written[:cut])[1]) == [("move", GO)]


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_arguments_that_are_not_json_come_back_as_text(name, caplog) -> None:
    written = WRITE[name]([("move", GO)]).replace("true", "True")
    with caplog.at_level(logging.WARNING):
        assert read_any_cut(name, written) == (written, [])
    assert "not JSON" in caplog.text


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("hermes", "<tool_call>move</tool_call>"),
        ("hermes", '<tool_call>{"name": "move"}</tool_call>'),
        ("hermes", "<tool_call>" + "x" * 600),
        ("mistral", "[TOOL_CALLS]move"),
        ("mistral", "[TOOL_CALLS]" + "x" * 600),
        ("mistral-list", "[TOOL_CALLS][]"),
        ("gemma", "<start_function_call>move{}<end_function_call>"),
        ("gemma", "<start_function_call>call:move{to<end_function_call>"),
        ("gemma", "<start_function_call>call:move{to:{x:1<end_function_call>"),
        ("gemma", "<start_function_call>call:move{fast:yes}<end_function_call>"),
        ("gemma", "<start_function_call>call:move" + "{a:" * 500 + "<end_function_call>"),
        ("spark", "<tool_call>move<arg_key>fast</arg_key></tool_call>"),
        ("spark", "<tool_call>move<arg_key>fast</arg_key><arg_value>x</arg_value></tool_call>"),
        ("qwen-xml", "<tool_call>\n<function=move>\n<parameter=fast></function></tool_call>"),
        ("qwen-xml", "<tool_call></tool_call>"),
    ],
)
def test_malformed_calls_come_back_as_text_with_a_warning(name, written, caplog) -> None:
    with caplog.at_level(logging.WARNING):
        assert read_any_cut(name, written) == (written, [])
    assert "comes back as text" in caplog.text


@pytest.mark.parametrize("name", FORMATS)
def test_an_answer_of_nothing_but_bad_calls_warns_once_and_loses_nothing(name, caplog) -> None:
    deep = '{"a":' * 5000
    for written in (FORMATS[name].opening * 2000, FORMATS[name].opening + deep):
        stream = FORMATS[name].stream(TOOLS, constrained=False)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            events = [*stream.feed(written), *stream.finish()]
        text = "".join(e.text for e in events if isinstance(e, TextPart))
        assert text == written
        assert caplog.text.count("comes back as text") <= 1


@pytest.mark.parametrize("name", ["mistral-list", "llama3"])
def test_what_follows_a_call_in_a_list_may_be_malformed(name) -> None:
    lead = {"mistral-list": ", ", "llama3": "; "}[name]
    good = WRITE[name]([("move", GO)]).removesuffix("]")
    text, calls = read_any_cut(name, good + lead + "and so on")
    assert (text, decoded(calls)) == ("and so on", [("move", GO)])


def test_a_call_after_a_malformed_one_is_read() -> None:
    good = WRITE["hermes"]([("move", GO)])
    text, calls = read_any_cut("hermes", "<tool_call>nothing</tool_call> then " + good)
    assert text == "<tool_call>nothing</tool_call> then"
    assert decoded(calls) == [("move", GO)]


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_arguments_stream_under_a_grammar(name) -> None:
    stream = FORMATS[name].stream(TOOLS, constrained=True)
    events = [e for c in WRITE[name]([("get_weather", PARIS)]) for e in stream.feed(c)]
    pieces = [e for e in events if isinstance(e, CallArguments)]
    assert len(pieces) > 20
    assert json.loads("".join(p.text for p in pieces)) == PARIS


# ---- grammars


@pytest.fixture(scope="module")
def special(tmp_path_factory) -> GrammarCompiler:
    """For a tokenizer where every tag is a special token."""
    tags = dict.fromkeys(t for name in ALL for t in FORMATS[name].tags)
    return new_compiler(tmp_path_factory.mktemp("special"), ("<bos>", "<eos>", *tags))


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> GrammarCompiler:
    """For a tokenizer that knows no tag."""
    return new_compiler(tmp_path_factory.mktemp("plain"), ("<bos>", "<eos>"))


def new_compiler(folder, special: tuple[str, ...]) -> GrammarCompiler:
    tokenizer = byte_tokenizer(folder, special)
    return GrammarCompiler(tokenizer, tokenizer.vocab_size)


def sample(compiler: GrammarCompiler, spec: GrammarSpec, seed: int) -> str:
    tokenizer = compiler._tokenizer
    logits = plausible_logits(tokenizer, tokenizer.vocab_size)
    ids, ended = generate(tokenizer, compiler.compile(spec)(), logits, seed, 6000)
    assert ended
    return tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("choice", ["required", "get_weather"])
@pytest.mark.parametrize("parallel", [True, False])
def test_required_and_named_calls_always_parse(special, name, choice, parallel) -> None:
    spec = FORMATS[name].grammar(TOOLS, choice, parallel)
    counts = set()
    for seed in range(8):
        written = sample(special, spec, seed)
        for constrained in (False, True):
            text, calls = read(name, list(written), constrained)
            assert text == "" and calls, written
        for tool, arguments in decoded(calls):
            assert choice in ("required", tool)
            if not name.startswith("gemma"):  # whose grammar knows types, not bounds
                assert jsonschema_rs.is_valid(dict(TOOLS[tool].schema), arguments), written
            assert set(TOOLS[tool].required) <= set(arguments) <= set(TOOLS[tool].properties)
        counts.add(len(calls))
    assert parallel or counts == {1}


def follows(compiler: GrammarCompiler, spec: GrammarSpec, text: str) -> bool:
    tokenizer = compiler._tokenizer
    constraint = compiler.compile(spec)()
    try:
        for token in tokenizer.encode(text, add_special_tokens=False):
            constraint.mask()
            constraint.accept(token)
    except ExecutionError:
        return False
    return may_end(tokenizer, constraint)


@pytest.mark.parametrize("kind", ["special", "plain"])
@pytest.mark.parametrize("name", ALL)
def test_auto_allows_text_and_enforces_calls_once_they_begin(request, kind, name) -> None:
    compiler = request.getfixturevalue(kind)
    spec = FORMATS[name].grammar(TOOLS, "auto", True)
    paris = {"city": "Paris", "unit": "celsius"}
    one = WRITE[name]([("get_weather", paris)])
    assert follows(compiler, spec, "Just text, with {braces}.")
    assert follows(compiler, spec, '{"json": ["is", "text"]}')
    assert follows(compiler, spec, one)
    assert follows(compiler, spec, WRITE[name]([("get_weather", paris), ("stop", {})]))
    assert not follows(compiler, spec, one[:-1])
    if name != "llama3":  # which has no tag that begins a call
        assert follows(compiler, spec, f"I look it up. {one}")
        assert not follows(compiler, spec, one.replace("get_weather", "get_wealth"))
    single = FORMATS[name].grammar(TOOLS, "auto", False)
    assert follows(compiler, single, one) and follows(compiler, single, "a")
    assert not follows(compiler, single, WRITE[name]([("get_weather", paris), ("stop", {})]))


@pytest.mark.parametrize("name", ALL)
def test_text_beside_calls_may_have_a_schema_of_its_own(special, name) -> None:
    spec = FORMATS[name].grammar(
        TOOLS, "auto", True, GrammarSpec("json_schema", {"enum": ["a", "b"]})
    )
    assert follows(special, spec, '"a"')
    assert follows(special, spec, WRITE[name]([("stop", {})]))
    assert not follows(special, spec, "a")
    with pytest.raises(ConfigError):
        FORMATS[name].grammar(TOOLS, "auto", True, GrammarSpec("regex", "a"))


# ---- tools and formats


def test_a_schema_that_grammars_cannot_express(caplog) -> None:
    function = {"name": "f", "parameters": {"type": "object", "uniqueItems": True}}
    with caplog.at_level(logging.WARNING):
        assert declared([{"function": function}])["f"].schema == {"type": "object"}
    assert "uniqueItems" in caplog.text
    with pytest.raises(ConfigError, match="uniqueItems"):
        declared([{"function": {**function, "strict": True}}])


@pytest.mark.parametrize(
    "tool",
    [
        {},
        {"function": {}},
        {"function": {"name": ""}},
        {"function": {"name": 'a"b'}},
        {"function": {"name": "a" * 200}},
        {"function": {"name": "f", "parameters": {"type": "string"}}},
        {"function": {"name": "f", "parameters": []}},
    ],
)
def test_unusable_tools_are_refused(tool) -> None:
    with pytest.raises(ConfigError):
        declared([tool])


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ tools }}<tool_call>\n{{ tool_call.arguments }}", "hermes"),
        ("{{ tools }}<tool_call>\n<function={{ name }}>", "qwen-xml"),
        ("{{ tools }}<tool_call>{{ name }}<arg_key>{{ k }}", "spark"),
        ("{{ tools }}[TOOL_CALLS] [", "mistral-list"),
        ("{{ tools }}[TOOL_CALLS]{{ name }}[ARGS]", "mistral"),
        ('{{ tools }}{"name": name, "parameters": arguments}', "llama3"),
        ("{{ tools }}<start_function_call>call:", "gemma"),
        ("{{ tools }}<|tool_call>call:", "gemma4"),
    ],
)
def test_the_template_tells_the_format(template, name) -> None:
    assert format_for(template).name == name
    assert format_for("", name).name == name


@pytest.mark.parametrize("template", [None, "", "{{ messages }}<tool_call>", "{{ tools }}"])
def test_a_template_without_tools_is_a_named_error(template) -> None:
    with pytest.raises(UnsupportedError, match="--tool-format") as e:
        format_for(template)
    assert e.value.code == "tools_unsupported"


def test_an_unknown_format_lists_the_known() -> None:
    with pytest.raises(ConfigError, match="hermes"):
        format_for(None, "nosuch")


def test_ids_are_unique_and_short_where_templates_ask_for_it() -> None:
    ids = {FORMATS["mistral"].new_id() for _ in range(100)}
    assert len(ids) == 100 and all(len(i) == 9 and i.isalnum() for i in ids)
    assert len({FORMATS["hermes"].new_id() for _ in range(100)}) == 100
