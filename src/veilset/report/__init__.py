"""From a run folder to one self-contained HTML page: a public one for the release, a fuller one for the owner."""

from veilset.report.build import write_reports

__all__ = ["write_reports"]
