"""`pyromq doctor`: examine a machine, a store and running servers.

    finding       the result of a check
    machine       limits and settings of the kernel
    disk          file system, free room, latency of writes
    clocks        synchronisation, and the difference to a broker
    software      Python, uvloop, the compiled kernel
    settings      the broker's file, certificates, files of access control
    stores        the end of the log
    network       ports, and the registration with NameServers
    command       the command line

A check returns findings and never raises for what it examines. Nothing is changed, except for a
small file that is written to measure the disk, and removed.
"""
