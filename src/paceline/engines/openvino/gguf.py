"""A GGUF file as OpenVINO's IR, with the weights that the file says.

OpenVINO GenAI's reader makes the graph. It keeps the file's four-bit codes and scales, but rounds
what is added to them, a block's minimum, to a whole number of steps, which costs more than the
quantisation did: 0.46 nats a token on SmolLM2 Q4_1. So the minima are put back, row by row, found
again in the file by the row's codes and scales.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from paceline.engines.openvino.library import ops, ov, own_tensor
from paceline.engines.openvino.model import IR, core
from paceline.errors import ModelError

BLOCK = 32
"""Weights that share a scale and a minimum, in the four-bit types."""

Rows = Iterator[tuple[Any, Any, Any]]
"""Packed codes, scales and minima of each row."""


FAMILIES = ("llama", "qwen2", "qwen3")
_BIASED = "qwen2"
_TENSORS = re.compile(
    r"(token_embd|output_norm|output"
    r"|blk\.\d+\.(attn_(norm|q|k|v|output|q_norm|k_norm)|ffn_(norm|gate|up|down)))\.weight"
)
_BIASES = re.compile(r"blk\.\d+\.attn_(q|k|v)\.bias")
_STORED = ("F32", "F16", "BF16", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "Q4_0", "Q4_1")
_MOST = 60000
"""Largest zero point: float16 ends a little above."""


def convert(path: Path, directory: Path) -> None:
    """Write openvino_model.xml and .bin into a directory. Raises ModelError for a file of which
    the reader would leave something out, and where its codes aren't the file's."""
    import openvino_genai

    refuse_what_is_left_out(path)
    # The reader writes beside the file that it reads, so it is given a link.
    link = directory / "model.gguf"
    link.symlink_to(path.absolute())
    openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
    link.unlink()
    made = directory / IR
    if not made.is_file():
        raise ModelError(f"OpenVINO GenAI wrote nothing for {path}.", "Use its original directory.")
    model = core().read_model(made)
    repair_zero_points(path, model)
    # Weights are read from the file that is about to be replaced: write beside it.
    repaired = directory / "repaired.xml"
    ov.save_model(model, repaired, compress_to_fp16=False)
    del model
    for left in directory.glob("openvino_*"):  # tokenizers too: we have the file's own
        left.unlink()
    for part in (".xml", ".bin"):
        repaired.with_suffix(part).rename(made.with_suffix(part))


def refuse_what_is_left_out(path: Path) -> None:
    """The reader passes over what it doesn't know, so that is refused here."""
    file = gguf.GGUFReader(path)

    def told(key: str) -> Any:
        field = file.get_field(key)
        return None if field is None else field.contents()

    family = told("general.architecture")
    reason = None
    if family not in FAMILIES:
        reason = f"is of the family {family}"
    elif (told("split.count") or 1) > 1:
        reason = f"is one of {told('split.count')} parts"
    elif scaling := _scaling(told, family):
        reason = f"scales its rotary positions ({scaling})"
    elif (rotary := told(f"{family}.rope.dimension_count")) not in (None, _head_size(told, family)):
        reason = f"turns only {rotary} of a head's {_head_size(told, family)} dimensions"
    else:
        for tensor in file.tensors:
            biased = family == _BIASED and _BIASES.fullmatch(tensor.name)
            if not _TENSORS.fullmatch(tensor.name) and not biased:
                reason = f"has a tensor {tensor.name}"
                break
            if tensor.tensor_type.name not in _STORED:
                reason = f"stores {tensor.name} as {tensor.tensor_type.name}"
                break
    if reason is not None:
        raise ModelError(
            f"{path.name} {reason}, which OpenVINO GenAI's reader doesn't take.",
            "Use the llamacpp engine, or the model's original directory.",
        )


def _scaling(told: Any, family: str) -> str | None:
    """How rotary positions are scaled. Older files name a factor alone, which means linearly."""
    kind = told(f"{family}.rope.scaling.type")
    if kind is not None:
        return None if kind == "none" else str(kind)
    for key in (f"{family}.rope.scaling.factor", f"{family}.rope.scale_linear"):
        if told(key) not in (None, 0, 1):
            return f"linear by {told(key):g}"
    return None


def _head_size(told: Any, family: str) -> int:
    size = told(f"{family}.attention.key_length")
    if size is None:
        size = told(f"{family}.embedding_length") // told(f"{family}.attention.head_count")
    return int(size)


def repair_zero_points(path: Path, model: Any) -> None:
    """Give every four-bit weight of a model the zero points that the file's minima stand for."""
    minima, left = rows_of(path)
    for subtract in [node for node in model.get_ops() if is_rounded(node)]:
        packed, scales = packed_rows(constant(subtract, 0)), scales_of(subtract)
        found = np.empty(scales.shape, np.float32)
        for number in range(len(found)):
            key = packed[number].tobytes(), scales[number].tobytes()
            if key not in minima:
                raise _other_weights(path)
            found[number] = minima[key]
            left[key] -= 1
        steps = scales.astype(np.float32)
        # Where the step vanishes beside the minimum, all weights of a block are the minimum,
        # whatever its codes: (0 - -1) times it.
        flat = np.abs(found) >= _MOST * np.abs(steps)
        points = np.where(flat, -1, -found / np.where(flat, 1, steps)).astype(np.float16)
        replace(subtract, points, np.where(flat, found, steps).astype(np.float16))
        if flat.any():
            clear(subtract, packed, flat)
    # Rows that were stored in another way, which we wouldn't know to be right.
    if any(count > 0 for count in left.values()):
        raise _other_weights(path)


