"""Serve many asyncio tasks from one engine, each with a deadline: python examples/asyncio_service.py BUNDLE"""

import argparse
import asyncio

from lopa import Engine, GenerationResult, QueueFullError

QUESTIONS = [f"Question: Ivy buys {n} shells for 3 dollars each. How much does Ivy pay?\nAnswer:" for n in range(2, 8)]


async def answer(engine: Engine, prompt: str) -> GenerationResult:
    """Return the answer to `prompt`, waiting while the queue is full."""
    while True:
        try:
            handle = engine.submit(prompt, branches=2, max_new_tokens=96, deadline=60)
        except QueueFullError:  # the queue is full: wait and retry, as a client would after HTTP 429
            await asyncio.sleep(0.05)
        else:
            return await handle


async def main(bundle: str) -> None:
    """Answer all questions at once and print the answers."""
    with Engine.open(bundle, max_num_seqs=2, queue_limit=2) as engine:
        results = await asyncio.gather(*(answer(engine, prompt) for prompt in QUESTIONS))
    for prompt, result in zip(QUESTIONS, results, strict=True):
        print(
            f"{prompt.splitlines()[0]} -> {result.text.splitlines()[-1]} ({result.stop_reason}, {result.seconds:.2f} s)"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle")
    asyncio.run(main(**vars(parser.parse_args())))
