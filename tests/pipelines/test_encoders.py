import copy
import json
import logging
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hgld.errors import ConfigError, MissingResourceError, TableError
from hgld.pipelines.hierarchy.config import EmbedConfig
from hgld.pipelines.hierarchy.encoders import embed, registry
from hgld.pipelines.hierarchy.encoders.pretrained import TEMPLATES, ClipEncoder, SbertEncoder
from hgld.pipelines.hierarchy.encoders.registry import VARIABLE, local_encoder, make_encoder
from hgld.pipelines.hierarchy.unit_rows import unit
from tests.rows import each_row, refused

TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


@pytest.fixture(scope="module")
def tiny(module_path):
    """Register the model ``hgld-tiny`` with open_clip for these tests, and return its checkpoint."""
    import open_clip  # takes seconds, which no other file's tests should wait for
    from open_clip import factory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factory, "_MODEL_CONFIG_PATHS", copy.copy(factory._MODEL_CONFIG_PATHS))
        patch.setattr(factory, "_MODEL_CONFIGS", copy.copy(factory._MODEL_CONFIGS))
        (module_path / "hgld-tiny.json").write_text(json.dumps(TINY))
        open_clip.add_model_config(module_path / "hgld-tiny.json")
        torch.manual_seed(0)
        save_file(open_clip.create_model("hgld-tiny").state_dict(), module_path / "tiny.safetensors")
        yield module_path / "tiny.safetensors"


def clip(checkpoint, **options):
    return ClipEncoder(f"hgld-tiny/{checkpoint}", device="cpu", **options)  # pyright: ignore[reportArgumentType]


def test_clip_encoder_averages_normalised_prompt_embeddings_in_batches_of_any_size(tiny):
    import open_clip

    encoder = clip(tiny)
    names = ["lake", "bridge", "church building", "名前", "a " * 300]
    rows = encoder.encode(names)
    told: list[int] = []
    small = clip(tiny, batch_size=1).encode(names, lambda task, done, total: told.append(done))
    np.testing.assert_allclose(small, rows, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(small, axis=1), 1, rtol=1e-5)
    assert told == [1, 2, 3, 4, 5]
    model: Any = open_clip.create_model("hgld-tiny", pretrained=str(tiny)).eval()
    with torch.inference_mode():
        tokens = open_clip.get_tokenizer("hgld-tiny")([template.format("lake") for template in TEMPLATES])
        prompts = torch.nn.functional.normalize(model.encode_text(tokens), dim=1)
        expected = torch.nn.functional.normalize(prompts.mean(0), dim=0)
    np.testing.assert_allclose(rows[0], expected.numpy(), atol=1e-5)
    assert rows.dtype == np.float32
    assert rows.shape[1] == encoder.dim == 16


def test_clip_cache_key_depends_on_model_templates_and_file_content(tiny, tmp_path):
    import open_clip

    elsewhere = tmp_path / "moved.safetensors"
    elsewhere.write_bytes(tiny.read_bytes())
    changed = tmp_path / "changed.safetensors"
    state = {key: value + 1 for key, value in open_clip.create_model("hgld-tiny").state_dict().items()}
    save_file(state, changed)
    assert clip(tiny).key == clip(elsewhere).key
    assert clip(tiny).key != clip(changed).key
    assert clip(tiny).key != clip(tiny, templates=["{}"]).key
    assert clip(tiny).name == "clip:hgld-tiny/tiny.safetensors"


class _Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_clip_encoder_refuses_damaged_checkpoints_and_pickled_code(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": _Bomb()}, tmp_path / "bomb.pt")
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(_Bomb(), protocol=2))
    for name, content in {"empty.pt": b"", "zeros.safetensors": b"\x00" * 100, "json.safetensors": b"{}"}.items():
        (tmp_path / name).write_bytes(content)
    for file in ("bomb.pt", "raw.pt", "empty.pt", "zeros.safetensors", "json.safetensors"):
        with pytest.raises(MissingResourceError, match=f"{file}.*pickled code is never run"):
            clip(tmp_path / file).encode(["lake"])
    assert not (tmp_path / "exploded").exists()


