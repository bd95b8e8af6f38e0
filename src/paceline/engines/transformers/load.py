"""From what a user names to a loaded transformers model, or one clear line why not."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import linear

import transformers
from paceline.engines.cpu import cpu_field
from paceline.engines.load import is_gguf, loading
from paceline.engines.transformers.cache import NAME, Tensor
from paceline.errors import ModelError, SettingError, unknown_name
from paceline.models.catalog import cache_dir
from paceline.storage import whole_directory
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
)

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
NARROW = range(2, 33)
"""Numbers of rows that linear layers may take weights first (see `patch_linear`)."""

UNDOABLE_LAYERS = ("full_attention", "sliding_attention")
GGUF_SPLITS = frozenset(("default", "gpt-2", "gpt2", "smollm"))
"""Ways of cutting text before byte-level merging that a GGUF may name and that we know how to
give the tokenizer besides those transformers knows."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model ready to run, and how it came about."""

    model: Any
    tokenizer: Any
    dtype: str
    dtype_reason: str
    device: Any
    converted: str | None = None


def load_model(target: str, dtype: str | None, device: str | None) -> Loaded:
    """Load a directory, a hub name or a GGUF file with our attention in place.

    Raises ModelError for what can't be found, read or undone, SettingError for a wrong setting.
    """
    place = choose_device(device)
    asked, reason = choose_dtype(dtype, place)
    with readable(target):
        source = locate(target)
        converted = None
        if isinstance(source, Path) and source.is_file():
            if asked is None:
                asked, reason = "bfloat16", "a GGUF's quantised weights have no dtype of their own"
            source = convert_gguf(source, asked)
            converted = str(source)
        name = str(source)
        refuse_what_cant_be_undone(target, AutoConfig.from_pretrained(name))
        model = read_weights(target, name, asked)
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = model.to(place).eval()
    actual = str(model.dtype).removeprefix("torch.")
    return Loaded(model, tokenizer, actual, reason, place, converted)


def load_tokenizer(target: str) -> tuple[Any, Any, Any]:
    """The tokenizer and configuration of a directory or a hub name, and the end tokens that its
    generation settings name.

    Raises ModelError for what can't be found or read, and for a GGUF file, whose tokenizer
    transformers only has after converting all of it.
    """
    with readable(target):
        source = locate(target)
        if isinstance(source, Path) and source.is_file():
            raise ModelError(
                f"{target} is a GGUF file, of which transformers can't read the tokenizer alone.",
                "Use the llamacpp engine.",
            )
        name = str(source)
        config = AutoConfig.from_pretrained(name)
        refuse_what_cant_be_undone(target, config)
        try:
            ends = GenerationConfig.from_pretrained(name).eos_token_id
        except OSError:  # not all have such settings
            ends = config.eos_token_id
        return AutoTokenizer.from_pretrained(name), config, ends


def choose_device(device: str | None) -> torch.device:
    """The torch device of a name; None takes CUDA where there is any."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise SettingError(f"There is no device {device!r}.", "Write cpu, cuda or cuda:NUMBER.")
    place = torch.device(device)
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if place.type == "cuda" and (place.index or 0) >= found:
        raise ModelError(
            f"The device {device} was asked for, and torch sees {found} CUDA devices.",
            "Use device cpu, or install a torch built for this machine's GPU.",
        )
    return place


def choose_dtype(dtype: str | None, device: torch.device) -> tuple[str | None, str]:
    """The dtype to load in (None: the checkpoint's) and why."""
    if dtype not in (None, "auto"):
        if dtype not in DTYPES:
            raise unknown_name("dtype", str(dtype), ["auto", *DTYPES])
        return dtype, "asked for"
    if device.type == "cuda":
        return None, "the checkpoint's own"
    native = sorted({"avx512_bf16", "amx_bf16"} & set(cpu_field("flags").split()))
    if native:
        return "bfloat16", f"this CPU multiplies bfloat16 itself ({', '.join(native)})"
    return "float32", "this CPU has no bfloat16 multiplication (avx512_bf16, amx_bf16)"


def locate(target: str) -> Path | str:
    """A directory, a GGUF file, or else a hub name."""
    path = Path(target).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"The directory {target} has no config.json.",
                "Name a transformers model directory, or a GGUF file.",
            )
        return path
    if path.is_file():
        if not is_gguf(path):
            raise ModelError(
                f"{target} is not a GGUF file.",
                "Name a model directory, a GGUF file or a hub name.",
            )
        return path
    looks_local = path.suffix in (".gguf", ".safetensors", ".bin") or target.startswith(".")
    if looks_local or not HUB_NAME.fullmatch(target):
        raise ModelError(f"There is no file or directory {target}.", "Check the path.")
    return target


