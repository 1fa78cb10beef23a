"""Records of a comparison, as a report stores them."""

from dataclasses import dataclass

from lopa.bench.forward.work import ForwardShape
from lopa.bench.machine import Machine
from tools.peers.agreement import Agreement
from tools.peers.process_memory import ProcessMemory
from tools.peers.side_work import SideWork

FIRST_TOKENS = 8
"""Tokens of a side's first forward."""


@dataclass(frozen=True)
class Peaks:
    """Operations per second of one large product. A multiply-add counts as two."""

    float32: float
    """Rate in ONNX Runtime, as for int8."""
    bfloat16: float
    """Rate in torch."""
    int8: float
    bandwidth: float
    """Bytes per second of a large copy."""


@dataclass(frozen=True)
class OpeningCosts:
    """Costs of a side until its first step, and its memory."""

    open_seconds: float
    """Seconds from the start of the process until its first forward can start."""
    first_seconds: float
    """Seconds of the first forward, which has FIRST_TOKENS tokens. Some engines convert weights here."""
    prefill_seconds: float | None
    """Seconds of computing the prefix, or None without a cache."""
    prefix: int
    """Tokens of the prefix."""
    memory: ProcessMemory | None
    """Memory after the last step, if the system reports it."""


@dataclass(frozen=True)
class Step:
    """Forwards of one shape."""

    shape: ForwardShape
    seconds: tuple[float, ...]
    """Seconds of every timed forward."""
    agreement: Agreement
    """Agreement with the reference on these windows."""
    work: SideWork


@dataclass(frozen=True)
class SideRounds:
    """Results of one side in a piece."""

    name: str
    step: Step
    """Its seconds are those of every round."""
    costs: OpeningCosts


@dataclass(frozen=True)
class Setting:
    """When, with which command and on what a measurement was made."""

    date: str
    command: str
    machine: Machine
    instructions: tuple[str, ...]
    """Instruction sets of the CPU that matter for products."""
    peers: dict[str, str]
    """Versions that are not among the machine's packages."""
    threads: int
    peaks: Peaks


@dataclass(frozen=True)
class Piece:
    """Results of one run with all sides open. Only its own rounds are comparable."""

    setting: Setting
    sides: tuple[SideRounds, ...]
    """Results of the sides, including the baseline."""
    left_out: dict[str, str]
    """Skipped sides with the reason."""

    @property
    def baseline(self) -> str:
        """Name of the side that times are relative to: the first one."""
        return self.sides[0].name

    @property
    def shape(self) -> ForwardShape:
        """Shape of all steps."""
        return self.sides[0].step.shape


@dataclass(frozen=True)
class Opening:
    """Results of one side between its start and its end."""

    setting: Setting
    side: str
    round: int
    """Round of openings, from 0."""
    costs: OpeningCosts
    steps: tuple[Step, ...]
