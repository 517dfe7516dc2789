"""Tools for store directories without a running broker: check, rebuild, truncate, dump.

    check           verify every rule of the store (`check_log`, `check_queues`, `check_extension`,
                    `check_index`, `check_files`; findings are `violation.Violation`)
    rebuild         rebuild consume queues and key index from the log, on one core
    log_parts       the same in parts, for Spark tasks
    compare         compare rebuilt files with existing ones
    truncate        cut the end of the log, after a backup (`truncate_plan`, `truncate_backup`,
                    `truncate_tables`)
    boundary        find the record boundary at or below an offset of the log
    raft_store      tell the store of a raft node, and find its entries
    dump            show the contents of store files

`check` and `dump` also work while a broker runs on the store.
"""
