"""Tables, pages and comparisons of saved runs; nothing here measures a system."""
