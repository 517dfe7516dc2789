"""Work of the broker besides serving requests: delivery, checks, registration, flow control."""
