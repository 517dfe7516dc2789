"""Java's habits that bytes depend on: fastjson, string hashes, property files, integers."""
