"""Decode one prompt with plain_lopa.py on ONNX Runtime, and print what every round does.

Usage: python examples/run_plain_lopa.py BUNDLE [PROMPT]
"""

import argparse
import json
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from plain_lopa import Forward, Ints, Options, Statistics, lopa
from tokenizers import Tokenizer

QUESTION = "Question: There are 9 baskets at home, and each holds 6 candies. How many candies are there now?\nAnswer:"


def forward_of_bundle(bundle: Path) -> Forward:
    """Return the bundle's graph as a function for one request with one branch and an empty cache."""
    session = onnxruntime.InferenceSession(bundle / "model.onnx")
    caches = [each for each in session.get_inputs() if each.name.startswith("past_key_values.")]
    tile = 64  # rows of an empty cache, which the mask excludes

    def forward(tokens: Ints, positions: Ints, mask: NDArray[np.bool_]) -> Statistics:
        inputs = {
            "input_ids": tokens[None, None],
            "position_ids": positions[None, None],
            "window_mask": mask[None, None],
            "prefix_mask": np.zeros((1, tile), np.bool_),
            "logits_index": np.arange(len(tokens))[None, None],
            "temperature": np.ones(1, np.float32),
            **{each.name: np.zeros((1, each.shape[1], tile, each.shape[3]), np.float32) for each in caches},
        }
        ids, logprobs, entropy = session.run(["topk_ids", "topk_logprobs", "entropy"], inputs)
        probabilities = np.exp(logprobs[0, 0].astype(np.float64))
        return Statistics(ids[0, 0, :, 0], probabilities[:, 0], probabilities[:, 1], entropy[0, 0].astype(np.float64))

    return forward


def main(bundle: Path, prompt: str) -> None:
    """Print the rounds and the answer."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    special = manifest["special_tokens"]
    tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
    ids = [special["bos"], *tokenizer.encode(prompt, add_special_tokens=False).ids]
    options = Options(special["mask"], special["eos"], prediction_shift=manifest["prediction_shift"])
    tokens = np.array(ids)
    for number, each in enumerate(lopa(forward_of_bundle(bundle), np.array(ids), options), 1):
        tokens = each.next_branches[-1].tokens
        won = each.branches[each.winner].lookahead
        masks = int((tokens == options.mask_token).sum())
        who = "the anchor" if won is None else f"the lookahead at {won[0]}"
        print(
            f"round {number}: {len(each.branches)} branches, {who} wins at {each.confidences[each.winner]:.3f}, "
            f"{len(each.unmasked)} tokens unmasked, {masks} masked"
        )
    print(tokenizer.decode(tokens[len(ids) :].tolist()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("prompt", nargs="?", default=QUESTION)
    main(**vars(parser.parse_args()))
