"""A model that switches a lamp: the first answer must call a tool, the second is text.

edge-infer serve path/to/model &        # a base model: with --chat-template gemma (or chatml, ...)
python examples/tools.py "Turn on the lamp in the kitchen."
"""

from __future__ import annotations

import argparse
import json
import os

from openai import OpenAI

LAMP = {
    "name": "set_lamp",
    "description": "Switches the lamp of a room.",
    "parameters": {
        "type": "object",
        "properties": {"room": {"enum": ["kitchen", "hall"]}, "on": {"type": "boolean"}},
        "required": ["room", "on"],
        "additionalProperties": False,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    args = parser.parse_args()

    client = OpenAI(base_url=args.url, api_key=os.environ.get("EDGE_INFER_API_KEY", "none"))
    common = {"model": client.models.list().data[0].id, "max_tokens": 200, "temperature": 0}
    common["tools"] = [{"type": "function", "function": LAMP}]
    messages = [{"role": "user", "content": args.text}]
    first = client.chat.completions.create(messages=messages, tool_choice="required", **common)
    messages.append(first.choices[0].message.model_dump(include={"role", "tool_calls"}))
    for call in first.choices[0].message.tool_calls or []:
        arguments = json.loads(call.function.arguments)
        print(f"{call.function.name}({arguments})")
        result = f"The lamp in the {arguments['room']} is {'on' if arguments['on'] else 'off'}."
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    second = client.chat.completions.create(messages=messages, tool_choice="none", **common)
    print(second.choices[0].message.content)


if __name__ == "__main__":
    main()
