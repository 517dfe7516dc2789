"""Tools for store directories without a running broker: check, compare, dump, rebuild.

    check           verify every rule of the store (`check_log`, `check_queues`, `check_extension`,
                    `check_index`, `check_files`; findings are `violation.Violation`)
    rebuild         rebuild consume queues and key index from the log, on one core
    log_parts       the same in parts, for Spark tasks
    compare         compare rebuilt files with existing ones
    dump            show the contents of store files

`check` and `dump` also work while a broker runs on the store.
"""
