"""Access control: accounts and their permissions, signatures, verdicts, and the audit log.

`files` reads the YAML files into `rules`; `reload` keeps them current; `signature` verifies who
sent a request; `classification` knows what each request needs; `validation` puts these together to
a verdict. Brokers and NameServers call it; nothing here knows a socket or a store.
"""
