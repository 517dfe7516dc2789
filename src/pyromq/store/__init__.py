"""The storage engine: commit log, consume queues, key index. Knows nothing of the network.

Entry points for other packages:
- `message_store`: a live store, with `retention`, `growth` and `flush` for the broker that runs
  it. `queues.consume_queue` is the type of queue that it hands out.
- `offline`: check, compare, dump and rebuild a store that no broker serves.
- `results` and `config`: outcomes, errors and settings.

Inside, `chunk` gathers puts and writes them to `log` and `queues`; `index.lane` builds the key
index from the log; `recovery` runs once, before a store accepts messages.
"""
