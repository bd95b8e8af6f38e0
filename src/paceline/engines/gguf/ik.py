"""ik_llama.cpp, through ik-llama-cpp-python: the one place where it is imported. It is a fork of
llama.cpp whose kernels unpack a weight once for several rows, so that a row more costs less.

The binding declares few of the functions; the others are declared here, under the names that
llama.cpp has for them.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from paceline.engines.cpu import cpu_field
from paceline.engines.gguf.engine import GgufEngine
from paceline.engines.gguf.library import ERROR, Library, description
from paceline.errors import ModelError

from ik_llama_cpp import _ctypes_api as binding  # isort: skip (after the library's settings)

_P, _I, _B, _S = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_char_p


class _CacheView(ctypes.Structure):
    """A llama_kv_cache_view: which cells are used, and how many free ones lie together."""

    _fields_ = (
        ("n_cells", _I),
        ("n_seq_max", _I),
        ("token_count", _I),
        ("used_cells", _I),
        ("max_contiguous", _I),
        ("max_contiguous_idx", _I),
        ("cells", _P),
        ("cells_sequences", _P),
    )


_FUNCTIONS: Mapping[str, tuple[str, list[Any], Any]] = {
    "llama_backend_init": ("", [], None),
    "llama_log_set": ("", [_P, _P], None),
    "llama_print_system_info": ("", [], _S),
    "llama_supports_gpu_offload": ("", [], _B),
    "llama_model_free": ("llama_free_model", [_P], None),
    "llama_model_get_vocab": ("", [_P], _P),
    "llama_model_desc": ("", [_P, _S, ctypes.c_size_t], _I),
    "llama_model_size": ("", [_P], ctypes.c_uint64),
    "llama_model_n_ctx_train": ("llama_n_ctx_train", [_P], _I),
    "llama_model_has_encoder": ("", [_P], _B),
    "llama_model_is_recurrent": ("", [_P], _B),
    "llama_model_is_hybrid": ("", [_P], _B),
    "llama_model_meta_val_str": ("", [_P, _S, _S, ctypes.c_size_t], _I),
    "llama_model_chat_template": ("", [_P, _S], _S),
    "llama_token_get_attr": ("", [_P, _I], _I),
    "llama_vocab_type": ("", [_P], _I),
    "llama_vocab_n_tokens": ("", [_P], _I),
    "llama_vocab_is_eog": ("", [_P, _I], _B),
    "llama_vocab_bos": ("", [_P], _I),
    "llama_vocab_eos": ("", [_P], _I),
    "llama_vocab_get_add_eos": ("", [_P], _B),
    "llama_vocab_get_text": ("", [_P, _I], _S),
    # The fork's functions of llama.cpp's names take a model, and crash on a vocabulary.
    "llama_tokenize": (
        "llama_vocab_tokenize",
        [_P, _S, _I, ctypes.POINTER(_I), _I, _B, _B],
        _I,
    ),
    "llama_token_to_piece": ("llama_token_to_piece_vocab", [_P, _I, _S, _I, _I, _B], _I),
    "llama_free": ("", [_P], None),
    "llama_get_logits": ("", [_P], ctypes.POINTER(ctypes.c_float)),
    "llama_decode": ("", [_P, binding.llama_batch], _I),
    "llama_memory_seq_rm": ("llama_kv_cache_seq_rm", [_P, _I, _I, _I], _B),
    "llama_memory_seq_cp": ("llama_kv_cache_seq_cp", [_P, _I, _I, _I, _I], None),
    "llama_memory_seq_pos_min": ("llama_kv_cache_seq_pos_min", [_P, _I], _I),
    "llama_kv_cache_defrag": ("", [_P], None),
    "llama_kv_cache_view_init": ("", [_P, _I], _CacheView),
    "llama_kv_cache_view_update": ("", [_P, _P], None),
    "llama_kv_cache_view_free": ("", [_P], None),
    "llama_kv_cache_update": ("", [_P], _I),
    "llama_memory_seq_pos_max": ("llama_kv_cache_seq_pos_max", [_P, _I], _I),
}
"""By llama.cpp's name: the fork's, where it has another, arguments and result."""

_MOST_MOVES = 16
"""Times the cache is tidied before that is given up; each moves a few hundred pieces."""

_SIZES_ONLY = ("baichuan", "gemma2")
"""Architectures of which the fork ends the process where it doesn't know a model's size."""

_BESIDE_THE_CACHE = ("deepseek4", "openpangu")
_DRAFTS = ("dflash", "dflash-draft", "gemma4_mtp", "gemma4-assistant")

_MODEL_DEFAULTS = {
    **{"split_mode": 1, "n_seq_max": 1, "n_ubatch": 512, "type_v_last": 1, "n_v_last": -1},
    **{"use_mmap": True, "check_tensors": False, "repack_tensors": False, "flash_attn": True},
}
_CONTEXT_DEFAULTS = {
    **{"seed": 2**32 - 1, "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1},
    **{"max_extra_alloc": 256, "rope_scaling_type": -1, "attention_type": -1},
    **{"yarn_beta_slow": -1.0, "defrag_thold": -1.0, "type_v": 1, "n_v_last": -1},
    **{"logits_all": False, "offload_kqv": True, "flash_attn": True, "mla_attn": 3},
    **{"fused_up_gate": True, "fused_mmad": True, "graph_reuse": True, "min_experts": -1},
    **{"scheduler_async": False, "mtp": False, "mtp_op_type": 0, "abort_callback_data": None},
}
"""What the library says its defaults are, by the fields that the binding declares. With another
layout some would be read from the wrong place."""


class _ModelParameters(binding.llama_model_params):  # type: ignore[misc, unused-ignore]
    """With room for fields that a later library appends."""

    _fields_ = [("further", ctypes.c_uint8 * 512)]  # noqa: RUF012


class _ContextParameters(binding.llama_context_params):  # type: ignore[misc, unused-ignore]
    """With room for fields that a later library appends."""

    _fields_ = [("further", ctypes.c_uint8 * 512)]  # noqa: RUF012


def _declare() -> SimpleNamespace:
    """The library's functions. Raises ImportError where one is missing or a struct is laid out in
    another way than the binding says."""
    flags = cpu_field("flags").split()
    if "sse2" in flags and "avx2" not in flags:
        raise ImportError("its kernels need AVX2, which this processor doesn't have")
    # A handle of its own: prototypes set here are not seen by the binding.
    library = ctypes.CDLL(binding._lib._name)
    package = f"ik-llama-cpp-python {version('ik-llama-cpp-python')}"
    functions = SimpleNamespace(llama_batch=binding.llama_batch, llama_get_memory=lambda it: it)
    for name, (own, arguments, result) in (
        *_FUNCTIONS.items(),
        ("llama_model_default_params", ("", [], _ModelParameters)),
        ("llama_context_default_params", ("", [], _ContextParameters)),
        ("llama_model_load_from_file", ("", [_S, _ModelParameters], _P)),
        ("llama_init_from_model", ("", [_P, _ContextParameters], _P)),
    ):
        try:
            function = getattr(library, own or name)
        except AttributeError:
            raise ImportError(f"{package} has no {own or name}") from None
        function.argtypes, function.restype = arguments, result
        setattr(functions, name, function)
    for found, known in (
        (functions.llama_model_default_params(), _MODEL_DEFAULTS),
        (functions.llama_context_default_params(), _CONTEXT_DEFAULTS),
    ):
        for field, value in known.items():
            if getattr(found, field) != value:
                raise ImportError(
                    f"{package} says {getattr(found, field)} of {field}, not {value}: its library "
                    "is not the one it was made for"
                )
    return functions


class IkLlamaCpp(Library):
    """ik_llama.cpp, as built by ik-llama-cpp-python."""

    name = "ik_llama.cpp"
    functions = _declare()
    kernels_by_width = True
    holes = True

    def model_parameters(self, *, vocabulary_only: bool) -> Any:
        parameters = self.functions.llama_model_default_params()
        # A file that is mapped is not repacked.
        parameters.use_mmap = False
        parameters.repack_tensors = True
        parameters.vocab_only = vocabulary_only
        return parameters

    def load_model(self, path: bytes, parameters: Any) -> Any:
        # What is wrong with a damaged file it tells standard error, not its log.
        with tempfile.TemporaryFile() as told:
            try:
                kept = os.dup(2)
            except OSError:  # closed
                return super().load_model(path, parameters)
            try:
                os.dup2(told.fileno(), 2)
                model = super().load_model(path, parameters)
            finally:
                os.dup2(kept, 2)
                os.close(kept)
            told.seek(0)
            for line in told.read().splitlines():
                self._record(ERROR, line, None)
        return model

    def context_parameters(self, *, ids: int, sequences: int) -> Any:  # noqa: ARG002
        parameters = self.functions.llama_context_default_params()
        parameters.n_seq_max = sequences  # ids are not limited by it
        # With flash attention a row of one of several sequences aborts the process.
        parameters.flash_attn = False
        return parameters

    def window(self, model: Any) -> int:  # noqa: ARG002
        return 0

    def most_ids(self) -> int:
        return 2**16

    def held(self, memory: Any, number: int) -> tuple[int, int]:
        # The fork says the first cell's position, not the least, and 0 for the last of none.
        if self.functions.llama_memory_seq_pos_min(memory, number) < 0:
            return -1, -1
        return 0, self.functions.llama_memory_seq_pos_max(memory, number)

    def attributes(self, model: Any, token: int) -> int:
        return int(self.functions.llama_token_get_attr(model, token))

    def close_holes(self, memory: Any) -> None:
        call = self.functions
        view = call.llama_kv_cache_view_init(memory, 1)
        try:
            for _ in range(_MOST_MOVES):
                call.llama_kv_cache_view_update(memory, ctypes.byref(view))
                if view.max_contiguous >= view.n_cells - view.used_cells:
                    return
                call.llama_kv_cache_defrag(memory)
                call.llama_kv_cache_update(memory)
        finally:
            call.llama_kv_cache_view_free(ctypes.byref(view))
        raise ModelError(
            f"{self.name} can't tidy its cache: {view.used_cells} of {view.n_cells} cells are "
            f"used, and {view.max_contiguous} free ones lie together.",
            "Decode fewer sequences at once.",
        )

    def gap(self, model: Any, architecture: str) -> str:
        if architecture in _BESIDE_THE_CACHE:
            return f"keeps state of {architecture} that a rewind doesn't take back"
        if architecture in _DRAFTS:
            return f"runs {architecture} beside its target only"
        if architecture in _SIZES_ONLY and "?B" in description(self.functions, model):
            return f"runs {architecture} in the sizes that it knows only"
        return ""

    def versions(self) -> dict[str, Any]:
        return {"ik_llama_cpp_python": version("ik-llama-cpp-python")}


class IkEngine(GgufEngine):
    """A GGUF model in ik_llama.cpp."""

    name = "ik"
    needs = "pip install paceline[ik]; GGUF files of decoders"
    library = IkLlamaCpp()
