"""Families of networks that can be exported. A new family is a file and an entry in this table."""

from lopa.export.families.diffusion_gemma import DIFFUSION_GEMMA
from lopa.export.families.dream import DREAM
from lopa.export.families.family import Family
from lopa.export.families.fast_dllm_v2 import FAST_DLLM_V2
from lopa.export.families.llada import LLADA
from lopa.export.families.llada2_moe import LLADA2_MOE
from lopa.export.families.llada_moe import LLADA_MOE
from lopa.export.families.sdar import SDAR
from lopa.export.families.sdar_moe import SDAR_MOE
from lopa.export.families.stable_diffcoder import STABLE_DIFFCODER
from lopa.export.families.wedlm import WEDLM

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        *(DREAM, LLADA, FAST_DLLM_V2, SDAR, WEDLM, STABLE_DIFFCODER),
        *(LLADA2_MOE, SDAR_MOE, LLADA_MOE, DIFFUSION_GEMMA),
    )
}
"""Families by the name of their architecture in a manifest."""
