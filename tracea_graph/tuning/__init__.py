"""Search over driver configurations, and the persistent cache of what was found."""