def _other_weights(path: Path) -> ModelError:
    return ModelError(
        f"OpenVINO GenAI's reader made other weights of {path} than the file holds.",
        "Use the llamacpp engine, or the model's original directory.",
    )


def is_rounded(node: Any) -> bool:
    """Whether a node takes four-bit zero points from four-bit codes."""
    if node.get_type_name() != "Subtract":
        return False
    sources = [constant(node, side) for side in (0, 1)]
    return all(
        source.get_type_name() == "Constant" and source.get_element_type() == ov.Type.u4
        for source in sources
    )


def constant(node: Any, side: int) -> Any:
    """What lies behind an input, a conversion passed over."""
    found = node.input(side).get_source_output().get_node()
    if found.get_type_name() == "Convert":
        found = found.input(0).get_source_output().get_node()
    return found


def packed_rows(codes: Any) -> Any:
    """uint8, shape (rows, bytes): two codes a byte, the lower bits first."""
    rows = codes.get_output_shape(0)[0]
    return np.asarray(codes.data).view(np.uint8).reshape(rows, -1)


def scales_of(subtract: Any) -> Any:
    """float16, shape (rows, blocks)."""
    [product] = [use.get_node() for use in subtract.output(0).get_target_inputs()]
    scales = np.asarray(constant(product, 1).data)
    return np.ascontiguousarray(scales.reshape(len(scales), -1))


def replace(subtract: Any, points: Any, scales: Any) -> None:
    """Put other zero points and scales into a graph; both of shape (rows, groups)."""
    [product] = [use.get_node() for use in subtract.output(0).get_target_inputs()]
    subtract.input(1).replace_source_output(ops.constant(points[..., None]).output(0))
    product.input(1).replace_source_output(ops.constant(scales[..., None]).output(0))


def clear(subtract: Any, packed: Any, flat: Any) -> None:
    """Make the codes of some blocks zero.

    packed    uint8, shape (rows, bytes)
    flat      bool, shape (rows, blocks)
    """
    codes = np.where(np.repeat(flat, BLOCK // 2, axis=1), np.uint8(0), packed)
    old = constant(subtract, 0)
    shape = ov.Shape(old.get_output_shape(0))
    new = ops.constant(own_tensor(codes.reshape(-1), ov.Type.u4, shape))
    for use in old.output(0).get_target_inputs():
        use.replace_source_output(new.output(0))


Key = tuple[bytes, bytes]
"""A row's packed codes and scales."""


def rows_of(path: Path) -> tuple[dict[Key, Any], Counter[Key]]:
    """The minima of the rows of the file's four-bit tensors, and how often there is each."""
    found: dict[Key, Any] = {}
    counts: Counter[Key] = Counter()
    for tensor in gguf.GGUFReader(path).tensors:
        read = READERS.get(tensor.tensor_type)
        if read is None:
            continue
        shape = tensor.shape[::-1]
        for packed, scales, minima in read(np.asarray(tensor.data).reshape(int(shape[0]), -1)):
            key = packed.tobytes(), scales.tobytes()
            if key in found and not np.array_equal(found[key], minima):
                raise ModelError(
                    f"Two rows of {path} differ in their minima alone.", "Use the llamacpp engine."
                )
            found[key] = minima
            counts[key] += 1
    return found, counts


def repacked(low_then_high: Any) -> Any:
    """GGUF's bytes hold codes 0 … n-1 in their lower bits and n … 2n-1 in their upper ones; gives
    bytes of two neighbours. Shape (rows, blocks, n)."""
    codes = np.concatenate([low_then_high & 15, low_then_high >> 4], axis=-1)
    return codes[..., 0::2] | codes[..., 1::2] << 4


def halves(raw: Any) -> Any:
    """Raw bytes as float16, the last axis half as long."""
    return np.ascontiguousarray(raw).view(np.float16)


def read_q4_0(data: Any) -> Rows:
    """Blocks of a scale and 16 bytes of codes; the minimum is minus eight steps."""
    blocks = data.reshape(len(data), -1, 18)
    packed, scales = repacked(blocks[..., 2:]), halves(blocks[..., :2])[..., 0]
    return zip(packed, scales, -8 * scales.astype(np.float32), strict=True)


def read_q4_1(data: Any) -> Rows:
    """Blocks of a scale, a minimum and 16 bytes of codes."""
    blocks = data.reshape(len(data), -1, 20)
    scales, minima = halves(blocks[..., :2])[..., 0], halves(blocks[..., 2:4])[..., 0]
    return zip(repacked(blocks[..., 4:]), scales, minima.astype(np.float32), strict=True)


def read_q4_k(data: Any) -> Rows:
    """Blocks of eight smaller ones: two scales for all, six bits of scale and of minimum for each,
    and 128 bytes of codes, 32 for every two of the smaller ones."""
    blocks = data.reshape(len(data), -1, 144)
    step, least = (halves(blocks[..., at : at + 2]).astype(np.float32) for at in (0, 2))
    flat = np.ascontiguousarray(blocks[..., 4:16]).reshape(-1, 12)
    scale, minimum = gguf.quants.Q4_K.get_scale_min(flat)
    shape = (len(data), -1)
    scales = (step * scale.reshape(*blocks.shape[:2], 8)).astype(np.float16).reshape(shape)
    minima = -(least * minimum.reshape(*blocks.shape[:2], 8)).reshape(shape)
    packed = repacked(blocks[..., 16:].reshape(len(data), -1, 4, BLOCK))
    return zip(packed.reshape(len(data), -1), scales, minima, strict=True)


READERS = {
    gguf.GGMLQuantizationType.Q4_0: read_q4_0,
    gguf.GGMLQuantizationType.Q4_1: read_q4_1,
    gguf.GGMLQuantizationType.Q4_K: read_q4_k,
}