def test_clip_model_and_weights_load_from_a_hugging_face_repository(tiny, monkeypatch):
    import open_clip

    create, tokenizer, asked = open_clip.create_model, open_clip.get_tokenizer, []

    def create_model(name, **options):
        asked.append((name, options.pop("pretrained")))
        return create("hgld-tiny", pretrained=str(tiny), **options)

    monkeypatch.setattr(open_clip, "create_model", create_model)
    monkeypatch.setattr(open_clip, "get_tokenizer", lambda name: asked.append(name) or tokenizer("hgld-tiny"))
    encoder = make_encoder("clip:hf-hub:someone/their-clip", device="cpu")
    assert encoder.name == "clip:hf-hub:someone/their-clip"
    assert "hf-hub:someone/their-clip" in encoder.key
    np.testing.assert_array_equal(encoder.encode(["lake"]), clip(tiny).encode(["lake"]))
    assert asked[:2] == [("hf-hub:someone/their-clip", None), "hf-hub:someone/their-clip"]


def test_failed_download_of_clip_weights_raises_one_error_and_logs_nothing(monkeypatch, caplog):
    def offline(*_, **__):
        logging.getLogger("huggingface_hub").warning("Retrying in 8s [Retry 5/5].")
        raise FileNotFoundError("Failed to download file (open_clip_pytorch_model.bin)")

    monkeypatch.setattr("open_clip.factory.download_pretrained", offline)
    encoder = ClipEncoder("ViT-B-32/laion2b_s34b_b79k", device="cpu")
    with pytest.raises(MissingResourceError, match=r"HF_HOME.*--encoder lexical"):
        encoder.encode(["lake"])
    assert not caplog.records, "attempts are logged in addition to the error"


test_unknown_clip_models_and_tags_are_refused_with_suggestions = refused(
    ClipEncoder,
    [
        ("ViT-L14/openai", ConfigError, "nearest: .*ViT-L-14"),
        ("ViT-L-14/laion2b_s32b", ConfigError, "nearest: .*laion2b_s32b_b82k"),
        ("Nope/openai", ConfigError, r"no model 'Nope'; open_clip has .* and \d+ more"),
        ("ViT-L-14", ConfigError, "'' is neither a file nor weights that open_clip has; open_clip has openai"),
        ("ViT-L-14//nowhere/x.pt", MissingResourceError, "'/nowhere/x.pt' is neither a file"),
    ],
)


def sbert_folder(folder, kind="sentence_transformers.models.Transformer"):
    folder.mkdir(exist_ok=True)
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": kind}]))
    return folder


class _FakePackage:
    """Fake of the sentence-transformers package with the functions that the encoder uses."""

    class SentenceTransformer:
        def __init__(self, path, **options):
            assert options["local_files_only"] is True
            assert options["trust_remote_code"] is False
            if not (Path(path) / "weights").is_file():
                raise OSError("no weights")

        def encode(self, texts, **_):
            return np.array([[len(text), text.count("a") + 1] for text in texts], dtype=np.float32)


def test_sbert_encoder_averages_prompt_embeddings_in_batches(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", _FakePackage)
    folder = sbert_folder(tmp_path / "mini")
    (folder / "weights").write_bytes(b"1")
    encoder = SbertEncoder(str(folder), templates=["{}", "an {}"], device="cpu", batch_size=3)
    mean = unit(np.array([[4.0, 2.0], [7.0, 3.0]])).mean(axis=0)
    np.testing.assert_allclose(encoder.encode(["lake", "arch"]), [mean / np.linalg.norm(mean)] * 2, rtol=1e-6)
    assert encoder.name == "sbert:mini"
    (folder / "weights").write_bytes(b"2")
    assert SbertEncoder(str(folder), templates=["{}", "an {}"]).key != encoder.key


def test_invalid_sbert_folders_and_a_missing_package_are_refused(tmp_path, monkeypatch):
    with pytest.raises(MissingResourceError, match="No such file"):
        SbertEncoder(str(tmp_path / "none"))
    (tmp_path / "modules.json").write_text("[1]")
    with pytest.raises(MissingResourceError, match=r"no readable modules\.json"):
        SbertEncoder(str(tmp_path))
    with pytest.raises(ConfigError, match="outside sentence-transformers"):
        SbertEncoder(str(sbert_folder(tmp_path, "subprocess.Popen")))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingResourceError, match=r"hgld\[sbert\].*lexical"):
        SbertEncoder(str(sbert_folder(tmp_path)), device="cpu").encode(["lake"])


