"""TLS: settings, certificates, and the layer between a socket and a server's protocol."""
