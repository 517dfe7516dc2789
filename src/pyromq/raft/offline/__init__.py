"""Tools for the files of a raft node that does not run, or is not disturbed: check, dump.

files      find the directories of a node, and the end of its committed entries
check      verify every entry, its index unit and its record, and the small text files
dump       show the contents of a file
"""
