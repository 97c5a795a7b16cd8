"""Backend-independent kernel calls and programs, and one package per backend."""
