"""Plot accuracy against tokens per forward: python examples/quality_curve.py BUNDLE EVAL.jsonl CURVE.png

It needs lopa-export[plot]. A lower threshold unmasks more tokens per step, and at some point costs accuracy.
`lopa-export bench quality` draws the same curve for every strategy, with confidence intervals.
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure

from lopa import Decoder

THRESHOLDS = (0.95, 0.8, 0.6, 0.4, 0.2)


def main(bundle: str, eval_set: str, png: str, limit: int) -> None:
    """Decode the first `limit` items at every threshold, print the points and draw the curve."""
    items = [json.loads(line) for line in Path(eval_set).read_text().splitlines()[:limit]]
    points = []
    with Decoder.open(bundle) as decoder:
        for threshold in THRESHOLDS:
            prompts = [item["prompt"] for item in items]
            results = decoder.generate(prompts, strategy="d2f", skip_threshold=threshold, max_new_tokens=128)
            right = [result.text.split("#### ")[-1].strip() == str(item["answer"]).split("#### ")[-1].strip()
                     for result, item in zip(results, items, strict=True)]  # fmt: skip
            speed = sum(result.tokens for result in results) / sum(result.steps for result in results)
            points.append((speed, sum(right) / len(right)))
            print(f"skip_threshold {threshold}: {speed:.2f} tokens per forward, {points[-1][1]:.0%} right")
    axes = (figure := Figure(figsize=(5, 3.5), layout="constrained")).add_subplot()
    axes.plot(*zip(*points, strict=True), marker="o")
    axes.set(xlabel="tokens per forward", ylabel="share of right answers", ylim=(0, 1.05))
    figure.savefig(png)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("bundle", "eval_set", "png"):
        parser.add_argument(name)
    parser.add_argument("limit", nargs="?", type=int, default=20)
    main(**vars(parser.parse_args()))
