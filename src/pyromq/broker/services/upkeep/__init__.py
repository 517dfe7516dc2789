"""Services that watch the broker itself: protection, self-checks, log lines about its state."""
