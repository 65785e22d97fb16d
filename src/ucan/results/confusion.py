"""Whether answers look right under another order of the classes than the labels have."""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

# So many answers at least, or nothing is said; so large a share must be right under the other order.
ENOUGH, HIGH = 20, 0.7


def other_order(labels: np.ndarray, answers: np.ndarray) -> dict[int, int] | None:
    """For each label the class it is mostly answered with, where most labels have less than their share of right answers
    although a permutation of the classes makes most answers right; None where nothing looks wrong.
    """
    known = (labels >= 0) & (answers >= 0)
    labels, answers = labels[known], answers[known]
    if len(labels) < ENOUGH:
        return None
    count = int(max(labels.max(), answers.max())) + 1
    table = np.zeros((count, count), dtype=np.int64)
    np.add.at(table, (labels, answers), 1)
    seen = table.sum(1) > 0
    below = (np.diag(table) < table.sum(1) / count)[seen]
    rows, columns = linear_sum_assignment(table, maximize=True)
    if below.mean() <= 0.5 or table[rows, columns].sum() < HIGH * len(labels):
        return None
    return {int(a): int(b) for a, b in zip(rows, columns, strict=True) if seen[a] and a != b}
