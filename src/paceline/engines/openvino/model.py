"""From an IR file to a compiled model with paged attention, or one clear line why not."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.engines.cpu import free_bytes
from paceline.engines.load import loading
from paceline.engines.openvino.cache import BLOCK, Layout
from paceline.engines.openvino.graph import FILLED, ROWS, warm_up
from paceline.engines.openvino.library import last_line, ops, ov, paged_attention_transformation
from paceline.errors import ModelError, SettingError, unknown_name

IR = "openvino_model.xml"
CACHE_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
PRECISIONS = ("auto", "strict")
_AFTER_THE_LAST_PRODUCT = {"Add", "Convert", "Divide", "Multiply", "Reshape", "Result", "Tanh"}
_BYTES = {"f32": 4, "bf16": 2, "f16": 2}
_CACHES = ("key_cache.", "value_cache.")
_MATRIX = 1024
"""Smaller constants are norms, biases and shapes."""

_WORTH_TWICE = 5 * 2**29
"""Bytes that weights take in memory, up to which they are held twice: a second graph saves ten to
twenty-five milliseconds when the number of rows changes, which larger models hardly feel."""

_NAMES = {
    **{"u4": "int4", "i4": "int4", "u8": "int8", "i8": "int8"},
    **{"f16": "float16", "bf16": "bfloat16", "f32": "float32"},
}
"""Types of weights, as an export is asked for them."""

_NO_WEIGHTS = {"boolean", "string", "i16", "u16", "i32", "u32", "i64", "u64"}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """What is asked of the plugin; None is left to it.

    precision    auto: the type and the rounding of activations that the plugin prefers on this
                 processor; strict: float32, activations not rounded
    cache        type of keys and values; None: the type of the arithmetic
    """

    precision: str = "auto"
    cache: str | None = None
    threads: int = 1

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.cache is not None and self.cache not in CACHE_TYPES:
            raise unknown_name("cache type", self.cache, CACHE_TYPES)

    @property
    def cache_type(self) -> str:
        """As OpenVINO names it. The plugin's own choice is u8, scaled by block, where a token that
        was taken back has moved its neighbours; so it isn't offered."""
        if self.cache is not None:
            return CACHE_TYPES[self.cache]
        return self.computed_type

    @property
    def computed_type(self) -> str:
        """The type that it computes in, as OpenVINO names it."""
        return "f32" if self.precision == "strict" else preferred_type()


@dataclass(frozen=True, slots=True)
class Paged:
    """A compiled model, the cache it wants, and the type its matrices are stored in.

    single    the same compiled for one row of one sequence; None where there isn't one
    build     which graphs there are, and why no second one
    """

    compiled: Any
    single: Any | None
    build: str
    layers: tuple[Layout, ...]
    vocabulary_size: int
    weights: str


@functools.cache
def core() -> ov.Core:
    """OpenVINO's runtime, one for the process."""
    return ov.Core()


def compile_paged(
    target: str, xml: Path, device: str, arithmetic: Arithmetic, context_size: int, sequences: int
) -> Paged:
    """Raises ModelError for a model that has no state to page, or doesn't fit into memory."""
    hint = "Check that its files are whole, and of a version that this OpenVINO reads."
    with loading(target, hint, last_line):
        model = core().read_model(xml)
        weights = stored_weights(model)
        held = int(xml.with_suffix(".bin").stat().st_size * _held(weights, arithmetic))
        token = cached_numbers(model) * _BYTES[arithmetic.cache_type]
        _check_memory(target, held, token, context_size, sequences)
        why_one = why_one_graph(held, token * context_size * sequences)
        page(target, model)
        score_only_wanted_rows(target, model)
        check_inputs(target, model)
        with ThreadPoolExecutor(1) as beside:
            if not why_one:
                for_one_row = beside.submit(compile_for_one_row, model.clone(), device, arithmetic)
            compiled = core().compile_model(model, device, _properties(arithmetic))
            layers = cache_layers(target, compiled)
            warm_up(compiled, layers)
            single = None if why_one else for_one_row.result()
    vocabulary = compiled.outputs[0].partial_shape[-1]
    if vocabulary.is_dynamic:
        raise ModelError(f"{target} doesn't say how many tokens it scores.", "Export it again.")
    if single is None:
        build = f"one graph: {why_one or 'OpenVINO makes none for single rows'}"
    else:
        build = "two graphs, one of them for single rows"
    return Paged(compiled, single, build, layers, vocabulary.get_length(), weights)


