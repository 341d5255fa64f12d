"""Protocols of retrieval benchmarks: queries and galleries, items left out of the ranking, and averages.

Leave-one-out (SOP, iNaturalist, CUB) and queries against a gallery (In-Shop) are :func:`hgld.evaluate` itself; the
benchmarks with rules of their own are here.
"""

from hgld.evaluation.protocols.benchmark import Benchmark as Benchmark
from hgld.evaluation.protocols.benchmark import EmbeddedSplit as EmbeddedSplit
from hgld.evaluation.protocols.benchmark import evaluate_protocol as evaluate_protocol
from hgld.evaluation.protocols.copydays import evaluate_copydays as evaluate_copydays
from hgld.evaluation.protocols.distractors import evaluate_with_distractors as evaluate_with_distractors
from hgld.evaluation.protocols.gldv2 import RetrievalSolution as RetrievalSolution
from hgld.evaluation.protocols.gldv2 import evaluate_gldv2 as evaluate_gldv2
from hgld.evaluation.protocols.gldv2 import read_retrieval_solution as read_retrieval_solution
from hgld.evaluation.protocols.gldv2 import read_submission as read_submission
from hgld.evaluation.protocols.gldv2 import retrieve as retrieve
from hgld.evaluation.protocols.gldv2 import score_submission as score_submission
from hgld.evaluation.protocols.gldv2 import write_submission as write_submission
from hgld.evaluation.protocols.holidays import evaluate_holidays as evaluate_holidays
from hgld.evaluation.protocols.in_shop import read_in_shop as read_in_shop
from hgld.evaluation.protocols.levels import average_over_levels as average_over_levels
from hgld.evaluation.protocols.revisited import RevisitedGroundTruth as RevisitedGroundTruth
from hgld.evaluation.protocols.revisited import evaluate_revisited as evaluate_revisited
from hgld.evaluation.protocols.revisited import read_revisited as read_revisited
from hgld.evaluation.protocols.ukbench import evaluate_ukbench as evaluate_ukbench
from hgld.evaluation.protocols.vehicle_id import evaluate_vehicle_id as evaluate_vehicle_id
from hgld.evaluation.protocols.vehicle_id import read_vehicle_list as read_vehicle_list

__all__ = [
    "Benchmark",
    "EmbeddedSplit",
    "RetrievalSolution",
    "RevisitedGroundTruth",
    "average_over_levels",
    "evaluate_copydays",
    "evaluate_gldv2",
    "evaluate_holidays",
    "evaluate_protocol",
    "evaluate_revisited",
    "evaluate_ukbench",
    "evaluate_vehicle_id",
    "evaluate_with_distractors",
    "read_in_shop",
    "read_retrieval_solution",
    "read_revisited",
    "read_submission",
    "read_vehicle_list",
    "retrieve",
    "score_submission",
    "write_submission",
]
