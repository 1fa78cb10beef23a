"""The embedded tiny D2F-Dream checkpoint (2.4 million parameters), its adapter, a chat template and evaluation prompts.

Serves the demo, the tests and the benchmarks. Trained for this project on synthetic text.
"""

from pathlib import Path

_HERE = Path(__file__).resolve().parent
CHECKPOINT: Path = _HERE / "base"
"""Dream-format checkpoint folder (float32)."""
ADAPTER: Path = _HERE / "d2f_lora"
"""PEFT LoRA adapter of the checkpoint (rank 32)."""
EVAL: Path = _HERE / "eval.jsonl"
"""200 arithmetic word problems and 100 small Python functions: {"prompt", "answer", "kind"} per line."""
