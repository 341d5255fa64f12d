"""The clean stage and its rules for names."""

import unicodedata

import polars as pl
from hypothesis import example, given
from hypothesis import strategies as st

from hgld.pipelines.hierarchy.config import BuildConfig, CleanConfig
from hgld.pipelines.hierarchy.names import clean
from hgld.pipelines.hierarchy.names.clean import NameRules, name_key
from hgld.pipelines.hierarchy.names.landmark_tables import CLASSES, DROPPED, SCRAPED
from hgld.pipelines.stage import StageResult, run_stage, silent
from tests.rows import each_row

GRAPH = [
    ("Q2977", "cathedral", "en", ["Q16970"]),
    ("Q16970", "church building", "en", ["Q41176"]),
    ("Q41176", "building", "en", []),
    ("Q570116", "tourist attraction", "en", []),
]


def scraped(root, rows, graph=GRAPH):
    """Run a scrape stage with rows of (split, id, status, [(name, class or None), ...])."""
    table = []
    for split, i, status, names in rows:
        url, title = f"http://commons.wikimedia.org/wiki/Category:L{i}", f"Category:L{i}"
        labels, ids = [name for name, _ in names], [class_id for _, class_id in names]
        table.append((split, i, url, title, None, None, status, labels, ids))

    def work(directory):
        pl.DataFrame(table, schema=SCRAPED, orient="row").write_parquet(directory / "landmarks.parquet")
        pl.DataFrame(graph, schema=CLASSES, orient="row").write_parquet(directory / "classes.parquet")
        pl.DataFrame(schema=DROPPED).write_parquet(directory / "dropped.parquet")
        return StageResult()

    return run_stage("scrape", root, version=1, config={"rows": repr(rows)}, inputs={}, work=work)


def cleaned(root, rows, several="drop"):
    config = BuildConfig("sample", clean=CleanConfig(several))
    return clean.run(root, {"scrape": scraped(root, rows)}, config, silent)


def read(stage, file):
    return pl.read_parquet(stage.path(file))


def kept_names(stage):
    table = read(stage, "landmarks.parquet")
    return dict(zip(table["landmark_id"].to_list(), table["name"].to_list(), strict=True))


def found(i, *names, split="train"):
    pairs = [name if isinstance(name, tuple) else (name, None) for name in names]
    return (split, i, "found", pairs)


def test_clean_tables_have_the_documented_columns(tmp_path):
    church = [("church  building (1172-1954)", "Q16970"), ("Church building", "Q16970"), ("church building", "Q16970")]
    rows = [found(2, church[0]), found(1, church[1]), found(3, church[2]), found(3, "waterfall", split="index")]
    stage = cleaned(tmp_path, rows)
    landmarks = read(stage, "landmarks.parquet")
    assert landmarks.columns == ["split", "landmark_id", "category", "title", "supercategory", "name", "class_id"]
    assert landmarks.select("split", "landmark_id", "supercategory", "name", "class_id").rows() == [
        ("index", 3, "waterfall", "waterfall", None),
        ("train", 1, "Church building", "church building", "Q16970"),
        ("train", 2, "church  building (1172-1954)", "church building", "Q16970"),
        ("train", 3, "church building", "church building", "Q16970"),
    ]
    names = read(stage, "names.parquet")
    assert names.columns == [*("name", "landmarks", "class_ids", "raw", "description", "images", "language", "english")]
    assert names.rows() == [
        ("church building", 3, ["Q16970"], sorted(name for name, _ in church), None, [], None, True),
        ("waterfall", 1, [], ["waterfall"], None, [], None, True),
    ]
    assert read(stage, "dropped.parquet").columns == ["split", "landmark_id", "category", "reason", "detail"]


def test_every_excluded_landmark_has_a_reason(tmp_path):
    stage = cleaned(
        tmp_path,
        [
            found(1, "castle"),
            ("train", 2, "missing", []),
            ("train", 3, "no-item", []),
            ("train", 4, "no-instance-of", []),
            ("train", 5, "error(timeout)", []),
            found(6, "Wikimedia category"),
            found(7, "(1889)"),
            found(8, "castle", "museum"),
            found(9, "castle", "Wikimedia category"),
            found(10, "castle", "Castle (1500)"),
        ],
    )
    dropped = read(stage, "dropped.parquet").select("landmark_id", "reason", "detail").rows()
    assert dropped == [
        (2, "missing", None),
        (3, "no-item", None),
        (4, "no-instance-of", None),
        (5, "error(timeout)", None),
        (6, "irrelevant", "Wikimedia category: a page of the wiki, not a thing in the world"),
        (7, "empty-name", "(1889): nothing is left of the name"),
        (8, "several-names", "castle | museum"),
    ]
    assert kept_names(stage) == {1: "castle", 9: "castle", 10: "castle"}
    assert stage.result.dropped["several-names"] == 1
    assert sum(stage.result.dropped.values()) + 3 == 10