def refuse_what_cant_be_undone(target: str, config: Any) -> None:
    """Raise ModelError for models whose state can't be rewound, or whose attention isn't ours to
    give, before their weights are read."""
    kind = f"{target} is a {config.model_type} model"
    if config.is_encoder_decoder:
        raise ModelError(f"{kind}: an encoder-decoder.", "Use a decoder-only model.")
    model_class = AutoModelForCausalLM._model_mapping.get(type(config), None)
    if model_class is None:
        raise ModelError(
            f"{kind}, which transformers doesn't list as a causal language model.",
            "Use one that it lists.",
        )
    text = config.get_text_config(decoder=True)
    strange = sorted(set(getattr(text, "layer_types", None) or ()) - set(UNDOABLE_LAYERS))
    hint = "Use a causal model with full or sliding attention only."
    if getattr(model_class, "_is_stateful", False):
        fact = ", which keeps a recurrent state that can't be rewound"
    elif strange:
        fact = f" with {', '.join(strange)} layers, whose state can't be rewound here"
    elif not getattr(model_class, "_supports_attention_backend", False):
        fact = ", whose attention transformers doesn't let others replace"
        hint = "Use a model whose attention follows transformers' attention interface."
    elif getattr(text, "use_bidirectional_attention", False) or not getattr(
        text, "is_causal", True
    ):
        fact = " that looks ahead"
    else:
        return
    raise ModelError(f"{kind}{fact}.", hint)


def read_weights(target: str, name: str, dtype: str | None) -> Any:
    """The model with every weight read: transformers would invent the missing ones."""
    model, report = AutoModelForCausalLM.from_pretrained(
        name,
        dtype=DTYPES[dtype] if dtype else "auto",
        attn_implementation=NAME,
        output_loading_info=True,
    )
    absent = sorted({*report["missing_keys"], *map(str, report["mismatched_keys"])})
    if absent:
        raise ModelError(
            f"{target} lacks {len(absent)} of its model's weights, {absent[0]} first.",
            "Fetch it again, or check that config and weights belong together.",
        )
    return model


def patch_linear(model: Any) -> int:
    """Let a model's float32 layers take few rows as `weights × rows`, if that is faster on this
    processor. Returns how many layers do.

    MKL takes `rows × weights` by a poor path on AMD processors when there are 2 to 32 rows, as
    scoring drafted tokens has: in float32 4 rows cost up to four times as much as one. The other
    way round they cost 1.3 to 2 times.
    """
    if cpu_field("vendor_id") != "AuthenticAMD" or not torch.backends.mkl.is_available():
        return 0
    layers = [
        layer
        for layer in model.modules()
        if type(layer) is torch.nn.Linear
        and layer.weight.dtype == torch.float32
        and layer.weight.device.type == "cpu"
    ]
    for layer in layers:
        # The tensors themselves: looking them up in the module each time costs as much as a
        # small product.
        layer.forward = partial(weights_first, layer.weight, layer.bias)
    return len(layers)


def weights_first(weight: Tensor, bias: Tensor | None, states: Tensor) -> Tensor:
    """A linear layer's output; states (…, inputs) gives (…, outputs)."""
    shape = states.shape
    rows = states.numel() // shape[-1]
    if rows not in NARROW:
        return linear(states, weight, bias)
    out = torch.mm(weight, states.reshape(rows, -1).t()).t().contiguous()
    if bias is not None:
        out += bias
    return out.view(*shape[:-1], -1)


def convert_gguf(path: Path, dtype: str) -> Path:
    """The directory that holds a GGUF file's model as safetensors; made on the first call."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    made = cache_dir() / "transformers"
    made /= f"{path.stem}-{digest[:16]}-{dtype}-{transformers.__version__}"
    if not (made / "config.json").is_file():
        with whole_directory(made) as fresh:
            _convert_into(path, dtype, fresh)
    return made


def _convert_into(path: Path, dtype: str, directory: Path) -> None:
    where = {"gguf_file": path.name}
    config = AutoConfig.from_pretrained(str(path.parent), **where)
    refuse_what_cant_be_undone(str(path), config)
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), **where)
    split_like_the_file(path, tokenizer)
    model, report = AutoModelForCausalLM.from_pretrained(
        str(path.parent),
        **where,
        quantization_config=GgufConfig(dequantize=True),
        dtype=DTYPES[dtype],
        output_loading_info=True,
    )
    if report["missing_keys"] or report["mismatched_keys"]:
        raise ModelError(f"{path} lacks some of its model's weights.", "Fetch it again.")
    tokenizer.save_pretrained(directory)
    model.save_pretrained(directory)


def split_like_the_file(path: Path, tokenizer: Any) -> None:
    """Cut text as the GGUF says where transformers would quietly cut it otherwise.

    Raises ModelError for a way of cutting that neither knows.
    """
    from tokenizers import pre_tokenizers

    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_PRE_TOKENIZER_SPLITS,
    )
    from transformers.integrations.gguf.reader import read_gguf_metadata

    metadata, _ = read_gguf_metadata(str(path))
    way = metadata.get("tokenizer.ggml.pre", "default")
    if metadata.get("tokenizer.ggml.model") != "gpt2" or way in GGUF_PRE_TOKENIZER_SPLITS:
        return
    if way not in GGUF_SPLITS:
        raise ModelError(
            f"{path} cuts text the {way!r} way, which transformers doesn't know.",
            "Use the model's original directory, or the llamacpp engine.",
        )
    if way == "smollm":
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps the library's warnings and bars out of a log."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextlib.contextmanager
def readable(target: str) -> Iterator[None]:
    """Turn whatever the libraries raise while loading into one ModelError, and keep them quiet."""
    with loading(target, "Check the name and that its files are whole."), quiet():
        yield
