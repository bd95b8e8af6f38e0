"""The headers of safetensors and GGUF files, held against the packages that own the formats."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_drafts as tiny
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paceline.errors import DataError
from paceline.inspect import gguf as gguf_types
from paceline.inspect.files import HeaderError, read_header
from paceline.inspect.gguf import read_gguf
from paceline.inspect.read import read

DTYPES = ("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")


def test_a_header_is_what_safetensors_reads(tmp_path: Path) -> None:
    values = {name: np.arange(6).reshape(2, 3).astype(name) for name in DTYPES}
    values["empty"] = np.zeros((0, 4), np.float32)
    values["scalar"] = np.array(3.0, np.float32)
    path = tmp_path / "a.safetensors"
    save_file(values, path, {"format": "pt"})
    header = read_header(path)
    assert header.metadata == {"format": "pt"}
    assert header.bytes == header.found == path.stat().st_size
    with safe_open(path, "np") as theirs:
        assert {*header.tensors} == {*theirs.keys()}
        for tensor in header.tensors.values():
            value = theirs.get_tensor(tensor.name)
            assert (tensor.shape, tensor.dtype) == (value.shape, str(value.dtype))
            assert np.array_equal(tensor.values(), value)


def test_bfloat16_is_read_as_float32(tmp_path: Path) -> None:
    value = np.array([1.0, -2.5, np.inf], np.float32)
    header = json.dumps({"a": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}).encode()
    data = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    assert np.array_equal(read_header(path).tensors["a"].values(), value)


@pytest.mark.parametrize("left", range(0, 300, 7))
def test_a_file_cut_anywhere_is_no_whole_file(left: int, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": np.zeros(40, np.float32), "b": np.ones(3, np.int64)}, path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(SafetensorError), safe_open(path, "np"):
        pass
    try:
        header = read_header(path)
    except HeaderError:
        return
    assert header.found < header.bytes


def broken(**entry: object) -> bytes:
    whole = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | entry
    header = json.dumps({"a": whole}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(16)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GGUF" + bytes(20),
        bytes([255] * 16),
        b"\x02" + bytes(7) + b"[]",
        b"\x02" + bytes(7) + b"xx",
        broken(dtype="F31"),
        broken(shape=[3]),
        broken(shape=[-2]),
        broken(shape="two"),
        broken(data_offsets=[4, 12]),
        broken(data_offsets=[0]),
        broken(shape=[float("inf")]),
        b"\x16" + bytes(7) + b'{"__metadata__": [1]} ',
    ],
)
def test_a_header_that_contradicts_itself_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    with pytest.raises(SafetensorError), safe_open(path, "np"):
        pass
    with pytest.raises(HeaderError):
        read_header(path)


def test_sizes_of_quantised_types_are_ggufs() -> None:
    theirs = {number.value: (number.name, *size) for number, size in gguf.GGML_QUANT_SIZES.items()}
    plain = {"F32", "F16", "F64", "BF16", "I8", "I16", "I32", "I64"}
    for number, (name, block, size) in theirs.items():
        ours = gguf_types.TYPES[number]
        assert ours[1:] == (block, size), name
        assert name in plain or ours[0] == name


def write_gguf(path: Path, name: str, tensors: tiny.Tensors, **more: Any) -> Path:
    tokens = 300
    writer = gguf.GGUFWriter(path, name)
    writer.add_embedding_length(tiny.HIDDEN)
    writer.add_block_count(1)
    writer.add_token_list([f"t{number}" for number in range(tokens)])
    writer.add_token_scores([0.5] * tokens)
    for key, value in more.items():
        if isinstance(value, list):
            writer.add_array(f"{name}.{key}", value)
        else:
            writer.add_uint32(f"{name}.{key}", value)
    for key, value in tensors.items():
        writer.add_tensor(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


EAGLE3 = {
    "fc.weight": tiny.weights(tiny.HIDDEN, 3 * tiny.HIDDEN),
    "output_norm.weight": tiny.weights(tiny.HIDDEN),
    "output.weight": tiny.weights(tiny.OWN, tiny.HIDDEN),
    "d2t": tiny.TARGET_IDS.astype(np.int64),
}
TAKEN = {"target_layers": [1, 2, 3], "target_hidden_size": tiny.HIDDEN}


def test_a_gguf_header_is_what_gguf_reads(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", "eagle3", EAGLE3, **TAKEN)
    header = read_gguf(path)
    theirs = gguf.GGUFReader(path)
    assert {*header.tensors} == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        ours = header.tensors[tensor.name]
        assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        assert (ours.begin, ours.bytes) == (tensor.data_offset, tensor.n_bytes)
    assert header.metadata["eagle3.target_layers"] == [1, 2, 3]
    assert header.metadata["tokenizer.ggml.tokens"] == 300
    assert header.bytes <= header.found


def test_an_eagle3_gguf(tmp_path: Path) -> None:
    found = read(write_gguf(tmp_path / "a.gguf", "eagle3", EAGLE3, **TAKEN))
    assert (found.kind, found.format, found.problems) == ("eagle3", "gguf", ())
    assert (found.aux_layers, found.target_hidden_size) == ((1, 2, 3), tiny.HIDDEN)
    assert (found.vocabulary_size, found.draft_vocabulary_size) == (300, tiny.OWN)
    assert found.map is not None
    assert (found.map.form, found.map.lowest, found.map.highest) == ("ids", 1, 31)


@pytest.mark.parametrize(
    ("lost", "more", "fact"),
    [
        ("d2t", TAKEN, "no map (d2t)"),
        ("fc.weight", TAKEN, "fc.weight"),
        ("", {"target_layers": [1, 2], "target_hidden_size": 32}, "2 of the target's layers"),
        ("", {"target_layers": [1, 2, 3]}, "target_hidden_size"),
    ],
)
def test_faults_of_an_eagle3_gguf(lost: str, more: dict, fact: str, tmp_path: Path) -> None:
    tensors = {name: value for name, value in EAGLE3.items() if name != lost}
    fatal = read(write_gguf(tmp_path / "a.gguf", "eagle3", tensors, **more)).fatal
    assert fatal is not None
    assert fact in fatal.fact


def test_blocks_and_mtp_layers_are_told_apart(tmp_path: Path) -> None:
    plain = {"fc.weight": tiny.weights(8, 24)}
    more = {"target_layers": [1, 2, 3], "block_size": 8}
    found = read(write_gguf(tmp_path / "a.gguf", "dflash", plain, **more))
    assert (found.kind, found.proposal_tokens) == ("dflash", 7)
    plain["markov_w1.weight"] = tiny.weights(300, 4)
    assert read(write_gguf(tmp_path / "b.gguf", "dflash", plain, **more)).kind == "dspark"
    found = read(write_gguf(tmp_path / "c.gguf", "glm4moe", {}, nextn_predict_layers=1))
    assert (found.kind, found.layers) == ("mtp", 1)


def test_a_gguf_that_is_cut_off(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", "eagle3", EAGLE3, **TAKEN)
    whole = path.read_bytes()
    path.write_bytes(whole[:-300])
    fatal = read(path).fatal
    assert fatal is not None
    assert "cut off" in fatal.fact
    for left in range(4, 200, 13):
        path.write_bytes(whole[:left])
        with pytest.raises(DataError, match="ends within its header"):
            read(path)


def test_no_broken_byte_brings_it_down(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", "eagle3", EAGLE3, **TAKEN)
    whole = path.read_bytes()
    for place in [*range(4, 400, 3), *range(len(whole) - 3 * len(whole) // 4, len(whole), 997)]:
        path.write_bytes(whole[:place] + b"\xff\xff\xff" + whole[place + 3 :])
        with contextlib.suppress(DataError):
            read(path)


def nested_gguf(path: Path, depth: int) -> Path:
    """One entry of metadata: an array of one array of one array."""
    key = b"general.architecture"
    head = b"GGUF" + struct.pack("<IQQQ", 3, 0, 2, len(key)) + key + struct.pack("<IQ", 8, 5)
    entry = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
    arrays = struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQI", 4, 1, 7)
    path.write_bytes(head + b"llama" + entry + arrays)
    return path


def test_arrays_within_arrays_end_somewhere(tmp_path: Path) -> None:
    assert read_gguf(nested_gguf(tmp_path / "a.gguf", 3)).metadata["a"] == [[[7]]]
    with pytest.raises(DataError, match="nested more than 8 deep"):
        read(nested_gguf(tmp_path / "b.gguf", 200_000))


def test_layers_of_a_gguf_that_are_no_numbers(tmp_path: Path) -> None:
    more = {"target_layers": ["a", "b", "c"], "target_hidden_size": tiny.HIDDEN}
    found = read(write_gguf(tmp_path / "a.gguf", "eagle3", EAGLE3, **more))
    assert found.aux_layers == ()
    assert found.fatal is not None


def test_json_nested_too_deeply_is_named(tmp_path: Path) -> None:
    deep = "[" * 200_000
    (tmp_path / "config.json").write_text(deep)
    with pytest.raises(DataError, match="is not JSON: maximum recursion depth"):
        read(tmp_path)
    head = tmp_path / "head.safetensors"
    head.write_bytes(len(deep).to_bytes(8, "little") + deep.encode())
    with pytest.raises(DataError, match="not one of safetensors"):
        read(head)


@pytest.mark.parametrize("layers", ["\u00b2", "9" * 5000, "1.5", ""])
def test_an_exit_head_of_a_layer_that_is_no_number(layers: str, tmp_path: Path) -> None:
    tensors = {"gain": tiny.weights(8), "down": tiny.weights(2, 8), "up": tiny.weights(8, 2)}
    metadata = {"kind": "paceline exit head", "layers": layers, "target": "[" * 200_000}
    save_file(tensors, tmp_path / "head.safetensors", metadata)
    found = read(tmp_path / "head.safetensors")
    assert (found.aux_layers, found.vocabulary_size) == ((), None)


@pytest.mark.model
def test_the_demo_model(smollm2_path: Path) -> None:
    found = read(smollm2_path)
    assert (found.kind, found.format, found.problems) == ("model", "gguf", ())
    assert (found.layers, found.hidden_size, found.vocabulary_size) == (30, 576, 49152)
    assert found.parameters == 134_515_008
    assert found.bytes == smollm2_path.stat().st_size