SEVERAL = [
    found(1, ("building", "Q41176"), ("cathedral", "Q2977"), ("church building", "Q16970")),
    found(2, ("cathedral", "Q2977"), ("tourist attraction", "Q570116")),
    found(3, ("tourist attraction", "Q570116")),
    found(4, ("building", "Q41176")),
    found(5, ("building", "Q41176")),
    found(6, "tower", "gate"),
]


def test_landmarks_with_several_names_are_kept_or_dropped_as_the_policy_says(tmp_path):
    singles = {3: "tourist attraction", 4: "building", 5: "building"}
    assert kept_names(cleaned(tmp_path, SEVERAL)) == singles
    stage = cleaned(tmp_path, SEVERAL, "most-common")
    # equally common names are chosen in alphabetical order
    assert kept_names(stage) == singles | {1: "building", 2: "cathedral", 6: "gate"}


def test_clean_output_does_not_depend_on_row_order(tmp_path):
    first = cleaned(tmp_path / "a", SEVERAL, "most-common")
    again = cleaned(tmp_path / "b", SEVERAL[::-1], "most-common")
    assert first.record["outputs"] == again.record["outputs"]
    assert not cleaned(tmp_path / "a", SEVERAL, "most-common").was_run
    assert cleaned(tmp_path / "a", SEVERAL).was_run


RULES = NameRules.read()


@each_row(
    ("raw", "canonical"),
    [
        ("church building (1172-1954)", "church building"),
        ("fort (19th century)", "fort"),
        ("railway station (closed in 1964)", "railway station"),
        ("town hall (in Germany)", "town hall"),
        ("city gate (of the Old Town (Prague))", "city gate"),
        ("замок (Киев)", "замок"),
        ("county hall (", "county hall"),
        ("county hall)", "county hall"),
        ("  urban \t\u00a0 park\n", "urban park"),
        ("king’s palace", "king's palace"),
        ("cafe\u0301", "café"),
        ("light\u00adhouse\u200b", "lighthouse"),
        ("bridge, ", "bridge"),
        ("run‑of‑river hydroelectricity", "run-of-river hydroelectricity"),
        # unchanged names
        ("US Wilderness Area", "US Wilderness Area"),
        ("Washington state park", "Washington state park"),
        ("tower (chess)", "tower (chess)"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        # names that become empty
        ("(1889)", ""),
        (" ,;", ""),
        ("x" * 251, ""),
    ],
)
def test_names_get_their_canonical_spelling(raw, canonical):
    assert RULES.canonical(raw) == canonical


@each_row(
    "name",
    [
        "Wikimedia category",
        "Wikimedia list article",
        "List of castles in Wales",
        "Q123456",
        "family name",
        "1889",
        "taxon",
    ],
)
def test_irrelevant_names_are_recognised(name):
    assert RULES.irrelevance(name)


def test_relevance_depends_on_whole_names_and_on_classes():
    for name in ("list building", "human settlement", "enlisted club", "Q-shaped tower", "tourist attraction"):
        assert RULES.irrelevance(name) is None
    assert RULES.irrelevance("Wikimedia-Kategorie", "Q4167836") == RULES.irrelevance("Wikimedia category")
    assert RULES.irrelevance("Kategorie", "Q41176") is None


fragments = st.sampled_from(
    ["church", "Turm", " ", "(", ")", "1889", "(1172-1954)", "(Rome)", "（", "’", "–", "\u0301", ",", "a"]
)
texts = st.one_of(st.text(max_size=40), st.lists(fragments, max_size=14).map("".join))


@given(texts)
@example("e(1889)\u0301")
@example("(1889(1889(1889)))")
@example("(" * 250)
def test_canonical_spelling_is_idempotent(raw):
    name = RULES.canonical(raw)
    assert RULES.canonical(name) == name
    assert name == unicodedata.normalize("NFC", name) == name.strip()
    assert "  " not in name
    assert name_key(name) == name_key(name.upper().lower()) or not name.isascii()