def check_device(device: str) -> None:
    """Raises SettingError for a device that isn't there, or can't page as we do."""
    found = core().available_devices
    if device not in found and device not in {name.split(".")[0] for name in found}:
        raise SettingError(
            f"OpenVINO sees no device {device!r} here.", f"It sees {', '.join(found)}."
        )
    if device != "CPU":
        raise SettingError(
            f"The device {device} can't write keys and values into a cache in main memory, where "
            "Paceline keeps them.",
            "Use the device CPU.",
        )


def page(target: str, model: Any) -> None:
    """Turn the state that a model keeps for itself into a cache that we own. Raises ModelError for
    one without such a state, or with another beside it."""
    kinds = [op.get_type_name() for op in model.get_ops()]
    if "ReadValue" not in kinds or "ScaledDotProductAttention" not in kinds:
        raise ModelError(
            f"{target} keeps no keys and values, so nothing of it can be paged.",
            "Export it with its state: optimum-cli export openvino --task "
            "text-generation-with-past.",
        )
    paged_attention_transformation(model, allow_qq_bias=True)
    if any(op.get_type_name() == "ReadValue" for op in model.get_ops()):
        raise ModelError(
            f"{target} keeps a state besides keys and values, which can't be rewound.",
            "Use a model with attention only.",
        )


def check_inputs(target: str, model: Any) -> None:
    """Raises ModelError for a model that wants something else than tokens and their places."""
    names = {port.any_name for port in model.inputs}
    unknown = [name for name in sorted(names - FILLED) if not name.startswith(_CACHES)]
    missing = sorted(FILLED - names)
    if not unknown and not missing:
        return
    fact = f"{target} wants {unknown[0]}" if unknown else f"{target} takes no {missing[0]}"
    raise ModelError(
        f"{fact} (as OpenVINO {ov.__version__.split('-')[0]} pages it), and is given tokens and "
        "their places only.",
        "Use a model of text alone (of one that sees, its language part with token inputs).",
    )


def stored_weights(model: Any) -> str:
    """The type of a model's matrices: the shortest, where there are several."""
    kinds = {
        node.get_element_type()
        for node in model.get_ops()
        if node.get_type_name() == "Constant" and math.prod(node.get_output_shape(0)) >= _MATRIX
    }
    found = [kind for kind in kinds if kind.get_type_name() not in _NO_WEIGHTS]
    if not found:
        return "as stored"
    shortest: str = min(found, key=lambda kind: kind.bitwidth).get_type_name()
    return _NAMES.get(shortest, shortest)


