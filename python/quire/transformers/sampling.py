# SPDX-License-Identifier: Apache-2.0
"""How the next token of a request is chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers.generation import logits_process

from quire._error import Error


@dataclass(frozen=True)
class Sampling:
    """Settings of one request, with the meaning that ``generate`` gives them.

    temperature: 0 takes the most likely token (greedy); above 0 draws. Finite.
    top_k, top_p, min_p: only these tokens are drawn from; 0, 1 and 0 are no limit.
    repetition_penalty: 1 is none; applied also when greedy.
    seed: of the draws; None: from PyTorch's own generator.
    logits_processors: further ones of transformers, called as ``f(tokens [1, n], scores [1,
        vocabulary])`` after the penalty and before the temperature.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logits_processors: Sequence[Callable[..., torch.Tensor]] = ()

    def __post_init__(self) -> None:
        # Written so that NaN fails, too.
        if not 0 <= self.temperature < math.inf:
            raise Error(f"temperature: {self.temperature}, must be finite and not negative")
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise Error(f"top_k: {self.top_k}, must be a whole number, not negative")
        if not 0 < self.top_p <= 1:
            raise Error(f"top_p: {self.top_p}, must be above 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise Error(f"min_p: {self.min_p}, must be from 0 to 1")
        if not 0 < self.repetition_penalty < math.inf:
            raise Error(f"repetition_penalty: {self.repetition_penalty}, must be finite, above 0")
        if self.seed is not None and not (
            isinstance(self.seed, int) and -(2**63) <= self.seed < 2**64
        ):
            raise Error(f"seed: {self.seed!r}, must be None or a whole number of 64 bits")
        if not isinstance(self.logits_processors, Sequence):
            raise Error("logits_processors: needs a list")
        for i, one in enumerate(self.logits_processors):
            if not callable(one):
                raise Error(f"logits_processors: entry {i} cannot be called: {one!r}")


class Sampler:
    """Chooses the tokens of one request, in order."""

    def __init__(self, sampling: Sampling, device: torch.device) -> None:
        self._draws = sampling.temperature > 0
        self._generator = None
        if sampling.seed is not None:
            self._generator = torch.Generator(device=device).manual_seed(sampling.seed)
        steps: list[Callable[..., torch.Tensor]] = []
        if sampling.repetition_penalty != 1:
            penalty = logits_process.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
            steps.append(penalty)
        steps += sampling.logits_processors
        if self._draws:
            if sampling.temperature != 1:
                steps.append(logits_process.TemperatureLogitsWarper(float(sampling.temperature)))
            if sampling.top_k:
                steps.append(logits_process.TopKLogitsWarper(sampling.top_k))
            if sampling.top_p < 1:
                steps.append(logits_process.TopPLogitsWarper(sampling.top_p))
            if sampling.min_p:
                steps.append(logits_process.MinPLogitsWarper(sampling.min_p))
        self._steps = steps

    @property
    def is_plain(self) -> bool:
        """Whether it takes the most likely token, whatever came before."""
        return not self._draws and not self._steps

    def choose(self, tokens: Sequence[int], scores: torch.Tensor) -> int:
        """The token that follows tokens, by scores ``[vocabulary]``."""
        scores = scores[None].float()
        if self._steps:
            before = torch.tensor([list(tokens)], device=scores.device)
            shape = scores.shape
            for step in self._steps:
                scores = step(before, scores)
                # A token outside of the vocabulary would end the step of all requests.
                if not isinstance(scores, torch.Tensor) or scores.shape != shape:
                    found = list(getattr(scores, "shape", [])) or type(scores).__name__
                    raise Error(
                        f"logits_processors: {step!r} returned {found}, needs scores {list(shape)}"
                    )
        if not self._draws:
            return int(scores.argmax())
        weights = scores.softmax(-1)
        # On a GPU multinomial would end the process for all of them.
        if not bool(weights.isfinite().all()):
            raise Error("scores: are not numbers that a token can be drawn by")
        return int(torch.multinomial(weights, 1, generator=self._generator))
