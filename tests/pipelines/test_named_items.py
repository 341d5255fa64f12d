"""Names of anything looked up in a local Wikidata: what they mean, the classes above, stops, errors and the plan."""

from dataclasses import replace

import polars as pl
import pytest

from hgld.errors import ConfigError
from hgld.pipelines.hierarchy.config import ScrapeConfig
from hgld.pipelines.hierarchy.names.class_graph import ClassGraph
from hgld.pipelines.hierarchy.names.classes import Item
from hgld.pipelines.hierarchy.scrape.named_items import find_classes, label_key
from hgld.pipelines.hierarchy.scrape.scrape import polite_client
from hgld.pipelines.hierarchy.scrape.wikidata import Called, items_called
from hgld.pipelines.stage import silent
from tests.pipelines.test_wikidata import Canned
from tests.pipelines.wikimedia_server import Wiki, WikimediaServer, api_error, status

URL = "http://127.0.0.1/w/api.php"


def world() -> Wiki:
    """Every way a name can lead to an item, or fail to."""
    wiki = Wiki()
    wiki.item("Q1", "entity")
    wiki.item("Q2", "vehicle", P279=["Q1"])
    wiki.item("Q3", {"en": "ship", "de": "Schiff"}, aliases=["vessel"], P279=["Q2"])
    wiki.item("Q4", "container ship", P279=["Q3"])
    wiki.item("Q5", "Container Ship", P31=["Q99"])  # a song of that name: no class
    wiki.item("Q6", "crane", P279=["Q2"])
    wiki.item("Q7", "crane", P279=["Q8"])
    wiki.item("Q8", "bird", P279=["Q1"])
    wiki.item("Q9", "crane fly", P279=["Q1"])
    wiki.item("Q10", "mercury", P31=["Q4167410"])  # disambiguation
    wiki.item("Q11", "Titanic", P31=["Q12"])
    wiki.item("Q12", "ocean liner", aliases=["liner"], P279=["Q14"])
    wiki.entities["Q14"] = {"redirect": "Q3"}
    wiki.item("Q15", "liner (eyes)", aliases=["vessel"], P31=["Q99"])
    wiki.item("Q99", "song", P279=["Q1"])
    return wiki


NAMES = ["Container_Ship", "crane", "mercury", "titanic", "vessel", "liner", "zebra", "Schiff", "container  ship"]


def items(*names, language=None):
    return [Item(line, f"i{line}", name, language=language) for line, name in enumerate(names, 1)]


class Seeker:
    """Looks names up with a client that does not wait."""

    def __init__(self, tmp_path, server, **options):
        self.root, self.server, self.options = tmp_path / "stages", server, options

    def config(self, **options):
        config = ScrapeConfig(commons_url=self.server.url, wikidata_url=self.server.url, rate=10_000, timeout=5)
        return replace(config, **self.options, **options)

    def find(self, names=NAMES, language=None, **options):
        client = polite_client(self.config(**options))
        client._sleep = lambda seconds: None
        return find_classes(self.root, self.config(**options), silent, items(*names, language=language), client=client)


@pytest.fixture
def server():
    with WikimediaServer(world()) as server:
        yield server


def meant(known, names=NAMES):
    return {name: (known.of.get(f"i{i}"), known.how[f"i{i}"]) for i, name in enumerate(names, 1)}


def test_names_mean_the_class_of_that_label_then_of_that_alias(tmp_path, server):
    known = Seeker(tmp_path, server).find()
    assert meant(known) == {
        "Container_Ship": ("Q4", "label"),  # the class before the song
        "container  ship": ("Q4", "label"),
        "crane": (None, "several-meanings"),
        "mercury": (None, "no-item"),
        "titanic": ("Q11", "label"),  # no class of that name, one item
        "vessel": ("Q3", "alias"),
        "liner": ("Q12", "alias"),
        "zebra": (None, "no-item"),
        "Schiff": (None, "no-item"),  # in English
    }
    assert known.details["i2"] == "Q6 Q7"
    assert known.notes == (
        "Wikidata has items for 5 of 9 names: 3 label, 3 no-item, 2 alias, 1 several-meanings.",
        "names without an item: mercury, zebra, Schiff.",
        "names that may mean several items, and so have none: crane.",
    )
    assert Seeker(tmp_path / "de", server).find(["Schiff"], language="de").of == {"i1": "Q3"}
    seeker = Seeker(tmp_path / "said", server)
    found = find_classes(seeker.root, seeker.config(), silent, items("Schiff"), language="de")
    assert found.of == {"i1": "Q3"}


