"""Grammars: output that follows them always parses, and what cannot be used is a named error."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from grammar_support import SCHEMAS, byte_tokenizer, generate, may_end, plausible_logits

from edge_infer.engine.tokenizer import Tokenizer
from edge_infer.errors import ConfigError, ExecutionError
from edge_infer.server import grammar
from edge_infer.server.grammar import GrammarCompiler, GrammarSpec, ReasoningPrefix
from edge_infer.server.json_text import loads

pytest.importorskip("llguidance", reason="extra [serve] is not installed")
jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="extra [test] is not installed")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def compiler(tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, tokenizer.vocab_size + 5)  # a head with padding rows


@pytest.fixture(scope="module")
def demo_compiler(demo_model):
    tokenizer = Tokenizer.from_folder(demo_model)
    size = tokenizer.vocab_size
    return tokenizer, GrammarCompiler(tokenizer, size), plausible_logits(tokenizer, size)


def text_of(tokenizer, ids) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True)


def sample(tokenizer, compiler, spec: GrammarSpec, seed: int, max_tokens: int = 4000) -> str:
    logits = plausible_logits(tokenizer, compiler._vocab_size)
    ids, ended = generate(tokenizer, compiler.compile(spec)(), logits, seed, max_tokens)
    assert ended
    return text_of(tokenizer, ids)


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_output_follows_the_schema(tokenizer, compiler, name) -> None:
    seen = set()
    for seed in range(6):
        text = sample(tokenizer, compiler, GrammarSpec("json_schema", SCHEMAS[name]), seed)
        assert jsonschema_rs.is_valid(SCHEMAS[name], loads(text)), text
        seen.add(text)
    assert len(seen) > 1 or name == "const"


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_output_of_the_demo_vocabulary_follows_the_schema(demo_compiler, name) -> None:
    tokenizer, compiler, logits = demo_compiler
    make = compiler.compile(GrammarSpec("json_schema", SCHEMAS[name]))
    for seed in range(2):
        ids, ended = generate(tokenizer, make(), logits, seed, 1000)
        assert ended
        assert jsonschema_rs.is_valid(SCHEMAS[name], loads(text_of(tokenizer, ids)))


def test_json_object(tokenizer, compiler) -> None:
    for seed in range(4):
        text = sample(tokenizer, compiler, GrammarSpec("json_object"), seed)
        assert isinstance(json.loads(text), dict)


def test_schema_as_text_is_the_same_schema(tokenizer, compiler) -> None:
    spec = GrammarSpec("json_schema", json.dumps(SCHEMAS["nested"]))
    text = sample(tokenizer, compiler, spec, 3)
    assert text == sample(tokenizer, compiler, GrammarSpec("json_schema", SCHEMAS["nested"]), 3)


def test_regex_matches_the_whole_output(tokenizer, compiler) -> None:
    pattern = r"(yes|no/maybe): \d{2,4}\w"
    for seed in range(10):
        text = sample(tokenizer, compiler, GrammarSpec("regex", pattern), seed)
        assert re.fullmatch(pattern, text, re.ASCII)


def test_choice(tokenizer, compiler) -> None:
    choices = ["yes", 'no "way"', "größe\nzwei", "yes", "nowhere"]
    seen = {sample(tokenizer, compiler, GrammarSpec("choice", choices), s) for s in range(60)}
    assert seen == set(choices)


def test_lark(tokenizer, compiler) -> None:
    source = 'start: sum\nsum: NUM ("+" NUM)*\nNUM: /[0-9]{1,3}/'
    for seed in range(5):
        assert re.fullmatch(
            r"\d{1,3}(\+\d{1,3})*", sample(tokenizer, compiler, GrammarSpec("lark", source), seed)
        )


def test_strings_have_no_special_tokens(tokenizer, compiler) -> None:
    constraint = compiler.compile(GrammarSpec("json_schema", {"type": "string"}))()
    constraint.accept(tokenizer.encode('"')[0])
    mask = constraint.mask()
    allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: compiler._vocab_size]
    assert allowed.any()
    assert not allowed[sorted(tokenizer.special_ids)].any()
    assert not allowed[tokenizer.vocab_size :].any()


def test_end_is_allowed_only_where_the_output_is_complete(tokenizer, compiler) -> None:
    constraint = compiler.compile(GrammarSpec("json_schema", {"type": "integer"}))()
    assert not may_end(tokenizer, constraint)
    constraint.accept(tokenizer.encode("7")[0])
    assert may_end(tokenizer, constraint) and not constraint.finished()


def test_tags_are_special_tokens_where_the_tokenizer_has_them(tokenizer, compiler) -> None:
    spec = GrammarSpec("structure", 'start: tag_0 "x" tag_1', ("<|call|>", "</call>"))
    logits = plausible_logits(tokenizer, compiler._vocab_size)
    ids, _ = generate(tokenizer, compiler.compile(spec)(), logits, 0, 50)
    assert ids[0] == tokenizer.token_to_id("<|call|>")
    assert text_of(tokenizer, ids[1:]) == "x</call>"


@pytest.mark.parametrize("tags", [("<|call|>", "<|end|>"), ("<think>", "</think>")])
def test_reasoning_may_come_first(tokenizer, compiler, tags) -> None:
    def run(text: str, starts_open: bool) -> bool:
        spec = GrammarSpec(
            "json_schema", {"const": 1}, reasoning=ReasoningPrefix(*tags, starts_open)
        )
        constraint = compiler.compile(spec)()
        try:
            for token in tokenizer.encode(text, add_special_tokens=False):
                constraint.mask()
                constraint.accept(token)
        except ExecutionError:
            return False
        return may_end(tokenizer, constraint)

    opened, closed = tags
    assert run(f'{opened}let me see: {{"a"{closed}\n\n1', False)
    assert run("1", False)
    assert run(f"let me see{closed}1", True)
    assert not run("1", True)
    assert not run(f"{opened}let me see{closed}2", False)
    assert not run(f"{opened}never closed 1", False)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (GrammarSpec("json_schema", {"not": {}}), "not"),
        (GrammarSpec("json_schema", {"type": "nosuch"}), "nosuch"),
        (GrammarSpec("json_schema", {"$ref": "https://example.com/s"}), "example.com"),
        (GrammarSpec("json_schema", {"$ref": "#/$defs/none"}), "does not exist"),
        (GrammarSpec("json_schema", {"$ref": "#"}), "no output satisfies it"),
        (GrammarSpec("json_schema", {"type": "string", "format": "nosuch"}), "nosuch"),
        (GrammarSpec("json_schema", {"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (GrammarSpec("json_schema", {"x-guidance": {"lenient": True}, "not": {}}), "not"),
        (GrammarSpec("json_schema", False), "Unsatisfiable"),
        (GrammarSpec("json_schema", {"minimum": 5, "maximum": 1, "type": "integer"}), "minimum"),
        (GrammarSpec("json_schema", "{"), "not JSON"),
        (GrammarSpec("json_schema", [1]), "object"),
        (GrammarSpec("json_schema", {"enum": [{1, 2}]}), "not JSON"),
        (GrammarSpec("regex", "(("), "unclosed group"),
        (GrammarSpec("regex", ""), "non-empty"),
        (GrammarSpec("regex", "(?<=a)b"), "look-around"),
        (GrammarSpec("lark", "nonsense"), "1(9)"),
        (GrammarSpec("lark", "begin: /a/"), "start"),
        (GrammarSpec("choice", []), "non-empty"),
        (GrammarSpec("choice", "abc"), "list"),
        (GrammarSpec("choice", ["a", 1]), "list"),
        (GrammarSpec("choice", ["a"] * 5000), "5000 choices"),
        (GrammarSpec("nosuch", "a"), "nosuch"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_used_is_named(compiler, spec, words) -> None:
    with pytest.raises(ConfigError) as e:
        compiler.compile(spec)
    assert e.value.code == "invalid_grammar"
    assert words in e.value.message


HOSTILE = r"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (40, 40))
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from grammar_support import SCHEMAS, byte_tokenizer, generate, plausible_logits
from edge_infer.errors import EdgeInferError
from edge_infer.server.grammar import GrammarCompiler, GrammarSpec
def nested(depth):
    schema = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema
def chain(length):
    defs = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{length}": {}}}
def rules(length):
    chain = "".join(f'a{i}: "x" a{i + 1}\n' for i in range(length))
    return f"start: a0\n{chain}a{length}: /z/"
doubling = "".join(f"A{i}: A{i + 1} A{i + 1}\n" for i in range(60)) + 'A60: "x"\n'
specs = [
    GrammarSpec("json_schema", nested(100_000)),
    GrammarSpec("json_schema", nested(200)),
    GrammarSpec("json_schema", '{"a":' * 100_000),
    GrammarSpec("json_schema", {"enum": [f"x{i}" for i in range(200_000)]}),
    GrammarSpec("json_schema", {"properties": {f"p{i}": {} for i in range(30_000)}}),
    GrammarSpec("json_schema", {"properties": {f"p{i}": {} for i in range(900)}}),
    GrammarSpec("json_schema", chain(50_000)),
    GrammarSpec("json_schema", chain(900)),
    GrammarSpec("json_schema", {"type": "array", "minItems": 10**9}),
    GrammarSpec("json_schema", {"type": "string", "minLength": 10**9}),
    GrammarSpec("json_schema", {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
    GrammarSpec("regex", "(" * 50_000 + "a" + ")" * 50_000),
    GrammarSpec("regex", "((a{1000}){1000}){1000}"),
    GrammarSpec("regex", "(a|aa)*(a|aa)*(a|aa)*b{0,9999}"),
    GrammarSpec("lark", "start: " + "(" * 50_000 + '"a"' + ")" * 50_000),
    GrammarSpec("lark", rules(50_000)),
    GrammarSpec("lark", rules(900)),
    GrammarSpec("lark", rules(900).upper().replace("START", "start").replace("Z", "z")),
    GrammarSpec("regex", "[ab]?" * 50_000),
    GrammarSpec("regex", "[ab]?" * 3000),
    GrammarSpec("lark", 'start: start start | "a" |'),
    GrammarSpec("lark", "start: A0\n" + doubling),
    GrammarSpec("lark", "start: a0\n" + doubling.lower()),
]
tokenizer = byte_tokenizer(Path(sys.argv[2]))
compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size)
logits = plausible_logits(tokenizer, tokenizer.vocab_size)
refused = 0
for spec in specs:
    try:
        generate(tokenizer, compiler.compile(spec)(), logits, 0, 50)
    except EdgeInferError as e:
        refused += 1
print(refused)
"""


