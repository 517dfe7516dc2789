"""Replicate the log within a group that elects its leader, compatible with DLedger 0.3.1.2.

The core is a pure state machine:

| module | what it does |
| --- | --- |
| `messages` | the bodies that nodes exchange, their codes, and the envelope around them |
| `ledger`, `log_ledger` | what the core needs from a log, and that of the log below |
| `member` | settings and state of one node, its roles, and the effects of a step |
| `election` | votes and heartbeats |
| `follower` | pushes from the leader |
| `dispatcher` | pushes to one follower |
| `leader` | proposals, watermarks and the commit index |
| `transfer` | hands leadership to another node |
| `core` | the state machine: requests, answers and time in, effects out |

The log has DLedger's files:

| module | what it does |
| --- | --- |
| `format` | the bytes of all files |
| `placement` | where the next entries go, the same on all nodes |
| `entry_files` | data and index files, mapped |
| `log` | appends, reads, truncation, expiry |
| `recovery` | makes the files consistent at a start |
| `flush` | fsyncs, and saves the checkpoint |
| `checkpoint_file`, `vote_file` | the small text files |

A node joins them:

| module | what it does |
| --- | --- |
| `network` | the bodies as bytes, connections to peers, and the port |
| `node` | core, log, vote file and network on one loop |
| `offline` | checks and shows the files of a node that does not run |

`broker.services.raft` makes a broker of it.
"""
