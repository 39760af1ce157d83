"""Stops an answer in its middle: closing the stream frees the server's slot within a step.

python examples/stream_cancel.py --after 20 "Once upon a time"
"""

from __future__ import annotations

import argparse
import os
import re
import time

import httpx
from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt")
    parser.add_argument("--after", type=int, default=20, help="pieces of text to wait for")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    args = parser.parse_args()

    key = os.environ.get("EDGE_INFER_API_KEY", "none")
    client = OpenAI(base_url=f"{args.url}/v1", api_key=key)
    model = client.models.list().data[0].id
    stream = client.completions.create(
        model=model, prompt=args.prompt, max_tokens=4096, stream=True
    )
    with stream:  # leaving the block closes the connection, which is what cancels
        for count, chunk in enumerate(stream, 1):
            print(chunk.choices[0].text, end="", flush=True)
            if count == args.after:
                break
    print("\n-- stopped")

    for _ in range(50):
        metrics = httpx.get(f"{args.url}/metrics", headers={"Authorization": f"Bearer {key}"}).text
        running = re.search(r"^edge_infer_requests_running (\S+)", metrics, re.M)
        if running and float(running[1]) == 0:
            print("-- the server has nothing left to do")
            return
        time.sleep(0.1)
    raise SystemExit("the server still works on it")


if __name__ == "__main__":
    main()
