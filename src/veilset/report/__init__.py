"""From run folders to self-contained HTML pages: one to share, a fuller one for the owner, and comparisons of runs."""

from veilset.report.build import write_reports
from veilset.report.compare import compare_runs
from veilset.report.compare_page import write_comparison

__all__ = ["compare_runs", "write_comparison", "write_reports"]
