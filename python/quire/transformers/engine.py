# SPDX-License-Identifier: Apache-2.0
"""Continuous batching of a model of transformers over scheduler, block manager and paged caches.

Every step is one forward pass over the new tokens of all requests that the scheduler chose, packed
into one row; the model supplies everything but attention, which reads the caches of quire.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from quire._error import Error
from quire._quire import BlockManager, Prompt, ScheduledBatch, Scheduler
from quire.transformers.attention import NAME, active, unsupported
from quire.transformers.layers import divide_memory, find_specs, make_groups
from quire.transformers.sampling import Sampler, Sampling
from quire.transformers.sleeping_team import hold_sleeping_teams


def _whole_numbers(name: str, values: Any) -> list[int]:
    if hasattr(values, "tolist"):
        values = values.tolist()
    numbers: list[int] = []
    for value in values:
        try:
            numbers.append(operator.index(value))
        except TypeError:
            raise Error(f"{name}: {value!r} at {len(numbers)} is not a whole number") from None
    return numbers


class Request:
    """A submitted request. Iterating gives its tokens as they come, and runs the engine meanwhile.

    tokens: what has been generated so far, the end token included.
    finish_reason: None while it runs; then ``"length"``, ``"stopped"`` (an end token),
        ``"cancelled"``, ``"deadline"``, ``"too_large"`` or ``"error"``, with ``detail``.
    error: what choosing its next token raised; iterating over it raises that at the end.
    """

    def __init__(self, engine: Engine, prompt: list[int], ends: frozenset, sampler: Sampler) -> None:
        self.id = 0
        self.prompt = prompt
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.detail = ""
        self.error: Exception | None = None
        self._engine = engine
        self._ends = ends
        self._sampler = sampler

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def cancel(self) -> None:
        """Ends it with the next step; any thread."""
        self._engine._scheduler.cancel(self.id)

    def __iter__(self) -> Iterator[int]:
        given = 0
        while True:
            while given < len(self.tokens):
                yield self.tokens[given]
                given += 1
            if self.finished and given == len(self.tokens):
                if self.error is not None:
                    raise self.error
                return
            if not self.finished:
                self._engine.step()


class _Step:
    """The packed batch that a forward pass computes: attention of its layers."""

    def __init__(self, groups: list, batch: ScheduledBatch) -> None:
        self._place = {}
        self._seen: set[int] = set()
        for index, group in enumerate(groups):
            group.prepared.prepare(batch.view(index))
            for i, layer in enumerate(group.layers):
                self._place[layer] = group.prepared, group.views[i]

    def attend(self, module, query, key, value, position_bias, options, kwargs) -> torch.Tensor:
        prepared, view = self._place[module.layer_idx]
        self._seen.add(module.layer_idx)
        rows = (x[0].transpose(0, 1) for x in (query, key, value))
        q, k, v = (x if x.stride(2) == 1 else x.contiguous() for x in rows)
        return prepared.attend(q, view, k=k, v=v, **options)[None]

    def check_complete(self) -> None:
        """Layers that attended to something else computed nonsense from the packed row."""
        missing = sorted(set(self._place) - self._seen)
        if missing:
            raise Error(
                f"model: layers {missing} did not go through the attention {NAME!r}; was another"
                " one set while the engine was open?"
            )


# Of every model with open engines: how many, and the attention that it had before the first.
_open_engines: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_open_lock = threading.Lock()


def _hold_attention(model: Any) -> None:
    with _open_lock:
        count, previous = _open_engines.get(model, (0, model.config._attn_implementation))
        model.set_attn_implementation(NAME)
        _open_engines[model] = count + 1, previous


def _release_attention(model: Any) -> None:
    with _open_lock:
        count, previous = _open_engines.pop(model)
        if count > 1:
            _open_engines[model] = count - 1, previous
        else:
            model.set_attn_implementation(previous)


def _check_model(model: Any) -> None:
    if not isinstance(model, PreTrainedModel):
        raise Error(f"model: needs a model of transformers, has {type(model).__name__}")
    config = model.config
    if getattr(config, "is_encoder_decoder", False):
        raise unsupported("model: an encoder-decoder; use generate with the attention 'quire'")
    if model.training:
        raise unsupported("model: is in training; call model.eval()")
    accepted = inspect.signature(model.forward).parameters
    if "position_ids" not in accepted:
        raise unsupported(f"model: {type(model).__name__} takes no position_ids")
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    for one in [rope, *(x for x in rope.values() if isinstance(x, dict))]:
        if one.get("rope_type") in ("dynamic", "longrope"):
            raise unsupported(
                f"model: its rotary embedding ({one['rope_type']}) depends on the longest request"
            )


class Engine:
    """Serves requests to a causal model of transformers by continuous batching.

        engine = quire.transformers.Engine(model, cache_bytes=1 << 30)
        request = engine.submit(tokens, max_new_tokens=100)
        for token in request:
            ...

    Arguments:
        model: on one device, in eval mode; its attention becomes ``quire`` until ``close()``.
        cache_bytes: of K and V of all layers; requests that do not fit wait or are preempted.
        block_size: tokens per block.
        max_tokens: in one forward pass; longer prompts come in chunks.
        max_sequences: requests that run at a time.
        prefix_cache: prompts that begin with what was computed before reuse it.
        backend: as in ``quire.attend``.
        sleeping_threads: on a CPU the threads of PyTorch sleep between operations while an engine is
            open, as it finds them and their number here (docs/python.md); False leaves them as they are.

    In f32 the tokens are those that ``generate`` gives one request at a time. submit and cancel may
    be called from any thread; steps take turns.
    """

    def __init__(
        self,
        model: Any,
        *,
        cache_bytes: int = 1 << 30,
        block_size: int = 16,
        max_tokens: int = 2048,
        max_sequences: int = 256,
        prefix_cache: bool = True,
        backend: Any = "auto",
        sleeping_threads: bool = True,
    ) -> None:
        _check_model(model)
        self._model = model
        self._closed = False
        self._lock = threading.Lock()  # of _requests
        self._step_lock = threading.Lock()
        self._requests: dict[int, Request] = {}
        self._computed: deque[tuple[Request, torch.Tensor, int]] = deque()  # wait for their token
        self._new: list[tuple[Request, int]] = []  # chosen, and not yet returned
        self._stepping: int | None = None  # the thread that holds _step_lock
        self._block_size = block_size
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._releases: list[weakref.finalize] = []  # what close() gives back
        _hold_attention(model)
        self._release_at_close(_release_attention, model)
        try:
            self._groups = make_groups(find_specs(model, block_size))
            divide_memory(self._groups, cache_bytes, max_sequences, max_tokens)
            for group in self._groups:
                group.allocate(str(model.device), backend)
            self._schedule_with(max_tokens, max_sequences, prefix_cache)
            release = hold_sleeping_teams(model.device) if sleeping_threads else None
            if release is not None:
                self._release_at_close(release)
        except BaseException:
            self.close()
            raise

    def _schedule_with(self, max_tokens: int, max_sequences: int, prefix_cache: bool) -> None:
        self._manager = BlockManager(
            block_size=self._block_size, prefix_cache=prefix_cache,
            pools=[{"num_blocks": group.num_blocks} for group in self._groups],
            groups=[
                {"pool": i, "window_left": group.spec.window_left}
                for i, group in enumerate(self._groups)
            ],
        )  # fmt: skip
        token_bytes = sum(group.block_bytes() for group in self._groups) // self._block_size
        self._scheduler = Scheduler(
            self._manager, max_tokens=max_tokens, max_sequences=min(max_sequences, max_tokens),
            preemption={"token_bytes": token_bytes},
        )  # fmt: skip

    def _release_at_close(self, release: Any, *args: Any) -> None:
        """Or when nobody has the engine any more; not at the interpreter's exit, where nobody cares."""
        self._releases.append(weakref.finalize(self, release, *args))
        self._releases[-1].atexit = False

    def close(self) -> None:
        """Ends the engine, after the step that another thread is in; the last one of a model gives
        it the attention that it had before."""
        self._closed = True
        inside = self._stepping == threading.get_ident()
        with contextlib.nullcontext() if inside else self._step_lock:
            for release in self._releases:
                release()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def submit(
        self,
        tokens: Sequence[int],
        *,
        max_new_tokens: int = 20,
        sampling: Sampling | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        priority: int = 0,
        deadline: float | None = None,
        salt: str = "",
    ) -> Request:
        """A request for tokens that follow these; any thread.

        Arguments:
            max_new_tokens: at least 1.
            sampling: greedy by default.
            eos_token_id: a token, or several, that end it; None: those of the model's
                ``generation_config``; ``()``: none.
            priority: class; lower goes first.
            deadline: in seconds of ``time.monotonic()``.
            salt: only requests of equal salt share cached beginnings.
        """
        if self._closed:
            raise Error("engine: it is closed")
        tokens = _whole_numbers("tokens", tokens)
        if not tokens:
            raise Error("tokens: is empty")
        vocabulary = self._model.config.get_text_config().vocab_size
        for i, token in enumerate(tokens):
            if not 0 <= token < vocabulary:
                raise Error(f"tokens: {token} at {i}, the model has {vocabulary}")
        if max_new_tokens < 1:
            raise Error(f"max_new_tokens: {max_new_tokens}, must be positive")
        if eos_token_id is None:
            eos_token_id = self._model.generation_config.eos_token_id
        if eos_token_id is None:
            eos_token_id = ()
        if hasattr(eos_token_id, "tolist"):
            eos_token_id = eos_token_id.tolist()
        if isinstance(eos_token_id, int):
            eos_token_id = [eos_token_id]
        ends = _whole_numbers("eos_token_id", eos_token_id)
        if not isinstance(sampling, (Sampling, type(None))):
            raise Error(f"sampling: needs a Sampling, has {type(sampling).__name__}")
        sampler = Sampler(sampling or Sampling(), self._model.device)
        request = Request(self, tokens, frozenset(ends), sampler)
        prompt = Prompt(tokens, self._block_size, salt=salt)
        with self._lock:
            request.id = self._scheduler.submit(
                prompt, max_new_tokens=max_new_tokens, priority=priority, deadline=deadline
            )
            self._requests[request.id] = request
        return request

    @property
    def num_unfinished(self) -> int:
        with self._lock:
            return len(self._requests)

    def step(self) -> list[tuple[Request, int]]:
        """One forward pass; returns the new tokens with their requests.

        If the model raises, the step comes again with the next call. If choosing a token raises,
        its request ends, with the finish_reason ``"error"`` and the exception as its ``error``;
        the others go on.
        """
        if self._stepping == threading.get_ident():
            raise Error("engine: a step inside a step")
        with self._step_lock:
            self._stepping = threading.get_ident()
            try:
                return self._step()
            finally:
                self._stepping = None

    def _step(self) -> list[tuple[Request, int]]:
        if self._closed:
            raise Error("engine: it is closed")
        if not self._computed:  # else an interrupt came between the tokens of the last step
            batch = self._scheduler.schedule()
            num_stages = 0
            try:
                for stage in batch.copies:
                    for group, copies in zip(self._groups, stage):
                        group.cache.copy_blocks(copies["on_device"])
                    num_stages += 1
                logits = {} if batch.empty else self._compute(batch)
            except BaseException:
                self._scheduler.abandon(batch, num_stages)
                raise
            self._take(self._scheduler.commit(batch), logits)
        while self._computed:
            self._choose(*self._computed[0])
            self._computed.popleft()
        new, self._new = self._new, []
        return new

    def stream(self) -> Iterator[tuple[Request, int]]:
        """Tokens with their requests, as they come, until all requests have ended. Those of steps
        that others take meanwhile (``step``, ``generate``, a loop over a request) go to them; a
        request's ``tokens`` has all of its own."""
        pending: deque[tuple[Request, int]] = deque()
        while self.num_unfinished or pending:
            if not pending:
                pending.extend(self.step())
            while pending:
                yield pending.popleft()

    def generate(self, prompts: Sequence[Sequence[int]], **settings: Any) -> list[list[int]]:
        """The new tokens of every prompt; settings are those of ``submit``.

        Raises ``quire.Error`` if one does not fit into the cache even alone, and what choosing a
        token raised, when all have ended.
        """
        requests: list[Request] = []
        try:
            for tokens in prompts:
                requests.append(self.submit(tokens, **settings))
        except BaseException:
            for request in requests:
                request.cancel()
            raise
        while not all(request.finished for request in requests):
            self.step()
        for i, request in enumerate(requests):
            if request.error is not None:
                raise request.error
            if request.finish_reason == "too_large":
                raise Error(f"prompts: entry {i}: {request.detail}")
        return [request.tokens for request in requests]

    def stats(self) -> dict[str, Any]:
        """``{"scheduler", "blocks", "cache_bytes"}``: what was computed, and how full it is."""
        return {
            "scheduler": self._scheduler.stats(),
            "blocks": self._manager.stats(),
            "cache_bytes": sum(group.cache.size_bytes for group in self._groups),
        }

    def _compute(self, batch: ScheduledBatch) -> dict[int, torch.Tensor]:
        """Logits ``[vocabulary]`` of the rows that end the tokens of their request."""
        device = self._model.device
        rows = [
            one["first_row"] + one["num_tokens"] - 1
            for one in batch.sequences
            if one["is_last_chunk"]
        ]
        kept = {}
        if self._keeps_logits:
            kept["logits_to_keep"] = torch.tensor(rows, dtype=torch.long, device=device)
        tokens = torch.as_tensor(batch.tokens).to(device, torch.long)[None]
        positions = torch.as_tensor(batch.positions).to(device, torch.long)[None]
        step = active.step = _Step(self._groups, batch)
        try:
            with torch.no_grad():
                logits = self._model(
                    input_ids=tokens, position_ids=positions, use_cache=False, **kept
                ).logits[0]
        finally:
            active.step = None
        step.check_complete()
        if not self._keeps_logits:
            logits = logits[rows]
        return {row: logits[i] for i, row in enumerate(rows)}

    def _take(self, result: dict, logits: dict[int, torch.Tensor]) -> None:
        """Ends what has ended, and queues what waits for its next token."""
        rows = [logits[one["row"]] for one in result["ready"]]
        best = torch.stack(rows).argmax(-1).tolist() if rows else []
        with self._lock:
            for one, scores, token in zip(result["ready"], rows, best):
                self._computed.append((self._requests[one["id"]], scores, token))
            for one in result["finished"]:
                request = self._requests.pop(one["id"])
                request.detail = one["detail"] if request.error is None else repr(request.error)
                request.finish_reason = one["reason"] if request.error is None else "error"

    def _choose(self, request: Request, scores: torch.Tensor, token: int) -> None:
        """The next token of a request, `token` if it is the most likely one. Without the lock:
        processors of the program may submit and cancel."""
        if not request._sampler.is_plain:
            try:
                token = request._sampler.choose(request.prompt + request.tokens, scores)
            except Exception as error:
                request.error = error
                self._scheduler.finish(request.id)
                return
        request.tokens.append(token)
        self._new.append((request, token))
        if token in request._ends:
            self._scheduler.finish(request.id)
        else:
            self._scheduler.extend(request.id, token)
