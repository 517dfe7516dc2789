"""Make a store consistent before it serves: find the end of the log, rebuild what is missing.

`recovery.recover` is the entry point; its head lists the five steps. The files, from the top down:

    recovery        the steps, and the consume queues' side of them
    walk            reads the log front to back, in pieces of 4 MiB
    piece           decides which records of a piece are valid, with or without the kernel
    piece_helper    examines the pieces of a long log on two cores, without the kernel
    piece_process   the second process of `piece_helper`
    dispatch        builds consume-queue entries from records, and appends the missing ones
    queue_damage    detects damaged queues cheaply; reads the tables of topics and deletions

`store.offline` uses `walk`, `piece` and `dispatch` for checks and rebuilds.
"""
