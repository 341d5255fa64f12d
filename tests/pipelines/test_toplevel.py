"""Natural or human-made: by the class graph with a path, by prompts with a margin, or openly undecided."""

import json

import numpy as np
import polars as pl
import pytest
import yaml

from hgld.errors import ConfigError, MissingResourceError, TableError
from hgld.pipelines.hierarchy.config import EmbedConfig, TopLevelConfig
from hgld.pipelines.hierarchy.encoders.lexical import LexicalEncoder
from hgld.pipelines.hierarchy.levels import toplevel
from hgld.pipelines.hierarchy.levels.toplevel import Anchors, PromptScores, decide_by_graph
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph
from hgld.pipelines.stage import StageResult, run_stage, silent

ANCHORS = Anchors(
    {"Q10": "natural", "Q20": "human-made", "Q30": "open"},
    {"natural": ["lake", "mountain"], "human-made": ["bridge", "house"]},
)
GRAPH = ClassGraph(
    {"Q10": "landform", "Q20": "structure", "Q30": "protected area", "Q1": "lake", "Q2": "bridge", "Q3": "pond"},
    {"Q1": ["Q10"], "Q2": ["Q20"], "Q3": ["Q1", "Q20"], "Q4": ["Q10", "Q20"], "Q5": ["Q30"], "Q30": ["Q20"]},
)  # fmt: skip


def by_graph(*members):
    names, landmarks, classes = zip(*members, strict=True)
    return decide_by_graph(names, landmarks, classes, GRAPH, ANCHORS)


def test_the_path_is_the_evidence():
    found = by_graph(("lake", 7, ["Q1"]), ("tarn", 1, []))
    assert (found.top, found.method) == ("natural", "p279")
    assert found.evidence == "P279: 7 natural, 0 human-made of 8 landmarks; lake: lake (Q1) → landform (Q10)"
    assert found.margin == pytest.approx(7 / 8)


def test_the_nearest_anchor_decides_and_human_made_at_a_tie():
    assert by_graph(("artificial lake", 1, ["Q3"])).top == "human-made"
    assert by_graph(("both at once", 1, ["Q4"])).top == "human-made"
    assert by_graph(("an anchor itself", 1, ["Q10"])).top == "natural"


def test_what_lies_under_an_open_class_decides_nothing():
    found = by_graph(("nature park", 9, ["Q5"]))
    assert found.top is None
    assert found.evidence == "P279: 0 natural, 0 human-made of 9 landmarks"


@pytest.mark.parametrize(
    ("natural", "made", "unknown", "top"),
    [(2, 1, 0, "natural"), (3, 2, 0, None), (1, 2, 0, "human-made"), (1, 0, 3, None), (0, 0, 1, None), (1, 1, 0, None)],
)
def test_a_third_of_all_landmarks_is_the_lead_that_counts(natural, made, unknown, top):
    members = [("lake", natural, ["Q1"])] * bool(natural) + [("bridge", made, ["Q2"])] * bool(made)
    assert by_graph(*members, *[("thing", unknown, ["Q99"])] * bool(unknown)).top == top


def test_prompts_decide_from_the_margin_on():
    names = ["salt lake", "glacial lake", "road bridge", "toll bridge", "henge", "lake", "mountain", "bridge", "house"]
    encoder = LexicalEncoder(names)
    rows = encoder.encode(names)
    scores = PromptScores(encoder, rows, ANCHORS, margin=0.0)
    assert scores.margin > 0, "the encoder's own scale"
    lakes, bridges, henge = (scores.decide(np.array(m), np.ones(len(m), int)) for m in ([0, 1], [2, 3], [4]))
    assert (lakes.top, lakes.method, bridges.top) == ("natural", "encoder", "human-made")
    assert "('lake')" in lakes.evidence
    assert (henge.top, henge.method) == (None, None)
    strict = PromptScores(encoder, rows, ANCHORS, margin=2.5)
    assert strict.decide(np.array([0, 1]), np.ones(2, int)).top is None
    mixed = scores.decide(np.array([0, 2]), np.array([1, 100]))
    assert mixed.top == "human-made", "landmarks weigh"


def test_the_stated_anchors_are_well_formed():
    data = yaml.safe_load(toplevel.ANCHORS.read_text(encoding="utf-8"))
    ids = [class_id for kind in data["classes"].values() for class_id in kind]
    assert len(ids) == len(set(ids)), "a class has one kind"
    assert all(class_id[0] == "Q" and class_id[1:].isdigit() for class_id in ids)
    assert set(data["classes"]) == {"natural", "human-made", "open"}
    prompts = data["prompts"]
    assert not set(prompts["natural"]) & set(prompts["human-made"])
    assert set(Anchors.read().classes.values()) == set(data["classes"])


# -- the stage ------------------------------------------------------------------------------------------------

