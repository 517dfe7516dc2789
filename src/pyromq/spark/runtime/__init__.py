"""Sessions, the JVM and Python workers that jobs run on."""
