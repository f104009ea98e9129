"""Tables and pages of saved records; nothing here runs a system."""
