"""Pages, charts, tables and bars."""
