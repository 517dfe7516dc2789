"""Replicate the log within a group that elects its leader, compatible with DLedger 0.3.1.2.

| module | what it does |
| --- | --- |
| `messages` | the bodies that nodes exchange, their codes, and the envelope around them |
| `ledger` | what the core needs from a log |
| `member` | settings and state of one node, its roles, and the effects of a step |
| `election` | votes and heartbeats |
| `follower` | pushes from the leader |
| `dispatcher` | pushes to one follower |
| `leader` | proposals, watermarks and the commit index |
| `transfer` | hands leadership to another node |
| `core` | the state machine: requests, answers and time in, effects out |

No broker uses this package yet.
"""
