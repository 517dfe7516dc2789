"""Java conventions that formats depend on: fastjson, string hashes, property files, integers."""
