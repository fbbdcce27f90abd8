"""Samples and what is said of them."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence


def percentile(values: Sequence[float], share: float) -> float:
    """The nearest-rank percentile; of no values it is not a number."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, int(share * len(ordered) + 0.999999) - 1))]


def summary(values: Sequence[float]) -> Dict[str, Any]:
    return {
        "n": len(values),
        "min": min(values, default=float("nan")),
        "p50": percentile(values, 0.50),
        "p90": percentile(values, 0.90),
        "p99": percentile(values, 0.99),
        "max": max(values, default=float("nan")),
    }


class Recorder:
    """All samples of a run, in the order in which they were taken."""

    def __init__(self) -> None:
        self.rows: List[Dict[str, Any]] = []
        self.failures: List[Dict[str, str]] = []

    def add(self, program: str, figure: str, milliseconds: float, order: int = 0) -> None:
        self.rows.append({"program": program, "figure": figure, "ms": round(milliseconds, 4), "order": order})

    def fail(self, program: str, figure: str, why: str) -> None:
        self.failures.append({"program": program, "figure": figure, "why": why[:400]})

    def values(self, program: str, figure: str) -> List[float]:
        return [row["ms"] for row in self.rows if row["program"] == program and row["figure"] == figure]

    def programs(self) -> List[str]:
        out: List[str] = []
        for row in self.rows:
            if row["program"] not in out:
                out.append(row["program"])
        return out
