"""Models: what is wanted, what is taken for whole, and words of a library that hold no secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.commands import models
from perfgate.config import files as config_file
from perfgate.config.model import BoxFile
from perfgate.errors import PerfgateError

REVISION = "3c" * 20
CONFIG = f"""\
recipes:
  baseline: {{model: acme/target, revision: {REVISION}}}
  eagle3: {{draft: acme/draft, draft_revision: {REVISION}}}
"""


def wanted(config: str = CONFIG, **box: object) -> tuple[models.Wanted, ...]:
    resolved = config_file.resolve(config_file.load(config.encode(), "perfgate.yml"), BoxFile.model_validate(box))
    return models.wanted_models(resolved)


def test_targets_and_drafts_are_wanted_once_each() -> None:
    assert [(one.name, one.revision, one.folder) for one in wanted()] == [
        ("acme/target", REVISION, None),
        ("acme/draft", REVISION, None),
    ]


def test_what_the_box_keeps_itself_is_known_by_its_folder() -> None:
    assert [one.folder for one in wanted(models={"acme/draft": "/models/draft"})] == [None, Path("/models/draft")]


def test_without_hf_home_the_next_step_is_told() -> None:
    resolved = config_file.resolve(config_file.load(CONFIG.encode(), "perfgate.yml"), BoxFile())
    for command in (models.fetch, models.verify):
        with pytest.raises(PerfgateError, match="no hf_home → set hf_home in the box's file") as caught:
            command(resolved, print)
        assert caught.value.exit_code == 2


TOKENS = st.from_regex(r"hf_[A-Za-z0-9]{8,40}", fullmatch=True)
WORDS = st.text(st.characters(exclude_characters="\n\r"), max_size=30)


@given(TOKENS, WORDS, WORDS)
def test_no_token_survives(token: str, before: str, after: str) -> None:
    assert token not in models.harmless(f"{before}{token} {after}")


@given(st.text("0123456789abcdef", min_size=12, max_size=40), WORDS)
def test_neither_password_nor_signature_of_an_address_survives(secret: str, before: str) -> None:
    for address in (f"https://me:{secret}@mirror.example/a", f"https://cdn.example/a?Policy=x&Signature={secret}"):
        text = models.harmless(f"x{before} Error for url '{address}' (Request ID)")
        assert secret not in text.replace(before, "")


def test_a_header_that_is_quoted_loses_its_token() -> None:
    assert models.harmless("Illegal header value b'Bearer abc def'") == "Illegal header value b'Bearer …'"


@given(st.text())
def test_any_text_becomes_one_bounded_line(text: str) -> None:
    line = models.harmless(text)
    assert len(line) <= models.MOST_TEXT
    assert len(line.splitlines()) <= 1


@pytest.mark.parametrize("index", [b"", b"[]", b"{}", b'{"weight_map": []}', b"\xff", b'{"weight_map": 1}'])
def test_an_index_that_cannot_be_read_is_told(tmp_path: Path, index: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_bytes(index)
    with pytest.raises(models.ModelError, match=r"model\.safetensors\.index\.json cannot be read → mend it"):
        models._check(name="acme/target", folder=tmp_path, remedy="mend it")


def test_an_index_may_name_nothing_outside_the_folder_and_still_be_whole(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "x.safetensors").touch()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x.safetensors"}}')
    with pytest.raises(models.ModelError, match="no weights"):
        models._check(name="acme/target", folder=folder, remedy="")