def test_hostile_grammars_are_bounded(tmp_path) -> None:
    """In a process of its own with 6 GB of address space and 40 s of CPU: a crash would show."""
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(Path(__file__).parent), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) >= 10


def test_a_constraint_refuses_a_token_that_is_not_allowed(tokenizer, compiler) -> None:
    constraint = compiler.compile(GrammarSpec("choice", ["a"]))()
    with pytest.raises(ExecutionError) as e:
        constraint.accept(tokenizer.encode("b")[0])
    assert e.value.code == "grammar_failed"


def test_constraints_are_independent(tokenizer, compiler) -> None:
    make = compiler.compile(GrammarSpec("choice", ["ab", "cd"]))
    first, second = make(), make()
    first.accept(tokenizer.encode("a")[0])
    second.accept(tokenizer.encode("c")[0])
    first.accept(tokenizer.encode("b")[0])
    assert first.finished() and not second.finished()


def test_compiled_grammars_are_kept_within_a_bound(compiler) -> None:
    for i in range(grammar.CACHED_GRAMMARS + 10):
        compiler.compile(GrammarSpec("choice", [f"choice {i}"]))
    assert len(compiler._compiled) == grammar.CACHED_GRAMMARS
    kept = dict(compiler._compiled)
    compiler.compile(GrammarSpec("choice", [f"choice {grammar.CACHED_GRAMMARS}"]))
    assert dict(compiler._compiled) == kept


def test_check_needs_no_tokenizer() -> None:
    grammar.check(GrammarSpec("json_schema", SCHEMAS["nested"]))
    with pytest.raises(ConfigError):
        grammar.check(GrammarSpec("json_schema", {"not": {}}))
