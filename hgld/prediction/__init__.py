"""Predictions: the class of a query at the finest level that its gallery neighbours support, with a confidence."""

from hgld.prediction.calibration import CALIBRATION, Calibration, LevelRisk, calibrate
from hgld.prediction.predict import Answer, Answers, predict

__all__ = ["CALIBRATION", "Answer", "Answers", "Calibration", "LevelRisk", "calibrate", "predict"]