NAMES = ["art museum", "crater lake", "salt lake", "waterfall", "zzyzx"]
GROUPS = [0, 1, 1, 2, 3]
CLASSES = [["Q207694"], [], [], ["Q34038"], []]


@pytest.fixture
def inputs(tmp_path):
    """Runs of clean, cluster, scrape and embed, with the tables that the stage reads."""

    def stage(name, write):
        return run_stage(name, tmp_path, version=1, config={}, inputs={}, work=lambda out: write(out) or StageResult())

    names = pl.DataFrame(
        {"name": NAMES, "landmarks": [3, 1, 2, 4, 1], "class_ids": CLASSES, "english": True},
        schema_overrides={"class_ids": pl.List(pl.String)},
    )
    clustered = names.select("name", "landmarks", group=pl.Series(GROUPS, dtype=pl.Int32))
    groups = pl.DataFrame(
        {"group": range(4), "label": ["museum", "lake", "waterfall", "zzyzx"]},
        schema_overrides={"group": pl.Int32},
    )
    classes = pl.DataFrame(
        {"class_id": ["Q207694", "Q33506"], "label": ["art museum", "museum"], "parents": [["Q33506"], []]},
        schema_overrides={"parents": pl.List(pl.String)},
    )

    def embed(out):
        np.save(out / "embeddings.npy", LexicalEncoder(NAMES).encode(NAMES))
        (out / "encoder.json").write_text("{}")

    def cluster(out):
        clustered.write_parquet(out / "names.parquet")
        groups.write_parquet(out / "groups.parquet")

    return {
        "cleaned": stage("clean", lambda out: names.write_parquet(out / "names.parquet")),
        "clustered": stage("cluster", cluster),
        "scraped": stage("scrape", lambda out: classes.write_parquet(out / "classes.parquet")),
        "embedded": stage("embed", embed),
        "evidence": stage("evidence", lambda out: np.save(out / "meaning.npy", LexicalEncoder(NAMES).encode(NAMES))),
    }


def run(root, inputs, encoder="lexical", margin=0.0):
    embedding = EmbedConfig(encoder=encoder)
    return toplevel.run(root, **inputs, config=TopLevelConfig(margin=margin), embedding=embedding, progress=silent)


def test_every_group_is_decided_or_listed(tmp_path, inputs):
    ran = run(tmp_path, inputs, margin=0.3)
    groups = pl.read_parquet(ran.path("groups.parquet"))
    assert groups.columns == ["group", "label", "top", "method", "evidence", "margin"]
    decided = groups.select("label", "top", "method").rows()
    assert decided[0] == ("museum", "human-made", "p279")
    assert "art museum: art museum (Q207694) → museum (Q33506)" in groups["evidence"][0]
    assert decided[1] == ("lake", "natural", "encoder")
    assert decided[2] == ("waterfall", "natural", "p279"), "its class is stated itself"
    assert decided[3] == ("zzyzx", None, None)
    assert ran.result.details["undecided"] == ["zzyzx"]
    assert ran.result.counts == {"natural": 2, "human-made": 1, "undecided": 1, "by_p279": 2, "by_encoder": 1}
    assert "could be decided for: zzyzx." in ran.result.notes[0]


def test_the_same_bytes_again_and_done_once(tmp_path, inputs):
    first = run(tmp_path, inputs)
    again = run(tmp_path / "again", inputs)
    assert first.path("groups.parquet").read_bytes() == again.path("groups.parquet").read_bytes()
    assert not run(tmp_path, inputs).was_run
    assert run(tmp_path, inputs, margin=0.5).was_run


def test_weights_that_are_needed_and_missing_are_told(tmp_path, inputs):
    with pytest.raises(MissingResourceError, match="lexical"):
        run(tmp_path, inputs, encoder=f"sbert:{tmp_path / 'nowhere'}")
    assert not (tmp_path / "toplevel").exists()


def test_a_margin_below_zero_is_refused(tmp_path, inputs):
    with pytest.raises(ConfigError, match="--margin is -1"):
        run(tmp_path, inputs, margin=-1)


def test_tables_of_another_build_are_refused(tmp_path, inputs):
    other = pl.read_parquet(inputs["clustered"].path("names.parquet")).with_columns(name=pl.col("name").reverse())
    other.write_parquet(inputs["clustered"].path("names.parquet"))
    with pytest.raises(TableError, match="Remove the cluster stage's folder"):
        run(tmp_path, inputs)


def test_prompts_do_not_overrule_what_the_graph_says():
    natural = toplevel.Decision("natural", "encoder", "b", 0.4)
    against = toplevel._combined(toplevel.Decision(None, None, "a", -0.2), natural)
    assert (against.top, against.method) == (None, None)
    assert against.evidence == "a; b; they contradict each other"
    for lead in (0.0, 0.2):
        assert toplevel._combined(toplevel.Decision(None, None, "a", lead), natural).top == "natural"
    assert json.dumps(against.evidence)
