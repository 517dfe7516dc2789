"""SQL over topics: tables, statements, output."""
