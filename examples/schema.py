"""Text to data: the server makes the answer follow a JSON schema, here that of a pydantic model.

edge-infer serve path/to/model &
python examples/schema.py "Ada Lovelace was born in London in 1815 and wrote about engines."
"""

from __future__ import annotations

import argparse
import os
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=60)
    born: int = Field(ge=0, le=2100)
    field: Literal["science", "arts", "politics", "sports", "other"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    args = parser.parse_args()

    client = OpenAI(base_url=args.url, api_key=os.environ.get("EDGE_INFER_API_KEY", "none"))
    schema = {"name": "person", "schema": Person.model_json_schema(), "strict": True}
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": f"Who is this text about?\n\n{args.text}"}],
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=200,
        temperature=0,
    ).choices[0]
    if answer.finish_reason != "stop":
        raise SystemExit(f"The answer was cut: {answer.finish_reason}.")
    print(Person.model_validate_json(answer.message.content).model_dump_json())


if __name__ == "__main__":
    main()
