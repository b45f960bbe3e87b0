# SPDX-License-Identifier: Apache-2.0
"""Models of Hugging Face transformers on quire.

    import quire.transformers

    model.set_attn_implementation("quire")      # or from_pretrained(..., attn_implementation="quire")
    model.generate(...)

Importing registers the attention ``quire`` with its mask function; every model whose attention goes
through ``AttentionInterface`` can name it. docs/python.md says which do.
"""

from quire.transformers.attention import NAME, attention_forward, attention_mask, register
from quire.transformers.batching import continuous_batching
from quire.transformers.engine import Engine, Request
from quire.transformers.sampling import Sampling

register()

__all__ = [
    "NAME",
    "Engine",
    "Request",
    "Sampling",
    "attention_forward",
    "attention_mask",
    "continuous_batching",
    "register",
]
