"""Backups of a store, also of one that a broker is writing to, and their restoration.

    manifest        the file `backup.json` that completes a backup
    repository      a directory of backups: names, lock, leftovers of killed runs
    source          what to copy from a live store: tables, queue ends, the end of the log
    copying         copy files with checksums, at a limited rate
    making          make a backup: `back_up`
    verifying       read a backup again and compare it with its manifest
    restoring       turn a backup into a store: `restore_backup`

Each backup is a directory that holds everything. Full segments of the log that an earlier backup
has already are hard links to its files, so any other backup can be removed at any time.
"""
