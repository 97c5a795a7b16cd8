"""The model zoo: graphs as exporters wrote them, with weights regenerated from a seed."""
