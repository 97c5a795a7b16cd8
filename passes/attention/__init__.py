"""Match attention with its masks and positions; window attention; rotary embedding."""
