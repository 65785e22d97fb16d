"""Numbers about a service, in the text format that Prometheus reads."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable

# Upper ends of the classes of a latency, in seconds.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """Counters, gauges and one histogram; several threads may write to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._help: dict[str, tuple[str, str]] = {}
        self._counts: dict[str, dict[str, float]] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        self._seconds: list[int] = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def counter(self, name: str, text: str) -> None:
        """Declare a counter."""
        self._help[name] = ("counter", text)
        self._counts[name] = {}

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """Declare a number that is read when it is asked for."""
        self._help[name] = ("gauge", text)
        self._gauges[name] = read

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        """Count something."""
        key = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        with self._lock:
            known = self._counts[name]
            known[key] = known.get(key, 0) + amount

    def observe(self, seconds: float) -> None:
        """One answer took so long."""
        with self._lock:
            self._seconds[bisect.bisect_left(BUCKETS, seconds)] += 1
            self._sum += seconds

    def text(self) -> str:
        """All of them, in Prometheus's text format."""
        lines: list[str] = []
        with self._lock:
            for name, (kind, text) in self._help.items():
                lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
                if kind == "gauge":
                    lines.append(f"{name} {_shown(self._gauges[name]())}")
                    continue
                known = self._counts[name] or {"": 0}
                lines += [f"{name}{f'{{{key}}}' if key else ''} {_shown(value)}" for key, value in known.items()]
            lines += self._histogram()
        return "\n".join(lines) + "\n"

    def _histogram(self) -> list[str]:
        name, total = "ucan_answer_seconds", 0
        lines = [f"# HELP {name} Seconds from a whole request to its answer.", f"# TYPE {name} histogram"]
        for end, count in zip((*map(repr, BUCKETS), "+Inf"), self._seconds, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{end}"}} {total}')
        return [*lines, f"{name}_sum {_shown(self._sum)}", f"{name}_count {total}"]


def _shown(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
