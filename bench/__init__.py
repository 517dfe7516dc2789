"""The benchmark: Apache RocketMQ 4.9.7 and pyromq under the same load (`make bench`)."""
