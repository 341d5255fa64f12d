"""Which options each loss takes, for the command line and for the checks of a config; imports nothing heavy."""

_SUP = frozenset({"tau", "rho", "delta"})
_BINARY = frozenset({"level", "sum_levels"})
_SECOND = frozenset({"lambda_", "decomposability", "proxy_temperature", "pair_positive", "pair_negative"})
_RECALL = frozenset({"recall_at", "recall_temperature"})
_MEMORY = frozenset({"memory", "memory_from_epoch", "memory_weight"})
_RANK = _MEMORY | {"simix"}
_WEIGHTED = _BINARY | _RANK | {"class_weights"}

TAKEN: dict[str, frozenset[str]] = {
    "HAPPIER": _SUP | _SECOND | _RANK | {"alpha", "relevance"},
    "RODNDCG": _SUP | _SECOND | _RANK,
    "ROADMAP": _SUP | _SECOND | _RANK | _BINARY,
    "RODRecall": _SUP | _SECOND | _RANK | _BINARY | _RECALL,
    "SupHAP": _SUP | _RANK | {"alpha", "relevance"},
    "SmoothHAP": _RANK | {"tau", "alpha", "relevance"},
    "SupNDCG": _SUP | _RANK,
    "SupAP": _SUP | _WEIGHTED,
    "SmoothAP": _WEIGHTED | {"tau"},
    "SupRecall": _SUP | _WEIGHTED | _RECALL,
    "SmoothRecall": _WEIGHTED | _RECALL | {"tau"},
    "SoftBinAP": _WEIGHTED | {"bins"},
    "FastAP": _WEIGHTED | {"bins"},
    "BlackboxAP": _WEIGHTED | {"blackbox_lambda", "blackbox_margin"},
    "PNP": _WEIGHTED | {"pnp", "pnp_b", "alpha", "tau"},
    "CSL": frozenset({"csl_margins", "csl_scale"}),
    "NormSoftmax": _BINARY | {"proxy_temperature"},
    "ProxyNCApp": _BINARY | {"proxy_temperature"},
    "Triplet": _BINARY | _MEMORY | {"margin"},
    "Contrastive": _BINARY | _MEMORY | {"margin", "contrastive"},
    "Margin": _BINARY | {"margin", "beta"},
    "MultiGrain": frozenset({"level", "lambda_", "margin", "beta"}),
    "CalibrationLoss": _BINARY | _MEMORY | {"pair_positive", "pair_negative"},
}

COMPOSITIONS = {"HAPPIER": "SupHAP", "RODNDCG": "SupNDCG", "ROADMAP": "SupAP", "RODRecall": "SupRecall"}
"""The losses of two terms, and the rank loss that is the first."""

WITH_PROXIES = frozenset({"CSL", "NormSoftmax", "ProxyNCApp", "MultiGrain", "Margin"})
"""Losses with parameters of their own, whatever their options."""
