"""All that happens between clients and server."""