def score_only_wanted_rows(target: str, model: Any) -> None:
    """Put a choice of rows before the last matrix product: of a prompt only the last row's logits
    are wanted, and the product with the vocabulary is the largest there is."""
    node = model.outputs[0].get_node()
    while node.get_type_name() in _AFTER_THE_LAST_PRODUCT:
        node = node.input(0).get_source_output().get_node()
    if node.get_type_name() != "MatMul":
        raise ModelError(
            f"{target} ends with {node.get_type_name()}, not with a product with its vocabulary.",
            "Use a model that ends as language models do.",
        )
    rows = ops.parameter([-1], ov.Type.i32, name=ROWS)
    rows.output(0).get_tensor().set_names({ROWS})
    hidden = node.input(0).get_source_output()
    axis = ops.constant(0, ov.Type.i32)
    node.input(0).replace_source_output(ops.gather(hidden, rows, axis).output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()


def compile_for_one_row(model: Any, device: str, arithmetic: Arithmetic) -> Any | None:
    """A paged model compiled for one token of one sequence; the sizes of its inputs are fixed in
    place. None where OpenVINO can't do that."""
    sizes = {"subsequence_begins": 2, "block_indices_begins": 2, "qq_bias": 0, "qq_bias_begins": 2}
    free = {"max_context_len", "block_indices"}
    try:
        model.reshape({name: [sizes.get(name, 1)] for name in FILLED - free})
        return core().compile_model(model, device, _properties(arithmetic))
    except Exception:  # it raises RuntimeError for everything
        return None


def _properties(arithmetic: Arithmetic) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": arithmetic.threads,
        "KV_CACHE_PRECISION": arithmetic.cache_type,
    }
    if arithmetic.precision == "strict":
        chosen |= {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    return chosen


def preferred_type() -> str:
    """The type in which the plugin computes when it may choose."""
    return "bf16" if "BF16" in core().get_property("CPU", "OPTIMIZATION_CAPABILITIES") else "f32"


def cache_layers(target: str, compiled: Any) -> tuple[Layout, ...]:
    """The cache that a compiled model wants. Raises ModelError where it couldn't be rewound."""
    ports = {port.any_name: port for port in compiled.inputs}
    count = sum(name.startswith("key_cache.") for name in ports)
    layers = tuple(_layout(ports, at) for at in range(count))
    if any(kind not in _BYTES for layer in layers for kind in layer.types):
        raise ModelError(
            f"OpenVINO keeps {target}'s keys and values in {layers[0].types[0]}, which can't be "
            "rewound.",
            "Name another --cache-type.",
        )
    return layers


def _layout(ports: Mapping[str, Any], at: int) -> Layout:
    names = (f"key_cache.{at}", f"value_cache.{at}")
    keys, values = (
        tuple(size.get_length() for size in list(ports[name].partial_shape)[1:]) for name in names
    )
    first, second = (str(ports[name].element_type.get_type_name()) for name in names)
    return Layout(names, (keys, values), (first, second))


def cached_numbers(model: Any) -> int:
    """How many numbers a token's keys and values are, of a model that isn't paged yet."""
    return sum(
        math.prod(size.get_length() for size in op.output(0).partial_shape if size.is_static)
        for op in model.get_ops()
        if op.get_type_name() == "ReadValue"
    )


def _held(weights: str, arithmetic: Arithmetic) -> float:
    """Bytes in memory for each byte of weights. Measured with one graph, int4, int8, float16 and a
    GGUF file's weights: 1.5 on a model of 1.5B, 1.2 to 2.0 with Python's own on one of 135M, for
    the plugin lays them out anew. bfloat16 on a processor that doesn't compute in it: 4.3."""
    return 4.3 if weights == "bfloat16" and arithmetic.computed_type != "bf16" else 1.6


def why_one_graph(held: int, cache: int) -> str | None:
    """Why single rows get no graph of their own; None: they get one, which holds the weights once
    more. Half of what is free is left to others, as to the cache and a draft.

    held     bytes that the weights take in memory
    cache    bytes of keys and values
    """
    free = free_bytes()
    if held > _WORTH_TWICE:
        return "its weights are too large for two"
    if free is not None and 2 * held + max(cache, free / 2) > free:
        return "memory is short for two"
    return None


def _check_memory(target: str, held: int, token: int, context_size: int, sequences: int) -> None:
    """Refuse what doesn't fit before the weights are read: a system that promises more memory
    than it has would kill the process later.

    held     bytes that the weights take in memory
    token    bytes of a token's keys and values
    """
    free = free_bytes()
    needed = held + token * context_size * sequences
    if free is None or needed <= free:
        return
    fitting = max(0, (free - held) // (token * sequences)) if token else 0
    raise ModelError(
        f"{target} needs about {held / 2**30:.1f} GiB for its weights and up to "
        f"{(needed - held) / 2**30:.1f} GiB for {sequences} x {context_size} tokens; "
        f"{free / 2**30:.1f} GiB of memory are free.",
        f"Ask for a context of at most {fitting // BLOCK * BLOCK} tokens."
        if fitting >= BLOCK
        else "Use a smaller model, or one with weights in int8 or int4.",
    )
