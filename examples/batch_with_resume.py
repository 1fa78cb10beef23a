"""Answer a file of prompts, and continue after an interruption: python examples/batch_with_resume.py BUNDLE FOLDER

The command keeps every finished answer. When it is run again with --resume, it answers only the missing prompts.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from lopa import Decoder

PROMPTS = [
    f"Question: Sam owns {n} balloons and buys 2 more. How many balloons are there?\nAnswer:" for n in range(3, 9)
]


def main(bundle: str, folder: str) -> None:
    """Answer the file, interrupt it, resume it, and compare with the answers of one undisturbed run."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    prompts, answers = Path(folder, "prompts.jsonl"), Path(folder, "answers.jsonl")
    prompts.write_text("".join(json.dumps({"id": n, "prompt": prompt}) + "\n" for n, prompt in enumerate(PROMPTS)))
    command = [sys.executable, "-m", "lopa.cli.main", "generate", bundle, "--prompts", str(prompts)]
    command += ["--output", str(answers), "--resume", "--quiet", "--max-new-tokens", "64"]

    subprocess.run(command, check=True)
    kept = answers.read_bytes().splitlines(keepends=True)[:4]
    answers.write_bytes(b"".join(kept) + b'{"id": 4, "tex')  # a power failure leaves such a file
    subprocess.run(command, check=True)

    results = [json.loads(line) for line in answers.read_text().splitlines()]
    with Decoder.open(bundle) as decoder:  # the same prompts in Python, four at a time
        again = decoder.generate(PROMPTS, max_new_tokens=64, max_num_seqs=4)
    assert [result["text"] for result in results] == [result.text for result in again]
    for result in results:
        print(result["id"], result["text"].splitlines()[-1])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    parser.add_argument("folder")
    main(**vars(parser.parse_args()))
