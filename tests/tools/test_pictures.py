"""The pictures of LoPA are drawn from real decodes."""

import re
from pathlib import Path
from xml.etree import ElementTree

from tools import pictures

from lopa import Decoder

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SVG = "{http://www.w3.org/2000/svg}"


def test_pictures_show_the_decodes(tiny_bundle: Path) -> None:
    drawn = pictures.pictures_of_bundle(tiny_bundle)
    assert {path.name for path in IMAGES.glob("*.svg")} == drawn.keys()
    with Decoder.open(tiny_bundle) as decoder:
        results = [
            decoder.generate(pictures.PROMPT, branches=branches, max_new_tokens=pictures.MAX_NEW_TOKENS)
            for branches in (1, pictures.BRANCHES)
        ]
    animation = ElementTree.fromstring(drawn["decode.svg"])
    titles = [text.text or "" for text in animation.findall(f"{SVG}text") if text.get("font-weight")]
    assert [[int(number) for number in re.findall(r"(\d+) (?:tokens|forwards)", title)] for title in titles] == [
        [result.tokens, result.steps] for result in results
    ]
    assert len(animation.findall(f"{SVG}g")) == sum(result.tokens for result in results)
    step = drawn["step.svg"]
    assert step.count("✓ wins") == 1
    assert step.count("confidence ") == pictures.BRANCHES
