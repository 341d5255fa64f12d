"""Answers: the class of a query, as deep as its neighbours make it sure, by calibrated confidence."""

from hgld.prediction.calibration import CALIBRATION, Calibration, LevelRisk, calibrate
from hgld.prediction.predict import Answer, Answers, predict

__all__ = ["CALIBRATION", "Answer", "Answers", "Calibration", "LevelRisk", "calibrate", "predict"]
