"""The model zoo: graphs as real exporters wrote them, with weights regrown from a seed."""
