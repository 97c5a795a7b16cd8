"""Attention: its spellings, masks, rotary embedding, windows."""
