"""What do saved records show? Tables and pages for people; nothing here runs a system."""

from reports.publish import write_report, write_table

__all__ = ["write_report", "write_table"]
