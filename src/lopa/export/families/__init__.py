"""The families of networks that can be exported, a small file each; a new one is a file and a line in this table."""

from lopa.export.families.dream import DREAM
from lopa.export.families.family import Family
from lopa.export.families.fast_dllm_v2 import FAST_DLLM_V2
from lopa.export.families.llada import LLADA
from lopa.export.families.sdar import SDAR
from lopa.export.families.stable_diffcoder import STABLE_DIFFCODER
from lopa.export.families.wedlm import WEDLM

FAMILIES: dict[str, Family] = {
    family.name: family for family in (DREAM, LLADA, FAST_DLLM_V2, SDAR, WEDLM, STABLE_DIFFCODER)
}
"""By the name of the architecture in a manifest."""
