"""A conversation in the terminal, streamed, with any OpenAI-compatible server.

edge-infer serve path/to/model &
python examples/chat.py                # end of input (Ctrl-D) ends it
python examples/chat.py --url http://gateway:8000/v1 --system "Answer in one sentence."
"""

from __future__ import annotations

import argparse
import os

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--system")
    parser.add_argument("--max-tokens", type=int, default=512)
    args = parser.parse_args()

    client = OpenAI(base_url=args.url, api_key=os.environ.get("EDGE_INFER_API_KEY", "none"))
    model = client.models.list().data[0].id
    messages = [{"role": "system", "content": args.system}] if args.system else []
    while True:
        try:
            messages.append({"role": "user", "content": input("> ")})
        except EOFError:
            return
        stream = client.chat.completions.create(
            model=model, messages=messages, max_tokens=args.max_tokens, stream=True
        )
        answer = ""
        for chunk in stream:
            text = chunk.choices[0].delta.content or ""
            print(text, end="", flush=True)
            answer += text
        print()
        messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    main()
