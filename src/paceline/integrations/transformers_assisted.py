"""Transformers' assisted decoding with candidates of ours, and what it can't honour, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from transformers.cache_utils import (
    Cache,
    EncoderDecoderCache,
    QuantizedCache,
    StaticCache,
)
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.configuration_utils import (
    ALL_STATIC_CACHE_IMPLEMENTATIONS,
    GenerationConfig,
    GenerationMode,
)

from paceline.errors import ModelError, SettingError

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
    """A model whose candidate generator is ours; all else is the model's own. The model itself is
    left as it is, because other threads may be decoding with it."""

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
    """`model._assisted_decoding` with these candidates; its options and what it gives. Raises
    ModelError where this transformers has no such loop."""
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
    """Raises SettingError or ModelError for what assisted decoding can't honour, or wouldn't."""
    _refuse_other_modes(input_ids, config, assistant_model)
    _refuse_cache(model, config, model_kwargs)
    for processor in logits_processor:
        setting = _MOVING_PROCESSORS.get(type(processor).__name__)
        if setting is not None:
            raise SettingError(
                f"{setting} keeps a state that drafted tokens would spoil.", "Decode it plainly."
            )
    if synced_gpus or _is_split(model):
        raise SettingError(
            "The model is split over several processes, which may not choose different limits.",
            "Decode it plainly, or in one process.",
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
    for name in ("num_beams", "num_return_sequences"):
        if (getattr(config, name) or 1) > 1:
            raise _one_sequence(name, getattr(config, name))
    if input_ids.shape[0] != 1:
        raise _one_sequence("the batch", input_ids.shape[0])
    mode = config.get_generation_mode()
    if mode not in _BASELINE:
        raise SettingError(
            f"The generation mode is {mode.value}, and drafts serve greedy decoding and sampling.",
            "Leave its settings or the drafts out.",
        )


def _one_sequence(name: str, value: int) -> SettingError:
    return SettingError(
        f"{name} is {value}, and transformers verifies drafts for one sequence alone.",
        "Decode one sequence a call, or without drafts.",
    )


def _refuse_cache(model: Any, config: GenerationConfig, model_kwargs: Mapping[str, Any]) -> None:
    name = type(model).__name__
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{name} has a recurrent state, from which a rejected token can't be taken back.",
            "Decode it plainly.",
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
        raise ModelError(f"{name} keeps no cache that tokens can be taken from.", "Decode plainly.")
    implementation = config.cache_implementation
    parts = (
        (cache.self_attention_cache, cache.cross_attention_cache)
        if isinstance(cache, EncoderDecoderCache)
        else (cache,)
    )
    if implementation in ALL_STATIC_CACHE_IMPLEMENTATIONS or any(_is_fixed(p) for p in parts):
        raise SettingError(
            f"The cache is {implementation or type(cache).__name__}, from which tokens can't be "
            "taken back.",
            "Ask for cache_implementation='dynamic'.",
        )
    if cache.get_seq_length():
        raise SettingError(
            f"past_key_values holds {cache.get_seq_length()} tokens already, and assisted decoding "
            "would read them again.",
            "Give the whole prompt and no cache, or decode plainly.",
        )


def _is_fixed(cache: Cache) -> bool:
    return isinstance(cache, StaticCache | QuantizedCache)


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