def test_the_graph_goes_up_by_p279_and_from_what_is_no_class_by_p31(tmp_path, server):
    known = Seeker(tmp_path, server).find()
    known.graph.write_parquet(tmp_path / "classes.parquet")
    graph = ClassGraph.read(tmp_path / "classes.parquet")
    assert graph.ancestors("Q4") == {"Q3": 1, "Q2": 2, "Q1": 3}
    assert graph.path("Q11", "Q2") == ("Q11", "Q12", "Q3", "Q2")  # an instance, then classes, one of them merged
    assert graph.label("Q11") == "Titanic"
    assert not {"Q99", "Q6", "Q8"} & set(graph.ids)  # above nothing that a name means


def test_nothing_is_asked_twice_and_a_stopped_run_goes_on_to_the_same_answer(tmp_path, server):
    whole = Seeker(tmp_path / "whole", server).find()
    asked = len(server.log)
    assert sorted(server.asked("search")) == sorted({label_key(i, "en").partition(":")[2] for i in items(*NAMES)})
    assert all("Promise-Non-Write-API-Action" not in one.headers for one in server.log)
    server.log.clear()
    seeker = Seeker(tmp_path / "parts", server)
    known = None
    while known is None:
        before = len(server.log)
        try:
            known = seeker.find(request_budget=2)
        except ConfigError as error:
            assert "the budget of 2 requests is spent" in str(error)  # noqa: PT017
            assert len(server.log) == before + 2
    assert len(server.log) == asked
    assert (known.of, known.how, known.key) == (whole.of, whole.how, whole.key)
    assert known.graph.equals(whole.graph)
    server.log.clear()
    assert seeker.find().key == whole.key
    assert server.log == []


def test_errors_are_kept_by_name_and_asked_for_again_on_demand(tmp_path, server):
    server.faults += [status(503), api_error("badvalue")]
    seeker = Seeker(tmp_path, server, retries=1)
    names = ["crane fly", "ship", "bird"]
    known = seeker.find(names)
    assert meant(known, names) == {
        "crane fly": (None, "error(http-503)"),
        "ship": (None, "error(api-badvalue)"),
        "bird": ("Q8", "label"),
    }
    assert known.notes[-1] == "some names ended in an error; --retry-errors asks for them again."
    server.log.clear()
    assert seeker.find(names).how == known.how
    assert server.log == []
    again = seeker.find(names, retry_errors=True)
    assert meant(again, names)["ship"] == ("Q3", "label")
    assert sorted(server.asked("search")) == ["crane fly", "ship"]


def test_an_item_that_fails_may_be_the_one_that_is_meant(tmp_path, server):
    seeker = Seeker(tmp_path, server, retries=1)
    with pytest.raises(ConfigError, match="budget of 1 requests is spent"):
        seeker.find(["container ship"], request_budget=1)  # the search alone
    server.faults += [status(503), status(503)]  # both items together, and the first of them alone
    known = seeker.find(["container ship"])
    assert meant(known, ["container ship"]) == {"container ship": (None, "error(http-503)")}
    assert meant(seeker.find(["container ship"], retry_errors=True), ["container ship"]) == {
        "container ship": ("Q4", "label")
    }


@pytest.mark.parametrize(
    "raw",
    [
        {"id": "Q42", "match": {"type": "entityId", "text": "Q42"}},
        {"id": "P31", "match": {"type": "label", "text": "x"}},
        {"id": "Q2", "match": {"type": "label", "text": "xy"}},
        {"id": "Q2", "match": {"type": "label"}},
        {"id": "Q2", "match": []},
        {"id": 2},
        "Q2",
    ],
)
def test_only_items_that_are_called_so_are_taken(raw):
    good = {"id": "Q1", "match": {"type": "alias", "language": "en", "text": "X"}}
    assert items_called(Canned({"search": [raw, good, good]}), URL, "x", "en") == Called((), ("Q1",))


def test_matches_say_what_a_name_may_mean(tmp_path, server):
    known = Seeker(tmp_path, server).find()
    table = known.matches(items(*NAMES))
    assert table.filter(pl.col("how") == "several-meanings").select("name", "class_id", "detail").rows() == [
        ("crane", None, "Q6 Q7")
    ]
