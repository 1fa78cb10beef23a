"""Get answers that satisfy a JSON schema: python examples/structured_output.py BUNDLE (needs lopa-export[grammar])"""

import argparse
import json

from lopa import Decoder

SCHEMA = {
    "type": "object",
    "properties": {"item": {"enum": ["candies", "shells"]}, "count": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["item", "count"],
    "additionalProperties": False,
}
QUESTION = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"


def main(bundle: str) -> None:
    """Print the two fields of an answer."""
    with Decoder.open(bundle) as decoder:
        # Every step unmasks only tokens that the schema still allows, on every branch.
        result = decoder.generate(QUESTION, json_schema=SCHEMA, branches=2, max_new_tokens=64)
    value = json.loads(result.text)  # the text is always valid, so no retry is needed
    print(value["item"], value["count"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    main(**vars(parser.parse_args()))
