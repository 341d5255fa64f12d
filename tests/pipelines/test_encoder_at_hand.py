"""The encoder that is at hand: looked for on the disk alone, in a stated order."""

import json
from pathlib import Path

import pytest
from hgld.pipelines.hierarchy.encoders.at_hand import VARIABLE, cached_clip, encoder_at_hand

from hgld.cli import main
from hgld.errors import MissingResourceError
from hgld.pipelines.hierarchy.config import EmbedConfig
from hgld.pipelines.hierarchy.encoders import at_hand
from hgld.pipelines.hierarchy.encoders.sbert import SbertEncoder
from hgld.pipelines.hierarchy.evidence import embed

INSTALLED = {"sentence_transformers", "open_clip"}
L14 = "laion/CLIP-ViT-L-14-laion2B-s32B-b82K"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of Hugging Face's, with both packages installed."""
    for name in (VARIABLE, "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(at_hand, "find_spec", lambda name: name if name in INSTALLED else None)
    return tmp_path / "hf" / "hub"


def sentences(folder: Path, kind: str = "sentence_transformers.models.Transformer", weights: bool = True) -> Path:
    folder.mkdir(parents=True)  # without one for the second module, as in repositories
    modules = [{"path": "", "type": kind}, {"path": "1_Normalize", "type": "sentence_transformers.models.Normalize"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    if weights:
        (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def snapshot(cache: Path, repository: str, name: str = "0a1b") -> Path:
    return cache / f"models--{repository.replace('/', '--')}" / "snapshots" / name


def clip(cache: Path, repository: str) -> Path:
    folder = snapshot(cache, repository)
    folder.mkdir(parents=True)
    (folder / "open_clip_model.safetensors").write_bytes(b"weights")
    return folder


def test_the_order_is_the_folder_named_then_sentences_then_clip_then_lexical(cache, tmp_path, monkeypatch):
    found = encoder_at_hand()
    assert found.spec == "lexical"
    assert VARIABLE in found.why
    clip(cache, "laion/CLIP-ViT-B-32-laion2B-s34B-b79K")
    assert encoder_at_hand().spec == "clip:ViT-B-32/laion2b_s34b_b79k"
    clip(cache, L14)
    assert encoder_at_hand().spec == "clip:ViT-L-14/laion2b_s32b_b82k", "the published encoder comes first"
    other = sentences(snapshot(cache, "someone/another-model"))
    assert encoder_at_hand().spec == f"sbert:{other}"
    small = sentences(snapshot(cache, "sentence-transformers/all-MiniLM-L6-v2"))
    assert encoder_at_hand().spec == f"sbert:{small}"
    assert "all-MiniLM-L6-v2" in encoder_at_hand().why
    own = sentences(tmp_path / "own")
    monkeypatch.setenv(VARIABLE, str(own))
    assert encoder_at_hand().spec == f"sbert:{own}"


def test_what_is_not_whole_or_not_installed_is_not_at_hand(cache, monkeypatch):
    sentences(snapshot(cache, "a/no-weights"), weights=False)
    sentences(snapshot(cache, "a/foreign-code"), kind="evil.Module")
    (snapshot(cache, L14)).mkdir(parents=True)
    assert encoder_at_hand().spec == "lexical"
    assert cached_clip(L14) is None
    sentences(snapshot(cache, "a/whole"))
    clip(cache, "timm/vit_base_patch32_clip_224.openai")
    monkeypatch.setattr(at_hand, "find_spec", lambda name: None)
    found = encoder_at_hand()
    assert found.spec == "lexical"
    assert "sentence-transformers is not installed" in found.why


def test_the_snapshot_of_the_main_branch_comes_first(cache):
    first, main = (sentences(snapshot(cache, "a/model", name)) for name in ("0000", "ffff"))
    assert encoder_at_hand().spec == f"sbert:{first}"
    (main.parent.parent / "refs").mkdir()
    (main.parent.parent / "refs" / "main").write_text("ffff\n")
    assert encoder_at_hand().spec == f"sbert:{main}"


def test_a_wrong_folder_named_is_an_error(cache, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(MissingResourceError, match=rf"{VARIABLE} is .*nowhere.*--encoder"):
        encoder_at_hand()


def test_a_snapshots_encoder_has_its_models_name(cache):
    folder = sentences(snapshot(cache, "sentence-transformers/all-MiniLM-L6-v2"))
    assert SbertEncoder(str(folder), device="cpu").name == "sbert:all-MiniLM-L6-v2"


def test_auto_is_for_classes_alone_and_what_is_named_stays(cache):
    here = sentences(snapshot(cache, "a/model"))
    assert embed.choose_encoder(EmbedConfig(), "classes")[0].encoder == f"sbert:{here}"
    for source in ("landmarks", "names"):
        chosen, why = embed.choose_encoder(EmbedConfig(), source)
        assert (chosen.encoder, why) == ("clip:ViT-L-14/laion2b_s32b_b82k", "as published for landmarks")
    assert embed.choose_encoder(EmbedConfig(), "sample")[0].encoder == "lexical"
    assert embed.choose_encoder(EmbedConfig("lexical"), "classes") == (EmbedConfig("lexical"), "")


def test_the_first_line_says_which_encoder_was_taken_and_provenance_keeps_it(cache, tmp_path, capsys):
    (tmp_path / "things.txt").write_text("red oak\nold oak\nblue whale\nkiller whale\n")
    asked = ["build-hierarchy", "--classes", str(tmp_path / "things.txt"), "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match="0"):
        main([*asked, "--groups", "2", "--explain", "red oak", "--cache", str(tmp_path / "kept")])
    printed = capsys.readouterr()
    assert printed.err.startswith("encoder lexical: no sentence encoder")
    assert "red oak: in oak; next whale" in printed.out
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["encoder"]["name"] == "lexical"
    assert provenance["encoder"]["chosen"].startswith("no sentence encoder")
    assert provenance["config"]["cluster"]["criterion"] == "stability"
