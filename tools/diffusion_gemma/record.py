"""Record transformers' generate on the trained checkpoints: `python -m tools.diffusion_gemma.record FOLDER`.

There is one sequence, DynamicCache, no compilation and one thread. torch.multinomial and torch.randint are replaced.
Both take uniform numbers that depend only on seed, step and position (lopa.runtime.strategy.draws). multinomial inverts
the distribution in the order of the vocabulary. Everything else is unchanged.
"""

import gzip
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer, DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma import generation_diffusion_gemma as published

from lopa.runtime.strategy.draws import CANVAS_STREAM, TOKEN_STREAM, uniform_at
from tools.diffusion_gemma.texts import conversation

DEFAULT: dict[str, Any] = {
    **{"entropy_bound": 0.1, "stability_threshold": 1, "confidence_threshold": 0.005, "t_min": 0.4, "t_max": 0.8},
    **{"max_denoising_steps": 48, "canvases": 4, "stops": [1, 5]},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "bound05": {"entropy_bound": 0.5},
    "bound2": {"entropy_bound": 2.0, "confidence_threshold": 0.05},
    "stability0": {"stability_threshold": 0, "confidence_threshold": 0.1},
    "stability2": {"stability_threshold": 2, "entropy_bound": 0.5, "canvases": 3},
    "hot": {"t_min": 0.9, "t_max": 1.4, "entropy_bound": 2.0, "max_denoising_steps": 16},
    "cold": {"t_min": 0.05, "t_max": 0.3, "entropy_bound": 0.5},
    "few_steps": {"max_denoising_steps": 3, "entropy_bound": 2.0, "stops": []},
    "one_stop": {"stops": [1], "entropy_bound": 0.5, "canvases": 3, "max_denoising_steps": 24},
}
PROMPTS = 8


@dataclass
class Observer:
    """Observer of one call of generate, step by step."""

    seed: int
    vocabulary: int
    position: int
    """First position of the canvas."""
    step: int = 0
    canvases: list[dict[str, Any]] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)

    def uniforms(self, stream: int, step: int, count: int) -> Any:
        """Return multiples of 2^-24, which float32 holds."""
        positions = np.arange(self.position, self.position + count)
        numbers = uniform_at(positions, 1, seed=self.seed, step=step, stream=stream)[:, 0]
        return np.floor(numbers * 2**24) / 2**24

    def randint(self, *, low: int, high: int, size: tuple[int, int], device: object) -> Tensor:
        """Return the random canvas that the next step sees."""
        assert (low, high, size[0], str(device)) == (0, self.vocabulary, 1, "cpu")
        ids = torch.from_numpy(np.floor(self.uniforms(CANVAS_STREAM, self.step + 1, size[1]) * high).astype(np.int64))
        return ids[None]

    def multinomial(self, probabilities: Tensor, num_samples: int) -> Tensor:
        """Return the token at which the cumulative probability exceeds the uniform number."""
        assert num_samples == 1
        self.step += 1
        sums = probabilities.double().cumsum(-1).numpy()
        numbers = self.uniforms(TOKEN_STREAM, self.step, len(sums))[:, None] * sums[:, -1:]
        self.margins.append(float(np.abs(sums - numbers).min()))
        return torch.from_numpy((sums <= numbers).sum(-1, keepdims=True))

    def begin(self, canvas: Tensor) -> None:
        """Note the random ids of a canvas."""
        self.canvases.append({"start": canvas[0].tolist(), "steps": []})

    def accept(self, sampler: Any, drawn: Tensor, logits: Tensor) -> None:
        """Note what a step accepted."""
        entropy = torch.distributions.Categorical(logits=logits).entropy()[0]  # type: ignore[no-untyped-call]
        ordered = entropy.sort().values
        self.margins.append(float((ordered.cumsum(0) - ordered - sampler.entropy_bound).abs().min()))
        best = logits[0].topk(2).values
        self.margins.append(float((best[:, 0] - best[:, 1]).min()))
        self.canvases[-1]["steps"].append(
            {
                "drawn": drawn[0].tolist(),
                "accepted": sampler.accepted_token_mask[0].nonzero()[:, 0].tolist(),
                "argmax": logits[0].argmax(-1).tolist(),
                "entropy": round(float(entropy.mean()), 6),
            }
        )


@contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Replace the random functions, and look at the sampler and the end of a canvas."""
    sampler, criteria = published.EntropyBoundSampler, published.StableAndConfidentStoppingCriteria
    accept, renoise, stop = sampler.accept_canvas, sampler.renoise_canvas, criteria.__call__
    prepare = published.DiffusionGemmaGenerationMixin._prepare_denoiser_inputs

    def seen_accept(self: Any, current: Tensor, drawn: Tensor, logits: Tensor, step: Any) -> Any:
        accepted = accept(self, current, drawn, logits, step)
        observer.accept(self, drawn, logits)
        return accepted

    def seen_renoise(self: Any, accepted: Tensor, step: Any) -> Any:
        canvas = renoise(self, accepted, step)
        observer.canvases[-1]["steps"][-1]["canvas"] = canvas[0].tolist()
        return canvas

    def seen_stop(self: Any, argmax: Tensor, logits: Tensor) -> Any:
        stopped = stop(self, argmax, logits)
        mean = observer.canvases[-1]["steps"][-1]["entropy"]
        observer.margins.append(abs(mean - self.confidence_threshold))
        observer.canvases[-1]["stable"] = bool(stopped)
        return stopped

    def seen_prepare(self: Any, **values: Any) -> Any:
        if observer.canvases:
            observer.position += self.config.canvas_length
        result = prepare(self, **values)
        observer.begin(result[0])
        return result

    with (
        patch.object(torch, "multinomial", observer.multinomial),
        patch.object(torch, "randint", observer.randint),
        patch.object(sampler, "accept_canvas", seen_accept),
        patch.object(sampler, "renoise_canvas", seen_renoise),
        patch.object(criteria, "__call__", seen_stop),
        patch.object(published.DiffusionGemmaGenerationMixin, "_prepare_denoiser_inputs", seen_prepare),
    ):
        yield


def prompts(tokenizer: Any, canvas: int) -> list[list[int]]:
    """Return prompts of one to five turns, some as long as the window of canvas16 and canvas32 or longer."""
    chance, found = random.Random(777 + canvas), list[list[int]]()
    for number in range(PROMPTS):
        messages = list[dict[str, str]]()
        for _ in range(number % 4):
            question, answer = conversation(chance)
            messages += [{"role": "user", "content": question}, {"role": "model", "content": answer}]
        messages.append({"role": "user", "content": conversation(chance)[0]})
        found.append(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))
    return found


def record(model: DiffusionGemmaForBlockDiffusion, prompt: list[int], options: dict[str, Any], seed: int) -> Any:
    """Return one trace."""
    canvas = model.config.canvas_length
    observer = Observer(seed, model.config.text_config.vocab_size, len(prompt))
    names = ("stability_threshold", "confidence_threshold", "t_min", "t_max", "max_denoising_steps")
    with observed(observer):
        result = model.generate(
            torch.tensor([prompt]),
            **{name: options[name] for name in names},
            sampler_config=published.EntropyBoundSamplerConfig(options["entropy_bound"]),
            max_new_tokens=options["canvases"] * canvas,
            eos_token_id=options["stops"] or None,
            pad_token_id=0,
        )
    return {
        **{"seed": seed, "prompt": prompt, "generated": result.sequences[0, len(prompt) :].tolist()},
        "tokens_per_forward": round(float(result.tokens_per_forward), 5),
        **{"canvases": observer.canvases, "margin": float(f"{min(observer.margins):.2g}")},
    }


def summary(canvas: int, traces: list[Any], options: dict[str, Any]) -> str:
    """Return the row of the table of one file."""
    canvases = [each for trace in traces for each in trace["canvases"]]
    steps = [step for each in canvases for step in each["steps"]]
    accepted = Counter(len(step["accepted"]) for step in steps)
    ends = Counter("stable" if each.get("stable") else "steps" for each in canvases)
    texts = sum(any(token in options["stops"] for token in trace["generated"]) for trace in traces)
    few, whole = sum(count for size, count in accepted.items() if 1 < size < canvas), accepted[canvas]
    near = sum(trace["margin"] < 1e-5 for trace in traces)
    counts = (len(canvases), len(steps), accepted[1], few, whole, ends["stable"], ends["steps"], texts, near)
    return " | ".join(map(str, counts))


def main(folder: Path) -> None:
    """Record every configuration on every checkpoint, and print the table."""
    torch.set_num_threads(1)
    print(
        "| file | canvases | steps | one accepted | some | whole canvas | ends: stable | steps | with end | near ties |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for checkpoint in sorted(path.parent for path in folder.glob("*/config.json")):
        model = DiffusionGemmaForBlockDiffusion.from_pretrained(checkpoint, attn_implementation="eager").eval()
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        (checkpoint / "traces").mkdir(exist_ok=True)
        for name, changed in CONFIGS.items():
            options = DEFAULT | changed
            traces = [
                record(model, prompt, options, 1000 + number)
                for number, prompt in enumerate(prompts(tokenizer, model.config.canvas_length))
            ]
            lines = [json.dumps({"type": "config", **options})]
            lines += [json.dumps({"type": "trace", **trace}) for trace in traces]
            data = "\n".join(lines).encode() + b"\n"
            (checkpoint / "traces" / f"{name}.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))
            print(f"| {checkpoint.name}/{name} | {summary(model.config.canvas_length, traces, options)} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
