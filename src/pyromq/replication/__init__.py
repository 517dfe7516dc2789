"""Ship the log from a master to its replicas, in Java's wire format and in our own.

| module | what it does |
| --- | --- |
| `wire` | the bytes of both formats |
| `master` | serves replicas, and decides which of their reports acknowledge messages |
| `feeder` | one replica's connection on the master's side |
| `acknowledged` | the gate at which the responses of a SYNC_MASTER wait |
| `replica` | follows a master: connects, negotiates, appends, reports |
| `link` | one connection to a master |
| `divergence` | finds out whether, and from where on, two logs differ |
| `java_master` | what can be checked before following a master that does not negotiate |

Knows no broker. Everything runs on the loop, except for reads of cold pages.
"""
