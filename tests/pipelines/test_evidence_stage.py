"""The evidence stage on disk: which blocks there are, what they rest on, and what is refused."""

import numpy as np
import polars as pl
import pytest
from hgld.pipelines.hierarchy.evidence.class_rows import class_rows
from hgld.pipelines.hierarchy.evidence.evidence_stage import read_evidence
from hgld.pipelines.hierarchy.explain import explain, explain_text
from PIL import Image

from hgld.errors import ConfigError, TableError
from hgld.pipelines.hierarchy import build as building
from hgld.pipelines.hierarchy.config import BuildConfig, CleanConfig, ClusterConfig, EmbedConfig, EvidenceConfig
from hgld.pipelines.hierarchy.encoders import clip
from hgld.pipelines.hierarchy.evidence import embed, evidence_stage
from hgld.pipelines.hierarchy.groups import cluster
from hgld.pipelines.hierarchy.names import clean
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph
from hgld.pipelines.stage import StageResult, StageRun, silent
from tests.pipelines.witnesses import Eyes

NAMES = [
    f"{what} {kind}" for kind in ("oak", "lake", "whale") for what in ("red", "old", "blue", "dry", "tiny", "wild")
]

ALL = EvidenceConfig()


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Run the stages up to the evidence on a list of names with descriptions and images."""
    monkeypatch.setattr(clip, "ClipEncoder", Eyes)
    monkeypatch.setattr(evidence_stage, "clip_at_hand", lambda: None)
    for number, light in enumerate((40, 120, 220)):
        Image.new("RGB", (8, 8), (light,) * 3).save(tmp_path / f"{number}.png")
    rows = ["id,name,description,image"]
    for place, name in enumerate(NAMES):
        kind = place // 6
        said = ("a tree with leaves", "a body of water", "an animal of the sea")[kind] if place % 5 else ""
        rows.append(f"c{place},{name},{said},{'' if place % 7 == 1 else f'{kind}.png|gone.png'}")
    (tmp_path / "list.csv").write_text("\n".join(rows))
    root = tmp_path / "stages"

    def run(config=ALL, encoder="lexical", out=None, **of_clusters):
        embedding = EmbedConfig(encoder, cache=tmp_path / "cache", device="", batch_size=8)
        place = root if out is None else tmp_path / out
        begun = building._names(place, BuildConfig("classes", (("classes", tmp_path / "list.csv"),)), None, silent)
        cleaned = clean.run(place, begun, CleanConfig(), silent, domain="general")
        embedded = embed.run(place, cleaned, embedding, silent, domain="general")
        clusters = ClusterConfig(**of_clusters)
        more = {"domain": "general", "images_from": tmp_path}
        return evidence_stage.run(place, cleaned, embedded, begun, config, embedding, clusters, silent, **more)

    return run


def blocks(ran) -> dict[str, float]:
    return {block["name"]: block["weight"] for block in ran.result.details["blocks"]}


def test_blocks_are_what_there_is_and_the_joint_rows_follow_from_them(make):
    ran = make(encoder="clip:eyes/weights", groups=3)
    evidence = read_evidence(ran.directory)
    assert list(blocks(ran)) == ["text", "wording", "descriptions", "images"] == [b.name for b in evidence.blocks]
    assert sum(evidence.weights) == pytest.approx(1)
    images = evidence.blocks[3]
    assert np.flatnonzero(~images.known).tolist() == [
        place for place, name in enumerate(sorted(NAMES)) if NAMES.index(name) % 7 == 1
    ]
    np.testing.assert_array_equal(np.load(ran.path("rows.npy")), evidence.joint())
    np.testing.assert_array_equal(np.load(ran.path("meaning.npy")), evidence.joint(form=0))
    assert not make(encoder="clip:eyes/weights", groups=3).was_run
    again = make(encoder="clip:eyes/weights", groups=3, out="again")
    for file in ran.record["outputs"]:
        assert ran.path(file).read_bytes() == again.path(file).read_bytes()


@pytest.mark.slow  # an end-to-end build; its parts have fast tests
def test_another_image_is_another_block_and_missing_encoders_are_said(make, tmp_path):
    first = make(encoder="clip:eyes/weights")
    Image.new("RGB", (8, 8), (1, 2, 3)).save(tmp_path / "1.png")
    assert make(encoder="clip:eyes/weights").was_run
    without = make()
    assert "images" not in blocks(without)
    assert any("--image-encoder" in note for note in without.result.notes)
    assert "images" in blocks(make(EvidenceConfig(image_encoder="clip:eyes/weights")))
    assert first.result.details["blocks"][0]["known"] == len(NAMES)


def test_only_the_kinds_asked_for_count(make):
    assert list(blocks(make(EvidenceConfig(evidence=("none",))))) == ["text"]
    ran = make(EvidenceConfig(evidence=("descriptions", "classes")))
    assert list(blocks(ran)) == ["text", "descriptions"]
    assert ran.result.notes[0] == "--evidence classes: nothing of that kind is known about these names."


def test_a_table_is_joined_by_id_or_name_and_what_does_not_fit_is_counted(make, tmp_path):
    keys = ["c0", "old oak", "nobody", *NAMES[2:16]]
    np.save(tmp_path / "t.npy", np.random.default_rng(0).normal(size=(len(keys), 4)))
    (tmp_path / "t.txt").write_text("\n".join(keys))
    ran = make(EvidenceConfig(class_embeddings=tmp_path / "t.npy"))
    table = read_evidence(ran.directory).blocks[-1]
    assert (table.name, int(table.known.sum())) == ("table", 16)
    assert "t.npy: 16 of its 17 keys are names or ids of the list; 2 names have no row there." in ran.result.notes
    (tmp_path / "t.txt").write_text("\n".join(f"x{i}" for i in range(17)))
    with pytest.raises(TableError, match="none of its 17 keys is a name or id"):
        make(EvidenceConfig(class_embeddings=tmp_path / "t.npy"))


@pytest.mark.parametrize("path", ["../secret.png", "/etc/passwd", "a/../../x.png"])
def test_images_outside_the_tables_folder_are_refused(make, tmp_path, path):
    text = (tmp_path / "list.csv").read_text()
    (tmp_path / "list.csv").write_text(text.replace("0.png|gone.png", path))
    with pytest.raises(ConfigError, match="outside the folder"):
        make(encoder="clip:eyes/weights")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (EvidenceConfig(evidence=("smell",)), "--evidence smell: expected some of wording"),
        (EvidenceConfig(evidence=("none", "images")), "none alone"),
        (EvidenceConfig(evidence=("images",), class_embeddings="x.npy"), "leaves 'table' out"),  # pyright: ignore
    ],
)
def test_options_that_cannot_be(config, told):
    with pytest.raises(ConfigError, match=told):
        evidence_stage.check_options(config)


def test_a_build_explains_a_name(make):
    ran = make(encoder="clip:eyes/weights", groups=3)
    place = ran.directory.parent
    begun, cleaned = (StageRun(name, place / name, StageResult(), False, {}) for name in ("scrape", "clean"))
    clustered = cluster.run(place, cleaned, ran, begun, ClusterConfig(groups=3), silent, domain="general")
    found = explain({"cluster": clustered, "evidence": ran}, "RED OAK")
    assert found["name"] == "red oak"
    assert {found["group"], found["next_group"]} <= set(pl.read_parquet(clustered.path("groups.parquet"))["label"])
    assert [says["block"] for says in found["blocks"]] == ["text", "wording", "descriptions", "images"]
    wording = found["blocks"][1]["neighbours"]
    assert {near["name"].split()[-1] for near in wording} == {"oak"}
    text = explain_text(found)
    assert f"red oak: in {found['group']}" in text
    assert "descriptions  " in text
    assert "says nothing about it" in text, "it has no description"
    with pytest.raises(ConfigError, match=r"no such name among the 18.*nearest: red oak"):
        explain({"cluster": clustered, "evidence": ran}, "red oack")


def test_damaged_evidence_is_not_read(make):
    ran = make()
    (ran.directory / "evidence.json").write_text('{"blocks": [{"name": "../x", "weight": 1, "is_form": false}]}')
    with pytest.raises(TableError, match=r"evidence\.json"):
        read_evidence(ran.directory)


def test_rows_of_classes_are_near_where_ancestors_are_shared():
    graph = ClassGraph(
        {},
        {
            "cathedral": ["church"],
            "church": ["building"],
            "dam": ["barrier"],
            "building": ["thing"],
            "barrier": ["thing"],
        },
    )
    rows = class_rows(graph, [["cathedral"], ["church"], ["dam"], [], ["unknown"]])
    cosine = rows @ rows.T
    assert cosine[0, 1] > cosine[0, 2] + 0.3
    assert cosine[0, 2] == pytest.approx(0, abs=1e-6), "the root says nothing"
    assert not rows[3:].any()
    many = class_rows(graph, [["cathedral"], ["church"], ["dam"]] * 100)
    np.testing.assert_allclose((many @ many.T)[:3, :3], cosine[:3, :3], atol=1e-5)
