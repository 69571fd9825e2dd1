"""Progress of a whole evaluation: one bar shows all of it, whatever it consists of."""

from __future__ import annotations

from veilset.engines.contexts import Progress


class UnitCount:
    """Counts units of work: an image through an extractor, an epoch or another part of a fit, a metric."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def __call__(self, message: str, units: int = 0) -> None:
        self.done += units
        if self.progress is not None:
            self.progress(message, self.done, self.total)
