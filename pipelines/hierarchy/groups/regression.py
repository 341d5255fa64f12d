"""The regression that assigns names to groups: one model for ``--into`` and for the review.

The model is a multinomial logistic regression over the joint evidence and the words of names. Its examples are rows
whose group is known: texts of predefined groups, mean rows of machine-made groups, and names that people decided.
"""

import warnings

import numpy as np
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from ..unit_rows import sums

# C of scikit-learn's regression; from 10 to 100 the accuracy is the same, from 10 to 30 also the measured effort
STRENGTH = 10.0
_UNSEEN = 1e-6  # probability of a group that has no examples
# The fit ends when the largest slope of the loss is below a limit: _FLAT, or a share of the slope at the start if that
# is lower. The more groups, the lower the slope at the start; with 150 groups it is below _FLAT already.
_FLAT, _OF_START = 1e-3, 0.2


def group_shares(rows: np.ndarray, examples: np.ndarray, groups: np.ndarray, count: int) -> np.ndarray:
    """Return the (N, K) probabilities of the groups of rows.

    Args:
        rows: (N, D) unit rows.
        examples: (E, D) unit rows; without examples, all groups are equally probable.
        groups: (E,) groups 0..K-1 of the examples.
        count: number of groups K.
    """
    shares = np.full((len(rows), count), _UNSEEN)
    if len(np.unique(groups)) == 1:
        shares[:, groups[0]] = 1
    elif len(groups):
        with threadpool_limits(limits=1), warnings.catch_warnings():
            # Scikit-learn warns of many groups with few examples, which is normal at the start.
            warnings.simplefilter("ignore", UserWarning)
            start = examples.mean(axis=0) / count - sums(examples, groups, count) / len(examples)
            flat = min(_FLAT, _OF_START * float(np.abs(start).max()))
            model = LogisticRegression(C=STRENGTH, tol=flat, max_iter=200).fit(examples, groups)
            shares[:, model.classes_] = np.maximum(model.predict_proba(rows), _UNSEEN)
    return shares / shares.sum(axis=1, keepdims=True)
