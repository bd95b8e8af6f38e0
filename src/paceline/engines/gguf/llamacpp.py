"""llama.cpp itself, through llama-cpp-python: the one place where it is imported."""

from __future__ import annotations

from typing import Any

from paceline.engines.gguf.engine import GgufEngine
from paceline.engines.gguf.library import Library

import llama_cpp  # isort: skip (after the library's settings)


class LlamaCpp(Library):
    """llama.cpp, as built by llama-cpp-python."""

    name = "llama.cpp"
    functions = llama_cpp

    def model_parameters(self, *, vocabulary_only: bool) -> Any:
        parameters = llama_cpp.llama_model_default_params()
        # Mapping the file would keep it resident beside the copy that llama.cpp makes of every
        # tensor it rearranges for the CPU: half as much memory again for the usual quantisations.
        parameters.load_mode = llama_cpp.LLAMA_LOAD_MODE_NONE
        parameters.vocab_only = vocabulary_only
        return parameters

    def context_parameters(self, *, ids: int, sequences: int) -> Any:  # noqa: ARG002
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_seq_max = ids
        # With a cache apart for each sequence llama.cpp cuts a batch into pieces of equally many
        # tokens of each: 1, 3 and 9 tokens of three sequences would read the weights three times.
        # With one cache for all it is one forward, and a fork shares its cells with its trunk.
        parameters.kv_unified = True
        # On a CPU flash attention sums values in half precision, in an order that depends on how
        # many rows there are: of a float32 model the same token's logits differ a thousand times
        # more between widths, so drafted text differs from ordinary decoding's sooner. It is
        # slower, too (1.25 to 2 times at contexts of 2000 tokens).
        parameters.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        # Layers with a sliding window keep all their cells, or a rewind would find them gone.
        parameters.swa_full = True
        return parameters

    def window(self, model: Any) -> int:
        return max(0, int(llama_cpp.llama_model_n_swa(model)))

    def most_ids(self) -> int:
        return int(llama_cpp.llama_max_parallel_sequences())

    def held(self, memory: Any, number: int) -> tuple[int, int]:
        return (
            llama_cpp.llama_memory_seq_pos_min(memory, number),
            llama_cpp.llama_memory_seq_pos_max(memory, number),
        )

    def attributes(self, model: Any, token: int) -> int:
        return int(llama_cpp.llama_vocab_get_attr(llama_cpp.llama_model_get_vocab(model), token))

    def is_diffusion(self, model: Any) -> bool:
        return bool(llama_cpp.llama_model_is_diffusion(model))

    def versions(self) -> dict[str, Any]:
        return {
            "llama_cpp_python": llama_cpp.__version__,
            "llama_cpp": llama_cpp.llama_version().decode(),
        }


class LlamaCppEngine(GgufEngine):
    """A GGUF model in llama.cpp."""

    name = "llamacpp"
    needs = "pip install paceline[llamacpp]; GGUF files of decoders"
    library = LlamaCpp()
