"""The clients against real brokers: pyromq's, Apache's 4.9.7 and, for the core, Apache's 5.3.3.

A package, so that one broker of each kind serves all modules (fixtures of scope `package`).
"""
