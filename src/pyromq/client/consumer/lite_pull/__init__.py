"""The lite pull consumer: `poll` messages that were read ahead."""
