import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tools.checkpoint.likeness import LIKENESSES
from tools.checkpoint.tokenizer import BOS, EOS, tokenizer_config_from_likeness, tokenizer_from_likeness

DREAM = LIKENESSES["dream-7b"]
TOKENIZER = Tokenizer.from_str(json.dumps(tokenizer_from_likeness(DREAM)))


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("name", LIKENESSES)
def test_ids_are_within_the_vocabulary(name: str) -> None:
    likeness = LIKENESSES[name]
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_from_likeness(likeness)))
    ids = tokenizer.get_vocab(with_added_tokens=True)
    assert 300 < len(ids) < 1000
    assert len(set(ids.values())) == len(ids)
    assert min(ids.values()) >= 0
    assert max(ids.values()) < likeness.dimensions.vocab_size
    assert (ids[likeness.mask_text], ids[EOS], ids.get(BOS)) == (likeness.mask, likeness.eos, likeness.bos)
    assert {likeness.mask, likeness.eos, *likeness.ends} <= tokenizer.get_added_tokens_decoder().keys()


def test_special_tokens_are_single_and_can_be_skipped() -> None:
    ids = TOKENIZER.encode(f"a{DREAM.mask_text}b{EOS}").ids
    assert [ids[1], ids[3], len(ids)] == [DREAM.mask, DREAM.eos, 4]
    assert TOKENIZER.decode(ids) == "ab"
    settings = tokenizer_config_from_likeness(DREAM)
    assert (settings["mask_token"], settings["bos_token"], settings["eos_token"]) == (DREAM.mask_text, BOS, EOS)
