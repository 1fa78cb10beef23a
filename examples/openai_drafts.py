"""Watch the diffusion through OpenAI's client: python examples/openai_drafts.py URL [PROMPT]

Start a server first: lopa-export serve BUNDLE. Every chunk has either committed text or a draft of the whole answer,
in which masked positions are drawn as blocks.
"""

import argparse

from openai import OpenAI

QUESTION = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"


def main(url: str, prompt: str) -> None:
    """Print the drafts and the answer of one streamed completion."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    model = client.models.list().data[0].id
    chunks = client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=96,
        stream=True,
        extra_body={"stream_options": {"include_drafts": True}, "lopa": {"branches": 4}},
    )
    text = ""
    for chunk in chunks:
        for choice in chunk.choices:
            text += choice.text
            if draft := (choice.model_extra or {}).get("lopa", {}).get("draft"):
                print("draft:", draft.replace("\n", " "))
    print("answer:", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("prompt", nargs="?", default=QUESTION)
    main(**vars(parser.parse_args()))
