"""Tools for a store that no broker serves: check, compare, dump, rebuild."""