# -- the best encoder on this machine ----------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Use an empty Hugging Face cache, and pretend that sentence-transformers is installed."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(registry, "find_spec", lambda name: name)
    return tmp_path / "hub"


def snapshot(cache, repository, weights="model.safetensors"):
    """Write a cached sentence encoder."""
    folder = cache / f"models--{repository.replace('/', '--')}" / "snapshots" / "0a1b"
    folder.mkdir(parents=True)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text("0a1b")
    (folder / weights).write_bytes(b"weights")
    (folder / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.X"}]))
    return folder


def test_encoder_from_the_environment_variable_takes_precedence_over_cached_and_lexical_encoders(cache, monkeypatch):
    snapshot(cache, "sentence-transformers/all-mpnet-base-v2", "config.json")  # incomplete
    assert local_encoder() == ("lexical", f"no sentence encoder is on this machine; {VARIABLE} may name a folder")
    small = snapshot(cache, "sentence-transformers/all-MiniLM-L6-v2")
    assert local_encoder() == (f"sbert:{small}", "all-MiniLM-L6-v2 is in Hugging Face's cache")
    assert SbertEncoder(str(small), device="cpu").name == "sbert:all-MiniLM-L6-v2"
    monkeypatch.setenv(VARIABLE, "/models/mine")
    assert local_encoder() == ("sbert:/models/mine", f"{VARIABLE} names it")
    monkeypatch.setattr(registry, "find_spec", lambda name: None)
    assert local_encoder() == ("lexical", "/models/mine is here, but sentence-transformers is not installed")


def test_default_encoder_depends_on_the_source_of_names(cache):
    here = snapshot(cache, "sentence-transformers/all-mpnet-base-v2")
    assert embed.choose_encoder(EmbedConfig(), "classes")[0].encoder == f"sbert:{here}"
    for source in ("landmarks", "names"):
        chosen, why = embed.choose_encoder(EmbedConfig(), source)
        assert (chosen.encoder, why) == ("clip:ViT-L-14/laion2b_s32b_b82k", "the default for landmarks")
    assert embed.choose_encoder(EmbedConfig(), "sample")[0].encoder == "lexical"
    assert embed.choose_encoder(EmbedConfig("lexical"), "classes") == (EmbedConfig("lexical"), "")


def test_command_and_provenance_state_the_chosen_encoder(cache, tmp_path, hgld):
    (tmp_path / "things.txt").write_text("red oak\nold oak\nblue whale\nkiller whale\n")
    given = ("--classes", tmp_path / "things.txt", "--out", tmp_path / "out")
    code, _, err = hgld("build-hierarchy", *given, "--groups", 2)
    assert code == 0
    assert err.startswith("encoder lexical: no sentence encoder")
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["encoder"]["name"] == "lexical"
    assert provenance["encoder"]["chosen"].startswith("no sentence encoder")


# -- the stage ---------------------------------------------------------------------------------------------------------


def test_embeddings_with_pickled_objects_are_refused(tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(TableError, match="not an array"):
        embed.read_embeddings(tmp_path / "objects.npy")


@each_row("spec", ["", "word2vec", "clip", "sbert:", "lexical:x"])
def test_unknown_encoders_and_templates_without_one_placeholder_are_refused(spec):
    with pytest.raises(ConfigError, match=f"--encoder is '{spec}'"):
        make_encoder(spec)
    for template in ("a photo", "{} and {}", "{0}", "{name} {}"):
        with pytest.raises(ConfigError, match="expected one"):
            make_encoder("clip:ViT-B-32/openai", templates=[template])
