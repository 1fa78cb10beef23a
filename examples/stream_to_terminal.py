"""Stream an answer to the terminal, and print its speed: python examples/stream_to_terminal.py BUNDLE [PROMPT]"""

import argparse

from lopa import Decoder, DoneEvent, TextEvent

QUESTION = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"


def main(bundle: str, prompt: str) -> None:
    """Print the answer while it is decoded."""
    with Decoder.open(bundle) as decoder:
        for event in decoder.stream(prompt, branches=4, max_new_tokens=128):
            if isinstance(event, TextEvent):  # text that no later step changes
                print(event.text, end="", flush=True)
            elif isinstance(event, DoneEvent):
                result = event.result
                print(f"\n{result.tokens} tokens in {result.steps} steps: {result.tokens / result.steps:.1f} per step")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("prompt", nargs="?", default=QUESTION)
    main(**vars(parser.parse_args()))
