"""What a run tells of its own options: branches and why, the seed where one matters."""

from lopa.runtime.decoder import Decoder
from lopa.runtime.generation_config import GenerationConfig


def words_of_run(decoder: Decoder, config: GenerationConfig, *, drawn: bool) -> str:
    """In one line; `drawn` says whether the seed was drawn for this run."""
    choice = decoder.branches_for(config)
    counted = "1 branch" if choice.number == 1 else f"{choice.number} branches"
    seed = f"seed {config.seed}, " if drawn or config.temperature > 0 else ""
    return f"{seed}{counted}: {choice.reason}"
