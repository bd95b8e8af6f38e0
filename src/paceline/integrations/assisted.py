"""Transformers' assisted decoding with candidates of ours, and what it can't honour, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers.cache_utils import EncoderDecoderCache, QuantizedCache, StaticCache
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.configuration_utils import (
    ALL_STATIC_CACHE_IMPLEMENTATIONS,
    GenerationConfig,
    GenerationMode,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
)

from paceline.errors import ModelError, SettingError
from paceline.integrations.served import DraftServer, ServedStream
from paceline.types import Choice, Round, Sampling

# A drafted token can't meet these: drafts end before the length and before an end token. Time is
# looked at once a round, as it is once a token in ordinary decoding.
_MET_OTHERWISE = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria)


class DraftCandidates(CandidateGenerator):  # type: ignore[misc]
    """Candidates for one sequence, of one call of `generate`.

    server               drafts and policy
    max_length           of the whole sequence, prompt included (`GenerationConfig.max_length`)
    max_draft_tokens     always offer so many; None leaves it to the policy
    end_tokens           behind which nothing is drafted
    vocabulary_size      what the model can embed; a prompt may hold placeholders beyond it
    stopping_criteria    transformers asks them once a round. A draft ends before the token that
                         would meet one, so that decoding ends where it would without drafts
    sampling             as the call's, as far as acceptance depends on it: its temperature
    lock                 of a server that several threads use
    """

    requires_model_outputs = False

    def __init__(
        self,
        server: DraftServer,
        *,
        max_length: int,
        max_draft_tokens: int | None = None,
        end_tokens: Iterable[int] = (),
        vocabulary_size: int | None = None,
        stopping_criteria: Iterable[Any] = (),
        sampling: Sampling | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        criteria = list(stopping_criteria)
        lengths = [c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)]
        ends = [c.eos_token_id.flatten() for c in criteria if isinstance(c, EosTokenCriteria)]
        self._server, self._limit = server, max_draft_tokens
        self._max_length = min([max_length, *lengths])
        self._ends = frozenset(end_tokens).union(*(each.tolist() for each in ends))
        self._vocabulary_size = vocabulary_size
        self._criteria = [c for c in criteria if not isinstance(c, _MET_OTHERWISE)]
        self._sampling = Sampling() if sampling is None else sampling
        self._lock = nullcontext() if lock is None else lock
        self._served: ServedStream | None = None
        self._prompt_is_read = False
        self._draft_s = self._handed = 0.0

    @property
    def rounds(self) -> list[Round]:
        """So far; the reading of the prompt is none."""
        return [] if self._served is None else self._served.rounds

    def get_candidates(
        self, input_ids: torch.LongTensor, **_: Any
    ) -> tuple[torch.LongTensor, torch.Tensor | None]:
        """The sequence, of shape (1, length), with drafted tokens behind it: shape (1, length + k),
        k of 0 or more; and no logits, because all were deterministic."""
        started = perf_counter()
        drafted: tuple[int, ...] = ()
        with self._lock:
            if self._served is None:
                self._open(input_ids)
            else:
                drafted = self._propose(self._served, input_ids)
        if drafted:
            behind = torch.tensor([drafted], dtype=input_ids.dtype, device=input_ids.device)
            input_ids = torch.cat((input_ids, behind), dim=1)
        self._handed = perf_counter()
        self._draft_s = self._handed - started
        return input_ids, None

    def update_candidate_strategy(
        self,
        input_ids: torch.LongTensor,
        scores: torch.FloatTensor,
        num_matches: int,  # noqa: ARG002
    ) -> None:
        """A round was judged.

        input_ids      shape (1, length): the sequence with what the round emitted
        scores         shape (1, k + 1, vocabulary): the model's rows, processed
        num_matches    not needed: what was emitted says it
        """
        verified = perf_counter()
        served = self._served
        assert served is not None
        emitted = input_ids[0, len(served.history) :].tolist()
        with self._lock:
            if len(served.history):
                self._server.observe_logits(served, served.proposed, scores[0])
            if self._prompt_is_read:
                draft_s = self._draft_s + perf_counter() - verified
                self._server.record(
                    served, emitted, batch=1, step_s=verified - self._handed, draft_s=draft_s
                )
            self._server.commit(served, emitted)
        self._prompt_is_read = True

    def close(self) -> None:
        """Forget the sequence."""
        if self._served is not None and not self._served.finished:
            with self._lock:
                self._server.close(self._served)

    def _open(self, input_ids: torch.LongTensor) -> None:
        served = self._served = self._server.open()
        served.request = replace(served.request, sampling=self._sampling)
        served.context.sampling, served.context.stop_tokens = self._sampling, self._ends
        self._server.commit(served, input_ids[0].tolist())

    def _propose(self, served: ServedStream, input_ids: torch.LongTensor) -> tuple[int, ...]:
        # A round emits one token more than it accepts.
        served.remaining_tokens = self._max_length - len(served.history)
        if self._limit is None:
            [drafted] = self._server.propose([served])
        else:  # so many of the first draft that has any
            choices = [Choice(name, self._limit) for name in self._server.drafts]
            offers = (self._server.offer(served, choice) for choice in choices)
            drafted = next((tokens for tokens in offers if tokens), ())
        count = self._count(input_ids, drafted)
        if count < len(drafted):
            drafted = served.proposed = drafted[:count]
        return drafted

    def _count(self, input_ids: torch.LongTensor, drafted: Sequence[int]) -> int:
        """How many drafted tokens come before one that ends decoding, or that is none."""
        for count, token in enumerate(drafted):
            outside = self._vocabulary_size is not None and not 0 <= token < self._vocabulary_size
            if token in self._ends or outside:
                return count
        if self._criteria and drafted:
            behind = torch.tensor([drafted], dtype=input_ids.dtype, device=input_ids.device)
            whole = torch.cat((input_ids, behind), dim=1)
            for count in range(1, len(drafted) + 1):
                if self._ends_at(whole[:, : input_ids.shape[1] + count]):
                    return count - 1
        return len(drafted)

    def _ends_at(self, sequence: torch.Tensor) -> bool:
        for criterion in self._criteria:
            try:
                met = criterion(sequence, None)
            except Exception as error:
                name = type(criterion).__name__
                raise SettingError(
                    f"The stopping criterion {name} can't judge a drafted token, which has no "
                    f"scores yet: {error!r}.",
                    "Make it depend on the tokens alone, or leave it out.",
                ) from error
            if bool(met.any() if isinstance(met, torch.Tensor) else met):
                return True
        return False


# What assisted decoding runs with, and what it is refused.

_BASELINE = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)

_OTHER_DRAFTS = (
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    "speculation_type",
    "use_mtp",
    "assistant_ensemble_weight",
)

# They keep a state that moves on with every call, and assisted decoding also calls them for rows
# that are then rejected.
_MOVING_PROCESSORS = {
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "guidance_scale",
    "SynthIDTextWatermarkLogitsProcessor": "watermarking_config (SynthID)",
    "DiaEOSDelayPatternLogitsProcessor": "Dia's delay pattern",
}


class _WithCandidates:
    """A model whose candidate generator is ours. The model itself is left as it is: other threads
    may be decoding with it."""

    def __init__(self, model: Any, candidates: CandidateGenerator) -> None:
        self._model, self._candidates = model, candidates

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._model(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def _get_candidate_generator(self, **_: Any) -> CandidateGenerator:
        return self._candidates


def assisted_decoding(
    model: Any, candidates: CandidateGenerator, input_ids: torch.Tensor, **options: Any
) -> Any:
    """`model._assisted_decoding` with these candidates; its options and what it gives. `input_ids`
    has shape (1, tokens). Raises ModelError where this transformers has no such loop."""
    loop: Callable[..., Any] | None = getattr(type(model), "_assisted_decoding", None)
    if loop is None or not hasattr(model, "_get_candidate_generator"):
        raise ModelError(
            f"transformers {transformers.__version__} has no assisted decoding that candidates can "
            "be given to.",
            "Use 5.23 or 5.24.",
        )
    return loop(_WithCandidates(model, candidates), input_ids, **options)


def refuse(
    model: Any,
    input_ids: torch.Tensor,
    config: GenerationConfig,
    logits_processor: Any,
    model_kwargs: Mapping[str, Any],
    *,
    assistant_model: Any = None,
    synced_gpus: bool = False,
) -> None:
    """Raises SettingError or ModelError for what assisted decoding can't honour, or wouldn't;
    `input_ids` has shape (batch, tokens)."""
    _refuse_other_modes(input_ids, config, assistant_model)
    _refuse_cache(model, config, model_kwargs)
    for processor in logits_processor:
        setting = _MOVING_PROCESSORS.get(type(processor).__name__)
        if setting is not None:
            raise SettingError(
                f"{setting} keeps a state that drafted tokens would spoil.",
                "Decode it without drafts.",
            )
    if synced_gpus or _is_split(model):
        raise SettingError(
            "The model is split over several processes, which may not choose different limits.",
            "Decode it without drafts, or in one process.",
        )


def _refuse_other_modes(
    input_ids: torch.Tensor, config: GenerationConfig, assistant_model: Any
) -> None:
    others = {name: getattr(config, name, None) for name in _OTHER_DRAFTS}
    others["assistant_model"] = None if assistant_model is None else type(assistant_model).__name__
    for name, value in others.items():
        if value is not None and value is not False:
            raise SettingError(
                f"{name} is {value!r}, and Paceline's drafts are asked for as well.",
                "Leave one of them out.",
            )
    sizes = {name: getattr(config, name) or 1 for name in ("num_beams", "num_return_sequences")}
    for name, size in (sizes | {"the batch": input_ids.shape[0]}).items():
        if size != 1:
            raise SettingError(
                f"{name} is {size}, and transformers verifies drafts for one sequence alone.",
                "Decode one sequence a call, or without drafts.",
            )
    mode = config.get_generation_mode()
    if mode not in _BASELINE:
        raise SettingError(
            f"The generation mode is {mode.value}, and drafts serve greedy decoding and sampling.",
            "Leave its settings or the drafts out.",
        )


def _refuse_cache(model: Any, config: GenerationConfig, model_kwargs: Mapping[str, Any]) -> None:
    name = type(model).__name__
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{name} has a recurrent state, from which a rejected token can't be taken back.",
            "Decode it without drafts.",
        )
    if not model_kwargs.get("use_cache"):
        raise SettingError("use_cache is False.", "Drafts need the cache: leave it on.")
    if config.prefill_chunk_size is not None:
        raise SettingError(
            f"prefill_chunk_size is {config.prefill_chunk_size}, and assisted decoding reads a "
            "prompt in one piece.",
            "Leave one of them out.",
        )
    cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))  # since 5.24; before
    if cache is None:
        raise ModelError(
            f"{name} keeps no cache that tokens can be taken from.", "Decode without drafts."
        )
    implementation = config.cache_implementation
    parts = [cache]
    if isinstance(cache, EncoderDecoderCache):
        parts = [cache.self_attention_cache, cache.cross_attention_cache]
    fixed = any(isinstance(part, StaticCache | QuantizedCache) for part in parts)
    if fixed or implementation in ALL_STATIC_CACHE_IMPLEMENTATIONS:
        raise SettingError(
            f"The cache is {implementation or type(cache).__name__}, from which tokens can't be "
            "taken back.",
            "Ask for cache_implementation='dynamic'.",
        )
    if cache.get_seq_length():
        raise SettingError(
            f"past_key_values holds {cache.get_seq_length()} tokens already, and assisted decoding "
            "would read them again.",
            "Give the whole prompt and no cache, or decode without drafts.",
        )


def _is_split(model: Any) -> bool:
    """Whether a forward needs other processes: tensor parallel, FSDP or ZeRO stage 3."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    if torch.distributed.get_world_size() < 2:
        return False
    from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
    from transformers.integrations.fsdp import is_fsdp_managed_module

    tensor_parallel = (getattr(model, "_tp_size", None) or 1) > 1
    return tensor_parallel or is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model)
