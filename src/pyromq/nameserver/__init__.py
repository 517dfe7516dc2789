"""The NameServer: brokers register here and clients ask here where a topic lives."""
