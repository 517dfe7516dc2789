"""The commit log: segments, mapped files, allocation, commit, watermarks."""
